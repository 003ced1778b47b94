"""Coresets by distances and similarities of features: k-center, herding, prototypes, submodular functions, ..."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from orderdp._draw import generator
from orderdp._validation import check_ratio, checked_name, is_count
from orderdp.coresets.base import (
    CosineKernel,
    Divergence,
    Gradients,
    Group,
    Kernel,
    Method,
    ScoreMethod,
    Task,
    Weighted,
    centered,
    checked_scores,
    class_members,
    dense_kernel,
    even_budgets,
    lazy_greedy,
    row_blocks,
    sklearn,
    squared_euclidean,
    stochastic_greedy,
    symmetric_kl,
    unit_rows,
)
from orderdp.coresets.scores import EL2N, Forgetting, GraNd, PrecomputedScores
from orderdp.coresets.sources import FeatureSource, Requirements
from orderdp.errors import ConfigError
from orderdp.policy import Selection

__all__ = [
    "CCS",
    "FITS",
    "ContextualDiversity",
    "Craig",
    "FacilityLocation",
    "GradientKernel",
    "GraphCut",
    "Herding",
    "KCenter",
    "Moderate",
    "Prototypes",
    "StaticRandom",
    "cluster_sizes",
    "cut",
    "distances_to_class_median",
    "distances_to_prototypes",
    "farthest_first",
    "herd",
    "maximize_coverage",
    "middle",
    "stratified",
]


@dataclass(frozen=True, kw_only=True)
class StaticRandom(Method):
    """Keep a uniform random subset of the data set, or of each class. The baseline for all other methods."""

    def choose(self, task: Task) -> Selection:
        """Draw uniformly without replacement."""
        drawn = task.select_from(
            lambda group: task.rng(group.name).choice(len(group.members), group.count, replace=False)
        )
        return Selection(np.sort(drawn.indices))


#: Number of centers that are collected before the distances of all samples are updated, in one matrix product.
_PENDING = 64


def farthest_first(divergence: Divergence, count: int, start: int) -> np.ndarray:
    """`count` positions: `start`, then always the one farthest from all before; on a tie the lowest position.

    The selection is that of the naive algorithm. Distances to the nearest selected sample only fall, so the last known
    ones are bounds, and most samples need not be evaluated again (see `lazy_greedy`).
    """
    cover = _Cover(divergence, start)
    return np.concatenate(([start], lazy_greedy(cover, count - 1))).astype(np.int64)


class _Cover:
    """Upper bound of each sample's distance to the nearest selected sample."""

    def __init__(self, divergence: Divergence, start: int) -> None:
        self._divergence = divergence
        self._pending = [start]
        self.bounds = np.full(len(divergence.own), np.inf, dtype=np.float32)
        self.bounds[start] = -np.inf
        self._tell_all()

    def gains(self, positions: np.ndarray) -> np.ndarray:
        """Distance of these samples to the nearest selected sample."""
        if not self._pending:
            return np.asarray(self.bounds[positions])
        nearest = self._divergence.between(positions, np.array(self._pending)).min(1)
        return np.asarray(np.minimum(self.bounds[positions], nearest))

    def take(self, position: int) -> None:
        """Add a selected sample."""
        self._pending.append(position)
        if len(self._pending) == _PENDING:
            self._tell_all()

    def _tell_all(self) -> None:
        centers = np.array(self._pending)
        for part in row_blocks(len(self.bounds)):
            nearest = self._divergence.between(part, centers).min(1)
            np.minimum(self.bounds[part], nearest, out=self.bounds[part])
        self._pending = []


@dataclass(frozen=True, kw_only=True)
class KCenter(Method):
    """Farthest-first on features from a random start: the largest gap is at most twice the smallest possible."""

    @property
    def needs(self) -> Requirements:
        """Features."""
        return Requirements(features=True)

    def choose(self, task: Task) -> Selection:
        """Farthest-first in each group, in that order."""
        features = task.source.features()

        def picks(group: Group) -> np.ndarray:
            start = int(task.rng(group.name).integers(len(group.members)))
            return farthest_first(squared_euclidean(features[group.members]), group.count, start)

        return task.select_from(picks)


@dataclass(frozen=True, kw_only=True)
class ContextualDiversity(Method):
    """Farthest-first with the symmetric KL divergence between softmax outputs, from a random start."""

    @property
    def needs(self) -> Requirements:
        """Logits."""
        return Requirements(logits=True)

    def choose(self, task: Task) -> Selection:
        """Farthest-first in each group, in that order."""
        logits = task.source.logits()

        def picks(group: Group) -> np.ndarray:
            start = int(task.rng(group.name).integers(len(group.members)))
            return farthest_first(symmetric_kl(logits[group.members]), group.count, start)

        return task.select_from(picks)


def herd(features: np.ndarray, count: int) -> np.ndarray:
    """`count` positions: each step selects the argmin of the distance between (i + 1) * mean and (sum selected + x).

    Around the mean this is the argmin of |sum selected + x|^2, so of |x|^2 / 2 + <sum selected, x>: one matrix-vector
    product per selected sample. On a tie the lowest position.
    """
    rows = centered(features)
    scores = np.einsum("nd,nd->n", rows, rows, dtype=np.float64) / 2
    picks = np.empty(count, dtype=np.int64)
    for step in range(count):
        best = int(scores.argmin())
        picks[step] = best
        scores += rows @ rows[best]
        scores[best] = np.inf
    return picks


@dataclass(frozen=True, kw_only=True)
class Herding(Method):
    """Greedy matching of the mean feature, without replacement."""

    @property
    def needs(self) -> Requirements:
        """Features."""
        return Requirements(features=True)

    def choose(self, task: Task) -> Selection:
        """Herding in each group, in that order. Deterministic."""
        features = task.source.features()
        return task.select_from(lambda group: herd(features[group.members], group.count))


def distances_to_class_median(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Distance of each sample to the coordinate-wise median feature of its class."""
    distances = np.empty(len(labels), dtype=np.float32)
    for members in class_members(labels).values():
        own = features[members]
        distances[members] = np.linalg.norm(own - np.median(own, axis=0), axis=1)
    return distances


def middle(values: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` middle values in sorted order; of two middles, the lower.

    >>> middle(np.array([10.0, 0.0, 5.0, 6.0, 99.0]), 3).tolist()
    [2, 3, 0]
    """
    start = (len(values) - count) // 2
    return np.argsort(values, kind="stable")[start : start + count]


@dataclass(frozen=True, kw_only=True)
class Moderate(Method):
    """Keep the samples whose distance to the class median is in the middle: neither typical nor unusual samples."""

    @property
    def needs(self) -> Requirements:
        """Features and labels."""
        return Requirements(features=True, labels=True)

    def choose(self, task: Task) -> Selection:
        """Middle of each group's distances, in the order of the samples."""
        distances = distances_to_class_median(task.source.features(), task.labels)

        def picks(group: Group) -> np.ndarray:
            # In a random order first: otherwise equal distances would be selected by position.
            order = task.rng(group.name).permutation(len(group.members))
            return np.asarray(order[middle(distances[group.members[order]], group.count)])

        return Selection(np.sort(task.select_from(picks).indices))


def distances_to_prototypes(features: np.ndarray, clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Distance of each sample to the center of its own cluster, by k-means (scikit-learn, one start)."""
    means = sklearn("cluster").KMeans(clusters, n_init=1, random_state=int(rng.integers(2**31)))
    own = means.fit_predict(features)
    distances = np.empty(len(features), dtype=np.float32)
    for cluster in range(clusters):
        members = np.flatnonzero(own == cluster)
        distances[members] = np.linalg.norm(features[members] - means.cluster_centers_[cluster], axis=1)
    return distances


@dataclass(frozen=True, kw_only=True)
class Prototypes(ScoreMethod):
    """Keep the samples farthest from their prototype, or the nearest.

    Args:
        clusters: Number of prototypes; None for the number of classes, or 10 without labels.
        keep: "hard" for the farthest; "easy" for the nearest, which is better if data is scarce.
    """

    clusters: int | None = None
    keep: Literal["hard", "easy"] = "hard"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters is not None and not is_count(self.clusters):
            raise ConfigError(f"clusters must be a whole number, at least 1, or None, got {self.clusters!r}.")
        if self.keep not in ("hard", "easy"):
            raise ConfigError(f'keep must be "hard" or "easy", got {self.keep!r}.')

    @property
    def needs(self) -> Requirements:
        """Features."""
        return Requirements(features=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Distances, negated if the nearest are kept."""
        sklearn("cluster")  # fail before the proxy is trained
        clusters = self.clusters or (10 if source.labels is None else len(np.unique(source.labels)))
        if clusters > source.n:
            raise ConfigError(f"clusters must be at most the {source.n} samples there are, got {clusters}.")
        rng = generator(seed, "coreset", "Prototypes", "means")
        distances = distances_to_prototypes(source.features(), clusters, rng)
        return distances if self.keep == "hard" else -distances


_SCORES: dict[str, type[ScoreMethod]] = {
    "el2n": EL2N,
    "grand": GraNd,
    "forgetting": Forgetting,
    "scores": PrecomputedScores,
}


def stratified(scores: np.ndarray, count: int, drop: float, strata: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of `count` samples: without the hardest, evenly over score ranges of equal width.

    Args:
        scores: One number per sample, largest for the hardest; infinite ones count as just above the largest, or just
            below the smallest.
        count: Number of samples.
        drop: Fraction of the samples, the hardest, that is left out; less if too few would be left.
        strata: Number of ranges. What a range cannot fill is split among the others.
        rng: Draws within a range, and breaks ties.
    """
    finite = scores[np.isfinite(scores)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    scores = np.nan_to_num(scores, posinf=high + 1.0, neginf=low - 1.0)
    order = rng.permutation(len(scores))
    easiest_first = order[np.argsort(scores[order], kind="stable")]
    kept = easiest_first[: max(count, len(scores) - round(drop * len(scores)))]
    low, high = scores[kept[0]], scores[kept[-1]]
    width = (high - low) / strata or 1.0
    stratum = np.minimum(((scores[kept] - low) / width).astype(np.int64), strata - 1)
    given = even_budgets(np.bincount(stratum, minlength=strata), count)
    parts = [rng.choice(kept[stratum == s], given[s], replace=False) for s in range(strata) if given[s]]
    return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class CCS(Method):
    """Drop the hardest fraction, then keep equal numbers from score ranges of equal width.

    Args:
        score: Measure of hardness: "el2n", "grand", "forgetting", "scores" for those of `Arrays`, or a `ScoreMethod`.
        drop: Fraction that is dropped from the hard end.
        strata: Number of ranges.
    """

    score: Any = "el2n"
    drop: float = 0.1
    strata: int = 50
    rating: ScoreMethod = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("drop", self.drop)
        if not is_count(self.strata):
            raise ConfigError(f"strata must be a whole number, at least 1, got {self.strata!r}.")
        rating = _SCORES[checked_name(self.score, _SCORES, "score")]() if isinstance(self.score, str) else self.score
        if not isinstance(rating, ScoreMethod):
            raise ConfigError(f"score must be a name or a method with scores, got {type(rating).__name__}.")
        object.__setattr__(self, "rating", rating)

    @property
    def needs(self) -> Requirements:
        """Requirements of the score."""
        return self.rating.needs

    def choose(self, task: Task) -> Selection:
        """Stratified draw in each group, in the order of the samples."""
        scores = np.asarray(self.rating.rate(task.source, task.seed))
        checked_scores(scores, task.source.n, type(self.rating).__name__)

        def picks(group: Group) -> np.ndarray:
            return stratified(scores[group.members], group.count, self.drop, self.strata, task.rng(group.name))

        return Selection(np.sort(task.select_from(picks).indices))


# -- submodular functions: facility location, graph cut, CRAIG ---------------------------------------------------------


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
