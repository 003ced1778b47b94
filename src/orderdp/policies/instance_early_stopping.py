"""Instance early stopping: samples whose loss has become a straight line are skipped."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.kit import at_least_one, shuffled, uniform
from orderdp.policy import Column, Context, Rows, Selection, Table

if TYPE_CHECKING:
    import torch

__all__ = ["InstanceEarlyStopping"]


@dataclass(frozen=True)
class InstanceEarlyStopping:
    """Skips the samples whose last three losses a, b, c have a second difference abs(c - 2b + a) below `delta`.

    A skipped sample gets no new loss, so each epoch a uniform draw of the skipped ones is trained on all the same.

    Args:
        delta: Second difference below which a sample is skipped.
        refresh: Share of the skipped samples that comes back each epoch, in [0, 1]; rounded up.
    """

    _: KW_ONLY
    delta: float = 1e-3
    refresh: float = 0.1

    # The loss before the last one, which is the score, and the one before that; infinite where there is none.
    columns = (Column("previous", initial=float("inf")), Column("before_previous", initial=float("inf")))

    def __post_init__(self) -> None:
        number = isinstance(self.delta, int | float) and not isinstance(self.delta, bool)
        if not (number and 0 <= self.delta < float("inf")):
            raise ConfigError(f"delta must be a number, at least 0, got {self.delta!r}.")
        check_ratio("refresh", self.refresh, one_allowed=True)

    def size(self, n: int, context: Context) -> None:
        """It depends on the losses."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """At least what comes back where all are skipped."""
        return max(1, self._returning(n)), n

    def remember(self, rows: Rows, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, and the two before it."""
        return {"score": losses, "previous": rows["score"], "before_previous": rows["previous"]}

    def select(self, table: Table, context: Context) -> Selection:
        """All that are not skipped, and some that are."""
        scores = table["score"]
        last, previous, before = (
            column.astype(np.float64) for column in (scores, table["previous"], table["before_previous"])
        )
        skipped = np.isfinite(last) & np.isfinite(previous) & np.isfinite(before)
        skipped[skipped] = np.abs(last[skipped] - 2 * previous[skipped] + before[skipped]) < self.delta
        places = np.flatnonzero(skipped)
        kept = ~skipped
        kept[uniform(places, self._returning(len(places)), context, "refresh")] = True
        return Selection(shuffled(np.flatnonzero(at_least_one(kept, scores)), context))

    def _returning(self, skipped: int) -> int:
        # Up, or of a few skipped samples none would ever come back; rounded first, because 0.07 * 100 is above 7.
        return math.ceil(round(self.refresh * skipped, 9))
