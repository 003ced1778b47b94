"""Facility location, maximised greedily: every sample is served by the most similar one that was picked."""

from __future__ import annotations

import numpy as np

from orderdp.coresets.blocks import Kernel, dense_kernel, row_blocks
from orderdp.coresets.greedy import lazy_greedy, stochastic_greedy

__all__ = ["FITS", "cluster_sizes", "maximise_coverage"]

#: The largest kernel, in bytes, that is held as a whole. Above, rows are computed when they are needed.
FITS = 1 << 30


def maximise_coverage(
    kernel: Kernel, count: int, rng: np.random.Generator, *, fits: int = FITS, eps: float = 0.01
) -> np.ndarray:
    """`count` places that make the sum over all samples of their largest similarity to a pick large.

    Where the kernel fits, the picks of plain greedy, found lazily: at least 1 - 1/e of the best. Where it does not,
    stochastic greedy: at least 1 - 1/e - eps of the best, on average.
    """
    if 4 * kernel.n**2 <= fits:
        return lazy_greedy(_Coverage(_Dense(kernel), start=True), count)
    return stochastic_greedy(_Coverage(kernel, start=False), count, rng, eps)


def cluster_sizes(kernel: Kernel, picks: np.ndarray) -> np.ndarray:
    """How many samples each pick serves; a pick serves itself, and of equals the earlier pick serves."""
    served_by = np.empty(kernel.n, dtype=np.int64)
    best = np.full(kernel.n, -np.inf, dtype=np.float32)
    for part in row_blocks(kernel.n, len(picks)):
        rows = kernel.rows(picks[part])
        nearest = rows.argmax(0)
        better = rows[nearest, np.arange(kernel.n)] > best
        served_by[better] = part.start + nearest[better]
        best[better] = rows[nearest, np.arange(kernel.n)][better]
    served_by[picks] = np.arange(len(picks))
    return np.bincount(served_by, minlength=len(picks))


class _Dense:
    """A kernel that is held as a whole."""

    def __init__(self, kernel: Kernel) -> None:
        self._whole = dense_kernel(kernel)
        self.n = kernel.n

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Looked up."""
        return np.asarray(self._whole[places])


class _Coverage:
    """How well each sample is served so far."""

    def __init__(self, kernel: Kernel, *, start: bool) -> None:
        self._kernel = kernel
        self._served = np.zeros(kernel.n, dtype=np.float32)
        self.bounds = np.full(kernel.n, np.inf)
        if start:
            for part in row_blocks(kernel.n):
                self.bounds[part] = self.gains(np.arange(part.start, part.stop))

    def gains(self, places: np.ndarray) -> np.ndarray:
        """What each of these adds: the sum of max(0, similarity - what there is)."""
        gains = np.empty(len(places))
        for part in row_blocks(self._kernel.n, len(places)):
            rows = self._kernel.rows(places[part])
            rows -= self._served
            gains[part] = np.maximum(rows, 0, out=rows).sum(1, dtype=np.float64)
        return gains

    def take(self, place: int) -> None:
        """Everybody may now be served by `place`."""
        np.maximum(self._served, self._kernel.rows(np.array([place]))[0], out=self._served)
