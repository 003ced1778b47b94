"""Trains one epoch at some number of samples in a process of its own and prints the bytes it took, as JSON.

``python -m benchmarks.memory_probe counted|resident N``
"""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Protocol

import numpy as np
import torch

from benchmarks.process import status
from orderdp import OrderDP, Pruner

_BATCH = 8192
_POLICY = OrderDP(exploration=0.8, exploitation=0.75)


class Meter(Protocol):
    """Some way of measuring bytes."""

    def kept(self, pruner: Pruner) -> int:
        """What the pruner holds now."""
        ...

    def peak_of_draw(self, pruner: Pruner) -> int:
        """What it holds at most while it draws the next epoch."""
        ...


class Counted:
    """By the sizes of arrays and tensors, and by what numpy says it allocates."""

    def kept(self, pruner: Pruner) -> int:
        """Every buffer once."""
        return sum(_buffers_of(pruner).values())

    def peak_of_draw(self, pruner: Pruner) -> int:
        """What is held before the draw, and what numpy allocates for it."""
        before = self.kept(pruner)
        tracemalloc.start()
        iter(pruner.batch_sampler(_BATCH))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return before + peak


class Resident:
    """By the memory of the whole process, above what it had before there was a pruner."""

    def __init__(self) -> None:
        _train_an_epoch(Pruner(_POLICY, 10 * _BATCH))  # loads what is loaded once
        self._before = self._now()

    def kept(self, pruner: Pruner) -> int:
        """What the process has grown by."""
        return self._now() - self._before

    def peak_of_draw(self, pruner: Pruner) -> int:
        """The high-water mark of the draw alone."""
        Path("/proc/self/clear_refs").write_text("5")  # forgets the high-water mark
        iter(pruner.batch_sampler(_BATCH))
        return status("VmHWM") - self._before

    def _now(self) -> int:
        gc.collect()
        return status("VmRSS")


def measure(meter: Meter, n: int) -> dict[str, int]:
    """Bytes kept after an epoch, and at the peak of the draws before and after it."""
    pruner = Pruner(_POLICY, n)
    peak_of_first = meter.peak_of_draw(pruner)
    _train_an_epoch(pruner)
    kept = meter.kept(pruner)
    return {"kept": kept, "peak-first": peak_of_first, "peak-later": meter.peak_of_draw(pruner)}


def _train_an_epoch(pruner: Pruner) -> None:
    begun = pruner.epoch
    for batch in pruner.batch_sampler(_BATCH):
        pruner.update(torch.tensor(batch), torch.rand(len(batch)))
    assert pruner.epoch == begun + 1


def _buffers_of(owner: object) -> dict[int, int]:
    """The size of every array and tensor that can be reached from `owner`, by address."""
    return {address: size for held in _reachable(owner) for address, size in _buffer(held)}


def _buffer(held: object) -> Iterator[tuple[int, int]]:
    if isinstance(held, torch.Tensor):
        storage = held.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(held, np.ndarray):
        while isinstance(held.base, np.ndarray):
            held = held.base
        yield held.ctypes.data, held.nbytes


def _reachable(owner: object) -> Iterator[object]:
    seen: set[int] = set()
    waiting = [owner]
    while waiting:
        held = waiting.pop()
        # Through a class or a function one would reach the whole interpreter.
        if id(held) in seen or isinstance(held, type | ModuleType | FunctionType | MethodType):
            continue
        seen.add(id(held))
        yield held
        waiting += gc.get_referents(held)


if __name__ == "__main__":
    way, n = sys.argv[1:]
    print(json.dumps(measure({"counted": Counted, "resident": Resident}[way](), int(n))))
