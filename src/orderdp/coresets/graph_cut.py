"""GraphCut: samples that are similar to all others and not to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.blocks import unit_rows
from orderdp.coresets.method import Method, Task
from orderdp.coresets.needs import Needs
from orderdp.errors import ConfigError
from orderdp.policy import Selection

__all__ = ["GraphCut", "cut"]


def cut(features: np.ndarray, count: int, trade_off: float) -> np.ndarray:
    """`count` places: each time the largest trade_off * (similarity to all) - 2 * (similarity to those picked).

    The similarity is 0.5 + 0.5 cos, so a sum of similarities is a product with a sum of directions, and no kernel is
    needed. Plain greedy: each pick lowers all gains by about as much, so lazy greedy would look at all of them anyway.
    Of equals the lowest place.
    """
    directions = unit_rows(features)
    to_all = 0.5 * (len(directions) + directions @ directions.sum(0, dtype=np.float64))
    gains, picks = trade_off * to_all, np.empty(count, dtype=np.int64)
    for step in range(count):
        best = int(gains.argmax())
        picks[step] = best
        gains -= 1 + directions @ directions[best]
        gains[best] = -np.inf
    return picks


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
