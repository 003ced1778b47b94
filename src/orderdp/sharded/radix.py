"""Radix select: the k smallest of numbers that many ranks hold, by summing histograms of their bits.

Nobody sees the numbers of others. A pass asks how many fall in each of 4,096 buckets of the next twelve bits; the
bucket that the k-th is in is looked into by the next. What is exchanged depends on how many bits the numbers have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["DIGIT", "Limit", "digit_counts", "smallest"]

#: Bits looked at in a pass.
DIGIT = 12

#: Counts, for the numbers that begin with `prefix`, the values of the `width` bits that follow, above `shift` more.
Histogram = Callable[[int, int, int], np.ndarray]


class Limit(NamedTuple):
    """Which numbers are among the k smallest.

    Attributes:
        below: All that are smaller than this are.
        missing: So many of those that are equal to it are, and not all; 0 for none.
    """

    below: int
    missing: int


def smallest(k: int, bits: int, histogram: Histogram, summed: Callable[[np.ndarray], np.ndarray]) -> Limit:
    """Where the `k` smallest of all numbers of `bits` bits end. At least `k` of them must exist.

    Args:
        k: How many.
        bits: How wide the numbers are.
        histogram: Counts this rank's numbers.
        summed: Adds up the counts of all ranks.
    """
    if k == 0:
        return Limit(0, 0)
    prefix, shift, missing = 0, bits, k
    while shift:
        width = min(DIGIT, shift)
        shift -= width
        counts = summed(histogram(prefix, shift, width))
        up_to = np.cumsum(counts)
        digit = int(np.searchsorted(up_to, missing))
        missing -= int(up_to[digit] - counts[digit])
        prefix = prefix << width | digit
        if missing == counts[digit]:  # all of this bucket: no need to look into it
            return Limit(prefix + 1 << shift, 0)
    return Limit(prefix, missing)


def digit_counts(numbers: np.ndarray, prefix: int, shift: int, width: int) -> np.ndarray:
    """The histogram of some unsigned numbers.

    >>> digit_counts(np.array([0b0110, 0b0111, 0b1000], dtype=np.uint32), prefix=0b01, shift=1, width=1).tolist()
    [0, 2]
    """
    kind = numbers.dtype.type
    high = numbers >> kind(shift)
    if prefix or shift + width < 8 * numbers.dtype.itemsize:
        high = high[high >> kind(width) == kind(prefix)] & kind((1 << width) - 1)
    return np.bincount(high.astype(np.intp), minlength=1 << width)
