"""One draw from a sharded table: a pool, and what is kept of it, each rank its own part."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from orderdp.draw import Streams
from orderdp.policies.kit import streams
from orderdp.policies.orderdp import OrderDP
from orderdp.policy import Context
from orderdp.randomness import key64
from orderdp.sharded.bits import Bits
from orderdp.sharded.field import Scores
from orderdp.sharded.ownership import Shard, share_of
from orderdp.sharded.pools import chosen_among, pool_bits
from orderdp.sharded.rules import choose
from orderdp.sharded.wires import Wires

__all__ = ["Sharding", "drawn", "order_streams"]

Sharding = Literal["exact", "stratified"]


def drawn(policy: OrderDP, shard: Shard, scores: Scores, context: Context, wires: Wires, sharding: Sharding) -> Bits:
    """This rank's part of what the epoch trains on.

    Exact: together, all ranks keep what one process with the whole table would. A collective. Stratified: each rank
    draws its share of the pool from its own samples and keeps its share; nothing is exchanged.
    """
    s, q = policy.sizes(context.n)
    if sharding == "exact":
        pool = pool_bits(shard.n, s, streams(context), shard.start, shard.stop)
        return pool if s == q else choose(policy.rule, pool, scores, (s, q), context, wires)
    s, q = (share_of(total, shard.rank, shard.world) for total in (s, q))
    here = replace(context, seed=key64(context.seed, "shard", shard.rank, shard.world))
    pool = _own_pool(shard, s, streams(here))
    return pool if s == q else choose(policy.rule, pool, scores, (s, q), here, Wires())


def _own_pool(shard: Shard, s: int, rng: Streams) -> Bits:
    """A pool of `s` of this rank's samples, at their places among all."""
    everything = pool_bits(shard.n, shard.n, rng, shard.start, shard.stop)
    return everything if s == shard.size else chosen_among(everything, 0, shard.size, s, rng)


def order_streams(context: Context, shard: Shard) -> Streams:
    """The streams of a rank's visiting order."""
    return partial(context.rng, "epoch", context.epoch, "order of shard", shard.rank, shard.world)
