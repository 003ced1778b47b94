"""How old the scores are by which samples are chosen."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Ages", "score_ages"]


class Ages(NamedTuple):
    """Epochs since the scores were refreshed.

    Attributes:
        mean: Of the samples that have a score; None where none has.
        median: The smallest age that half of them do not exceed.
        p95: The smallest age that 95 % of them do not exceed.
        unseen: Share of all samples that have no score yet.
    """

    mean: float | None
    median: float | None
    p95: float | None
    unseen: float


def score_ages(seen: Any, epoch: int) -> Ages:
    """The ages of scores between epochs: 1 for those refreshed in the epoch that has just ended.

    >>> score_ages([2, 2, 1, 0, -1], epoch=3)
    Ages(mean=1.75, median=1.0, p95=3.0, unseen=0.2)

    Args:
        seen: The epoch, from 0, in which each sample was last seen, -1 for never: ``pruner.seen``.
        epoch: How many epochs are over: ``pruner.epoch``.
    """
    last = np.asarray(seen)
    ages = epoch - last[last >= 0]
    unseen = (len(last) - len(ages)) / max(1, len(last))
    if len(ages) == 0:
        return Ages(None, None, None, unseen)
    median, p95 = np.quantile(ages, [0.5, 0.95], method="inverted_cdf")
    return Ages(float(ages.mean()), float(median), float(p95), unseen)
