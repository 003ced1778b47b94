"""The one thing processes do together: each hands in a tensor and gets those of all."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from orderdp.errors import ConfigError

__all__ = ["Exchange", "ProcessGroupExchange", "find_exchange"]


@runtime_checkable
class Exchange(Protocol):
    """A group of processes, seen from one of them.

    Attributes:
        rank: Which one this is, from 0.
        world: How many there are.
    """

    rank: int
    world: int

    def gather_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        """What every rank handed in, in order of rank. A collective; all tensors have the same length."""
        ...


class ProcessGroupExchange:
    """An exchange over torch.distributed.

    Args:
        group: A process group, or None for all processes.
    """

    def __init__(self, group: Any = None) -> None:
        self.rank: int = dist.get_rank(group)
        self.world: int = dist.get_world_size(group)
        self._group = group
        self._device = _device_of(str(dist.get_backend(group)))

    def gather_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        """What every rank handed in, in order of rank, on the CPU."""
        values = values.to(self._device)
        parts = [torch.empty_like(values) for _ in range(self.world)]
        dist.all_gather(parts, values, group=self._group)
        return [part.cpu() for part in parts]

    def sum_all(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of what every rank handed in, on the CPU."""
        total = values.to(self._device, copy=True)
        dist.all_reduce(total, group=self._group)
        return total.cpu()

    def swap_all(self, parts: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        """Hands a part to each rank and gives back what each has for this one, `sizes` long, on the CPU."""
        given = torch.cat(parts).to(self._device)
        received = torch.empty(sum(sizes), dtype=given.dtype, device=self._device)
        dist.all_to_all_single(received, given, sizes, [len(part) for part in parts], group=self._group)
        return list(torch.split(received.cpu(), sizes))


def find_exchange(process_group: Any) -> Exchange | None:
    """The group that is in use at this moment; None where there is none or it has one process."""
    if isinstance(process_group, Exchange):
        return process_group if process_group.world > 1 else None
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if process_group is not None and dist.get_rank(process_group) < 0:
        raise ConfigError(
            "process_group must be a group that this process belongs to, and it does not. "
            "Give each process the data-parallel group it is in."
        )
    return ProcessGroupExchange(process_group) if dist.get_world_size(process_group) > 1 else None


def _device_of(backend: str) -> torch.device:
    """Where a backend wants its tensors: on the CPU wherever that is possible, since the draw happens there."""
    on_device = {"nccl": "cuda", "xccl": "xpu", "hccl": "npu"}
    if "gloo" in backend or "mpi" in backend:
        return torch.device("cpu")
    for name, kind in on_device.items():
        if name in backend:
            return torch.device(kind, getattr(torch, kind).current_device())
    return torch.device("cpu")
