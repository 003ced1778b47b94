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
from orderdp.theory._checks import checked_losses, checked_positive

__all__ = ["SkipChances", "gradient_bound", "skip_bias_bound", "skip_chances", "skip_surrogate_loss"]


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
