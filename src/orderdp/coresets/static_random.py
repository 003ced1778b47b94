"""StaticRandom: a uniform choice, made once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.method import Method, Task
from orderdp.policy import Selection

__all__ = ["StaticRandom"]


@dataclass(frozen=True, kw_only=True)
class StaticRandom(Method):
    """Keeps a uniform part of the data set, or of each class. The rival every other one has to beat."""

    def choose(self, task: Task) -> Selection:
        """A uniform draw without replacement."""
        drawn = task.pick(lambda group: task.rng(group.name).choice(len(group.members), group.count, replace=False))
        return Selection(np.sort(drawn.indices))
