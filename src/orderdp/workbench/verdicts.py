"""What may be said of a difference."""

from __future__ import annotations

import math

from orderdp.workbench.intervals import Difference

__all__ = ["LOSSLESS_POINTS", "UNDECIDED_POINTS", "shows_no_loss", "verdict"]

LOSSLESS_POINTS = 0.1
UNDECIDED_POINTS = 1.0
"""Where more than this may have been lost, nothing is said but that."""

_ROUNDING = 1e-9  # 92.1 - 92.2 is a little below -0.1


def verdict(difference: Difference) -> str:
    """What a difference to full data allows to be said.

    >>> verdict(Difference(mean=0.1, low=-0.05, high=0.25, pairs=5))
    'lossless'
    >>> verdict(Difference(mean=0.1, low=-0.396, high=0.596, pairs=3))
    'no measurable loss (within 0.40 points)'
    >>> verdict(Difference(mean=-1.0, low=-1.5, high=-0.5, pairs=3))
    'loses 1.00 points (-1.50 to -0.50)'
    >>> verdict(Difference(mean=-12.0, low=-25.0, high=1.0, pairs=3))
    'undecided (-25.00 to 1.00)'
    """
    low, high = difference.low, difference.high
    if low is None or high is None:
        return "one seed, no interval"
    if low >= -LOSSLESS_POINTS - _ROUNDING:
        return "lossless"
    if high >= -_ROUNDING and low < -UNDECIDED_POINTS - _ROUNDING:
        return f"undecided ({low:.2f} to {high:.2f})"
    if high >= -_ROUNDING:
        return f"no measurable loss (within {math.ceil(-low * 100 - _ROUNDING) / 100:.2f} points)"
    return f"loses {-difference.mean:.2f} points ({low:.2f} to {high:.2f})"


def shows_no_loss(difference: Difference | None) -> bool:
    """Whether the verdict is "lossless" or "no measurable loss"."""
    return difference is not None and verdict(difference).startswith(("lossless", "no measurable loss"))
