"""GraphCut: samples that are similar to all others and not to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.blocks import unit_rows
from orderdp.coresets.greedy import lazy_greedy
from orderdp.coresets.method import Method, Task
from orderdp.coresets.needs import Needs
from orderdp.errors import ConfigError
from orderdp.policy import Selection

__all__ = ["GraphCut", "cut"]


def cut(features: np.ndarray, count: int, trade_off: float) -> np.ndarray:
    """`count` places: each time the largest trade_off * (similarity to all) - 2 * (similarity to those picked).

    The similarity is 0.5 + 0.5 cos, so sums of it are products with a sum of directions, and no kernel is needed.
    """
    return lazy_greedy(_Cut(unit_rows(features), trade_off), count)


class _Cut:
    """Sums of directions: of all samples, and of those picked."""

    def __init__(self, directions: np.ndarray, trade_off: float) -> None:
        self._directions = directions
        self._to_all = trade_off * self._similarity(np.arange(len(directions)), directions.sum(0), len(directions))
        self._sum, self._count = np.zeros(directions.shape[1], dtype=np.float32), 0
        self.bounds = self._to_all.copy()

    def gains(self, places: np.ndarray) -> np.ndarray:
        """What each of these adds, but for its similarity to itself, which is 1 for all."""
        return np.asarray(self._to_all[places] - 2 * self._similarity(places, self._sum, self._count))

    def take(self, place: int) -> None:
        """One more direction."""
        self._sum += self._directions[place]
        self._count += 1

    def _similarity(self, places: np.ndarray, total: np.ndarray, count: int) -> np.ndarray:
        return np.asarray(0.5 * (count + self._directions[places] @ total), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class GraphCut(Method):
    """Greedy graph cut with similarity 0.5 + 0.5 cos.

    Args:
        trade_off: How much likeness to all counts against likeness to those picked (lambda). From 2 on, picking more
            never makes the objective smaller.
    """

    trade_off: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.trade_off, int | float) and 0 <= self.trade_off < float("inf")):
            raise ConfigError(f"trade_off must be a number, at least 0, got {self.trade_off!r}.")

    @property
    def needs(self) -> Needs:
        """Features."""
        return Needs(features=True)

    def choose(self, task: Task) -> Selection:
        """Greedy in each group, in that order."""
        features = task.source.features()
        return task.pick(lambda group: cut(features[group.members], group.count, self.trade_off))
