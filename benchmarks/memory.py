"""Bytes a sample that a Pruner keeps between epochs, and that it needs at the peak of a draw.

OrderDP 0.8 x 0.75 at 10^7 samples, through the public interface: an epoch is drawn by ``iter(batch_sampler)``, trained
to its end by ``update``, and drawn again. Everything is measured twice:

- counted: the sizes of all arrays and tensors that can be reached from the pruner; at the peak of a draw, with the
  peak of what numpy allocates during it, as it reports to tracemalloc (torch allocates nothing there);
- resident: growth of the process's resident memory, and of its high-water mark, without tracemalloc.

Each runs in a fresh process that does nothing else; the resident bytes come from /proc, so from Linux. A goal is judged
by the counted bytes, to a hundredth of a byte. The resident ones contain 1 to 2 MB that do not grow with the number of
samples: 0.2 bytes a sample at 10^7, less than 0.05 at 4 * 10^7.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.timing import Goal, judged

SAMPLES = 10**7

_LINES = {
    "kept": ("Bytes a sample held after an epoch was trained to its end", Goal("<=", 8)),
    "peak-first": ("Bytes a sample at the peak of the first draw, all scores tied", Goal("<=", 24)),
    "peak-later": ("Bytes a sample at the peak of a later draw", Goal("<=", 24)),
}


def memory() -> Iterator[dict[str, Any]]:
    """One line for what is kept and two for the peaks."""
    counted, resident = _probe("counted"), _probe("resident")
    for name, (what, goal) in _LINES.items():
        measured = round(counted[name] / SAMPLES, 2)
        yield {
            "benchmark": f"memory-{name}",
            "what": f"{what}, n = {SAMPLES:,}, 0.8 x 0.75.",
            "bytes_a_sample": measured,
            "resident_bytes_a_sample": round(resident[name] / SAMPLES, 2),
            **judged(measured, goal),
        }


def _probe(way: str) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.memory_probe", way, str(SAMPLES)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed)
