"""Helpers for torch: keeping code out of compiled graphs, and the global random generators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import torch

__all__ = ["GlobalGenerators", "outside_graphs"]


_Method = TypeVar("_Method", bound=Callable[..., Any])


def outside_graphs(method: _Method) -> _Method:
    """Keep a method out of `torch.compile`, which would trace the bookkeeping and guard on its counters.

    `torch.compiler.disable` is called only while tracing: importing the compiler takes as long as importing torch, and
    most loops do not need it.
    """

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **kwargs)  # type: ignore[no-untyped-call]
        return method(*args, **kwargs)

    return cast("_Method", guarded)


class GlobalGenerators(NamedTuple):
    """The states of the global random generators.

    Attributes:
        host: State of the CPU generator.
        device: State of the device generator; None if the device is the CPU, or if it is unknown.
    """

    host: torch.Tensor
    device: torch.Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> GlobalGenerators:
        """Return the current states."""
        own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        return cls(torch.get_rng_state(), own)

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> GlobalGenerators:
        """Return the states for a seed; the same draws as after ``torch.manual_seed``."""
        own = None if device.type == "cpu" else torch.Generator(device).manual_seed(seed).get_state()
        return cls(torch.Generator().manual_seed(seed).get_state(), own)

    def from_checkpoint(self, host: torch.Tensor, device: torch.Tensor | None) -> GlobalGenerators:
        """Return the states of a checkpoint; with this device state if it has none (older, or made on the CPU)."""
        return GlobalGenerators(host, self.device if device is None else device)

    @contextmanager
    def used(self, device: torch.device) -> Iterator[None]:
        """Use these states inside the context; restore the generators afterwards."""
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
