"""Runs one static method in a process of its own and prints its seconds, CPU seconds and bytes, as JSON.

``python -m benchmarks.coresets_probe CACHE METHOD N [all]``; the method "proxy" trains and records for the others.
With "all" there is one budget for all classes.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.process import status
from orderdp import coresets

_WIDTH, _CLASSES, _CLUSTERS = 512, 10, 100


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Planted clusters, ten to a class, with one label in twenty wrong."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((_CLUSTERS, _WIDTH), dtype=np.float32)
    cluster = rng.integers(0, _CLUSTERS, n)
    x = centers[cluster] + 2 * rng.standard_normal((n, _WIDTH), dtype=np.float32)
    y = np.where(rng.random(n) < 0.05, rng.integers(0, _CLASSES, n), cluster % _CLASSES)
    return torch.from_numpy(x), torch.from_numpy(y)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _CLASSES))


def measure(cache: str, name: str, n: int, *, balanced: bool = True) -> dict[str, Any]:
    """Seconds and bytes of one method, with what it needs recorded beforehand."""
    proxy = coresets.Proxy(net, data(n), cache=cache, lr=0.01)
    if name == "proxy":
        before, clock = status("VmRSS"), _Clock()
        proxy.features()
        return {**clock.spent(), "bytes": _high_water(before)}
    method = coresets.build(name, balanced=balanced)
    _record(proxy, method.needs)
    held = np.array(proxy.features())  # what the limit does not count
    gc.collect()
    before, clock = status("VmRSS"), _Clock()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the high-water mark
    selection = method.select(proxy, 0.5, seed=0)
    spent = clock.spent()
    assert len(selection) == n // 2
    assert len(held) == n
    return {**spent, "bytes": _high_water(before)}


class _Clock:
    """Two clocks: on a machine shared with others the second one is the steadier."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def spent(self) -> dict[str, float]:
        """Since it was made."""
        return {"seconds": time.perf_counter() - self._wall, "cpu_seconds": time.process_time() - self._cpu}


def _record(proxy: coresets.Proxy, needs: coresets.Needs) -> None:
    moments = proxy.checkpoints() if needs.every_epoch else [needs.epoch]
    for epoch in moments:
        if needs.features:
            proxy.features(epoch)
        if needs.logits:
            proxy.logits(epoch)


def _high_water(before: int) -> int:
    return max(0, status("VmHWM") - before)


if __name__ == "__main__":
    cache, name, n, *budgets = sys.argv[1:]
    print(json.dumps(measure(cache, name, int(n), balanced=budgets != ["all"])))
