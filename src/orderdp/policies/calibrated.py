"""Calibrated: part of the budget by loss, the rest at random, with weights that undo the choice."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from orderdp.planning import check_ratio
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.rank_rules import Mixed
from orderdp.policy import Context, Selection, Table

__all__ = ["Calibrated"]


@dataclass(frozen=True)
class Calibrated:
    """The largest losses of all samples for a share of the budget, a uniform draw from the remainder for the rest.

    Weights make the gradient, on average over draws, that of the mean over all data. A member of the OrderDP family
    under the name it was published by: exploration 1, a mixed rule, unbiased.

    Args:
        prune_ratio: Share left out each epoch, in [0, 1).
        share: Share of what is kept that goes by loss, in [0, 1).
    """

    prune_ratio: float
    _: KW_ONLY
    share: float = 0.5

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("share", self.share)

    @property
    def member(self) -> OrderDP:
        """The same in the words of the family."""
        rule = Mixed(top=self.share, uniform=1 - self.share)
        return OrderDP(self.prune_ratio, exploration=1.0, select=rule, unbiased=True)

    def size(self, n: int, context: Context) -> int:
        """The nearest whole number to the share kept."""
        return self.member.size(n, context)

    def select(self, table: Table, context: Context) -> Selection:
        """As that member does."""
        return self.member.select(table, context)
