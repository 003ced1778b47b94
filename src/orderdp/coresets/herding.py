"""Herding: each next sample brings the mean of what is kept nearest to the mean of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.blocks import centred
from orderdp.coresets.method import Method, Task
from orderdp.coresets.needs import Needs
from orderdp.policy import Selection

__all__ = ["Herding", "herd"]


def herd(features: np.ndarray, count: int) -> np.ndarray:
    """`count` places: each time the argmin of the distance between (i + 1) * mean and (sum picked + x).

    Around the mean this is the argmin of |sum picked + x|^2, so of |x|^2 / 2 + <sum picked, x>: one product of
    matrix and vector a pick. Of equals the lowest place.
    """
    rows = centred(features)
    scores = np.einsum("nd,nd->n", rows, rows, dtype=np.float64) / 2
    picks = np.empty(count, dtype=np.int64)
    for step in range(count):
        best = int(scores.argmin())
        picks[step] = best
        scores += rows @ rows[best]
        scores[best] = np.inf
    return picks


@dataclass(frozen=True, kw_only=True)
class Herding(Method):
    """Greedy matching of the mean feature, without replacement."""

    @property
    def needs(self) -> Needs:
        """Features."""
        return Needs(features=True)

    def choose(self, task: Task) -> Selection:
        """Herding in each group, in that order. Nothing in it is random."""
        features = task.source.features()
        return task.pick(lambda group: herd(features[group.members], group.count))
