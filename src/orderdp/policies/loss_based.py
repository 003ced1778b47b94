"""Policies that select by losses, their ranks, or running statistics of them."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from orderdp._draw import pool_sizes
from orderdp._validation import check_ratio, is_count
from orderdp.errors import ConfigError
from orderdp.policies.orderdp import Mixed, OrderDP
from orderdp.policy import (
    Column,
    Context,
    Policy,
    Rows,
    Selection,
    Table,
    at_least_one,
    count_kept,
    hardest_first,
    shuffled,
    top,
    uniform,
    weighted,
)
from orderdp.theory.rank_rules import Top

if TYPE_CHECKING:
    import torch

__all__ = [
    "UCB",
    "ActiveBias",
    "Adaptive",
    "Calibrated",
    "DynamicUncertainty",
    "EpsilonGreedy",
    "OnlineBatchSelection",
    "SelectiveBackprop",
    "SelectiveByRank",
    "relative_bias",
]


@dataclass(frozen=True)
class Adaptive(Policy):
    """OrderDP with the largest prune ratio at which its surrogate risk stays near the mean loss.

    Each epoch uses the largest ratio between `low` and `high` for which (surrogate - mean) / mean of the stored losses
    is at most the tolerance: the bias term of the paper's generalization bound, relative to the loss. If losses are
    similar, leaving some out loses little, and much is pruned; if few samples carry the loss, little is pruned.

    Args:
        tolerance: The largest relative bias.
        low: The smallest ratio.
        high: The largest ratio.
        grid: Step between the ratios tried, from `low` on; `high` is always one of them.
    """

    tolerance: float
    _: KW_ONLY
    low: float = 0.0
    high: float = 0.7
    grid: float = 0.01

    def __post_init__(self) -> None:
        check_ratio("low", self.low)
        check_ratio("high", self.high)
        check_ratio("grid", self.grid, zero_allowed=False)
        if not (isinstance(self.tolerance, int | float) and 0 <= self.tolerance < float("inf")):
            raise ConfigError(f"tolerance must be a number, at least 0, got {self.tolerance!r}.")
        if self.low > self.high:
            raise ConfigError(f"low must not be above high, got low={self.low} and high={self.high}.")

    def size(self, n: int, context: Context) -> int | None:
        """Return None unless the bounds are equal: the size depends on the losses."""
        low, high = self.size_bounds(n, context)
        return low if low == high else None

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the number of samples that the two ratios keep."""
        return count_kept(n, self.high), count_kept(n, self.low)

    def ratio(self, scores: np.ndarray) -> float:
        """Return the ratio for these scores; the smallest one if no sample was seen.

        Args:
            scores: One score per sample, +inf for unseen.
        """
        losses = np.sort(scores[np.isfinite(scores)].astype(np.float64))[::-1]
        if len(losses) == 0:
            return self.low
        totals = np.concatenate(([0.0], np.cumsum(losses)))
        steps = math.ceil((self.high - self.low) / self.grid - 1e-9)  # the last step, to `high`, may be shorter
        for step in range(steps, 0, -1):
            ratio = min(self.high, self.low + step * self.grid)
            if relative_bias(losses, totals, ratio) <= self.tolerance:
                return ratio
        return self.low

    def select(self, table: Table, context: Context) -> Selection:
        """Select as OrderDP does with that ratio."""
        return OrderDP(prune_ratio=self.ratio(table["score"])).select(table, context)


def relative_bias(losses: np.ndarray, totals: np.ndarray, prune_ratio: float) -> float:
    """Return (L_q - mean) / mean at OrderDP's sizes for this ratio; losses fall, `totals` are their running sums."""
    n = len(losses)
    mean = totals[-1] / n
    s, q = pool_sizes(n, prune_ratio, None, None)
    if q < 1 or mean == 0:
        return 0.0 if mean == 0 and q >= 1 else float("inf")
    flat, falling = Top(q).cliff(n, s)
    surrogate = (s / n * totals[flat] + falling @ losses[flat : flat + len(falling)]) / q
    return float((surrogate - mean) / abs(mean))


@dataclass(frozen=True, repr=False)
class Calibrated(Policy):
    """Keeps the largest losses of all samples for one part of the budget; draws the rest uniformly from the others.

    At power 1 the weights make the expected gradient that of the mean over all data: a member of the OrderDP family
    under its published name (exploration 1, a mixed rule, unbiased). With a smaller power it is GOSS with tempered
    weights.

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1).
        share: Fraction of the kept samples that is selected by loss, in [0, 1).
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
        """The constructor arguments; without the power if it is 1, as in checkpoints of earlier versions."""
        given = {"prune_ratio": self.prune_ratio, "share": self.share}
        return given if self.power == 1 else {**given, "power": self.power}

    def __repr__(self) -> str:
        return f"Calibrated({', '.join(f'{name}={value!r}' for name, value in self.parameters.items())})"

    @property
    def member(self) -> OrderDP:
        """The equal member of the OrderDP family, at power 1."""
        rule = Mixed(top=self.share, uniform=1 - self.share)
        return OrderDP(self.prune_ratio, exploration=1.0, select=rule, unbiased=True)

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        return self.member.size(n, context)

    def select(self, table: Table, context: Context) -> Selection:
        """Select as that member does, with its weights raised to the power."""
        selection = self.member.select(table, context)
        if self.power == 1 or selection.weights is None:
            return selection
        tempered = selection.weights.astype(np.float64) ** self.power
        return Selection(selection.indices, (tempered / tempered.mean()).astype(np.float32))


@dataclass(frozen=True)
class SelectiveBackprop(Policy):
    """Keeps a sample with probability (fraction of the seen losses that are no larger than its own) ** beta.

    This policy uses stored losses and needs no extra pass; `orderdp.losses.SelectiveMean` uses fresh losses.

    Args:
        beta: How strongly hard samples are preferred; about beta / (1 + beta) of the samples are left out.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        number = isinstance(self.beta, int | float) and not isinstance(self.beta, bool)
        if not (number and 0 <= self.beta < float("inf")):
            raise ConfigError(f"beta must be a number, at least 0, got {self.beta!r}.")

    @classmethod
    def parameters_at(cls, prune_ratio: float) -> dict[str, float]:
        """Return the parameters that leave out about this fraction: beta = r / (1 - r)."""
        check_ratio("prune_ratio", prune_ratio)
        return {"beta": prune_ratio / (1 - prune_ratio)}

    def size(self, n: int, context: Context) -> None:
        """Return None: the size depends on the draw."""
        return

    def nominal_ratio(self, context: Context) -> float:
        """Return the expected prune ratio for many distinct losses."""
        return self.beta / (1 + self.beta)

    def with_ratio(self, prune_ratio: float) -> SelectiveBackprop:
        """Return the policy that leaves out about this fraction."""
        return SelectiveBackprop(**self.parameters_at(prune_ratio))

    def select(self, table: Table, context: Context) -> Selection:
        """Draw each sample independently; keep all unseen samples."""
        scores = table["score"]
        ordered = np.sort(scores[np.isfinite(scores)])
        uniforms = context.rng("epoch", context.epoch, "luck").random(context.n)
        kept = np.isinf(scores)
        if len(ordered):
            # u < rank ** beta is rank > u ** (1 / beta): so one lookup by rank replaces a search per sample.
            wanted = uniforms ** (1 / self.beta) if self.beta else np.zeros(context.n)
            places = np.minimum((wanted * len(ordered)).astype(np.int64), len(ordered) - 1)
            kept |= scores >= ordered[places]
        return Selection(shuffled(np.flatnonzero(at_least_one(kept, scores)), context))


@dataclass(frozen=True)
class SelectiveByRank(Policy):
    """Keeps a plain fraction whole and draws the rest by a power of its rank. Outside of a window it uses all data.

    Of the m samples that are not plain, a fraction 1 - prune_ratio is drawn without replacement in proportion to
    ((rank + 0.5) / m) ** (1 / (1 - prune_ratio) - 1), rank 0 the easiest by its last loss. Unseen samples rank as the
    hardest. This is the rule of Composer's selective backprop, with stored losses.

    Args:
        prune_ratio: Fraction left out of the samples that are not plain, in [0, 1).
        start: Fraction of the epochs after which pruning begins.
        end: Fraction of the epochs after which it ends.
        plain: Fraction of the samples, drawn uniformly per epoch, that is kept whatever its losses.
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
        """Return `n` outside of the window; inside, the plain samples plus the rounded number kept of the rest."""
        return sum(self._parts(n)) if self._prunes(context) else n

    def select(self, table: Table, context: Context) -> Selection:
        """Select the plain samples, and draw by rank from the rest."""
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
        """Return the number of plain samples, and the number kept of the rest."""
        plain = round(self.plain * n)
        by_rank = round((1 - self.prune_ratio) * (n - plain))
        if plain + by_rank < 1:
            raise ConfigError(f"{self} keeps 0 of {n} samples; at least one must be kept. Prune less.")
        return plain, by_rank

    def _prunes(self, context: Context) -> bool:
        if self.start == 0 and self.end == 1:
            return True
        if context.epochs is None:
            raise ConfigError(
                "a window needs to know how many epochs are planned. Use Pruner(..., epochs=...), or prune in all of "
                "them with start=0, end=1."
            )
        # In whole epochs: a comparison of floats would miss the ends at some numbers of epochs.
        first, stop = (math.ceil(round(share * context.epochs, 9)) for share in (self.start, self.end))
        return first <= context.epoch < stop


@dataclass(frozen=True)
class OnlineBatchSelection(Policy):
    """Draws samples without replacement in proportion to pressure ** (-rank / n), rank 0 the hardest.

    Ranks go by the last loss; unseen samples come before all others. The pressure is the ratio between the weights of
    the hardest and the easiest sample. It changes geometrically from `start` in the first epoch to `end` in the last;
    at 1 the draw is uniform.

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1).
        start: Pressure in the first epoch, at least 1.
        end: Pressure in the last, at least 1. If it differs from `start`, ``Pruner(..., epochs=...)`` is needed.
    """

    prune_ratio: float
    _: KW_ONLY
    start: float = 100.0
    end: float = 1.0

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        for name, value in (("start", self.start), ("end", self.end)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 1 <= value < float("inf")):
                raise ConfigError(f"{name} must be a number, at least 1, got {value!r}.")

    def pressure(self, context: Context) -> float:
        """Return how many times as likely the hardest sample is as the easiest to be drawn first in this epoch.

        Args:
            context: The epoch's context.
        """
        if self.start == self.end:
            return self.start
        if context.epochs is None:
            raise ConfigError(
                "a pressure that changes needs to know how many epochs are planned. Use Pruner(..., epochs=...), or "
                "make start and end equal."
            )
        done = min(1.0, context.epoch / max(1, context.epochs - 1))
        return math.exp((1 - done) * math.log(self.start) + done * math.log(self.end))

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        self.pressure(context)  # raises now, and not at the first selection, if the number of epochs is missing
        return count_kept(n, self.prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """Draw by rank."""
        ranked = hardest_first(np.arange(context.n), table["score"], context)
        logarithms = np.arange(context.n) * (-math.log(self.pressure(context)) / context.n)
        drawn = weighted(logarithms, self.size(context.n, context), context)
        return Selection(shuffled(np.sort(ranked[drawn]), context))


# -- running statistics per sample: bandits (epsilon-greedy, UCB), active bias, dynamic uncertainty --------------------


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
