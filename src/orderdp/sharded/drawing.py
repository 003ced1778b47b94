"""One draw from a sharded table: a pool, and what is kept of it, each rank its own part."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from orderdp.draw import Streams
from orderdp.policies.budget import Budget
from orderdp.policies.full_data import FullData
from orderdp.policies.kit import streams
from orderdp.policies.learned import LossBelow, Probability, SkipLearned, Threshold, Unlearned
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.tails import UniformTail
from orderdp.policy import Context, Policy
from orderdp.randomness import key64
from orderdp.sharded.bits import Bits
from orderdp.sharded.field import Scores
from orderdp.sharded.ownership import Shard, share_of
from orderdp.sharded.pools import chosen_among, pool_bits
from orderdp.sharded.rules import choose
from orderdp.sharded.wires import Wires

__all__ = ["Sharding", "drawn", "order_streams"]

Sharding = Literal["exact", "stratified"]


def drawn(policy: Policy, shard: Shard, scores: Scores, context: Context, wires: Wires, sharding: Sharding) -> Bits:
    """This rank's part of what the epoch trains on.

    Exact: together, all ranks keep what one process with the whole table would. A collective. Stratified: each rank
    draws its share of the pool from its own samples and keeps its share; nothing is exchanged, but the numbers of
    samples where they depend on losses.
    """
    if isinstance(policy, Budget):
        chosen = drawn(policy.policy, shard, scores, context, wires, sharding)
        return _some_of(chosen, policy.left(context), context, wires, "budget")
    if isinstance(policy, UniformTail):
        return _with_tail(policy, shard, scores, context, wires, sharding)
    exact = sharding == "exact"
    if isinstance(policy, Unlearned | SkipLearned):
        return _without_learned(policy, shard, scores, context, wires if exact else None)
    if isinstance(policy, FullData):
        return pool_bits(shard.n, shard.n, streams(context), shard.start, shard.stop)
    assert isinstance(policy, OrderDP)
    s, q = policy.sizes(context.n)
    if exact:
        pool = pool_bits(shard.n, s, streams(context), shard.start, shard.stop)
        return pool if s == q else choose(policy.rule, pool, scores, (s, q), context, wires)
    s, q = (share_of(total, shard.rank, shard.world) for total in (s, q))
    here = _own_context(context, shard)
    pool = _own_pool(shard, s, streams(here))
    return pool if s == q else choose(policy.rule, pool, scores, (s, q), here, Wires())


def _own_context(context: Context, shard: Shard) -> Context:
    return replace(context, seed=key64(context.seed, "shard", shard.rank, shard.world))


def _with_tail(
    policy: UniformTail, shard: Shard, scores: Scores, context: Context, wires: Wires, sharding: Sharding
) -> Bits:
    """As the policy inside draws; in the tail as many, drawn uniformly."""
    inner = policy.policy
    if not policy.in_tail(context):
        return drawn(inner, shard, scores, context, wires, sharding)
    size = inner.size(context.n, context)
    if size is None:
        part = np.array([len(drawn(inner, shard, scores, context, wires, sharding))])
        size = int(wires.sum(part)[0])
    if sharding == "exact":
        rng = partial(context.rng, "epoch", context.epoch, "tail")
        return pool_bits(shard.n, size, rng, shard.start, shard.stop)
    return _own_pool(shard, share_of(size, shard.rank, shard.world), streams(_own_context(context, shard)))


def _without_learned(
    policy: Unlearned | SkipLearned, shard: Shard, scores: Scores, context: Context, wires: Wires | None
) -> Bits:
    """Some of the samples not learned and some of the learned ones; of all ranks, or without `wires` of this one."""
    threshold = _fixed(policy.learned)
    learned, others = Bits(shard.start, shard.stop), Bits(shard.start, shard.stop)
    for low, high in learned.pieces():
        mask = scores(low, high) <= threshold
        learned.put(low, mask)
        others.put(low, ~mask)
    if wires is None:
        kept = policy.size(context.n, context)
        mine = None if kept is None else share_of(kept, shard.rank, shard.world)
        counts = policy.counts(shard.size, len(learned), mine)
        context, wires = _own_context(context, shard), Wires()
    else:
        counts = policy.counts(context.n, int(wires.sum(np.array([len(learned)]))[0]))
    kept_bits = _some_of(others, counts[0], context, wires, "unlearned")
    if counts[1]:
        kept_bits |= _some_of(learned, counts[1], context, wires, "learned")
    return kept_bits


def _fixed(threshold: Threshold) -> float:
    """A threshold that needs no table."""
    assert isinstance(threshold, Probability | LossBelow)
    return threshold.loss if isinstance(threshold, Probability) else threshold.value


def _some_of(members: Bits, count: int, context: Context, wires: Wires, tag: str) -> Bits:
    """This rank's part of `count` drawn uniformly from the members of all ranks."""
    of_ranks = wires.gather(np.array([len(members)]))[:, 0]
    total = int(of_ranks.sum())
    if count >= total:
        return members
    rng = partial(context.rng, "epoch", context.epoch, tag)
    return chosen_among(members, int(of_ranks[: wires.rank].sum()), total, count, rng)


def _own_pool(shard: Shard, s: int, rng: Streams) -> Bits:
    """A pool of `s` of this rank's samples, at their places among all."""
    everything = pool_bits(shard.n, shard.n, rng, shard.start, shard.stop)
    return everything if s == shard.size else chosen_among(everything, 0, shard.size, s, rng)


def order_streams(context: Context, shard: Shard) -> Streams:
    """The streams of a rank's visiting order."""
    return partial(context.rng, "epoch", context.epoch, "order of shard", shard.rank, shard.world)
