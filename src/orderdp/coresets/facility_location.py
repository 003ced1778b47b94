"""FacilityLocation: every sample has a similar one among those that are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.blocks import CosineKernel
from orderdp.coresets.facility import maximise_coverage
from orderdp.coresets.method import Group, Method, Task
from orderdp.coresets.needs import Needs
from orderdp.planning import check_ratio
from orderdp.policy import Selection

__all__ = ["FacilityLocation"]


@dataclass(frozen=True, kw_only=True)
class FacilityLocation(Method):
    """Greedy facility location with similarity 0.5 + 0.5 cos.

    Args:
        eps: How far below 1 - 1/e the guarantee may fall for groups whose kernel does not fit in memory.
    """

    eps: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("eps", self.eps, zero_allowed=False)

    @property
    def needs(self) -> Needs:
        """Features."""
        return Needs(features=True)

    def choose(self, task: Task) -> Selection:
        """Greedy in each group, in that order."""
        features = task.source.features()

        def picks(group: Group) -> np.ndarray:
            kernel = CosineKernel(features[group.members])
            return maximise_coverage(kernel, group.count, task.rng(group.name), eps=self.eps)

        return task.pick(picks)
