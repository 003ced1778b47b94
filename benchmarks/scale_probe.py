"""Draws at some number of samples in a process of its own and prints what it took, as JSON.

``python -m benchmarks.scale_probe draw N | ranks N WORLD | parts N``
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.process import status
from benchmarks.scale_ranks import ThreadRank, in_threads
from orderdp import OrderDP, Pruner
from orderdp import _draw as kernels
from orderdp._draw import fair_hash, generator
from orderdp.distributed.sharded import ShardedOrder

_POLICY = OrderDP(exploration=0.8, exploitation=0.75)
_CHUNK = 1 << 16
_VISITED = 5_000_000


def draw(n: int) -> dict[str, Any]:
    """Time a sample of the first draw and of a later one, of visiting, and the highest memory."""
    _run(None, 100_000)  # loads what is loaded once
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the high-water mark
    found = _run(None, n)
    return {**found, "peak_bytes": status("VmHWM") - before}


def ranks(n: int, world: int) -> dict[str, Any]:
    """The same on `world` ranks at once: what one of them takes at most, and what it exchanges."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    found = in_threads(world, lambda rank: _run(rank, n))
    total = {"digest": sum(part.pop("digest") for part in found) % (1 << 64), "kept": sum(p.pop("kept") for p in found)}
    most = {f"most_{name}": max(part[name] for part in found) for name in found[0]}
    return {"ranks": world, **total, **most, "peak_bytes_a_rank": (status("VmHWM") - before) // world}


def parts(n: int) -> dict[str, Any]:
    """What every rank does for all samples and not only for its own: how a pool falls on blocks."""
    start = time.process_time()
    counts = kernels._counts(n, round(0.8 * n), generator(0, "pool"))
    seconds = time.process_time() - start
    return {"blocks": len(counts), "counting_seconds": round(seconds, 3), "counting_bytes": 2 * counts.nbytes}


def _run(rank: ThreadRank | None, n: int) -> dict[str, Any]:
    clock = time.process_time if rank is None else time.thread_time
    pruner = Pruner(_POLICY, n, seed=0, table="sharded", process_group=rank)
    first = _timed(pruner, clock)
    batch = next(iter(pruner.batch_sampler(1000)))
    pruner.update(torch.tensor(batch), _losses(np.array(batch)))
    pruner.end_epoch()
    _observe_all(pruner)
    later = _timed(pruner, clock)
    epoch = pruner._manager.order
    assert isinstance(epoch, ShardedOrder)
    visiting = _visiting(epoch, clock)
    report, own = pruner.report(), len(pruner.local_indices)
    found = {
        "first_seconds": round(first, 2),
        "later_seconds": round(later, 2),
        "first_ns": round(first / own * 1e9, 1),
        "later_ns": round(later / own * 1e9, 1),
        "visit_ns": round(visiting, 1),
        "kept": len(epoch.order),
        "digest": _digest(epoch),
    }
    if rank is not None:
        found |= {name: report[name] for name in ("selection_bytes", "moved_picks", "moved_bytes")}
        found |= {"calls": len(rank.asked), "returned_bytes": report["returned_bytes"]}
    return found


def _timed(pruner: Pruner, clock: Any) -> float:
    start = clock()
    iter(pruner.sampler)
    return float(clock() - start)


def _observe_all(pruner: Pruner) -> None:
    local_indices = pruner.local_indices
    for start in range(local_indices.start, local_indices.stop, _CHUNK):
        index = np.arange(start, min(start + _CHUNK, local_indices.stop))
        pruner.observe(torch.from_numpy(index), _losses(index))


def _losses(index: np.ndarray) -> torch.Tensor:
    """A loss for each sample that any rank can make; hardly two alike."""
    return torch.from_numpy((fair_hash(index, 17) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 21))


def _visiting(epoch: ShardedOrder, clock: Any) -> float:
    """Nanoseconds for each sample handed out as a batch of Python numbers."""
    start, most = clock(), min(_VISITED, epoch.each)
    for at in range(0, most, 1000):
        epoch.batch(at * epoch.world, 1000)
    return float(clock() - start) / most * 1e9


def _digest(epoch: ShardedOrder) -> int:
    """A number for the samples of an epoch that adds up over ranks, however they are sharded."""
    own, total = epoch.order.own, 0
    for start in range(0, len(own.words), _CHUNK):
        words = own.words[start : start + _CHUNK]
        total += int((words * fair_hash(np.arange(len(words)) + own.first_word + start, 23)).sum(dtype=np.uint64))
    remote = epoch.order.remote
    bits = np.uint64(1) << (remote % 64).astype(np.uint64)
    return (total + int((bits * fair_hash(remote // 64, 23)).sum(dtype=np.uint64))) % (1 << 64)


if __name__ == "__main__":
    torch.set_num_threads(1)
    threading.stack_size(1 << 20)
    what, *numbers = sys.argv[1:]
    print(json.dumps({"draw": draw, "ranks": ranks, "parts": parts}[what](*map(int, numbers))))
