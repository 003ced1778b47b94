"""KCenter: each next sample is the one farthest from all that are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.farthest_first import farthest_first, squared_euclidean
from orderdp.coresets.method import Group, Method, Task
from orderdp.coresets.needs import Needs
from orderdp.policy import Selection

__all__ = ["KCenter"]


@dataclass(frozen=True, kw_only=True)
class KCenter(Method):
    """Farthest-first on features from a random start: the largest gap is at most twice the smallest possible."""

    @property
    def needs(self) -> Needs:
        """Features."""
        return Needs(features=True)

    def choose(self, task: Task) -> Selection:
        """Farthest-first in each group, in that order."""
        features = task.source.features()

        def picks(group: Group) -> np.ndarray:
            start = int(task.rng(group.name).integers(len(group.members)))
            return farthest_first(squared_euclidean(features[group.members]), group.count, start)

        return task.pick(picks)
