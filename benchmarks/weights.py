"""All weights gamma_j of a design as large as ImageNet, against scipy's vectorized hypergeometric distribution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.draw import IMAGENET
from benchmarks.timing import Goal, speedup, take_turns
from orderdp.theory import weights as gamma


def weights() -> Iterator[dict[str, Any]]:
    """The whole curve, 0.8 x 0.75."""
    n = IMAGENET
    s = round(0.8 * n)
    q = round(0.75 * s)
    ranks = np.arange(1, n + 1)
    seconds = take_turns(
        {
            "ours": lambda: gamma(n, s, q),
            "theirs": lambda: s / n * stats.hypergeom.cdf(q - 1, n - 1, ranks - 1, s - 1),
        },
        rounds=5,
    )
    yield {
        "benchmark": "weights",
        "what": f"gamma_j for all ranks, n = {n:,}, 0.8 x 0.75, against scipy.stats.hypergeom.cdf.",
        **speedup(seconds["ours"], seconds["theirs"], Goal(">=", 50)),
    }
