"""Policies that skip learned samples: a sample is learned if its last loss is at or below a threshold.

A learned sample has little left to teach: for softmax cross-entropy the gradient of a sample with loss c, in the
logits, has norm at most sqrt(2) (1 - exp(-c)). So the effect of leaving these samples out is bounded
(`orderdp.theory.weights`), which does not hold if the hardest are kept and all others dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orderdp._validation import check_ratio, is_count, is_number
from orderdp.errors import ConfigError
from orderdp.policies.baselines import RS2
from orderdp.policy import (
    Column,
    Context,
    Policy,
    Rows,
    Selection,
    Table,
    TableRows,
    Threshold,
    at_least_one,
    count_kept,
    shuffled,
    top,
    uniform,
)
from orderdp.registry import Registry
from orderdp.theory.weights import learned_rates

if TYPE_CHECKING:
    import torch

__all__ = [
    "THRESHOLDS",
    "InstanceEarlyStopping",
    "Kakurenbo",
    "LossBelow",
    "LossShare",
    "Probability",
    "ProgressiveDropout",
    "RelativeLoss",
    "SkipLearned",
    "SpacedRepetition",
    "Threshold",
    "Unlearned",
    "as_threshold",
    "learned_threshold",
    "threshold_config",
]


def _check_floor(floor: object) -> None:
    if not (is_number(floor) and math.isfinite(floor)):  # type: ignore[arg-type]
        raise ConfigError(f"floor must be a number, the smallest possible loss, got {floor!r}.")


@dataclass(frozen=True)
class Probability(Threshold):
    """Learned if the model gives the right class at least this probability: for cross-entropy losses.

    >>> round(Probability(0.9).loss, 4)
    0.1054

    Args:
        value: The probability, in (0, 1).
        floor: The smallest possible loss. 0 without label smoothing; with it, `orderdp.losses.smallest_loss`.
    """

    value: float = 0.9
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not (is_number(self.value) and 0 < self.value < 1):
            raise ConfigError(f"the probability of a learned sample's class must be in (0, 1), got {self.value!r}.")
        _check_floor(self.floor)

    @property
    def loss(self) -> float:
        """The largest loss of a learned sample."""
        return self.floor - math.log(self.value)

    def at(self, table: Table) -> float:
        """Return the same loss for every table."""
        return self.loss


@dataclass(frozen=True)
class LossBelow(Threshold):
    """Learned if the loss is at most this number: for losses of a known scale.

    Args:
        value: The largest loss of a learned sample.
    """

    value: float

    def __post_init__(self) -> None:
        if not (is_number(self.value) and math.isfinite(self.value)):
            raise ConfigError(f"the largest loss of a learned sample must be a number, got {self.value!r}.")

    def at(self, table: Table) -> float:
        """Return the same loss for every table."""
        return self.value


@dataclass(frozen=True)
class RelativeLoss(Threshold):
    """Learned if the loss is at most this fraction of the mean first loss of the samples.

    For losses without a known scale: regression, detection, segmentation, language models. It takes four more bytes per
    sample, for the first losses.

    Args:
        share: Fraction of the mean first loss, in (0, 1).
        floor: The smallest possible loss; both losses are measured from it.
    """

    share: float = 0.1
    floor: float = 0.0

    columns = (Column("first", initial=math.inf),)

    def __post_init__(self) -> None:
        check_ratio("share", self.share, zero_allowed=False)
        _check_floor(self.floor)

    def at(self, table: Table) -> float:
        """Return the fraction of the mean over all seen samples; before any is seen, no sample is learned."""
        first = table["first"]
        seen = first[np.isfinite(first)]
        if len(seen) == 0:
            return -math.inf
        return self.floor + self.share * max(0.0, float(seen.mean(dtype=np.float64)) - self.floor)


@dataclass(frozen=True)
class LossShare(Threshold):
    """Learned are the easiest samples that together hold at most this fraction of all loss. Independent of scale.

    Args:
        share: Fraction of the sum of all stored losses, in (0, 1).
        floor: The smallest possible loss; losses are measured from it.
    """

    share: float = 0.05
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_ratio("share", self.share, zero_allowed=False)
        _check_floor(self.floor)

    def at(self, table: Table) -> float:
        """Return the loss of the last sample, from the easiest on, with which the sum does not exceed the fraction."""
        scores = table["score"]
        seen = np.sort(scores[np.isfinite(scores)])
        sums = np.cumsum(np.maximum(seen.astype(np.float64) - self.floor, 0.0))
        if len(seen) == 0:
            return -math.inf
        count = int(np.searchsorted(sums, self.share * sums[-1], side="right"))
        # Equal losses are learned together or not at all.
        while 0 < count < len(seen) and seen[count - 1] == seen[count]:
            count = int(np.searchsorted(seen, seen[count], side="left"))
        return float(seen[count - 1]) if 0 < count < len(seen) else -math.inf


class _ThresholdPolicy(Policy):
    """Base of `Unlearned` and `SkipLearned`: a threshold, and the columns that it needs."""

    learned: Threshold

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the threshold."""
        return self.learned.columns

    @property
    def compute_columns(self) -> Callable[..., Mapping[str, Any]] | None:
        """Stores the loss, and the first loss if the threshold needs it; None if the loss is enough."""
        return _with_first_loss if self.columns else None

    def is_learned(self, table: Table) -> np.ndarray:
        """Return a mask of the learned samples; unseen samples are not learned.

        Args:
            table: What is stored per sample.
        """
        learned: np.ndarray = table["score"] <= self.learned.at(table)
        return learned


@dataclass(frozen=True)
class Unlearned(_ThresholdPolicy):
    """Goes through the samples that are not learned in turn, refreshes some of the learned ones, fills up with others.

    If fewer samples are learned than are pruned, the others come in turn, those first that were trained on longest ago;
    while nothing is learned, this goes through all data as fewer epochs do. If more are learned, all others are kept.
    Among the samples that are not learned, none is preferred for its loss. After twelve passes over the data nothing is
    skipped any more: the rest of a long training is that of fewer epochs.

    >>> Unlearned(prune_ratio=0.5).size(50_000, Context(n=50_000, epoch=0))
    25000

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1). The number kept is exact.
        learned: When a sample is learned. A number is the probability of the right class under cross-entropy; for
            other losses give `RelativeLoss` or `LossBelow`.
        refresh: Fraction of the learned samples that is trained on in any case, so that what is forgotten is noticed.
        in_turn: Whether samples of either kind come in turn, those first that were trained on longest ago; of equals,
            those trained on less often. If False, both are drawn uniformly.
        until_pass: Number of passes over the data after which learned samples are no longer skipped: each epoch is then
            the next chunk of all data, which are shuffled anew for every pass (`RS2`); if not `in_turn`, a uniform
            draw. None to skip to the end.
        unbiased: Whether to weight the kept samples so that the expected gradient is that of the mean over all data.
            Needs `refresh`, or no learned sample might be kept, and ``in_turn=False``.
    """

    prune_ratio: float
    _: KW_ONLY
    learned: Threshold = Probability()
    refresh: float = 0.1
    in_turn: bool = True
    until_pass: int | None = 12
    unbiased: bool = False

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("refresh", self.refresh, one_allowed=True)
        if not (self.until_pass is None or is_count(self.until_pass)):
            raise ConfigError(
                "until_pass must be a number of passes over the data, at least 1, or None to skip learned samples to "
                f"the end, got {self.until_pass!r}."
            )
        object.__setattr__(self, "learned", as_threshold(self.learned))
        if self.unbiased and self.in_turn:
            raise ConfigError(
                "unbiased weights need a uniform draw, and samples come in turn. Add in_turn=False to unbiased=True."
            )
        if self.unbiased and not self.refresh:
            raise ConfigError(
                "unbiased weights need a positive probability for every sample, and without refresh learned samples "
                "may have none. Use refresh=0.1, for example."
            )

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        return count_kept(n, self.prune_ratio)

    def counts(self, n: int, n_learned: int, kept: int | None = None) -> tuple[int, int]:
        """Return how many samples are kept of those not learned, and of the learned ones.

        Args:
            n: Number of samples.
            n_learned: Number of learned samples.
            kept: Number kept in total; None for that of the prune ratio.
        """
        kept = count_kept(n, self.prune_ratio) if kept is None else kept
        refreshed = min(_refreshed(self.refresh, n_learned), kept)
        from_learned = max(kept - (n - n_learned), refreshed)
        return kept - from_learned, from_learned

    def skips(self, passes: float) -> bool:
        """Return whether learned samples are still skipped.

        Args:
            passes: How often samples have been trained on, in the mean.
        """
        return self.until_pass is None or passes < self.until_pass

    def select(self, table: Table, context: Context) -> Selection:
        """Take samples of either kind, in turn or by uniform draws; after `until_pass`, a chunk of a shuffled pass."""
        if self.in_turn and not self.skips(_passes(table)):
            return RS2(self.prune_ratio).select(table, context)
        return self._select_by_kind(table, context)

    def select_among(self, table: Table, handed_out: np.ndarray, context: Context) -> Selection:
        """Select among what a sampler yields; by the longest wait also after `until_pass`.

        A position stands for another sample in every epoch, so there is no pass to divide into chunks.

        Args:
            table: What is stored per sample.
            handed_out: Indices of samples; some may be missing, others repeated.
            context: The epoch's context.
        """
        return self._select_by_kind(TableRows(table.__getitem__, handed_out), context.among(handed_out))

    def _select_by_kind(self, table: Table, context: Context) -> Selection:
        learned = self.is_learned(table) if self.skips(_passes(table)) else np.zeros(context.n, dtype=bool)
        of_others, of_learned = self.counts(context.n, int(learned.sum()))
        if not self.in_turn:
            return _two_draws(learned, of_others, of_learned, context, self.unbiased)
        waits = _waits(table, context)
        others = top(np.where(learned, _LAST, waits), of_others, context)
        again = top(np.where(learned, waits, _LAST), of_learned, context)
        return Selection(shuffled(np.sort(np.concatenate((others, again))), context))


@dataclass(frozen=True)
class SkipLearned(_ThresholdPolicy):
    """Trains on all samples that are not learned and on a fraction of the learned ones, to refresh their losses.

    The size of an epoch depends on the training: all data if nothing is learned. To fix the cost, put this policy into
    a `Budget`.

    Args:
        learned: When a sample is learned. A number is the probability of the right class under cross-entropy; for
            other losses give `RelativeLoss` or `LossBelow`.
        refresh: Fraction of the learned samples that is trained on, in (0, 1].
        unbiased: Whether to weight the refreshed samples so that the expected gradient is that of the mean over all
            data.
    """

    _: KW_ONLY
    learned: Threshold = Probability()
    refresh: float = 0.1
    unbiased: bool = False

    def __post_init__(self) -> None:
        check_ratio("refresh", self.refresh, zero_allowed=False, one_allowed=True)
        object.__setattr__(self, "learned", as_threshold(self.learned))

    def size(self, n: int, context: Context) -> int | None:
        """Return None unless all samples are refreshed: the size depends on the losses."""
        return n if self.refresh == 1 else None

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the sizes if all samples are learned, and if none is."""
        return max(1, _refreshed(self.refresh, n)), n

    def select(self, table: Table, context: Context) -> Selection:
        """Select all samples that are not learned and a uniform draw of the rest, shuffled together."""
        learned = self.is_learned(table)
        return _two_draws(learned, *self.counts(context.n, int(learned.sum())), context, self.unbiased)

    def counts(self, n: int, n_learned: int, kept: int | None = None) -> tuple[int, int]:
        """Return how many samples are kept of those not learned, and of the learned ones.

        Args:
            n: Number of samples.
            n_learned: Number of learned samples.
            kept: Not used.
        """
        return n - n_learned, _refreshed(self.refresh, n_learned)


# Up to 300 uses, one use less makes a difference in single precision.
_LESS_USED = 1 / 64


@dataclass(frozen=True)
class SpacedRepetition(_ThresholdPolicy):
    """Keeps the samples that are due: the longer ago a sample was trained on and the larger its loss, the sooner it is.

    Each sample has a rate: 1 if its loss is at or above the threshold, and in proportion to its loss below that. An
    epoch keeps the largest products of rate and age, in epochs since the sample was last seen; of equal ones, those
    trained on less often. While nothing is learned, this goes through all samples in turn, as fewer epochs of all data
    do; a sample with a tenth of the threshold's loss comes back a tenth as often.

    >>> SpacedRepetition(prune_ratio=0.5).size(50_000, Context(n=50_000, epoch=0))
    25000

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1). The number kept is exact.
        learned: The loss from which on a sample comes at the full rate. A number is the probability of the right class
            under cross-entropy; for other losses give `RelativeLoss` or `LossBelow`.
        slowest: Smallest rate, in (0, 1]: how often a sample without any loss comes back, compared with one that is not
            learned.
    """

    prune_ratio: float
    _: KW_ONLY
    learned: Threshold = Probability(0.7)
    slowest: float = 0.05

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("slowest", self.slowest, zero_allowed=False, one_allowed=True)
        object.__setattr__(self, "learned", as_threshold(self.learned))

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        return count_kept(n, self.prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """Select the samples with the largest products of rate and age, in random order."""
        due = self.due(table["score"], table["seen"], table["usage"], self.learned.at(table), context.epoch)
        return Selection(shuffled(top(due, self.size(context.n, context), context), context))

    def due(self, scores: np.ndarray, seen: np.ndarray, usage: np.ndarray, threshold: float, epoch: int) -> np.ndarray:
        """Return how due each sample is: its rate times its age; +inf for an unseen sample.

        Args:
            scores: The last loss of each sample; +inf for unseen samples.
            seen: The epoch in which each sample was last seen; -1 for unseen samples.
            usage: How often each sample was trained on.
            threshold: The loss from which on the rate is 1.
            epoch: The epoch that begins.
        """
        due = learned_rates(scores, threshold, floor=self.learned.floor, slowest=self.slowest)
        # Half an epoch more, for the part of an epoch by which samples come too late on average: ages are whole.
        due *= np.maximum(epoch - seen.astype(np.float32), 1) + np.float32(0.5)
        # Of samples that are equally due, those trained on less often come first: by less than a fiftieth of an age.
        due *= 1 + np.float32(_LESS_USED) / (1 + usage.astype(np.float32))
        due[np.isposinf(scores)] = np.inf
        return due


_LAST = np.float32(-1)
"""Below the wait of any sample."""


def _waits(table: Table, context: Context) -> np.ndarray:
    """Return how long each sample has not been trained on, in epochs; +inf if never.

    Part of an epoch, at most a half, is added for samples that were trained on less often.
    """
    waits: np.ndarray = np.maximum(context.epoch - table["seen"].astype(np.float32), 1)
    waits += np.float32(0.5) / (1 + table["usage"].astype(np.float32))
    waits[np.isposinf(table["score"])] = np.inf
    return waits


def _passes(table: Table) -> float:
    """Return how often samples have been trained on, in the mean."""
    return float(table["usage"].mean(dtype=np.float64))


def _refreshed(share: float, n_learned: int) -> int:
    """Return how many of the learned samples are trained on: at least one if the fraction is not 0."""
    return min(n_learned, max(1, round(share * n_learned))) if share else 0


def _two_draws(learned: np.ndarray, of_others: int, of_learned: int, context: Context, unbiased: bool) -> Selection:
    """Make two uniform draws, of the samples not learned and of the learned ones; return both in random order."""
    others = uniform(np.flatnonzero(~learned), of_others, context, "unlearned")
    again = uniform(np.flatnonzero(learned), of_learned, context, "learned") if of_learned else np.empty(0, np.int64)
    indices = shuffled(np.sort(np.concatenate((others, again))), context)
    if not unbiased:
        return Selection(indices)
    n, n_learned, kept = context.n, int(learned.sum()), of_others + of_learned
    # kept / (n pi), with pi the fraction of the sample's group that is kept.
    by_group = np.array([kept * (n - n_learned) / (n * max(1, of_others)), kept * n_learned / (n * max(1, of_learned))])
    return Selection(indices, by_group[learned[indices].astype(np.int64)].astype(np.float32))


def _with_first_loss(rows: Rows, losses: torch.Tensor) -> dict[str, torch.Tensor]:
    first = rows["first"]
    return {"score": losses, "first": losses.where(first.isinf(), first)}


def learned_threshold(policy: Policy) -> Threshold:
    """Return the threshold of this policy or of the one inside it; the default probability if it has none."""
    return policy.learned or Probability()


#: Thresholds by name, for the command line and config files.
THRESHOLDS: Registry[Threshold] = Registry(
    Threshold,
    "threshold",
    {"probability": Probability, "loss-below": LossBelow, "relative-loss": RelativeLoss, "loss-share": LossShare},
    shorten=lambda config: config["value"] if (config["name"], config.get("floor")) == ("probability", 0) else config,
)


def as_threshold(learned: object) -> Threshold:
    """Return a threshold from a threshold, from a probability, or from the description in a config file.

    >>> as_threshold(0.95)
    Probability(value=0.95, floor=0.0)
    >>> as_threshold({"name": "relative-loss", "share": 0.05})
    RelativeLoss(share=0.05, floor=0.0)
    """
    if isinstance(learned, Threshold):
        return learned
    if is_number(learned):
        return Probability(learned)  # type: ignore[arg-type]
    if isinstance(learned, Mapping):
        return THRESHOLDS.from_config(learned)
    raise ConfigError(
        "learned must be the probability of the right class, such as 0.9, or Probability, LossBelow, RelativeLoss or "
        f"LossShare of orderdp.policies, got {learned!r}."
    )


def threshold_config(threshold: Threshold) -> float | dict[str, Any]:
    """Return the plain values from which `as_threshold` makes an equal threshold."""
    config: float | dict[str, Any] = THRESHOLDS.short_config(threshold)
    return config


@dataclass(frozen=True)
class Kakurenbo(Policy):
    """Leaves out, of the samples with the lowest losses, those that were predicted correctly and with confidence.

    ``Pruner.lr_scale`` is 1 / (1 - fraction left out): fewer steps, each a little larger.

    ``update`` needs two more arguments, one value per sample: ``correct``, whether the prediction was right, and
    ``confidence``, the largest predicted probability. `orderdp.losses.predictions` computes both from logits.

    Args:
        fraction: Largest fraction left out, in [0, 1).
        tau: Confidence from which a right prediction counts as confident, in [0, 1].
        drops: Epochs at which the learning rate drops, and the fraction with it.
        factors: The fraction is multiplied with these factors, one from each of these epochs on.
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
        object.__setattr__(self, "drops", tuple(self.drops))  # config files contain lists
        object.__setattr__(self, "factors", tuple(self.factors))
        if not all(is_count(epoch) for epoch in self.drops) or list(self.drops) != sorted(set(self.drops)):
            raise ConfigError(f"drops must be epochs in rising order, each at least 1, got {self.drops}.")
        if len(self.factors) < len(self.drops):
            raise ConfigError(f"there must be a factor for each of the drops {self.drops}, got {self.factors}.")
        for factor in self.factors:
            check_ratio("each of factors", factor, one_allowed=True)

    def size(self, n: int, context: Context) -> None:
        """Return None: the size depends on the predictions."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the bounds: at most the fraction is left out."""
        return n - self._most_hidden(n, context), n

    def nominal_ratio(self, context: Context) -> float:
        """Return the fraction in that epoch."""
        passed = sum(context.epoch >= drop for drop in self.drops)
        return self.fraction * (self.factors[passed - 1] if passed else 1.0)

    def lr_scale(self, n: int, kept: int) -> float:
        """Return 1 / (1 - fraction left out)."""
        return n / kept

    def compute_columns(
        self, rows: Rows, losses: torch.Tensor, *, correct: torch.Tensor, confidence: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the loss, whether the prediction was right, and its confidence."""
        return {"score": losses, "correct": correct != 0, "confidence": confidence}

    def select(self, table: Table, context: Context) -> Selection:
        """Select all samples except those that are easy, correct and confident."""
        scores = table["score"]
        candidates = min(self._most_hidden(context.n, context), int(np.isfinite(scores).sum()))
        hidden = np.zeros(context.n, dtype=np.bool_)
        hidden[top(-scores, candidates, context)] = True
        hidden &= (table["correct"] > 0) & (table["confidence"] >= self.tau)
        return Selection(shuffled(np.flatnonzero(~hidden), context))

    def _most_hidden(self, n: int, context: Context) -> int:
        return min(round(self.nominal_ratio(context) * n), n - 1)


@dataclass(frozen=True)
class InstanceEarlyStopping(Policy):
    """Skips the samples whose last three losses a, b, c have a second difference abs(c - 2b + a) below `delta`.

    A skipped sample gets no new loss, so each epoch also trains on a uniform draw of the skipped samples.

    Args:
        delta: Second difference below which a sample is skipped.
        refresh: Fraction of the skipped samples that comes back per epoch, in [0, 1]; rounded up.
    """

    _: KW_ONLY
    delta: float = 1e-3
    refresh: float = 0.1

    # The two losses before the last one, which is the score; infinite if there is none.
    columns = (Column("previous", initial=float("inf")), Column("before_previous", initial=float("inf")))

    def __post_init__(self) -> None:
        number = isinstance(self.delta, int | float) and not isinstance(self.delta, bool)
        if not (number and 0 <= self.delta < float("inf")):
            raise ConfigError(f"delta must be a number, at least 0, got {self.delta!r}.")
        check_ratio("refresh", self.refresh, one_allowed=True)

    def size(self, n: int, context: Context) -> None:
        """Return None: the size depends on the losses."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the bounds: at least the samples that come back if all are skipped."""
        return max(1, self._returning(n)), n

    def compute_columns(self, rows: Rows, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, and the two before it."""
        return {"score": losses, "previous": rows["score"], "before_previous": rows["previous"]}

    def select(self, table: Table, context: Context) -> Selection:
        """Select all samples that are not skipped, and some that are."""
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
        # Rounded up, or of a few skipped samples none would ever come back; `round` first, because 0.07 * 100 > 7.
        return math.ceil(round(self.refresh * skipped, 9))


@dataclass(frozen=True)
class ProgressiveDropout(Policy):
    """Trains on the samples whose own class had a probability below `threshold` when they were last seen.

    The probability is exp(-loss), which holds for cross-entropy without label smoothing or class weights. The last
    epochs train on all data.

    Args:
        threshold: Probability of the right class from which a sample counts as learned, in (0, 1].
        last: Number of epochs at the end that use all data. If it is not 0, ``Pruner(..., epochs=...)`` is needed.
    """

    _: KW_ONLY
    threshold: float = 0.3
    last: int = 1

    def __post_init__(self) -> None:
        check_ratio("threshold", self.threshold, zero_allowed=False, one_allowed=True)
        if not is_count(self.last, least=0):
            raise ConfigError(f"last must be a whole number, at least 0, got {self.last!r}.")

    def size(self, n: int, context: Context) -> int | None:
        """Return `n` in the last epochs; otherwise None: the size depends on the losses."""
        return n if self._is_last(context) else None

    def select(self, table: Table, context: Context) -> Selection:
        """Select the samples that are not learned or unseen; the hardest sample if there are none."""
        if self._is_last(context):
            return Selection(shuffled(np.arange(context.n), context))
        scores = table["score"]
        # exp(-loss) < threshold, without overflow at negative losses.
        unlearned = scores.astype(np.float64) > -math.log(self.threshold)
        return Selection(shuffled(np.flatnonzero(at_least_one(unlearned, scores)), context))

    def _is_last(self, context: Context) -> bool:
        if self.last == 0:
            return False
        if context.epochs is None:
            raise ConfigError(
                "full epochs at the end need to know how many epochs are planned. Use Pruner(..., epochs=...), or "
                "switch them off with ProgressiveDropout(..., last=0)."
            )
        return context.epoch >= context.epochs - self.last
