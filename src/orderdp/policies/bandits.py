"""Policies that treat samples as arms of a bandit: epsilon-greedy and UCB."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderdp._validation import check_ratio
from orderdp.errors import ConfigError
from orderdp.policies._selection import count_kept, mean_and_variance, mean_only, shuffled, top, uniform
from orderdp.policy import Column, Context, Policy, Rows, Selection, Table

if TYPE_CHECKING:
    import torch

__all__ = ["UCB", "EpsilonGreedy"]


@dataclass(frozen=True)
class EpsilonGreedy(Policy):
    """Keeps the largest average losses for a fraction 1 - epsilon of the budget, and a uniform draw for the rest.

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1).
        epsilon: Fraction of the budget that is drawn at random.
        alpha: Weight of the newest loss in the average.
    """

    prune_ratio: float
    _: KW_ONLY
    epsilon: float = 0.1
    alpha: float = 0.2

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("epsilon", self.epsilon, one_allowed=True)
        check_ratio("alpha", self.alpha, zero_allowed=False, one_allowed=True)

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        return count_kept(n, self.prune_ratio)

    def compute_columns(self, rows: Rows, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return an exponential average of the loss."""
        return mean_only(rows, losses, self.alpha)

    def select(self, table: Table, context: Context) -> Selection:
        """Select the largest averages, and some of the rest."""
        k = self.size(context.n, context)
        at_random = round(self.epsilon * k)
        greedy = top(table["score"], k - at_random, context)
        others = np.ones(context.n, dtype=np.bool_)
        others[greedy] = False
        drawn = uniform(np.flatnonzero(others), at_random, context, "random")
        return Selection(shuffled(np.concatenate((greedy, drawn)), context))


@dataclass(frozen=True)
class UCB(Policy):
    """Keeps the samples with the largest mean + c * variance of the loss, both exponential averages.

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1).
        c: Weight of the variance.
        alpha: Weight of the newest loss in the averages.
    """

    prune_ratio: float
    _: KW_ONLY
    c: float = 1.0
    alpha: float = 0.2

    columns = (Column("variance", initial=0.0),)

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("alpha", self.alpha, zero_allowed=False, one_allowed=True)
        if not (isinstance(self.c, int | float) and 0 <= self.c < float("inf")):
            raise ConfigError(f"c must be a number, at least 0, got {self.c!r}.")

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        return count_kept(n, self.prune_ratio)

    def compute_columns(self, rows: Rows, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return exponential averages of the loss and of its variance."""
        return mean_and_variance(rows, losses, self.alpha)

    def select(self, table: Table, context: Context) -> Selection:
        """Select the largest bounds; unseen samples come first."""
        bounds = table["score"] + self.c * table["variance"]
        return Selection(shuffled(top(bounds, self.size(context.n, context), context), context))
