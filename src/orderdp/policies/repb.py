"""RePB: what is above its batch's mean loss stays, the rest comes and goes, and weights make up for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderdp.planning import check_ratio
from orderdp.policies.kit import at_least_one, shuffled
from orderdp.policy import Column, Context, Rows, Selection, Table

if TYPE_CHECKING:
    import torch

__all__ = ["RePB"]

_ROUNDING = 1e-6  # the mean of equal numbers may lie a little above them


@dataclass(frozen=True)
class RePB:
    """Samples whose loss was at least the mean of their batch stay; all others are in with probability 1 - rho.

    A sample weighs epochs so far / epochs it was used in, this one included in both, so that over training each
    counts about the same.

    Args:
        rho: Probability with which a sample that need not stay is left out, in [0, 1).
    """

    rho: float

    ratio_name = "rho"
    # When a sample's loss was last at least its batch's mean; "seen" would not do, which scoring anew changes as well.
    columns = (Column("above", initial=-1, dtype="int32"),)

    def __post_init__(self) -> None:
        check_ratio("rho", self.rho)

    def size(self, n: int, context: Context) -> None:
        """It depends on the losses and on chance."""
        return

    def nominal_ratio(self, context: Context) -> float:
        """The probability of being left out."""
        return self.rho

    def remember(self, rows: Rows, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, and the epoch where it was at least the mean of its batch."""
        mean = losses.mean()
        above = losses >= mean - _ROUNDING * mean.abs()
        return {"score": losses, "above": above * (rows.epoch + 1) - 1}

    def select(self, table: Table, context: Context) -> Selection:
        """Those that stay, those drawn, and those nobody has seen."""
        scores, above = table["score"], table["above"]
        stays = (above >= 0) & (above == context.epoch - 1)
        drawn = context.rng("epoch", context.epoch, "drawn").random(context.n, dtype=np.float32) < 1 - self.rho
        kept = at_least_one(stays | drawn | np.isinf(scores), scores)
        indices = shuffled(np.flatnonzero(kept), context)
        # Losses written before the first epoch can give a sample more uses than there were epochs.
        weights = np.maximum(1.0, (context.epoch + 1) / (table["usage"][indices] + 1.0))
        return Selection(indices, np.where(np.isinf(scores[indices]), 1.0, weights).astype(np.float32))
