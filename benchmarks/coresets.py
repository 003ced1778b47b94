"""Every static method at 10,000 and at 50,000 samples of 512 features: seconds, growth, and memory above the features.

Ten classes, half of the samples pruned, class-balanced budgets. The data are planted clusters; the proxy is a small
network trained for ten epochs on them, once, and its time is a line of its own. Each method then runs in a fresh
process that finds the proxy's recordings on disk, so its memory is its own: the high-water mark of the process above
what it had when the features had been read.

One thread each: where others share the cores, small products of several threads wait for the one that is not let in.

Takes about an hour, so it runs only where it is named: ``python -m benchmarks coresets``, or ``coresets-10k`` for the
smaller half of it.
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


def _measured(sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    from orderdp.coresets import NAMES

    before: dict[str, float] = {}
    for n in sizes:
        with TemporaryDirectory() as cache:
            for name in ("proxy", *(name for name in NAMES if name != "own-scores")):
                found = _probe(cache, name, n)
                if "failed" in found:
                    yield {"benchmark": f"coresets-{name}", "n": n, **found}
                    continue
                yield {
                    "benchmark": f"coresets-{name}",
                    "what": f"{name}, n = {n:,}, 512 features, half pruned.",
                    "seconds": round(found["seconds"], 3),
                    "megabytes_above_features": round(found["bytes"] / 1e6),
                    **_growth(before.get(name), found["seconds"], sizes),
                    **judged(found["bytes"], Goal("<=", _MOST_BYTES)),
                }
                before[name] = found["seconds"]


def _growth(earlier: float | None, now: float, sizes: tuple[int, ...]) -> dict[str, float]:
    """The power of n by which the time has grown."""
    if earlier is None:
        return {}
    return {"grows_like_n_to_the": round(math.log(now / earlier) / math.log(sizes[1] / sizes[0]), 2)}


def _probe(cache: str, name: str, n: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.coresets_probe", cache, name, str(n)]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env={**os.environ, **one_thread})
    return json.loads(done.stdout) if done.returncode == 0 else {"failed": done.returncode}
