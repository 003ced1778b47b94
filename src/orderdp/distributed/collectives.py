"""Collectives: gather, sum and swap between ranks, on any process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist

from orderdp.errors import ConfigError, GroupError

__all__ = ["Collectives", "Exchange", "ProcessGroupExchange", "find_exchange"]


@runtime_checkable
class Exchange(Protocol):
    """A process group as one rank sees it.

    Attributes:
        rank: This process, from 0.
        world: Number of processes.
    """

    rank: int
    world: int

    def gather_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Gather `values` of every rank, in order of rank. A collective; all tensors have the same length."""
        ...


class ProcessGroupExchange:
    """Exchange over ``torch.distributed``.

    Args:
        group: A process group, or None for the default group.
    """

    def __init__(self, group: Any = None) -> None:
        self.rank: int = dist.get_rank(group)
        self.world: int = dist.get_world_size(group)
        self._group = group
        self._device = _device_of(str(dist.get_backend(group)))

    def gather_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Gather `values` of every rank, in order of rank, on the CPU."""
        values = values.to(self._device)
        parts = [torch.empty_like(values) for _ in range(self.world)]
        dist.all_gather(parts, values, group=self._group)
        return [part.cpu() for part in parts]

    def sum_all(self, values: torch.Tensor) -> torch.Tensor:
        """Sum `values` over all ranks, on the CPU."""
        total = values.to(self._device, copy=True)
        dist.all_reduce(total, group=self._group)
        return total.cpu()

    def swap_all(self, parts: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        """Send one part to each rank; return what each rank sends to this one, of lengths `sizes`, on the CPU."""
        given = torch.cat(parts).to(self._device)
        received = torch.empty(sum(sizes), dtype=given.dtype, device=self._device)
        dist.all_to_all_single(received, given, sizes, [len(part) for part in parts], group=self._group)
        return list(torch.split(received.cpu(), sizes))


def find_exchange(process_group: Any) -> Exchange | None:
    """Return the process group in use; None without a group or if it has one process."""
    if isinstance(process_group, Exchange):
        return process_group if process_group.world > 1 else None
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if process_group is not None and dist.get_rank(process_group) < 0:
        raise ConfigError(
            "process_group must be a group that contains this process, got one that does not. Pass each process its "
            "own data-parallel group."
        )
    return ProcessGroupExchange(process_group) if dist.get_world_size(process_group) > 1 else None


def _device_of(backend: str) -> torch.device:
    """Device on which a backend wants its tensors: the CPU if possible, because the draw runs there."""
    on_device = {"nccl": "cuda", "xccl": "xpu", "hccl": "npu"}
    if "gloo" in backend or "mpi" in backend:
        return torch.device("cpu")
    for name, kind in on_device.items():
        if name in backend:
            return torch.device(kind, getattr(torch, kind).current_device())
    return torch.device("cpu")


_Result = TypeVar("_Result")


_Message = TypeVar("_Message", bound=tuple[int, ...])


class Collectives:
    """Collectives between ranks; with one process they return their input.

    Every collective of the library goes through here, so a missing rank is one error.

    Args:
        exchange: The process group; None for one process.
        epoch: The current epoch, for errors.

    Attributes:
        sent: Bytes sent so far.
        received: Bytes received so far.
    """

    def __init__(self, exchange: Exchange | None = None, epoch: int = 0) -> None:
        self.rank = 0 if exchange is None else exchange.rank
        self.world = 1 if exchange is None else exchange.world
        self.sent = self.received = 0
        self._exchange = exchange
        self._epoch = epoch

    def gather_messages(self, message: _Message) -> list[_Message]:
        """Gather a message of every rank, in order of rank. One collective.

        Args:
            message: A named tuple of whole numbers below 2**63.
        """
        kind: Any = type(message)
        return [kind(*row.tolist()) for row in self.gather_all(np.array(message, dtype=np.int64))]

    def gather_texts(self, text: str) -> list[str]:
        """Gather a text of every rank, in order of rank. Two collectives."""
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        lengths = [int(length) for (length,) in self.gather_all(np.array([len(data)]))]
        padded = np.zeros(max(1, *lengths), dtype=np.uint8)
        padded[: len(data)] = data
        gathered = self.gather_all(padded)
        return [part[:length].tobytes().decode() for part, length in zip(gathered, lengths, strict=True)]

    def gather_all(self, values: np.ndarray) -> list[np.ndarray]:
        """Gather arrays of equal length, in order of rank."""
        exchange = self._exchange
        if exchange is None:
            return [values]
        parts = self._asked("all_gather", lambda: exchange.gather_all(torch.from_numpy(values)))
        self._count(values.nbytes, sum(part.nbytes for part in parts))
        return [part.numpy() for part in parts]

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Gather arrays of equal length, one row per rank."""
        return np.stack(self.gather_all(values))

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum int64 arrays of equal length over all ranks."""
        exchange = self._exchange
        if exchange is None:
            return values
        mine = torch.from_numpy(values)
        reduce: Callable[[torch.Tensor], torch.Tensor] | None = getattr(exchange, "sum_all", None)
        if reduce is None:
            return np.asarray(self.gather(values).sum(axis=0))
        total = self._asked("all_reduce", lambda: reduce(mine))
        self._count(values.nbytes, values.nbytes)
        summed: np.ndarray = total.numpy()
        return summed

    def swap(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        """Send bytes to each rank and return the bytes that each rank sends here.

        Args:
            parts: uint8 arrays, one per rank.
            sizes: Number of bytes that each rank sends here.
        """
        exchange = self._exchange
        if exchange is None:
            return list(parts)
        given = [torch.from_numpy(np.ascontiguousarray(part)) for part in parts]
        swap: Any = getattr(exchange, "swap_all", None) or _swap_by_gathering(exchange)
        received: list[torch.Tensor] = self._asked("all_to_all", lambda: swap(given, list(sizes)))
        self._count(sum(part.nbytes for part in given), sum(part.nbytes for part in received))
        return [part.numpy() for part in received]

    def _count(self, sent: int, received: int) -> None:
        self.sent += sent
        self.received += received

    def _asked(self, name: str, ask: Callable[[], _Result]) -> _Result:
        try:
            return ask()
        except RuntimeError as error:
            raise GroupError(
                f"{name} failed on rank {self.rank} of {self.world} at epoch {self._epoch}: {error}. Another rank has "
                "exited or skipped iter(loader) or sync()."
            ) from error


def _swap_by_gathering(exchange: Exchange) -> Callable[[list[torch.Tensor], list[int]], list[torch.Tensor]]:
    """Swap for groups that can only gather: every rank gets all padded data and slices out its own part."""

    def swap(parts: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        lengths = torch.tensor([len(part) for part in parts])
        by_rank = exchange.gather_all(lengths)
        most = max(int(row.sum()) for row in by_rank)
        mine = torch.zeros(most, dtype=torch.uint8)
        together = torch.cat(parts)
        mine[: len(together)] = together
        gathered = exchange.gather_all(mine) if most else [mine] * exchange.world
        starts = [int(row[: exchange.rank].sum()) for row in by_rank]
        return [part[at : at + size] for part, at, size in zip(gathered, starts, sizes, strict=True)]

    return swap
