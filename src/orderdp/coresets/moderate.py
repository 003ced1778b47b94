"""Moderate: the samples at a middling distance from the median of their class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.budgets import class_members
from orderdp.coresets.method import Group, Method, Task
from orderdp.coresets.needs import Needs
from orderdp.policy import Selection

__all__ = ["Moderate", "distances_to_class_median", "middle"]


def distances_to_class_median(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Distance of each sample to the median feature of its class, coordinate by coordinate."""
    distances = np.empty(len(labels), dtype=np.float32)
    for members in class_members(labels).values():
        own = features[members]
        distances[members] = np.linalg.norm(own - np.median(own, axis=0), axis=1)
    return distances


def middle(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` values in the middle of the order; of two middles, the lower.

    >>> middle(np.array([10.0, 0.0, 5.0, 6.0, 99.0]), 3).tolist()
    [2, 3, 0]
    """
    start = (len(values) - count) // 2
    return np.argsort(values, kind="stable")[start : start + count]


@dataclass(frozen=True, kw_only=True)
class Moderate(Method):
    """Keeps the middle of the distances to the class median: neither the typical nor the odd ones."""

    @property
    def needs(self) -> Needs:
        """Features and labels."""
        return Needs(features=True, labels=True)

    def choose(self, task: Task) -> Selection:
        """The middle of each group's distances, in the order of the samples."""
        distances = distances_to_class_median(task.source.features(), task.labels)

        def picks(group: Group) -> np.ndarray:
            # In a random order first: equal distances would otherwise be kept by their place.
            order = task.rng(group.name).permutation(len(group.members))
            return np.asarray(order[middle(distances[group.members[order]], group.count)])

        return Selection(np.sort(task.pick(picks).indices))
