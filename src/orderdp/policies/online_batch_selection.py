"""Online batch selection: a draw by rank whose pressure falls over training."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.kit import count_kept, hardest_first, shuffled, weighted
from orderdp.policy import Context, Selection, Table

__all__ = ["OnlineBatchSelection"]


@dataclass(frozen=True)
class OnlineBatchSelection:
    """Samples are drawn without replacement in proportion to pressure ** (-rank / n), rank 0 the hardest.

    Ranks go by the last loss; samples nobody has seen come before all others. The pressure is the ratio between the
    weights of the hardest and the easiest sample. It goes geometrically from `start` in the first epoch to `end` in
    the last; at 1 the draw is uniform.

    Args:
        prune_ratio: Share left out each epoch, in [0, 1).
        start: Pressure in the first epoch, at least 1.
        end: Pressure in the last, at least 1. Where it differs from `start`, ``Pruner(..., epochs=...)`` is needed.
    """

    prune_ratio: float
    _: KW_ONLY
    start: float = 100.0
    end: float = 1.0

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        for name, value in (("start", self.start), ("end", self.end)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 1 <= value < float("inf")):
                raise ConfigError(f"{name} must be a number, at least 1, got {value!r}.")

    def pressure(self, context: Context) -> float:
        """How many times as likely the hardest sample is as the easiest to be drawn first in this epoch."""
        if self.start == self.end:
            return self.start
        if context.epochs is None:
            raise ConfigError(
                "a pressure that changes needs to know how many epochs are planned. Give Pruner(..., epochs=...), or "
                "make start and end equal."
            )
        done = min(1.0, context.epoch / max(1, context.epochs - 1))
        return math.exp((1 - done) * math.log(self.start) + done * math.log(self.end))

    def size(self, n: int, context: Context) -> int:
        """The nearest whole number to the share kept."""
        self.pressure(context)  # or the number of epochs would be asked for at the first draw only
        return count_kept(n, self.prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """A draw by rank."""
        ranked = hardest_first(np.arange(context.n), table["score"], context)
        logarithms = np.arange(context.n) * (-math.log(self.pressure(context)) / context.n)
        drawn = weighted(logarithms, self.size(context.n, context), context)
        return Selection(shuffled(np.sort(ranked[drawn]), context))
