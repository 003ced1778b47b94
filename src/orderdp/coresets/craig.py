"""Craig: samples whose gradients stand for those of all others, each with the weight of those it stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.facility import cluster_sizes, maximise_coverage
from orderdp.coresets.last_layer import Gradients
from orderdp.coresets.method import Group, Method, Task, Weighted
from orderdp.coresets.needs import Needs
from orderdp.planning import check_ratio
from orderdp.policy import Selection

__all__ = ["Craig", "GradientKernel"]


class GradientKernel:
    """A constant less the distance between last-layer gradients; the constant is no smaller than any distance."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._squares = gradients.squared_norms()
        self._constant = np.float32(2 * np.sqrt(self._squares.max()))

    @property
    def n(self) -> int:
        """How many samples."""
        return len(self._gradients)

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all."""
        found = self._gradients[places].inner(self._gradients)
        np.subtract(self._squares[places][:, None] + self._squares, 2 * found, out=found)
        np.sqrt(np.maximum(found, 0, out=found), out=found)
        np.subtract(self._constant, found, out=found)
        # A sample is as near to itself as can be, whatever rounding says.
        found[np.arange(len(places)), places] = self._constant
        return np.asarray(np.maximum(found, 0, out=found))


@dataclass(frozen=True, kw_only=True)
class Craig(Method):
    """Facility location on last-layer gradients; weights are the sizes of the clusters.

    Args:
        eps: How far below 1 - 1/e the guarantee may fall for groups whose kernel does not fit in memory.
    """

    eps: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("eps", self.eps, zero_allowed=False)

    @property
    def needs(self) -> Needs:
        """Features and logits."""
        return Needs(features=True, logits=True, labels=True)

    def choose(self, task: Task) -> Selection:
        """Greedy in each group, in that order, with weights."""
        source, labels = task.source, task.labels
        features, logits = source.features(), source.logits()

        def picks(group: Group) -> Weighted:
            own = group.members
            kernel = GradientKernel(Gradients.of(features[own], logits[own], labels[own]))
            places = maximise_coverage(kernel, group.count, task.rng(group.name), eps=self.eps)
            return Weighted(places, cluster_sizes(kernel, places).astype(np.float64))

        return task.pick_weighted(picks)
