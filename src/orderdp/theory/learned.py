"""Effects of skipping learned samples: probabilities, risk, and a bound on the gradient that is left out.

Rank rules have no such bound. A sample with cross-entropy loss c gives the right class the probability exp(-c).
Its gradient in the logits, p - e_y, has the entry 1 - exp(-c) in the right class and entries in the others that sum to
as much, so its norm is at most sqrt(2) (1 - exp(-c)). Leaving out samples whose loss is at most c therefore changes the
mean gradient in the logits by at most their fraction times that.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from orderdp._validation import is_count
from orderdp.errors import ConfigError
from orderdp.theory.rank_rules import checked_losses, checked_positive

__all__ = [
    "SkipChances",
    "gradient_bound",
    "learned_rates",
    "longest_gap",
    "skip_bias_bound",
    "skip_chances",
    "skip_surrogate_loss",
    "spaced_bias_bound",
    "spaced_surrogate_loss",
    "visiting_shares",
]


class SkipChances(NamedTuple):
    """The probability that a sample is trained on in an epoch.

    Attributes:
        unlearned: Probability of a sample that is not learned.
        learned: Probability of a learned sample.
    """

    unlearned: float
    learned: float


def skip_chances(n: int, n_learned: int, kept: int, refreshed: int = 0) -> SkipChances:
    """Return the probabilities under `orderdp.Unlearned`: `kept` samples, at least `refreshed` of them learned.

    Half of ten samples are learned and seven are kept: all others, and two of the five.

    >>> skip_chances(10, n_learned=5, kept=7)
    SkipChances(unlearned=1.0, learned=0.4)

    Args:
        n: Number of samples.
        n_learned: Number of learned samples.
        kept: Number of samples trained on.
        refreshed: Number of learned samples that are trained on in any case.
    """
    if not (is_count(n) and is_count(n_learned, least=0) and n_learned <= n and is_count(kept) and kept <= n):
        raise ConfigError(
            "n, n_learned and kept must be whole numbers with 0 <= n_learned <= n and 1 <= kept <= n, got "
            f"n={n!r}, n_learned={n_learned!r}, kept={kept!r}."
        )
    if not (is_count(refreshed, least=0) and refreshed <= min(n_learned, kept)):
        raise ConfigError(
            f"refreshed must be a whole number from 0 to {min(n_learned, kept)}, no more than are learned or kept, got "
            f"{refreshed!r}."
        )
    others = n - n_learned
    of_learned = max(kept - others, refreshed)
    return SkipChances(
        unlearned=(kept - of_learned) / others if others else 0.0,
        learned=of_learned / n_learned if n_learned else 0.0,
    )


def skip_surrogate_loss(losses: Any, threshold: float, kept: int, refreshed: int = 0) -> float:
    """Return the expected mean loss of an epoch's selection: the risk that `orderdp.Unlearned` minimizes.

    >>> skip_surrogate_loss([0.0, 0.0, 1.0, 3.0], threshold=0.1, kept=3)
    1.3333333333333333

    Args:
        losses: One loss per sample.
        threshold: At or below this loss a sample is learned.
        kept: Number of samples trained on.
        refreshed: Number of learned samples that are trained on in any case.
    """
    values = checked_losses(losses)
    learned = values <= threshold
    chances = skip_chances(len(values), int(learned.sum()), kept, refreshed)
    return float(np.where(learned, chances.learned, chances.unlearned) @ values) / kept


def gradient_bound(loss: float, floor: float = 0.0) -> float:
    """Return the largest possible norm of the gradient, in the logits, of a sample with this cross-entropy loss.

    Without label smoothing it is sqrt(2) (1 - exp(-loss)). With it the gradient is p - t, t the smoothed target, and
    loss - floor is the divergence of p from t, so that by Pinsker's inequality the norm is at most
    sqrt(2 (loss - floor)).

    >>> round(gradient_bound(0.1054), 3)
    0.141

    Args:
        loss: Loss of the sample.
        floor: The smallest possible loss: 0, or with label smoothing `orderdp.losses.smallest_loss`.
    """
    loss = checked_positive("loss", loss, zero_allowed=True)
    floor = checked_positive("floor", floor, zero_allowed=True)
    if floor == 0:
        return math.sqrt(2) * -math.expm1(-loss)
    return min(math.sqrt(2), math.sqrt(2 * max(0.0, loss - floor)))


def skip_bias_bound(threshold: float, learned_share: float, refresh: float = 0.0, floor: float = 0.0) -> float:
    """Bound the expected change of the mean gradient over all data, in the logits, if learned samples are left out.

    The gradients of the samples trained on, summed and divided by n, differ in expectation from the mean gradient over
    all n by those that were left out: a fraction (1 - refresh) of the learned ones, each with a norm of at most
    `gradient_bound(threshold)`. This holds for current losses; stored losses may be older.

    Half of the samples have probability 0.9 or more, and a tenth of them is trained on:

    >>> round(skip_bias_bound(0.1054, learned_share=0.5, refresh=0.1), 4)
    0.0637

    Args:
        threshold: At or below this loss a sample is learned.
        learned_share: Fraction of the samples that is learned, in [0, 1].
        refresh: Fraction of the learned samples that is trained on, in [0, 1].
        floor: The smallest possible loss.
    """
    for name, value in (("learned_share", learned_share), ("refresh", refresh)):
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} must be in [0, 1], got {value!r}.")
    return (1 - refresh) * learned_share * gradient_bound(threshold, floor)


# -- spaced repetition -------------------------------------------------------------------------------------------------


def learned_rates(losses: np.ndarray, threshold: float, *, floor: float = 0.0, slowest: float = 0.0) -> np.ndarray:
    """Return how often each sample is trained on under `orderdp.SpacedRepetition`, relative to one that is not learned.

    >>> learned_rates(np.array([0.0, 0.1, 0.2, 3.0]), 0.2, slowest=0.05).tolist()
    [0.05000000074505806, 0.5, 1.0, 1.0]

    Args:
        losses: One loss per sample.
        threshold: The loss from which on the rate is 1.
        floor: The smallest possible loss.
        slowest: The smallest rate.
    """
    if not threshold > floor:  # no loss is below the threshold, or only the smallest possible one
        rates: np.ndarray = np.where(losses > threshold, np.float32(1), np.float32(slowest))
        return rates
    with np.errstate(over="ignore"):
        rates = (losses.astype(np.float32) - np.float32(floor)) / np.float32(threshold - floor)
    np.clip(rates, np.float32(slowest), np.float32(1), out=rates)
    return rates


def visiting_shares(rates: Any, kept: int) -> np.ndarray:
    """Return the fraction of epochs in which each sample is trained on if the rates stay: min(1, c rate), sum `kept`.

    >>> visiting_shares([1.0, 1.0, 0.5, 0.25, 0.25], kept=3).round(4).tolist()
    [1.0, 1.0, 0.5, 0.25, 0.25]

    Args:
        rates: One rate per sample, in (0, 1].
        kept: Number of samples trained on per epoch.
    """
    values = np.asarray(rates, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not ((values > 0) & (values <= 1)).all():
        raise ConfigError("rates must be a list of numbers in (0, 1], one per sample.")
    if not (is_count(kept) and kept <= len(values)):
        raise ConfigError(f"kept must be a whole number from 1 to {len(values)}, the number of rates, got {kept!r}.")
    falling = np.sort(values)[::-1]
    # With the m largest at share 1, the others share what is left in proportion to their rates.
    rest = np.cumsum(falling[::-1])[::-1]
    for m in range(kept + 1):
        if m == len(values):
            return np.ones_like(values)
        factor = (kept - m) / rest[m]
        if factor * falling[m] <= 1:
            shares: np.ndarray = np.minimum(1.0, factor * values)
            return shares
    raise AssertionError  # m = kept gives the factor 0


def spaced_surrogate_loss(losses: Any, threshold: float) -> float:
    """Return the risk that training minimizes if each sample is trained on at its rate: the mean Huber loss of losses.

    The rate of a loss l is the derivative of l^2 / (2 t) below the threshold t and of l - t / 2 above it. Smallest
    rate and floor are 0.

    >>> round(spaced_surrogate_loss([0.1, 1.0], threshold=0.2), 6)
    0.4625

    Args:
        losses: One loss per sample.
        threshold: The loss from which on the rate is 1.
    """
    values = checked_losses(losses)
    t = checked_positive("threshold", threshold)
    return float(np.where(values < t, values**2 / (2 * t), values - t / 2).mean())


def spaced_bias_bound(losses: Any, threshold: float, slowest: float = 0.0) -> float:
    """Bound the change of the mean gradient over all data, in the logits, if samples are trained on at their rates.

    The gradient of a sample with loss l is missing for a fraction 1 - rate(l) of the time, and has a norm of at most
    `gradient_bound(l)`: nothing is missing at or above the threshold, and next to nothing at a loss of 0.

    >>> round(spaced_bias_bound([0.0, 0.1, 3.0], threshold=0.2), 4)
    0.0224

    Args:
        losses: One cross-entropy loss per sample.
        threshold: The loss from which on the rate is 1.
        slowest: The smallest rate.
    """
    values = checked_losses(losses)
    t = checked_positive("threshold", threshold)
    missing = 1 - np.clip(values / t, slowest, 1)
    return float((missing * math.sqrt(2) * -np.expm1(-values)).mean())


def longest_gap(n: int, kept: int, slowest: float) -> int:
    """Bound the epochs between two trainings on the same sample under `orderdp.SpacedRepetition`.

    A sample that has waited for A epochs was passed by in the second half of them for samples that had waited for at
    least slowest A / 4 themselves, so each of these was kept at most 1 + 2.04 / slowest times in that half. Together
    they were kept kept A / 2 times, which is at most n (1 + 2.04 / slowest).

    >>> longest_gap(1000, kept=500, slowest=0.1)
    86

    Args:
        n: Number of samples.
        kept: Number of samples trained on per epoch.
        slowest: The smallest rate, in (0, 1].
    """
    if not (is_count(n) and is_count(kept) and kept <= n and 0 < slowest <= 1):
        raise ConfigError(
            "n and kept must be whole numbers with 1 <= kept <= n, and slowest in (0, 1], got "
            f"n={n!r}, kept={kept!r}, slowest={slowest!r}."
        )
    return math.ceil(2 * n * (1 + 2.04 / slowest) / kept)
