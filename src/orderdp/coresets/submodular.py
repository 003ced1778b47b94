"""Coresets that maximize a submodular function: facility location, graph cut, CRAIG."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp._validation import check_ratio
from orderdp.coresets._arrays import (
    CosineKernel,
    Gradients,
    Kernel,
    dense_kernel,
    lazy_greedy,
    row_blocks,
    stochastic_greedy,
    unit_rows,
)
from orderdp.coresets.base import Group, Method, Requirements, Task, Weighted
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
    "maximise_coverage",
]


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
        """Greedy in each group, in that order."""
        features = task.source.features()

        def picks(group: Group) -> np.ndarray:
            kernel = CosineKernel(features[group.members])
            return maximise_coverage(kernel, group.count, task.rng(group.name), eps=self.eps)

        return task.select_from(picks)


def cut(features: np.ndarray, count: int, trade_off: float) -> np.ndarray:
    """`count` places: each time the largest trade_off * (similarity to all) - 2 * (similarity to those picked).

    The similarity is 0.5 + 0.5 cos, so a sum of similarities is a product with a sum of directions, and no kernel is
    needed. Plain greedy: each pick lowers all gains by about as much, so lazy greedy would look at all of them anyway.
    Of equals the lowest place.
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
        trade_off: How much likeness to all counts against likeness to those picked (lambda). From 2 on, picking more
            never makes the objective smaller.
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
        """Greedy in each group, in that order."""
        features = task.source.features()
        return task.select_from(lambda group: cut(features[group.members], group.count, self.trade_off))


class GradientKernel:
    """A constant less the distance between last-layer gradients; the constant is no smaller than any distance."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._squares = gradients.squared_norms()
        self._constant = np.float32(2 * np.sqrt(self._squares.max()))

    @property
    def n(self) -> int:
        """How many samples."""
        return len(self._gradients)

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all."""
        found = self._gradients[places].inner(self._gradients)
        np.subtract(self._squares[places][:, None] + self._squares, 2 * found, out=found)
        np.sqrt(np.maximum(found, 0, out=found), out=found)
        np.subtract(self._constant, found, out=found)
        # A sample is as near to itself as can be, whatever rounding says.
        found[np.arange(len(places)), places] = self._constant
        return np.asarray(np.maximum(found, 0, out=found))


@dataclass(frozen=True, kw_only=True)
class Craig(Method):
    """Facility location on last-layer gradients; weights are the sizes of the clusters.

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
        """Greedy in each group, in that order, with weights."""
        source, labels = task.source, task.labels
        features, logits = source.features(), source.logits()

        def picks(group: Group) -> Weighted:
            own = group.members
            kernel = GradientKernel(Gradients.of(features[own], logits[own], labels[own]))
            places = maximise_coverage(kernel, group.count, task.rng(group.name), eps=self.eps)
            return Weighted(places, cluster_sizes(kernel, places).astype(np.float64))

        return task.pick_weighted(picks)
