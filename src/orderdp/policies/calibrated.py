"""Calibrated: part of the budget by loss, the rest at random, with weights that undo the choice."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from orderdp.planning import check_ratio
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.rank_rules import Mixed
from orderdp.policy import Context, Selection, Table

__all__ = ["Calibrated"]


@dataclass(frozen=True, repr=False)
class Calibrated:
    """The largest losses of all samples for a share of the budget, a uniform draw from the remainder for the rest.

    At power 1 the weights make the gradient, on average over draws, that of the mean over all data: a member of the
    OrderDP family under the name it was published by (exploration 1, a mixed rule, unbiased). With a smaller power it
    is GOSS with tempered weights.

    Args:
        prune_ratio: Share left out each epoch, in [0, 1).
        share: Share of what is kept that goes by loss, in [0, 1).
        power: The weights are raised to this power and scaled to a mean of 1: 1 is unbiased, 0 is no weights.
    """

    prune_ratio: float
    _: KW_ONLY
    share: float = 0.5
    power: float = 1.0

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("share", self.share)
        check_ratio("power", self.power, one_allowed=True)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the constructor needs; without the power where it is 1, as checkpoints of earlier versions have it."""
        given = {"prune_ratio": self.prune_ratio, "share": self.share}
        return given if self.power == 1 else {**given, "power": self.power}

    def __repr__(self) -> str:
        return f"Calibrated({', '.join(f'{name}={value!r}' for name, value in self.parameters.items())})"

    @property
    def member(self) -> OrderDP:
        """The same in the words of the family."""
        rule = Mixed(top=self.share, uniform=1 - self.share)
        return OrderDP(self.prune_ratio, exploration=1.0, select=rule, unbiased=True)

    def size(self, n: int, context: Context) -> int:
        """The nearest whole number to the share kept."""
        return self.member.size(n, context)

    def select(self, table: Table, context: Context) -> Selection:
        """As that member does, with its weights to the power."""
        selection = self.member.select(table, context)
        if self.power == 1 or selection.weights is None:
            return selection
        tempered = selection.weights.astype(np.float64) ** self.power
        return Selection(selection.indices, (tempered / tempered.mean()).astype(np.float32))
