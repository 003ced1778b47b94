"""Draws at 10^6 to 10^9 samples, in one process and on 64 simulated ranks; and one part of a draw at 10^11.

``make bench-scale``. OrderDP 0.8 x 0.75 through `Pruner(..., table="sharded")`, each size in a fresh process that does
nothing else. Seconds are processor time, because the machine may be busy with other things; bytes are the growth of
the process's resident memory at its highest, everything included: scores, counts, pool, selection, visiting order.

The 64 ranks are threads of one process that sum and swap through memory, so that every rank does what it would do on a
machine of its own, but the network. Their seconds are each thread's own processor time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.timing import Goal, judged

SIZES = [10**6, 10**7, 10**8, 10**9]
RANKS = 64


def scale() -> Iterator[dict[str, Any]]:
    """A line for each size, one for how flat they are, one for the ranks, one for the parts at 10^11."""
    found = {}
    for n in SIZES:
        found[n] = _probe("draw", n)
        per_sample = round(found[n]["peak_bytes"] / n, 2)
        # What does not grow with the number of samples, some megabytes, shows in the small ones.
        goal = judged(per_sample, Goal("<=", 6)) if n == max(SIZES) else {}
        yield {"benchmark": "scale-draw", "samples": n, **found[n], "bytes_a_sample": per_sample, **goal}
    for draw in ("first", "later"):
        times = [found[n][f"{draw}_ns"] for n in SIZES]
        flat = round(max(times) / min(times), 2)
        what = f"Slowest over fastest time a sample, 10^6 to 10^9, {draw} draw."
        yield {"benchmark": f"scale-flat-{draw}", "what": what, "ratio": flat, **judged(flat, Goal("<=", 3))}
    together = _probe("ranks", SIZES[-1], RANKS)
    same = together.pop("digest") == found[SIZES[-1]]["digest"]
    yield {"benchmark": "scale-ranks", "samples": SIZES[-1], **together, "same_as_one_process": same}
    yield {"benchmark": "scale-parts", "samples": 10**11, **_probe("parts", 10**11)}


def _probe(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale_probe", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
