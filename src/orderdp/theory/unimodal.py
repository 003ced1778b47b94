"""Probabilities with one peak, from the ratios of neighbours.

Binomial coefficients of large numbers cannot be had from log-gamma without losing nine digits in the differences.
Ratios of neighbouring probabilities are simple fractions: summed in logs, away from the peak where the sum is 0, and
normalised at the end, they lose next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["binomial", "hypergeometric", "one_peak"]

# Probabilities below exp of this, 4e-44, relative to the largest, are taken to be 0.
_NOTHING = -100.0

_FIRST_CHUNK = 1 << 10

LogRatio = Callable[[np.ndarray], np.ndarray]


def one_peak(low: int, high: int, peak: int, log_ratio: LogRatio) -> tuple[int, np.ndarray]:
    """Probabilities p(k) for low <= k <= high that rise to `peak` and fall after it, and sum to 1.

    Args:
        low: Smallest k of positive probability.
        high: Largest one.
        peak: Where it is largest, or next to it.
        log_ratio: log(p(k+1) / p(k)) for an array of k in [low, high).

    Returns:
        The first k whose probability is not taken to be 0, and the probabilities from there on.
    """
    peak = min(max(peak, low), high)
    above = _walk(lambda steps: log_ratio(peak + steps), high - peak)
    below = _walk(lambda steps: -log_ratio(peak - 1 - steps), peak - low)
    logs = np.concatenate((below[::-1], [0.0], above))
    probabilities = np.exp(logs - logs.max())
    probabilities /= probabilities.sum()
    return peak - len(below), probabilities


def hypergeometric(total: int, good: int, draws: int) -> tuple[int, np.ndarray]:
    """How many good ones are among `draws` out of `total` without replacement: first k, probabilities from there."""

    def log_ratio(k: np.ndarray) -> np.ndarray:
        ratio: np.ndarray = np.log((good - k) / (k + 1) * (draws - k) / (k + (total - good - draws + 1)))
        return ratio

    peak = (draws + 1) * (good + 1) // (total + 2)
    return one_peak(max(0, draws - (total - good)), min(good, draws), peak, log_ratio)


def binomial(trials: int, chance: float) -> tuple[int, np.ndarray]:
    """How many of `trials` succeed: first k, probabilities from there."""
    if chance <= 0 or chance >= 1 or trials == 0:
        return (trials if chance >= 1 else 0), np.ones(1)
    odds = np.log(chance) - np.log1p(-chance)
    return one_peak(0, trials, int((trials + 1) * chance), lambda k: np.log((trials - k) / (k + 1.0)) + odds)


def _walk(log_step: LogRatio, steps: int) -> np.ndarray:
    """Sums of the first 1, 2, ... steps, until they are too small to matter."""
    parts: list[np.ndarray] = []
    done, reached, chunk = 0, 0.0, _FIRST_CHUNK
    while done < steps and reached > _NOTHING:
        size = min(chunk, steps - done)
        sums = reached + np.cumsum(log_step(np.arange(done, done + size, dtype=np.float64)))
        parts.append(sums)
        done, reached, chunk = done + size, float(sums[-1]), min(2 * chunk, 1 << 22)
    return np.concatenate(parts) if parts else np.empty(0)
