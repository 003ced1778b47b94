"""DynamicRandom: a fresh random share each epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp import draw
from orderdp.planning import check_ratio
from orderdp.policies.kit import count_kept, shuffled, streams
from orderdp.policy import Context, Selection, Table

__all__ = ["DynamicRandom"]


@dataclass(frozen=True)
class DynamicRandom:
    """A uniform draw without replacement each epoch, whatever the losses: the control for rules that look at them.

    The same draw as OrderDP with exploitation 1.

    Args:
        prune_ratio: Share left out each epoch, in [0, 1).
    """

    prune_ratio: float

    needs_feedback = False

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)

    def size(self, n: int, context: Context) -> int:
        """The nearest whole number to the share kept."""
        return count_kept(n, self.prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """A uniform draw in a random order."""
        kept = draw.pool_mask(context.n, self.size(context.n, context), streams(context))
        return Selection(shuffled(np.flatnonzero(kept), context))
