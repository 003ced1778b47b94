"""Policies that keep running statistics per sample: bandits (epsilon-greedy, UCB), active bias, dynamic uncertainty."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from orderdp._validation import check_ratio, is_count
from orderdp.errors import ConfigError
from orderdp.policy import Column, Context, Policy, Rows, Selection, Table, count_kept, shuffled, top, uniform

if TYPE_CHECKING:
    import torch

__all__ = ["UCB", "ActiveBias", "DynamicUncertainty", "EpsilonGreedy"]


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
        return _mean(rows, losses, self.alpha)

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
        return _mean_and_variance(rows, losses, self.alpha)

    def select(self, table: Table, context: Context) -> Selection:
        """Select the largest bounds; unseen samples come first."""
        scores = table["score"]
        with np.errstate(over="ignore"):
            bounds = scores + self.c * table["variance"]
        # A bound that overflows is the largest number there is: infinite are those of unseen samples.
        bounds = np.where(np.isinf(scores), scores, np.minimum(bounds, np.finfo(np.float32).max))
        return Selection(shuffled(top(bounds, self.size(context.n, context), context), context))


def _mean(rows: Rows, losses: torch.Tensor, alpha: float) -> dict[str, torch.Tensor]:
    """Return the running average of the losses as "score"; the first loss of a sample is its average."""
    old = rows["score"]
    return {"score": losses.where(old.isinf(), old + alpha * _finite(losses - old))}


def _finite(values: torch.Tensor) -> torch.Tensor:
    """Return the values, with the largest finite numbers in place of infinite ones."""
    most = 3.4028234663852886e38  # of single precision
    return values.clamp(-most, most)


def _mean_and_variance(rows: Rows, losses: torch.Tensor, alpha: float) -> dict[str, torch.Tensor]:
    """Return the running average as "score" and the running squared distance from it as "variance", 0 at first."""
    mean, variance = rows["score"], rows["variance"]
    first = mean.isinf()
    distance = _finite((losses - mean).masked_fill(first, 0.0))
    return {
        "score": losses.where(first, mean + alpha * distance),
        "variance": (1 - alpha) * _finite(variance + alpha * distance.square()),
    }


@dataclass(frozen=True)
class ActiveBias(Policy):
    """Weights samples by the uncertainty of the probability of their class over training.

    The uncertainty is sqrt(var + var^2 / (h - 1)) of the h probabilities recorded so far, plus a constant.

    ``update`` needs one more argument: ``probability``, the predicted probability of each sample's own class.
    `orderdp.losses.predictions` computes it from logits.

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1).
        by: "weights" trains on a uniform draw and weights the losses, 1 on average; "sampling" draws the samples by
            their uncertainty and does not weight the losses.
        epsilon: The constant; None for the mean uncertainty, which bounds the ratio of the weights.
    """

    prune_ratio: float = 0.0
    _: KW_ONLY
    by: Literal["weights", "sampling"] = "weights"
    epsilon: float | None = None

    columns = (
        Column("probability_mean", initial=0.0),
        Column("probability_spread", initial=0.0),  # sum of squared distances from the mean
        Column("history", initial=0, dtype="int32"),
    )

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        if self.by not in ("weights", "sampling"):
            raise ConfigError(f'by must be "weights" or "sampling", got {self.by!r}.')
        if self.epsilon is not None and not 0 < self.epsilon < float("inf"):
            raise ConfigError(f"epsilon must be a number above 0 or None, got {self.epsilon!r}.")

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        return count_kept(n, self.prune_ratio)

    def compute_columns(
        self, rows: Rows, losses: torch.Tensor, *, probability: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the running mean and spread of the probability."""
        history = rows["history"] + 1
        distance = probability - rows["probability_mean"]
        mean = rows["probability_mean"] + distance / history
        spread = rows["probability_spread"] + distance * (probability - mean)
        return {"score": losses, "probability_mean": mean, "probability_spread": spread, "history": history}

    def select(self, table: Table, context: Context) -> Selection:
        """Draw uniformly with weights, or draw by weight."""
        k = self.size(context.n, context)
        weights = self.weights(table)
        if self.by == "weights":
            indices = shuffled(uniform(np.arange(context.n), k, context, "part"), context)
            return Selection(indices, weights[indices].astype(np.float32))
        # The k largest of log(u) / w are a draw without replacement, each by weight among the remaining samples.
        keys = np.log1p(-context.rng("epoch", context.epoch, "luck").random(context.n)) / weights
        first = np.where(np.isinf(table["score"]), np.inf, keys)
        return Selection(shuffled(top(first, k, context), context))

    def weights(self, table: Table) -> np.ndarray:
        """Return one weight per sample, 1 on average; 1 if fewer than two probabilities are known.

        Args:
            table: What is stored per sample.
        """
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


@dataclass(frozen=True)
class DynamicUncertainty(Policy):
    """Keeps the largest mean, over all windows so far, of the standard deviation of p(y given x) within a window.

    The first epochs train on all data, to fill the windows; after them every epoch makes a new selection. Samples whose
    window is not full yet come first.

    ``update`` needs one more argument: ``probability``, the predicted probability of each sample's own class.
    `orderdp.losses.predictions` computes it from logits.

    Args:
        prune_ratio: Fraction of the samples left out per epoch after the first ones, in [0, 1).
        window: Number of a sample's probabilities that a window holds.
        warm_up: Number of epochs that train on all data; None for as many as fill a window.
    """

    prune_ratio: float
    _: KW_ONLY
    window: int = 10
    warm_up: int | None = None

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        if not is_count(self.window, least=2):
            raise ConfigError(f"window must be a whole number, at least 2, got {self.window!r}.")
        if self.warm_up is not None and not is_count(self.warm_up, least=0):
            raise ConfigError(f"warm_up must be a whole number, at least 0, or None, got {self.warm_up!r}.")

    @property
    def columns(self) -> tuple[Column, ...]:
        """The last probabilities in a ring, their number so far, and the sum of the windows' deviations."""
        ring = tuple(Column(name, initial=0.0) for name in self._ring)
        return (*ring, Column("history", initial=0, dtype="int32"), Column("deviations", initial=0.0))

    @property
    def _ring(self) -> list[str]:
        return [f"probability_{place}" for place in range(self.window)]

    def size(self, n: int, context: Context) -> int:
        """Return `n` in the first epochs, then the number of samples that the prune ratio keeps."""
        first = self.window if self.warm_up is None else self.warm_up
        return n if context.epoch < first else count_kept(n, self.prune_ratio)

    def compute_columns(
        self, rows: Rows, losses: torch.Tensor, *, probability: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Store the probability in its slot of the ring; a full ring adds its deviation to the sum."""
        history = rows["history"]
        new: dict[str, torch.Tensor] = {"score": losses, "history": history + 1}
        total = squares = probability.new_zeros(len(losses))
        for place, name in enumerate(self._ring):
            new[name] = probability.where(history % self.window == place, rows[name])
            total = total + new[name]
        for name in self._ring:
            squares = squares + (new[name] - total / self.window).square()
        deviation = (squares / (self.window - 1)).sqrt()
        new["deviations"] = rows["deviations"] + deviation * (new["history"] >= self.window)
        return new

    def select(self, table: Table, context: Context) -> Selection:
        """Select the most uncertain samples."""
        windows = table["history"].astype(np.float32) - (self.window - 1)
        uncertainty = np.where(windows > 0, table["deviations"] / np.maximum(windows, 1), np.inf)
        return Selection(shuffled(top(uncertainty, self.size(context.n, context), context), context))
