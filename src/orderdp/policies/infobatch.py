"""InfoBatch: part of the samples below the mean loss is left out, and the rest of them counts more."""

from __future__ import annotations

import math
import warnings
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np

from orderdp.errors import ConfigError, UnreachableRatioWarning
from orderdp.planning import check_ratio
from orderdp.policies.kit import is_annealed, shuffled, uniform
from orderdp.policy import Context, Selection, Table

__all__ = ["InfoBatch", "InfoBatchQuantile"]


@dataclass(frozen=True)
class InfoBatch:
    """Of the samples whose loss is below the mean, a share is left out; those kept count for those left out.

    What is really pruned is the share times how many are below the mean: nominal 0.5 is often 0.2. `target_ratio` asks
    for the real ratio instead.

    Args:
        prune_ratio: Share of the samples below the mean that is left out, in [0, 1).
        annealing: Share of the epochs after which all data is used at weight 1; None for never.
        target_ratio: The share of all samples to leave out, instead of `prune_ratio`.
        normalise: "kept" takes the mean of the weighted losses over the kept samples, as published; its scale moves
            with how many are kept. "n" divides by the number of all samples, which is exactly unbiased.
    """

    prune_ratio: float | None = None
    _: KW_ONLY
    annealing: float | None = 0.875
    target_ratio: float | None = None
    normalise: Literal["kept", "n"] = "kept"

    def __post_init__(self) -> None:
        if (self.prune_ratio is None) == (self.target_ratio is None):
            raise ConfigError(
                "give either prune_ratio, the share of the samples below the mean, or target_ratio, that of all; "
                f"got prune_ratio={self.prune_ratio} and target_ratio={self.target_ratio}."
            )
        check_ratio("prune_ratio", self.prune_ratio or 0)
        check_ratio("target_ratio", self.target_ratio or 0)
        if self.annealing is not None:
            check_ratio("annealing", self.annealing, one_allowed=True)
        if self.normalise not in ("kept", "n"):
            raise ConfigError(f'normalise must be "kept" or "n", got {self.normalise!r}.')

    def size(self, n: int, context: Context) -> int | None:
        """All in annealed epochs; otherwise it depends on the losses."""
        return n if self._is_annealed(context) else None

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """At most the share that is left out of all samples."""
        share = self.target_ratio if self.prune_ratio is None else self.prune_ratio
        assert share is not None
        return max(1, n - round(share * n)), n

    def nominal_ratio(self, context: Context) -> float | None:
        """What it was given, though only samples below the mean are left out at `prune_ratio`."""
        return self.target_ratio if self.prune_ratio is None else self.prune_ratio

    def with_ratio(self, prune_ratio: float) -> InfoBatch:
        """The same with another share, of whatever it was given as a share of."""
        if self.prune_ratio is None:
            return replace(self, target_ratio=prune_ratio)
        return replace(self, prune_ratio=prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """All that are unseen or at least at the mean, and a random part of the others."""
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
        return _weighted(kept, weights, context, self.normalise == "n")

    def _left_out(self, n_below: int, n: int) -> int:
        if self.prune_ratio is not None:
            # At least one stays to count for the others.
            return min(round(self.prune_ratio * n_below), max(0, n_below - 1))
        assert self.target_ratio is not None
        wanted, most = round(self.target_ratio * n), max(0, n_below - 1)
        if n_below > 0 and wanted > most:
            warnings.warn(
                f"InfoBatch leaves out samples below the mean loss only: {n_below} of {n} are, so at most "
                f"{most / n:.1%} can be pruned, not {self.target_ratio:.1%}. A smaller target_ratio can be reached.",
                UnreachableRatioWarning,
                stacklevel=2,
            )
        return min(wanted, most)

    def _is_annealed(self, context: Context) -> bool:
        return is_annealed(self.annealing, context, "InfoBatch")


@dataclass(frozen=True)
class InfoBatchQuantile:
    """Keeps a quarter of the easiest fifth, half of the middle and all of the hardest 15 %, at weights 4, 2 and 1."""

    def size(self, n: int, context: Context) -> None:
        """It depends on how many have been seen."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """At least a quarter of a fifth, half of 65 % and all of 15 %, less what rounding takes."""
        return max(1, math.floor(0.525 * n) - 2), n

    def nominal_ratio(self, context: Context) -> float:
        """Three quarters of a fifth, and half of 65 %."""
        return 0.475

    def select(self, table: Table, context: Context) -> Selection:
        """A part of each group, and all that are unseen."""
        scores = table["score"]
        seen = np.isfinite(scores)
        weights = np.ones(context.n, dtype=np.float32)
        kept = np.ones(context.n, dtype=np.bool_)
        if seen.any():
            low, high = np.quantile(scores[seen], [0.2, 0.85])
            groups = (("low", scores < low, 0.25), ("middle", (scores >= low) & (scores < high), 0.5))
            for name, members, share in groups:
                indices = np.flatnonzero(seen & members)
                chosen = uniform(indices, math.ceil(share * len(indices)), context, name)
                kept[indices] = False
                kept[chosen] = True
                if len(chosen):
                    weights[chosen] = len(indices) / len(chosen)
        return _weighted(kept, weights, context, by_all=False)


def _weighted(kept: np.ndarray, weights: np.ndarray, context: Context, by_all: bool) -> Selection:
    indices = shuffled(np.flatnonzero(kept), context)
    scale = len(indices) / context.n if by_all else 1.0
    return Selection(indices, (weights[indices] * scale).astype(np.float32))
