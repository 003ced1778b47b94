"""GradMatch: few gradients, weighted, that add up to the mean gradient of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.last_layer import Gradients
from orderdp.coresets.method import Group, Method, Task, Weighted
from orderdp.coresets.needs import Needs
from orderdp.coresets.pursuit import Pursuit, pursue
from orderdp.errors import ConfigError
from orderdp.policy import Selection

__all__ = ["GradMatch"]

#: The largest matrix of a pursuit, in bytes: one number for each pair of kept samples of a group.
_FITS = 1_500_000_000


@dataclass(frozen=True, kw_only=True)
class GradMatch(Method):
    """Orthogonal matching pursuit of the group's mean last-layer gradient, with weights that are not negative.

    Args:
        ridge: Weight of the squared weights in what is minimised (lambda).
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.ridge, int | float) and 0 <= self.ridge < float("inf")):
            raise ConfigError(f"ridge must be a number, at least 0, got {self.ridge!r}.")

    @property
    def needs(self) -> Needs:
        """Features and logits."""
        return Needs(features=True, logits=True, labels=True)

    def choose(self, task: Task) -> Selection:
        """A pursuit in each group, with weights."""
        largest = max(group.count for group in task.groups)
        if 8 * largest**2 > _FITS:
            raise ConfigError(
                f"GradMatch holds a number for each pair of kept samples of a group; {largest} of a group need "
                f"{8e-9 * largest**2:.1f} GB, more than {_FITS / 1e9:g}. Use balanced=True, or prune more."
            )
        source, labels = task.source, task.labels
        features, logits = source.features(), source.logits()

        def picks(group: Group) -> Weighted:
            own = group.members
            gradients = Gradients.of(features[own], logits[own], labels[own])
            return _filled(pursue(gradients, gradients.mean(), group.count, self.ridge), group.count)

        return task.pick_weighted(picks)


def _filled(pursuit: Pursuit, count: int) -> Weighted:
    """The pursuit's samples, and as many of the next best as are missing, at the smallest of its weights."""
    along = pursuit.along.copy()
    along[pursuit.places] = -np.inf
    others = np.argsort(-along, kind="stable")[: count - len(pursuit.places)]
    smallest = pursuit.weights.min() if len(pursuit.weights) else 1.0
    weights = np.append(pursuit.weights, np.full(len(others), smallest))
    return Weighted(np.append(pursuit.places, others), weights)
