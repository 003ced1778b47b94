"""ContextualDiversity: farthest-first on predicted probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.farthest_first import farthest_first, symmetric_kl
from orderdp.coresets.method import Group, Method, Task
from orderdp.coresets.needs import Needs
from orderdp.policy import Selection

__all__ = ["ContextualDiversity"]


@dataclass(frozen=True, kw_only=True)
class ContextualDiversity(Method):
    """Farthest-first with the symmetric KL divergence between softmax outputs, from a random start."""

    @property
    def needs(self) -> Needs:
        """Logits."""
        return Needs(logits=True)

    def choose(self, task: Task) -> Selection:
        """Farthest-first in each group, in that order."""
        logits = task.source.logits()

        def picks(group: Group) -> np.ndarray:
            start = int(task.rng(group.name).integers(len(group.members)))
            return farthest_first(symmetric_kl(logits[group.members]), group.count, start)

        return task.pick(picks)
