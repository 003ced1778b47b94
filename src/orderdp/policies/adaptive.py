"""Adaptive: as much pruning as the losses allow."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio, pool_sizes
from orderdp.policies.kit import count_kept
from orderdp.policies.orderdp import OrderDP
from orderdp.policy import Context, Selection, Table
from orderdp.theory.rules import Top

__all__ = ["Adaptive", "relative_bias"]


@dataclass(frozen=True)
class Adaptive:
    """OrderDP with the largest prune ratio at which its surrogate risk stays near the mean loss.

    Each epoch takes, between two bounds, the largest ratio for which (surrogate - mean) / mean of the stored losses is
    at most the tolerance: the bias term of the paper's generalisation bound, relative to the loss. Where losses are
    alike little is lost by leaving some out, and much is pruned; where few samples carry the loss, little is.

    Args:
        tolerance: The largest relative bias.
        low: The smallest ratio.
        high: The largest one.
        grid: The ratios tried are this far apart, from `low` on; `high` is always one of them.
    """

    tolerance: float
    _: KW_ONLY
    low: float = 0.0
    high: float = 0.7
    grid: float = 0.01

    def __post_init__(self) -> None:
        check_ratio("low", self.low)
        check_ratio("high", self.high)
        check_ratio("grid", self.grid, zero_allowed=False)
        if not (isinstance(self.tolerance, int | float) and 0 <= self.tolerance < float("inf")):
            raise ConfigError(f"tolerance must be a number, at least 0, got {self.tolerance!r}.")
        if self.low > self.high:
            raise ConfigError(f"low must not be above high, got low={self.low} and high={self.high}.")

    def size(self, n: int, context: Context) -> int | None:
        """It depends on the losses, unless the bounds are equal."""
        low, high = self.size_bounds(n, context)
        return low if low == high else None

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """What the two ratios keep."""
        return count_kept(n, self.high), count_kept(n, self.low)

    def ratio(self, scores: np.ndarray) -> float:
        """The ratio for these scores; the smallest one while there are none."""
        losses = np.sort(scores[np.isfinite(scores)].astype(np.float64))[::-1]
        if len(losses) == 0:
            return self.low
        totals = np.concatenate(([0.0], np.cumsum(losses)))
        steps = math.ceil((self.high - self.low) / self.grid - 1e-9)  # the last step may be a shorter one, to `high`
        for step in range(steps, 0, -1):
            ratio = min(self.high, self.low + step * self.grid)
            if relative_bias(losses, totals, ratio) <= self.tolerance:
                return ratio
        return self.low

    def select(self, table: Table, context: Context) -> Selection:
        """As OrderDP does with that ratio."""
        return OrderDP(prune_ratio=self.ratio(table["score"])).select(table, context)


def relative_bias(losses: np.ndarray, totals: np.ndarray, prune_ratio: float) -> float:
    """(L_q - mean) / mean for losses in falling order and their running totals, at OrderDP's sizes for this ratio."""
    n = len(losses)
    mean = totals[-1] / n
    s, q = pool_sizes(n, prune_ratio, None, None)
    if q < 1 or mean == 0:
        return 0.0 if mean == 0 and q >= 1 else float("inf")
    flat, falling = Top(q).cliff(n, s)
    surrogate = (s / n * totals[flat] + falling @ losses[flat : flat + len(falling)]) / q
    return float((surrogate - mean) / abs(mean))
