"""Active bias: samples whose predicted probability has varied count for more."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.kit import count_kept, shuffled, top, uniform
from orderdp.policy import Column, Context, Rows, Selection, Table

if TYPE_CHECKING:
    import torch

__all__ = ["ActiveBias"]


@dataclass(frozen=True)
class ActiveBias:
    """Weighs samples by how uncertain the probability of their class has been over training.

    The uncertainty is sqrt(var + var^2 / (h - 1)) of the h probabilities recorded so far, plus a constant.

    ``update`` needs one more argument: ``probability``, the predicted probability of each sample's own class.
    `orderdp.losses.predictions` makes it from logits.

    Args:
        prune_ratio: Share left out each epoch, in [0, 1).
        by: "weights" trains on a uniform draw and weighs the losses, 1 on average; "sampling" draws the samples by
            their uncertainty and leaves the losses alone.
        epsilon: The constant; None for the mean uncertainty, which keeps weights within a factor of each other.
    """

    prune_ratio: float = 0.0
    _: KW_ONLY
    by: Literal["weights", "sampling"] = "weights"
    epsilon: float | None = None

    columns = (
        Column("probability_mean", initial=0.0),
        Column("probability_spread", initial=0.0),  # sum of squared distances from the mean
        Column("history", initial=0, dtype="int16"),
    )

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        if self.by not in ("weights", "sampling"):
            raise ConfigError(f'by must be "weights" or "sampling", got {self.by!r}.')
        if self.epsilon is not None and not 0 < self.epsilon < float("inf"):
            raise ConfigError(f"epsilon must be a number above 0 or None, got {self.epsilon!r}.")

    def size(self, n: int, context: Context) -> int:
        """The nearest whole number to the share kept."""
        return count_kept(n, self.prune_ratio)

    def remember(self, rows: Rows, losses: torch.Tensor, *, probability: torch.Tensor) -> dict[str, torch.Tensor]:
        """Running mean and spread of the probability."""
        history = rows["history"] + 1
        distance = probability - rows["probability_mean"]
        mean = rows["probability_mean"] + distance / history
        spread = rows["probability_spread"] + distance * (probability - mean)
        return {"score": losses, "probability_mean": mean, "probability_spread": spread, "history": history}

    def select(self, table: Table, context: Context) -> Selection:
        """A uniform draw with weights, or a draw by weight."""
        k = self.size(context.n, context)
        weights = self.weights(table)
        if self.by == "weights":
            indices = shuffled(uniform(np.arange(context.n), k, context, "part"), context)
            return Selection(indices, weights[indices].astype(np.float32))
        # The k largest of log(u) / w are a draw without replacement, each time by weight among what is left.
        luck = np.log1p(-context.rng("epoch", context.epoch, "luck").random(context.n)) / weights
        first = np.where(np.isinf(table["score"]), np.inf, luck)
        return Selection(shuffled(top(first, k, context), context))

    def weights(self, table: Table) -> np.ndarray:
        """A weight for each sample, 1 on average; 1 where fewer than two probabilities are known."""
        history = table["history"].astype(np.float64)
        known = history >= 2
        if not known.any():
            return np.ones(len(history))
        variance = table["probability_spread"][known] / history[known]
        uncertainty = np.sqrt(variance + variance**2 / (history[known] - 1))
        epsilon = float(uncertainty.mean()) if self.epsilon is None else self.epsilon
        weights = np.ones(len(history))
        total = uncertainty + epsilon
        if total.mean() > 0:
            weights[known] = total / total.mean()
        return weights
