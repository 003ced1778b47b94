"""InfoBatch and related policies: SeTa and RePB."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from orderdp._validation import check_ratio, is_count
from orderdp.errors import ConfigError, UnreachableRatioWarning
from orderdp.policy import (
    Column,
    Context,
    Policy,
    Rows,
    Selection,
    Table,
    at_least_one,
    count_kept,
    is_annealed,
    shuffled,
    uniform,
)

if TYPE_CHECKING:
    import torch

__all__ = ["InfoBatch", "InfoBatchQuantile", "RePB", "SeTa", "group_edges"]


@dataclass(frozen=True)
class InfoBatch(Policy):
    """Leaves out a fraction of the samples whose loss is below the mean; the kept ones are weighted up to replace them.

    The real prune ratio is this fraction times the fraction of samples below the mean: nominal 0.5 is often 0.2.
    `target_ratio` sets the real ratio instead.

    Args:
        prune_ratio: Fraction of the samples below the mean that is left out, in [0, 1).
        annealing: Fraction of the epochs after which all data is used at weight 1; None for never.
        target_ratio: Fraction of all samples to leave out, instead of `prune_ratio`.
        normalize: "kept" takes the mean of the weighted losses over the kept samples, as published; its scale changes
            with the number kept. "n" divides by the number of all samples, which is exactly unbiased.
    """

    prune_ratio: float | None = None
    _: KW_ONLY
    annealing: float | None = 0.875
    target_ratio: float | None = None
    normalize: Literal["kept", "n"] = "kept"

    def __post_init__(self) -> None:
        if (self.prune_ratio is None) == (self.target_ratio is None):
            raise ConfigError(
                "give either prune_ratio, a fraction of the samples below the mean loss, or target_ratio, a fraction "
                f"of all samples; got prune_ratio={self.prune_ratio} and target_ratio={self.target_ratio}."
            )
        check_ratio("prune_ratio", self.prune_ratio or 0)
        check_ratio("target_ratio", self.target_ratio or 0)
        if self.annealing is not None:
            check_ratio("annealing", self.annealing, one_allowed=True)
        if self.normalize not in ("kept", "n"):
            raise ConfigError(f'normalize must be "kept" or "n", got {self.normalize!r}.')

    def size(self, n: int, context: Context) -> int | None:
        """Return `n` in annealed epochs; None otherwise, because it depends on the losses."""
        return n if self._is_annealed(context) else None

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the bounds: at most the given fraction of all samples is left out."""
        share = self.target_ratio if self.prune_ratio is None else self.prune_ratio
        assert share is not None
        return max(1, n - round(share * n)), n

    def nominal_ratio(self, context: Context) -> float | None:
        """Return the given ratio, though `prune_ratio` applies only to samples below the mean."""
        return self.target_ratio if self.prune_ratio is None else self.prune_ratio

    def with_ratio(self, prune_ratio: float) -> InfoBatch:
        """Return the same policy with another value of the ratio that was given."""
        if self.prune_ratio is None:
            return replace(self, target_ratio=prune_ratio)
        return replace(self, prune_ratio=prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """Select all samples that are unseen or not below the mean, and a uniform draw of the others."""
        if self._is_annealed(context):
            return Selection(shuffled(np.arange(context.n), context))
        scores = table["score"]
        seen = np.isfinite(scores)
        mean = float(scores[seen].mean(dtype=np.float64)) if seen.any() else -math.inf
        below = np.flatnonzero(seen & (scores < mean))
        kept_below = uniform(below, len(below) - self._left_out(len(below), context.n), context, "below")
        weights = np.ones(context.n, dtype=np.float32)
        if len(kept_below):
            weights[kept_below] = len(below) / len(kept_below)
        kept = np.ones(context.n, dtype=np.bool_)
        kept[below] = False
        kept[kept_below] = True
        return _weighted(kept, weights, context, self.normalize == "n")

    def _left_out(self, n_below: int, n: int) -> int:
        if self.prune_ratio is not None:
            # At least one stays, to carry the weight of the others.
            return min(round(self.prune_ratio * n_below), max(0, n_below - 1))
        assert self.target_ratio is not None
        wanted, most = round(self.target_ratio * n), max(0, n_below - 1)
        if n_below > 0 and wanted > most:
            from orderdp.errors import warn  # loads torch

            warn(
                f"InfoBatch leaves out samples below the mean loss only: {n_below} of {n} are, so at most "
                f"{most / n:.1%} can be pruned, not {self.target_ratio:.1%}. Use a smaller target_ratio.",
                UnreachableRatioWarning,
            )
        return min(wanted, most)

    def _is_annealed(self, context: Context) -> bool:
        return is_annealed(self.annealing, context, "InfoBatch")


@dataclass(frozen=True)
class InfoBatchQuantile(Policy):
    """Keeps a quarter of the easiest 20 %, half of the middle 65 %, all of the hardest 15 %, at weights 4, 2 and 1."""

    def size(self, n: int, context: Context) -> None:
        """Return None: the size depends on the number of seen samples."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the bounds: at least a quarter of 20 %, half of 65 % and all of 15 %, less rounding."""
        return max(1, math.floor(0.525 * n) - 2), n

    def nominal_ratio(self, context: Context) -> float:
        """Return three quarters of 20 % plus half of 65 %."""
        return 0.475

    def select(self, table: Table, context: Context) -> Selection:
        """Select a part of each group, and all unseen samples."""
        scores = table["score"]
        seen = np.isfinite(scores)
        weights = np.ones(context.n, dtype=np.float32)
        kept = np.ones(context.n, dtype=np.bool_)
        if seen.any():
            low, high = _quantiles(scores[seen], [0.2, 0.85])
            groups = (("low", scores < low, 0.25), ("middle", (scores >= low) & (scores < high), 0.5))
            for name, members, share in groups:
                indices = np.flatnonzero(seen & members)
                chosen = uniform(indices, math.ceil(share * len(indices)), context, name)
                kept[indices] = False
                kept[chosen] = True
                if len(chosen):
                    weights[chosen] = len(indices) / len(chosen)
        return _weighted(kept, weights, context, by_all=False)


def _quantiles(scores: np.ndarray, shares: list[float]) -> np.ndarray:
    """Return the quantiles of scores in single precision, whose differences may overflow."""
    if float(scores.max()) - float(scores.min()) > float(np.finfo(np.float32).max):
        scores = scores.astype(np.float64)
    return np.asarray(np.quantile(scores, shares))


def _weighted(kept: np.ndarray, weights: np.ndarray, context: Context, by_all: bool) -> Selection:
    indices = shuffled(np.flatnonzero(kept), context)
    scale = len(indices) / context.n if by_all else 1.0
    return Selection(indices, (weights[indices] * scale).astype(np.float32))


_MOST_ROUNDS = 100


@dataclass(frozen=True)
class SeTa(Policy):
    """Draws a fraction of the samples at random; of those, keeps the groups of similar loss inside a window.

    K-means puts the losses into groups, from easy to hard. The window moves by one group per epoch and starts again
    after the hardest.

    Args:
        r: Fraction left out at random, in [0, 1). The groups outside the window are left out in addition.
        groups: Number of groups.
        window: Fraction of the groups inside the window, in (0, 1].
        annealing: Fraction of the epochs after which there is no window and only the random part is left out; None for
            never.
    """

    r: float
    groups: int = 5
    window: float = 0.9
    _: KW_ONLY
    annealing: float | None = 0.875

    ratio_name = "r"

    def __post_init__(self) -> None:
        check_ratio("r", self.r)
        check_ratio("window", self.window, zero_allowed=False, one_allowed=True)
        if not is_count(self.groups):
            raise ConfigError(f"groups must be a whole number, at least 1, got {self.groups!r}.")
        if self.annealing is not None:
            check_ratio("annealing", self.annealing, one_allowed=True)

    def size(self, n: int, context: Context) -> int | None:
        """Return the size of the random draw if there is no window; otherwise None: it depends on the losses."""
        most = count_kept(n, self.r)
        whole = self._is_annealed(context) or round(self.groups * self.window) >= self.groups
        return most if whole else None

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the bounds: at most the size of the random draw."""
        most = count_kept(n, self.r)
        return (most if self.size(n, context) else 1), most

    def nominal_ratio(self, context: Context) -> float:
        """Return the fraction left out at random."""
        return self.r

    def select(self, table: Table, context: Context) -> Selection:
        """Select the random draw without the seen samples outside the window."""
        part = uniform(np.arange(context.n), count_kept(context.n, self.r), context, "part")
        if not self._is_annealed(context):
            part = part[self._in_window(table["score"][part], context.epoch)]
        return Selection(shuffled(part, context))

    def _in_window(self, scores: np.ndarray, epoch: int) -> np.ndarray:
        seen = np.isfinite(scores)
        edges = group_edges(scores[seen], self.groups)
        n_groups = len(edges) + 1
        width = max(1, round(n_groups * self.window))
        first = epoch % (n_groups - width + 1)
        # A group is everything from one edge up to, not including, the next.
        inside = np.ones(len(scores), dtype=np.bool_)
        if first > 0:
            inside &= scores >= edges[first - 1]
        if first + width < n_groups:
            inside &= ~seen | (scores < edges[first + width - 1])
        return inside

    def _is_annealed(self, context: Context) -> bool:
        return is_annealed(self.annealing, context, "SeTa")


def group_edges(values: np.ndarray, groups: int) -> np.ndarray:
    """Return where each group of `values` begins: Lloyd's k-means on a line, started at the quantiles.

    On a line a group is an interval, so a round is a search for the edges in the sorted values and a few differences
    of their running sums; no sample is read twice.

    >>> group_edges(np.array([0.0, 0.1, 5.0, 5.1]), 2)
    array([5.])

    Returns:
        The smallest value of every group but the first; fewer groups if there are fewer distinct values.
    """
    ordered = np.sort(values).astype(np.float64)
    if len(ordered) == 0 or ordered[0] == ordered[-1]:
        return np.empty(0)
    totals = np.concatenate(([0.0], np.cumsum(ordered)))
    starts = np.unique(np.searchsorted(ordered, ordered[np.arange(1, groups) * len(ordered) // groups]))
    starts = starts[starts > 0]
    for _ in range(_MOST_ROUNDS):
        bounds = np.concatenate(([0], starts, [len(ordered)]))
        means = np.diff(totals[bounds]) / np.diff(bounds)
        moved = np.unique(np.searchsorted(ordered, (means[1:] + means[:-1]) / 2, side="right"))
        moved = moved[(moved > 0) & (moved < len(ordered))]
        if np.array_equal(moved, starts):
            break
        starts = moved
    edges: np.ndarray = ordered[starts]
    return edges


_ROUNDING = 1e-6  # the mean of equal numbers may be slightly above them


@dataclass(frozen=True)
class RePB(Policy):
    """Keeps samples whose loss was at least the mean of their batch, and all others with probability 1 - rho.

    The weight of a sample is epochs so far / epochs it was used in, this one included in both, so that over training
    each sample counts about the same.

    Args:
        rho: Probability with which one of the other samples is left out, in [0, 1).
    """

    rho: float

    ratio_name = "rho"
    # The epoch in which a sample's loss was last at least its batch's mean. Not "seen", which `observe` changes too.
    columns = (Column("above", initial=-1, dtype="int32"),)

    def __post_init__(self) -> None:
        check_ratio("rho", self.rho)

    def size(self, n: int, context: Context) -> None:
        """Return None: the size depends on the losses and on the draw."""
        return

    def nominal_ratio(self, context: Context) -> float:
        """Return the probability of being left out."""
        return self.rho

    def compute_columns(self, rows: Rows, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, and the epoch if the loss was at least the mean of its batch."""
        mean = losses.mean()
        mean = mean.where(mean.isfinite(), (losses / len(losses)).sum())  # the sum of large losses overflows
        above = losses >= mean - _ROUNDING * mean.abs()
        return {"score": losses, "above": above * (rows.epoch + 1) - 1}

    def select(self, table: Table, context: Context) -> Selection:
        """Select the samples that stay, the drawn ones, and the unseen ones."""
        scores, above = table["score"], table["above"]
        stays = (above >= 0) & (above == context.epoch - 1)
        drawn = context.rng("epoch", context.epoch, "drawn").random(context.n, dtype=np.float32) < 1 - self.rho
        kept = at_least_one(stays | drawn | np.isinf(scores), scores)
        indices = shuffled(np.flatnonzero(kept), context)
        # Losses written before the first epoch can give a sample more uses than there were epochs.
        weights = np.maximum(1.0, (context.epoch + 1) / (table["usage"][indices] + 1.0))
        return Selection(indices, np.where(np.isinf(scores[indices]), 1.0, weights).astype(np.float32))
