"""Selective by rank: in the middle of training, the harder a sample is ranked, the likelier it is kept."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.kit import hardest_first, shuffled, uniform, weighted
from orderdp.policy import Context, Selection, Table

__all__ = ["SelectiveByRank"]


@dataclass(frozen=True)
class SelectiveByRank:
    """A plain share is kept whole; the rest is drawn by a power of its rank. Outside of a window all data is used.

    Of the m samples that are not plain, 1 - prune_ratio are drawn without replacement in proportion to
    ((rank + 0.5) / m) ** (1 / (1 - prune_ratio) - 1), rank 0 the easiest by its last loss. Samples nobody has seen
    rank as the hardest. This is the rule of Composer's selective backprop, with stored losses.

    Args:
        prune_ratio: Share left out of what is not plain, in [0, 1).
        start: Share of the epochs after which pruning begins.
        end: Share of the epochs after which it ends.
        plain: Share of the samples, drawn uniformly each epoch, that is kept whatever its losses.
    """

    prune_ratio: float
    _: KW_ONLY
    start: float = 0.5
    end: float = 0.9
    plain: float = 1 / 3

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        for name in ("start", "end", "plain"):
            check_ratio(name, getattr(self, name), one_allowed=True)
        if self.start > self.end:
            raise ConfigError(f"start must not be above end, got start={self.start} and end={self.end}.")

    def size(self, n: int, context: Context) -> int:
        """All outside of the window; inside, the plain share and the nearest whole number to what the rest keeps."""
        return sum(self._parts(n)) if self._prunes(context) else n

    def select(self, table: Table, context: Context) -> Selection:
        """The plain share, and a draw by rank from the rest."""
        everything = np.arange(context.n)
        if not self._prunes(context):
            return Selection(shuffled(everything, context))
        plain, by_rank = self._parts(context.n)
        kept = np.zeros(context.n, dtype=np.bool_)
        kept[uniform(everything, plain, context, "plain")] = True
        ranked = hardest_first(np.flatnonzero(~kept), table["score"], context)[::-1]
        if len(ranked):
            power = 1 / (1 - self.prune_ratio) - 1
            logarithms = power * np.log((np.arange(len(ranked)) + 0.5) / len(ranked))
            kept[ranked[weighted(logarithms, by_rank, context)]] = True
        return Selection(shuffled(np.flatnonzero(kept), context))

    def _parts(self, n: int) -> tuple[int, int]:
        """How many are kept whole, and how many of the rest."""
        plain = round(self.plain * n)
        by_rank = round((1 - self.prune_ratio) * (n - plain))
        if plain + by_rank < 1:
            raise ConfigError(f"{self} keeps 0 of {n} samples; at least one must be left. Prune less.")
        return plain, by_rank

    def _prunes(self, context: Context) -> bool:
        if self.start == 0 and self.end == 1:
            return True
        if context.epochs is None:
            raise ConfigError(
                "a window needs to know how many epochs are planned. Give Pruner(..., epochs=...), or prune in all of "
                "them with start=0, end=1."
            )
        # In whole epochs: a comparison of floats would miss the ends at some numbers of epochs.
        first, stop = (math.ceil(round(share * context.epochs, 9)) for share in (self.start, self.end))
        return first <= context.epoch < stop
