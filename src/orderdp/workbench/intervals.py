"""Differences of runs that share a seed, with the interval they can be trusted to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Difference", "paired_difference", "student_t"]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and its confidence interval; no interval for a single pair."""

    mean: float
    low: float | None
    high: float | None
    pairs: int


def paired_difference(differences: Sequence[float], confidence: float = 0.95) -> Difference:
    """The mean of `differences`, one for each seed, and Student's interval around it.

    Differences 0.25, 0 and 0.5 have the mean 0.25 and the standard deviation 0.25; with two degrees of freedom the
    interval reaches 4.303 times 0.25 / sqrt(3) to either side.

    >>> paired_difference([0.25, 0.0, 0.5])
    Difference(mean=0.25, low=-0.3710..., high=0.8710..., pairs=3)
    """
    pairs = len(differences)
    mean = math.fsum(differences) / pairs
    if pairs == 1:
        return Difference(mean, None, None, pairs)
    reach = student_t(confidence, pairs - 1) * statistics.stdev(differences) / math.sqrt(pairs)
    return Difference(mean, mean - reach, mean + reach, pairs)


def student_t(confidence: float, degrees: int) -> float:
    """How far a t-distributed number strays to either side, with the given probability.

    >>> round(student_t(0.95, 2), 3)
    4.303
    """
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(degrees)
    for _ in range(100):
        middle = (low + high) / 2
        if _probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _probability(angle: float, degrees: int) -> float:
    """P(|t| < sqrt(degrees) tan(angle)), a finite sum where the degrees are a whole number."""
    odd = degrees % 2
    cosine = math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
