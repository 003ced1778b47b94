"""The part of a uniform pool that falls on a range of samples, as bits."""

from __future__ import annotations

import numpy as np

from orderdp import draw
from orderdp.sharded.bits import PIECE, Bits

__all__ = ["chosen_among", "pool_bits"]


def pool_bits(n: int, s: int, rng: draw.Streams, start: int, stop: int) -> Bits:
    """Those from `start` to `stop` of the pool that `draw.pool_mask` would mark.

    Only the blocks that have some of them are drawn.
    """
    pool = Bits(start, stop)
    if stop <= start:
        return pool
    if s == n:
        for low, high in pool.pieces():
            pool.put(low, np.ones(high - low, dtype=np.bool_))
        return pool
    first, last = start // draw.BLOCK, -(-stop // draw.BLOCK)
    for low, high, chosen, are_in in draw.pool_choices(n, s, rng, first, last):
        mask = np.full(high - low, not are_in)
        mask[chosen] = are_in
        _put(pool, low, high, mask)
    return pool


def _put(pool: Bits, low: int, high: int, mask: np.ndarray) -> None:
    inside_low, inside_high = max(low, pool.start), min(high, pool.stop)
    mask = mask[inside_low - low : inside_high - low]
    if draw.BLOCK % PIECE == 0:
        pool.put(inside_low, mask)
    else:  # blocks that share words
        pool.add(np.flatnonzero(mask) + inside_low)


def chosen_among(members: Bits, before: int, total: int, count: int, rng: draw.Streams) -> Bits:
    """Those of `members` that are among `count` drawn uniformly from `total`, of which these are a part.

    Members are numbered from `before` on, in ascending order; so ranks that know how many the others have make one
    draw together.
    """
    drawn = pool_bits(total, count, rng, before, before + len(members))
    kept, at = Bits(members.start, members.stop), before
    for low, high in members.pieces():
        mask = members.mask(low, high)
        places = np.flatnonzero(mask)
        mask[places] = drawn.mask(at, at + len(places))
        kept.put(low, mask)
        at += len(places)
    return kept
