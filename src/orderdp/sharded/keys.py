"""Scores as whole numbers in the same order, so that they can be sorted into buckets by their bits."""

from __future__ import annotations

import numpy as np

__all__ = ["KEY_BITS", "OUTSIDE", "UNSEEN", "keys_of", "turned"]

KEY_BITS = 32

#: The key of samples nobody has seen (+inf): before those of all others.
UNSEEN = 0x007FFFFF

#: After the keys of all scores; no score has it.
OUTSIDE = 0xFFFFFFFF

_MAGNITUDE = np.uint32(0x7FFFFFFF)


def keys_of(scores: np.ndarray) -> np.ndarray:
    """A uint32 for each float32: the larger the score, the smaller the key; equal for equal scores. No NaN.

    >>> keys = keys_of(np.array([np.inf, 2.0, 0.0, -0.0, -1.0], dtype=np.float32))
    >>> (np.diff(keys.astype(np.int64)) > 0).tolist(), int(keys[0]) == UNSEEN
    ([True, True, False, True], True)
    """
    bits = (scores + np.float32(0)).view(np.uint32)  # makes -0.0, which equals 0.0, the same bits
    flipped: np.ndarray = (bits.view(np.int32) >> 31).view(np.uint32)  # all ones for negative scores, else 0
    np.invert(flipped, out=flipped)
    flipped &= _MAGNITUDE
    flipped ^= bits
    return flipped


def turned(scores: np.ndarray) -> np.ndarray:
    """Scores by which the smallest come first; unseen samples stay before all others."""
    return np.where(np.isposinf(scores), scores, -scores)
