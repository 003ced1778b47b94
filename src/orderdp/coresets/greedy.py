"""Greedy maximisation: lazy, which picks what plain greedy picks, and stochastic, for what does not fit in memory.

Both need gains that never grow as more is picked (submodular functions have such gains). For a function that also
never falls, greedy reaches 1 - 1/e of the best set of that size, and stochastic greedy 1 - 1/e - eps on average.
"""

from __future__ import annotations

from math import ceil, log
from typing import Protocol

import numpy as np

__all__ = ["Objective", "lazy_greedy", "stochastic_greedy"]

_FIRST_CHUNK = 8


class Objective(Protocol):
    """What is maximised.

    Attributes:
        bounds: What each sample would add at most; the objective may lower them whenever it knows better.
    """

    bounds: np.ndarray

    def gains(self, places: np.ndarray) -> np.ndarray:
        """What each of these samples would add now."""
        ...

    def take(self, place: int) -> None:
        """Adds a sample to what is picked."""
        ...


def lazy_greedy(objective: Objective, count: int) -> np.ndarray:
    """The `count` picks of plain greedy, in its order; of equal gains the lowest place.

    A gain that was computed earlier is an upper bound now. So only the samples with the largest bounds are looked
    at again, in chunks that double, until the largest bound of all is a gain of this step.
    """
    bounds = objective.bounds
    picks = np.empty(count, dtype=np.int64)
    step_of_gain = np.full(len(bounds), -1, dtype=np.int64)
    for step in range(count):
        chunk = _FIRST_CHUNK
        while step_of_gain[best := int(bounds.argmax())] != step:
            stale = _largest(bounds, chunk)
            stale = stale[step_of_gain[stale] != step]
            bounds[stale] = objective.gains(stale)
            step_of_gain[stale] = step
            chunk *= 2
        picks[step] = best
        bounds[best] = -np.inf
        objective.take(best)
    return picks


def stochastic_greedy(objective: Objective, count: int, rng: np.random.Generator, eps: float = 0.01) -> np.ndarray:
    """`count` picks, each the best of a random part of what is left.

    The part has (n / count) ln(1 / eps) samples, so that all steps together look at n ln(1 / eps) of them, however
    many are picked.
    """
    left = rng.permutation(len(objective.bounds))
    size = ceil(len(left) / count * log(1 / eps))
    picks = np.empty(count, dtype=np.int64)
    for step in range(count):
        places = rng.integers(0, len(left), min(size, len(left))) if size < len(left) else np.arange(len(left))
        part = np.unique(places)
        best = part[objective.gains(left[part]).argmax()]
        picks[step] = left[best]
        left[best] = left[-1]
        left = left[:-1]
        objective.take(int(picks[step]))
    return picks


def _largest(bounds: np.ndarray, chunk: int) -> np.ndarray:
    if chunk >= len(bounds):
        return np.flatnonzero(bounds > -np.inf)
    largest = np.argpartition(bounds, len(bounds) - chunk)[len(bounds) - chunk :]
    kept: np.ndarray = largest[bounds[largest] > -np.inf]
    return kept
