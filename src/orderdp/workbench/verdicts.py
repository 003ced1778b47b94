"""What may be said of a difference."""

from __future__ import annotations

import math

from orderdp.workbench.intervals import Difference

__all__ = ["LOSSLESS_POINTS", "verdict"]

LOSSLESS_POINTS = 0.1
_ROUNDING = 1e-9  # 92.1 - 92.2 is a little below -0.1


def verdict(difference: Difference) -> str:
    """What a difference to full data allows to be said.

    >>> verdict(Difference(mean=0.1, low=-0.05, high=0.25, pairs=5))
    'lossless'
    >>> verdict(Difference(mean=0.1, low=-0.396, high=0.596, pairs=3))
    'no measurable loss (within 0.40 points)'
    >>> verdict(Difference(mean=-1.0, low=-1.5, high=-0.5, pairs=3))
    'loses 1.00 points (-1.50 to -0.50)'
    """
    low, high = difference.low, difference.high
    if low is None or high is None:
        return "one seed, no interval"
    if low >= -LOSSLESS_POINTS - _ROUNDING:
        return "lossless"
    if high >= -_ROUNDING:
        return f"no measurable loss (within {math.ceil(-low * 100 - _ROUNDING) / 100:.2f} points)"
    return f"loses {-difference.mean:.2f} points ({low:.2f} to {high:.2f})"
