"""Coresets that maximize a submodular function: facility location, graph cut, CRAIG."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp._validation import check_ratio
from orderdp.coresets.base import (
    CosineKernel,
    Gradients,
    Group,
    Kernel,
    Method,
    Task,
    Weighted,
    dense_kernel,
    lazy_greedy,
    row_blocks,
    stochastic_greedy,
    unit_rows,
)
from orderdp.coresets.sources import Requirements
from orderdp.errors import ConfigError
from orderdp.policy import Selection

__all__ = [
    "FITS",
    "Craig",
    "FacilityLocation",
    "GradientKernel",
    "GraphCut",
    "cluster_sizes",
    "cut",
    "maximize_coverage",
]


#: Maximum size in bytes of a kernel that is held as a whole. Rows of a larger one are computed on demand.
FITS = 1 << 30


def maximize_coverage(
    kernel: Kernel, count: int, rng: np.random.Generator, *, fits: int = FITS, eps: float = 0.01
) -> np.ndarray:
    """Select `count` positions that maximize the sum over all samples of the largest similarity to a selected one.

    If the kernel fits, the selection is that of plain greedy, found lazily: at least 1 - 1/e of the optimum. If it does
    not, stochastic greedy: at least 1 - 1/e - eps of the optimum, on average.
    """
    if 4 * kernel.n**2 <= fits:
        return lazy_greedy(_Coverage(_Dense(kernel), start=True), count)
    return stochastic_greedy(_Coverage(kernel, start=False), count, rng, eps)


def cluster_sizes(kernel: Kernel, picks: np.ndarray) -> np.ndarray:
    """Number of samples nearest to each selected one, which counts for itself; ties go to the earlier one."""
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
    """Kernel that is held as a whole."""

    def __init__(self, kernel: Kernel) -> None:
        self._whole = dense_kernel(kernel)
        self.n = kernel.n

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Look up rows."""
        return np.asarray(self._whole[positions])


class _Coverage:
    """Largest similarity of each sample to the selected ones so far."""

    def __init__(self, kernel: Kernel, *, start: bool) -> None:
        self._kernel = kernel
        self._served = np.zeros(kernel.n, dtype=np.float32)
        self.bounds = np.full(kernel.n, np.inf)
        if start:
            for part in row_blocks(kernel.n):
                self.bounds[part] = self.gains(np.arange(part.start, part.stop))

    def gains(self, positions: np.ndarray) -> np.ndarray:
        """Gain of each of these samples: the sum of max(0, similarity - current coverage)."""
        gains = np.empty(len(positions))
        for part in row_blocks(self._kernel.n, len(positions)):
            rows = self._kernel.rows(positions[part])
            rows -= self._served
            gains[part] = np.maximum(rows, 0, out=rows).sum(1, dtype=np.float64)
        return gains

    def take(self, position: int) -> None:
        """Add a selected sample to the coverage."""
        np.maximum(self._served, self._kernel.rows(np.array([position]))[0], out=self._served)


@dataclass(frozen=True, kw_only=True)
class FacilityLocation(Method):
    """Greedy facility location with similarity 0.5 + 0.5 cos.

    Args:
        eps: How far below 1 - 1/e the guarantee may fall for groups whose kernel does not fit in memory.
    """

    eps: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("eps", self.eps, zero_allowed=False)

    @property
    def needs(self) -> Requirements:
        """Features."""
        return Requirements(features=True)

    def choose(self, task: Task) -> Selection:
        """Run greedy in each group, in that order."""
        features = task.source.features()

        def picks(group: Group) -> np.ndarray:
            kernel = CosineKernel(features[group.members])
            return maximize_coverage(kernel, group.count, task.rng(group.name), eps=self.eps)

        return task.select_from(picks)


def cut(features: np.ndarray, count: int, trade_off: float) -> np.ndarray:
    """`count` positions: each step selects the largest trade_off * (similarity to all) - 2 * (similarity to selected).

    The similarity is 0.5 + 0.5 cos, so a sum of similarities is a product with a sum of directions, and no kernel is
    needed. Plain greedy: each step lowers all gains by a similar amount, so lazy greedy would evaluate all of them
    anyway. On a tie the lowest position.
    """
    directions = unit_rows(features)
    to_all = 0.5 * (len(directions) + directions @ directions.sum(0, dtype=np.float64))
    gains, picks = trade_off * to_all, np.empty(count, dtype=np.int64)
    for step in range(count):
        best = int(gains.argmax())
        picks[step] = best
        gains -= 1 + directions @ directions[best]
        gains[best] = -np.inf
    return picks


@dataclass(frozen=True, kw_only=True)
class GraphCut(Method):
    """Greedy graph cut with similarity 0.5 + 0.5 cos.

    Args:
        trade_off: Weight of the similarity to all samples against the similarity to selected ones (lambda). From 2 on,
            selecting more samples never lowers the objective.
    """

    trade_off: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.trade_off, int | float) and 0 <= self.trade_off < float("inf")):
            raise ConfigError(f"trade_off must be a number, at least 0, got {self.trade_off!r}.")

    @property
    def needs(self) -> Requirements:
        """Features."""
        return Requirements(features=True)

    def choose(self, task: Task) -> Selection:
        """Run greedy in each group, in that order."""
        features = task.source.features()
        return task.select_from(lambda group: cut(features[group.members], group.count, self.trade_off))


class GradientKernel:
    """A constant minus the distance between last-layer gradients; the constant is at least the largest distance."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._squares = gradients.squared_norms()
        self._constant = np.float32(2 * np.sqrt(self._squares.max()))

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self._gradients)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all."""
        found = self._gradients[positions].inner(self._gradients)
        np.subtract(self._squares[positions][:, None] + self._squares, 2 * found, out=found)
        np.sqrt(np.maximum(found, 0, out=found), out=found)
        np.subtract(self._constant, found, out=found)
        # The similarity of a sample to itself is the maximum, whatever rounding gives.
        found[np.arange(len(positions)), positions] = self._constant
        return np.asarray(np.maximum(found, 0, out=found))


@dataclass(frozen=True, kw_only=True)
class Craig(Method):
    """Facility location on last-layer gradients; the weights are the cluster sizes.

    Args:
        eps: How far below 1 - 1/e the guarantee may fall for groups whose kernel does not fit in memory.
    """

    eps: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("eps", self.eps, zero_allowed=False)

    @property
    def needs(self) -> Requirements:
        """Features and logits."""
        return Requirements(features=True, logits=True, labels=True)

    def choose(self, task: Task) -> Selection:
        """Run greedy in each group, in that order; the selection has weights."""
        source, labels = task.source, task.labels
        features, logits = source.features(), source.logits()

        def picks(group: Group) -> Weighted:
            own = group.members
            kernel = GradientKernel(Gradients.of(features[own], logits[own], labels[own]))
            positions = maximize_coverage(kernel, group.count, task.rng(group.name), eps=self.eps)
            return Weighted(positions, cluster_sizes(kernel, positions).astype(np.float64))

        return task.pick_weighted(picks)
