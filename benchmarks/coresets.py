"""Every static method at 10,000 and at 50,000 samples of 512 features: time, growth, and memory above the features.

Ten classes, half of the samples pruned, class-balanced budgets. The data are planted clusters; the proxy is a small
network trained for ten epochs on them, once, and its time is a line of its own. Each method then runs in a fresh
process that finds the proxy's recordings on disk, so its memory is its own: the high-water mark of the process above
what it had when the features had been read.

One thread each: where others share the cores, small products of several threads wait for the one that is not let in.

Takes about half an hour, so it runs only where it is named: ``python -m benchmarks coresets``, or ``coresets-10k`` for
the smaller size alone. ``coresets-unbalanced`` runs the methods that compare samples with each other on 50,000 samples
as one group, where no kernel fits.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.timing import Goal, judged

SIZES = (10_000, 50_000)
_MOST_BYTES = 2e9


def coresets() -> Iterator[dict[str, Any]]:
    """A line for each method and size, the second with how the time has grown."""
    yield from _measured(SIZES)


def coresets_10k() -> Iterator[dict[str, Any]]:
    """The smaller size alone."""
    yield from _measured(SIZES[:1])


def coresets_unbalanced() -> Iterator[dict[str, Any]]:
    """One budget for all classes, at the larger size."""
    with TemporaryDirectory() as cache:
        _probe(cache, "proxy", SIZES[1])
        for name in ("k-center", "contextual-diversity", "herding", "graph-cut", "facility-location", "craig"):
            found = _probe(cache, name, SIZES[1], "all")
            what = f"{name}, balanced=False, n = {SIZES[1]:,}, 512 features, half pruned."
            yield _line(name, what, found)


def _measured(sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    from orderdp.coresets import NAMES

    before: dict[str, float | None] = {}
    for n in sizes:
        with TemporaryDirectory() as cache:
            for name in ("proxy", *(name for name in NAMES if name != "own-scores")):
                found = _probe(cache, name, n)
                line = _line(name, f"{name}, n = {n:,}, 512 features, half pruned.", found)
                yield {**line, **_growth(before.get(name), found, sizes)}
                before[name] = found.get("cpu_seconds")


def _line(name: str, what: str, found: dict[str, Any]) -> dict[str, Any]:
    if "failed" in found:
        return {"benchmark": f"coresets-{name}", "what": what, **found}
    return {
        "benchmark": f"coresets-{name}",
        "what": what,
        "seconds": round(found["seconds"], 3),
        "cpu_seconds": round(found["cpu_seconds"], 3),
        "megabytes_above_features": round(found["bytes"] / 1e6),
        **judged(found["bytes"], Goal("<=", _MOST_BYTES)),
    }


def _growth(earlier: float | None, found: dict[str, Any], sizes: tuple[int, ...]) -> dict[str, float]:
    """The power of n by which the CPU time has grown."""
    if earlier is None or "cpu_seconds" not in found:
        return {}
    return {"grows_like_n_to_the": round(math.log(found["cpu_seconds"] / earlier) / math.log(sizes[1] / sizes[0]), 2)}


def _probe(cache: str, name: str, n: int, *budgets: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.coresets_probe", cache, name, str(n), *budgets]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env={**os.environ, **one_thread})
    return json.loads(done.stdout) if done.returncode == 0 else {"failed": done.returncode}
