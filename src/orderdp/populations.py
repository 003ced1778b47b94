"""How a uniform pool falls on blocks, for any number of samples.

Numpy's hypergeometric sampler ends at 10^9. Beyond that the counts come from independent coin tosses, one for each
sample in effect, and an exact correction: the set that n tosses leave is uniform among all sets of its size, and stays
so when uniformly chosen members are taken out or others put in until the size is right.
"""

from __future__ import annotations

import numpy as np

__all__ = ["counts_by_block"]

# Numpy's own sampler refuses larger populations.
_MOST_FOR_NUMPY = 10**9 - 1


def counts_by_block(widths: np.ndarray, s: int, rng: np.random.Generator) -> np.ndarray:
    """How many of a uniform pool of `s` fall on each block; multivariate hypergeometric.

    Args:
        widths: Samples in each block, int64.
        s: Size of the pool.
        rng: Where chance comes from.
    """
    if int(widths.sum()) <= _MOST_FOR_NUMPY:
        return rng.multivariate_hypergeometric(widths, s, method="marginals")
    return _tossed(widths, s, rng)


def _tossed(widths: np.ndarray, s: int, rng: np.random.Generator) -> np.ndarray:
    """The same by tosses and a correction of about the square root of the population."""
    counts: np.ndarray = rng.binomial(widths, s / int(widths.sum())).astype(np.int64)
    surplus = int(counts.sum()) - s
    if surplus > 0:
        counts -= _few(counts, surplus, rng)
    elif surplus < 0:
        counts += _few(widths - counts, -surplus, rng)
    return counts


def _few(widths: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """How many of `count` distinct members, drawn one by one, fall on each block."""
    ends = np.cumsum(widths)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        # Drawn in turn and kept when new: the first `count` different ones are a uniform set.
        more = rng.integers(0, int(ends[-1]), count - len(drawn))
        together = np.concatenate((drawn, more))
        _, first = np.unique(together, return_index=True)
        drawn = together[np.sort(first)]
    return np.bincount(np.searchsorted(ends, drawn, side="right"), minlength=len(widths))
