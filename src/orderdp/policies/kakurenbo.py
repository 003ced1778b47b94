"""Kakurenbo: the easiest samples hide, unless the model was wrong or unsure about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio, is_count
from orderdp.policies.kit import shuffled, top
from orderdp.policy import Column, Context, Rows, Selection, Table

if TYPE_CHECKING:
    import torch

__all__ = ["Kakurenbo"]


@dataclass(frozen=True)
class Kakurenbo:
    """Of the samples with the lowest losses, those are left out that were predicted rightly and surely.

    ``Pruner.lr_scale`` is 1 / (1 - share left out): fewer steps, each a little larger.

    ``update`` needs two more arguments, one value for each sample: ``correct``, whether the prediction was right, and
    ``confidence``, the largest predicted probability. `orderdp.losses.predictions` makes both from logits.

    Args:
        fraction: Largest share left out, in [0, 1).
        tau: Confidence from which on a right prediction counts as sure, in [0, 1].
        drops: Epochs at which the learning rate drops, and the fraction with it.
        factors: What the fraction is multiplied with from each of these epochs on.
    """

    fraction: float
    tau: float = 0.7
    _: KW_ONLY
    drops: Sequence[int] = ()
    factors: Sequence[float] = (0.8, 0.6, 0.4)

    ratio_name = "fraction"
    columns = (Column("correct", initial=0, dtype="int8"), Column("confidence", initial=0.0))

    def __post_init__(self) -> None:
        check_ratio("fraction", self.fraction)
        check_ratio("tau", self.tau, one_allowed=True)
        object.__setattr__(self, "drops", tuple(self.drops))  # lists come out of config files
        object.__setattr__(self, "factors", tuple(self.factors))
        if not all(is_count(epoch) for epoch in self.drops) or list(self.drops) != sorted(set(self.drops)):
            raise ConfigError(f"drops must be epochs in rising order, each at least 1, got {self.drops}.")
        if len(self.factors) < len(self.drops):
            raise ConfigError(f"there must be a factor for each of the drops {self.drops}, got {self.factors}.")
        for factor in self.factors:
            check_ratio("each of factors", factor, one_allowed=True)

    def size(self, n: int, context: Context) -> None:
        """It depends on the predictions."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """At most the fraction is left out."""
        return n - self._most_hidden(n, context), n

    def nominal_ratio(self, context: Context) -> float:
        """The fraction in that epoch."""
        passed = sum(context.epoch >= drop for drop in self.drops)
        return self.fraction * (self.factors[passed - 1] if passed else 1.0)

    def lr_scale(self, n: int, kept: int) -> float:
        """1 / (1 - share left out)."""
        return n / kept

    def remember(
        self, rows: Rows, losses: torch.Tensor, *, correct: torch.Tensor, confidence: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The loss, and what was predicted how surely."""
        return {"score": losses, "correct": correct != 0, "confidence": confidence}

    def select(self, table: Table, context: Context) -> Selection:
        """All but the easy, right and sure ones."""
        scores = table["score"]
        candidates = min(self._most_hidden(context.n, context), int(np.isfinite(scores).sum()))
        hidden = np.zeros(context.n, dtype=np.bool_)
        hidden[top(-scores, candidates, context)] = True
        hidden &= (table["correct"] > 0) & (table["confidence"] >= self.tau)
        return Selection(shuffled(np.flatnonzero(~hidden), context))

    def _most_hidden(self, n: int, context: Context) -> int:
        return min(round(self.nominal_ratio(context) * n), n - 1)
