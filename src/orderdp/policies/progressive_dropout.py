"""Progressive dropout: samples are left out once they are learned, and all come back at the end."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio, is_count
from orderdp.policies.kit import at_least_one, shuffled
from orderdp.policy import Context, Selection, Table

__all__ = ["ProgressiveDropout"]


@dataclass(frozen=True)
class ProgressiveDropout:
    """Trains on the samples whose own class had a probability below `threshold` when they were last seen.

    The probability is exp(-loss), which is right for cross-entropy without label smoothing or class weights. The last
    epochs train on all data.

    Args:
        threshold: Probability of the right class from which on a sample counts as learned, in (0, 1].
        last: How many epochs at the end use all data. If any do, ``Pruner(..., epochs=...)`` is needed.
    """

    _: KW_ONLY
    threshold: float = 0.3
    last: int = 1

    def __post_init__(self) -> None:
        check_ratio("threshold", self.threshold, zero_allowed=False, one_allowed=True)
        if not is_count(self.last, least=0):
            raise ConfigError(f"last must be a whole number, at least 0, got {self.last!r}.")

    def size(self, n: int, context: Context) -> int | None:
        """All in the last epochs; otherwise it depends on the losses."""
        return n if self._is_last(context) else None

    def select(self, table: Table, context: Context) -> Selection:
        """What is not learned or was never seen; the hardest sample, where that is none."""
        if self._is_last(context):
            return Selection(shuffled(np.arange(context.n), context))
        scores = table["score"]
        # exp(-loss) < threshold, without overflow at negative losses.
        unlearned = scores.astype(np.float64) > -math.log(self.threshold)
        return Selection(shuffled(np.flatnonzero(at_least_one(unlearned, scores)), context))

    def _is_last(self, context: Context) -> bool:
        if self.last == 0:
            return False
        if context.epochs is None:
            raise ConfigError(
                "full epochs at the end need to know how many epochs are planned. Give Pruner(..., epochs=...), or do "
                "without them: ProgressiveDropout(..., last=0)."
            )
        return context.epoch >= context.epochs - self.last
