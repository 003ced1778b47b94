"""Torch itself: what stays out of compiled graphs, and its global random generators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import torch

__all__ = ["GlobalGenerators", "outside_graphs"]


_Method = TypeVar("_Method", bound=Callable[..., Any])


def outside_graphs(method: _Method) -> _Method:
    """Keeps a method out of `torch.compile`, which would trace the bookkeeping and guard on its counters.

    The compiler is asked to keep out only while it is tracing: loading it takes as long as loading torch, and most
    loops do without.
    """

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **kwargs)  # type: ignore[no-untyped-call]
        return method(*args, **kwargs)

    return cast("_Method", guarded)


class GlobalGenerators(NamedTuple):
    """Their states.

    Attributes:
        host: Of the generator of the CPU.
        device: Of that of the device; None where the device is the CPU, or where nothing is known of it.
    """

    host: torch.Tensor
    device: torch.Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> GlobalGenerators:
        """As they are."""
        own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        return cls(torch.get_rng_state(), own)

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> GlobalGenerators:
        """As a seed makes them; the same draws as after ``torch.manual_seed``."""
        own = None if device.type == "cpu" else torch.Generator(device).manual_seed(seed).get_state()
        return cls(torch.Generator().manual_seed(seed).get_state(), own)

    def from_checkpoint(self, host: torch.Tensor, device: torch.Tensor | None) -> GlobalGenerators:
        """Those of a checkpoint; of the device these, where the checkpoint is older or was made on the CPU."""
        return GlobalGenerators(host, self.device if device is None else device)

    @contextmanager
    def used(self, device: torch.device) -> Iterator[None]:
        """Inside, drawing goes on from these states; afterwards the generators are as they were."""
        before = GlobalGenerators.now(device)
        self._put_in(device)
        try:
            yield
        finally:
            before._put_in(device)

    def _put_in(self, device: torch.device) -> None:
        torch.set_rng_state(self.host)
        if device.type != "cpu" and self.device is not None:
            torch.get_device_module(device).set_rng_state(self.device, device)
