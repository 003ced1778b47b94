"""Usage counts of samples, and ages of their scores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from orderdp.diagnostics.kept_sets import set_of

__all__ = ["Ages", "Usage", "coverage_over_time", "score_ages", "usage_counts", "usage_summary"]


class Ages(NamedTuple):
    """Epochs since the scores were refreshed.

    Attributes:
        mean: Mean age of the samples that have a score; None if no sample has one.
        median: Smallest age that half of them do not exceed.
        p95: Smallest age that 95 % of them do not exceed.
        unseen: Fraction of all samples that have no score yet.
    """

    mean: float | None
    median: float | None
    p95: float | None
    unseen: float


def score_ages(seen: Any, epoch: int) -> Ages:
    """Ages of scores between epochs: 1 for those refreshed in the epoch that has just ended.

    >>> score_ages([2, 2, 1, 0, -1], epoch=3)
    Ages(mean=1.75, median=1.0, p95=3.0, unseen=0.2)

    Args:
        seen: Epoch, from 0, in which each sample was last seen, -1 for never: ``pruner.last_seen_epoch``.
        epoch: Number of finished epochs: ``pruner.epoch``.
    """
    last = np.asarray(seen)
    ages = epoch - last[last >= 0]
    unseen = (len(last) - len(ages)) / max(1, len(last))
    if len(ages) == 0:
        return Ages(None, None, None, unseen)
    median, p95 = np.quantile(ages, [0.5, 0.95], method="inverted_cdf")
    return Ages(float(ages.mean()), float(median), float(p95), unseen)


class Usage(NamedTuple):
    """How often samples were trained on.

    Attributes:
        coverage: Fraction of the samples trained on at least once.
        fewest: Smallest count.
        mean: Mean count.
        most: Largest count.
    """

    coverage: float
    fewest: int
    mean: float
    most: int


def usage_summary(usage: Any) -> Usage:
    """Summary of usage counts.

    >>> usage_summary([0, 2, 2, 4])
    Usage(coverage=0.75, fewest=0, mean=2.0, most=4)

    Args:
        usage: How often each sample was trained on: ``pruner.usage``.
    """
    counts = np.asarray(usage)
    return Usage(float((counts > 0).mean()), int(counts.min()), float(counts.mean()), int(counts.max()))


def usage_counts(sets: Iterable[Any], n: int) -> np.ndarray:
    """How often each of `n` samples is in the sets, one set per epoch.

    >>> usage_counts([[0, 1], [1, 2]], n=4).tolist()
    [1, 2, 1, 0]

    Args:
        sets: Indices of each epoch.
        n: Number of samples.
    """
    counts = np.zeros(n, dtype=np.int64)
    for indices in sets:
        counts[np.unique(set_of(indices, n))] += 1
    return counts


def coverage_over_time(sets: Iterable[Any], n: int) -> np.ndarray:
    """Fraction of `n` samples that were in at least one set so far, after each set.

    >>> coverage_over_time([[0, 1], [1, 2], [0]], n=4).tolist()
    [0.5, 0.75, 0.75]

    Args:
        sets: Indices of each epoch.
        n: Number of samples.
    """
    used = np.zeros(n, dtype=np.bool_)
    shares = []
    for indices in sets:
        used[set_of(indices, n)] = True
        shares.append(used.mean())
    return np.array(shares)
