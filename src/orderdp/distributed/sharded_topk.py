"""Selection from a sharded table: the k largest scores of all ranks, found by summing small histograms of their bits.

Rank rules, uniform draws and rules that skip learned samples select exactly the samples that one process with all
scores would select.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from orderdp import _draw as draw
from orderdp._draw import Streams, fair_hash, key64
from orderdp.distributed.collectives import Collectives
from orderdp.distributed.sharded_table import PIECE, BitSet, Shard, shard_size
from orderdp.errors import ConfigError
from orderdp.policies.baselines import FullData
from orderdp.policies.learned import LossBelow, Probability, SkipLearned, Threshold, Unlearned
from orderdp.policies.orderdp import OrderDP, PoolRule
from orderdp.policies.wrappers import Budget, UniformTail
from orderdp.policy import Context, Policy, describe, streams, tie_key

__all__ = [
    "DIGIT",
    "KEY_BITS",
    "OUTSIDE",
    "UNSEEN",
    "DistributedTopK",
    "Limit",
    "Scores",
    "Sharding",
    "TopKThreshold",
    "checked_for_shards",
    "choose",
    "chosen_among",
    "digit_counts",
    "keys_of",
    "order_streams",
    "pool_bits",
    "select_shard",
    "smallest",
    "turned",
]


#: Bits per pass.
DIGIT = 12


#: For the numbers that begin with `prefix`: counts of the values of the next `width` bits, which `shift` bits follow.
Histogram = Callable[[int, int, int], np.ndarray]


class Limit(NamedTuple):
    """Threshold of the k smallest numbers.

    Attributes:
        below: All smaller numbers are among the k smallest.
        missing: How many of the numbers equal to `below` are; 0 for none, never all of them.
    """

    below: int
    missing: int


def smallest(k: int, bits: int, histogram: Histogram, summed: Callable[[np.ndarray], np.ndarray]) -> Limit:
    """Find the threshold of the `k` smallest of all numbers of `bits` bits. At least `k` numbers must exist.

    Args:
        k: How many.
        bits: Width of the numbers.
        histogram: Counts this rank's numbers.
        summed: Sums counts over all ranks.
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
        if missing == counts[digit]:  # the whole bucket belongs: no need to split it
            return Limit(prefix + 1 << shift, 0)
    return Limit(prefix, missing)


def digit_counts(numbers: np.ndarray, prefix: int, shift: int, width: int) -> np.ndarray:
    """Histogram of unsigned numbers.

    >>> digit_counts(np.array([0b0110, 0b0111, 0b1000], dtype=np.uint32), prefix=0b01, shift=1, width=1).tolist()
    [0, 2]
    """
    kind = numbers.dtype.type
    high = numbers >> kind(shift)
    if prefix or shift + width < 8 * numbers.dtype.itemsize:
        high = high[high >> kind(width) == kind(prefix)] & kind((1 << width) - 1)
    return np.bincount(high.astype(np.intp), minlength=1 << width)


KEY_BITS = 32


#: Key of samples that have not been seen (score +inf): smaller than the key of any other score.
UNSEEN = 0x007FFFFF


#: Larger than the key of any score.
OUTSIDE = 0xFFFFFFFF


_MAGNITUDE = np.uint32(0x7FFFFFFF)


def keys_of(scores: np.ndarray) -> np.ndarray:
    """One uint32 per float32: the larger the score, the smaller the key; equal for equal scores. No NaN.

    >>> keys = keys_of(np.array([np.inf, 2.0, 0.0, -0.0, -1.0], dtype=np.float32))
    >>> (np.diff(keys.astype(np.int64)) > 0).tolist(), int(keys[0]) == UNSEEN
    ([True, True, False, True], True)
    """
    bits = (scores + np.float32(0)).view(np.uint32)  # -0.0 equals 0.0 and must get the same bits
    flipped: np.ndarray = (bits.view(np.int32) >> 31).view(np.uint32)  # all ones for negative scores, else 0
    np.invert(flipped, out=flipped)
    flipped &= _MAGNITUDE
    flipped ^= bits
    return flipped


def turned(scores: np.ndarray) -> np.ndarray:
    """Negate scores so that the smallest come first; unseen samples stay first."""
    return np.where(np.isposinf(scores), scores, -scores)


#: Reads the scores of a range of samples, float32.
Scores = Callable[[int, int], np.ndarray]


_HASH_BITS = 64


@dataclass(frozen=True)
class TopKThreshold:
    """Threshold of a top-k: keys below a limit, and those equal to it with the smallest hashes.

    Attributes:
        below: Smaller keys are selected.
        hashes_below: An equal key is selected if its hash is smaller than this.
    """

    below: int
    hashes_below: int


class DistributedTopK:
    """Top-k over the candidates of all ranks.

    Args:
        candidates: This rank's candidates; selected samples are removed from it.
        scores: Reads their scores.
        tie_key: Key of the hash that orders equal scores.
        collectives: Collectives between the ranks.
        smallest_first: Whether to select the smallest scores instead.
    """

    def __init__(
        self,
        candidates: BitSet,
        scores: Scores,
        tie_key: int,
        collectives: Collectives,
        *,
        smallest_first: bool = False,
    ) -> None:
        self.smallest_first = smallest_first
        self.candidates = candidates
        self.collectives = collectives
        self._scores = scores
        self._tie_key = tie_key

    def take(self, count: int, *, seen_only: bool = False) -> BitSet:
        """Remove the `count` largest from the candidates of all ranks; return this rank's part of them."""
        cut = self._cut(count, seen_only)
        candidates = self.candidates
        taken = BitSet(candidates.start, candidates.stop)
        for start, keys in self._pieces(seen_only):
            mask = keys < np.uint32(min(cut.below, OUTSIDE))
            if cut.hashes_below:
                places = np.flatnonzero(keys == np.uint32(cut.below))
                limit = cut.hashes_below
                mask[places] = limit >> _HASH_BITS or fair_hash(places + start, self._tie_key) < np.uint64(limit)
            taken.put(start, mask)
        candidates.words &= ~taken.words
        return taken

    def count_seen(self) -> int:
        """Number of candidates, over all ranks, that have been seen."""
        counted = sum(int(np.count_nonzero(keys < np.uint32(OUTSIDE))) for _, keys in self._pieces(seen_only=True))
        return int(self.collectives.sum(np.array([counted]))[0])

    def _cut(self, count: int, seen_only: bool) -> TopKThreshold:
        limit: Limit = smallest(
            count, KEY_BITS, lambda *digit: self._key_counts(seen_only, *digit), self.collectives.sum
        )
        if not limit.missing:
            return TopKThreshold(limit.below, 0)
        tied = limit.below
        hashes = smallest(
            limit.missing, _HASH_BITS, lambda *digit: self._hash_counts(tied, *digit), self.collectives.sum
        )
        return TopKThreshold(tied, hashes.below)

    def _key_counts(self, seen_only: bool, prefix: int, shift: int, width: int) -> np.ndarray:
        counts = np.zeros(1 << width, dtype=np.int64)
        outside = 0
        for _, keys in self._pieces(seen_only):
            counts += digit_counts(keys, prefix, shift, width)
            outside += int(np.count_nonzero(keys == np.uint32(OUTSIDE)))
        if prefix == OUTSIDE >> shift + width:
            counts[-1] -= outside
        return counts

    def _hash_counts(self, tied: int, prefix: int, shift: int, width: int) -> np.ndarray:
        counts = np.zeros(1 << width, dtype=np.int64)
        for start, keys in self._pieces(seen_only=False):
            places = np.flatnonzero(keys == np.uint32(tied))
            if len(places):
                counts += digit_counts(fair_hash(places + start, self._tie_key), prefix, shift, width)
        return counts

    def _pieces(self, seen_only: bool) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the start of each piece and the key of each of its samples; `OUTSIDE` for non-candidates."""
        for start, stop in self.candidates.pieces():
            mask = self.candidates.mask(start, stop)
            scores = self._scores(start, stop)
            keys = keys_of(turned(scores) if self.smallest_first else scores)
            if seen_only:
                mask &= keys != np.uint32(UNSEEN)
            # All ones where the mask is not set: several times faster than selecting between two values.
            outside = (mask.view(np.int8) - np.int8(1)).astype(np.int32).view(np.uint32)
            outside |= keys
            yield start, outside


def pool_bits(n: int, s: int, rng: draw.Streams, start: int, stop: int) -> BitSet:
    """Members from `start` to `stop` of the pool that `draw.pool_mask` would mark.

    Only the blocks that overlap the range are drawn.
    """
    pool = BitSet(start, stop)
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


def _put(pool: BitSet, low: int, high: int, mask: np.ndarray) -> None:
    inside_low, inside_high = max(low, pool.start), min(high, pool.stop)
    mask = mask[inside_low - low : inside_high - low]
    if draw.BLOCK % PIECE == 0:
        pool.put(inside_low, mask)
    else:  # blocks that share words
        pool.add(np.flatnonzero(mask) + inside_low)


def chosen_among(members: BitSet, before: int, total: int, count: int, rng: draw.Streams) -> BitSet:
    """Select the `members` that are among `count` drawn uniformly from `total`, of which they are a part.

    Members are numbered from `before` on, in ascending order. So ranks that know each other's counts make one common
    draw.
    """
    among_all = pool_bits(total, count, rng, before, before + len(members))
    kept, at = BitSet(members.start, members.stop), before
    for low, high in members.pieces():
        mask = members.mask(low, high)
        places = np.flatnonzero(mask)
        mask[places] = among_all.mask(at, at + len(places))
        kept.put(low, mask)
        at += len(places)
    return kept


def choose(
    rule: PoolRule, pool: BitSet, scores: Scores, sizes: tuple[int, int], context: Context, collectives: Collectives
) -> BitSet:
    """This rank's part of the `q` samples that `rule` keeps of the pool of all ranks. Modifies `pool` in place.

    Args:
        rule: Which part of the pool is kept.
        pool: This rank's part of the pool.
        scores: Reads its scores.
        sizes: Size of the pool and number kept, s and q.
        context: The epoch's context.
        collectives: Collectives between the ranks.
    """
    s, q = sizes
    field = DistributedTopK(pool, scores, tie_key(context), collectives)
    steps = rule.positions(s, q, context, field.count_seen).steps
    field.smallest_first = steps.easiest_first
    skip = min(steps.skip, field.count_seen()) if steps.skip else 0
    if skip:
        field.take(skip, seen_only=True)
    best = field.take(steps.top)
    return _with_some_of_the_rest(field, best, s - skip - steps.top, steps.uniform, context) if steps.uniform else best


def _with_some_of_the_rest(field: DistributedTopK, best: BitSet, rest: int, count: int, context: Context) -> BitSet:
    """`best`, and `count` drawn uniformly from the `rest` candidates of all ranks."""
    if count >= rest:
        best |= field.candidates
        return best
    before = 0
    if field.collectives.world > 1:
        of_ranks = field.collectives.gather(np.array([len(field.candidates)]))[:, 0]
        before = int(of_ranks[: field.collectives.rank].sum())
    rng = partial(context.rng, "epoch", context.epoch, "mixed")
    best |= chosen_among(field.candidates, before, rest, count, rng)
    return best


def checked_for_shards(policy: Policy) -> Policy:
    """Return the policy; raise if it needs the whole table in one process."""
    if type(policy) in (Budget, UniformTail):
        checked_for_shards(policy.policy)  # type: ignore[attr-defined]
        return policy
    if isinstance(policy, Unlearned | SkipLearned):
        if not isinstance(policy.learned, Probability | LossBelow):
            raise ConfigError(
                f'table="sharded" needs a threshold on a sample\'s own loss, got {policy.learned}, which depends on '
                "the losses of all samples. Use Probability or LossBelow."
            )
        if isinstance(policy, Unlearned) and policy.in_turn:
            raise ConfigError(
                'table="sharded" does not store when a sample was last trained on, so samples cannot come in turn. Use '
                "Unlearned(..., in_turn=False), which draws them uniformly."
            )
        if policy.unbiased:
            raise ConfigError('table="sharded" has no weights, got unbiased=True. Leave it out.')
        return policy
    if type(policy) is FullData:
        return policy
    if type(policy) is not OrderDP:
        raise ConfigError(
            'table="sharded" needs orderdp.OrderDP, Unlearned, SkipLearned, Budget, UniformTail or FullData, got '
            f"{describe(policy)}: other policies read the whole table in one place, or columns that parts do not have. "
            "Unlearned(..., in_turn=False) takes the place of SpacedRepetition. OrderDP(prune_ratio=..., "
            "exploitation=1) draws at random, OrderDP(prune_ratio=0) keeps all; for other policies use "
            'table="replicated".'
        )
    if policy.every != "epoch":
        raise ConfigError(
            f'table="sharded" selects once per epoch, got {policy}: a selection at every step would need the scores of '
            'all ranks at every step. Use every="epoch".'
        )
    if policy.unbiased:
        raise ConfigError(
            f'unbiased weights need the rank of every kept sample among all, got {policy}: with table="sharded" no '
            "process can sort the scores of all. Leave unbiased out."
        )
    if type(policy.rule).select is not PoolRule.select:
        raise ConfigError(
            f'table="sharded" keeps positions of a pool, got {policy.rule}: a custom select needs a whole pool, and no '
            "process has one. Override positions instead of select."
        )
    return policy


Sharding = Literal["exact", "stratified"]


def select_shard(
    policy: Policy, shard: Shard, scores: Scores, context: Context, collectives: Collectives, sharding: Sharding
) -> BitSet:
    """This rank's part of the selection of an epoch.

    With "exact", all ranks together keep what one process with the whole table would keep. A collective. With
    "stratified", each rank draws its part of the pool from its own samples and keeps its part of the selection; the
    ranks exchange nothing but sample counts, and only if these depend on losses.
    """
    if isinstance(policy, Budget):
        chosen = select_shard(policy.policy, shard, scores, context, collectives, sharding)
        return _some_of(chosen, policy.left(context), context, collectives, "budget")
    if isinstance(policy, UniformTail):
        return _with_tail(policy, shard, scores, context, collectives, sharding)
    exact = sharding == "exact"
    if isinstance(policy, Unlearned | SkipLearned):
        return _without_learned(policy, shard, scores, context, collectives if exact else None)
    if isinstance(policy, FullData):
        return pool_bits(shard.n, shard.n, streams(context), shard.start, shard.stop)
    assert isinstance(policy, OrderDP)
    s, q = policy.sizes(context.n)
    if exact:
        pool = pool_bits(shard.n, s, streams(context), shard.start, shard.stop)
        return pool if s == q else choose(policy.rule, pool, scores, (s, q), context, collectives)
    s, q = (shard_size(total, shard.rank, shard.world) for total in (s, q))
    here = _own_context(context, shard)
    pool = _own_pool(shard, s, streams(here))
    return pool if s == q else choose(policy.rule, pool, scores, (s, q), here, Collectives())


def _own_context(context: Context, shard: Shard) -> Context:
    return replace(context, seed=key64(context.seed, "shard", shard.rank, shard.world))


def _with_tail(
    policy: UniformTail, shard: Shard, scores: Scores, context: Context, collectives: Collectives, sharding: Sharding
) -> BitSet:
    """Selection of the inner policy; in the tail a uniform draw of the same size."""
    inner = policy.policy
    if not policy.in_tail(context):
        return select_shard(inner, shard, scores, context, collectives, sharding)
    size = inner.size(context.n, context)
    if size is None:
        part = np.array([len(select_shard(inner, shard, scores, context, collectives, sharding))])
        size = int(collectives.sum(part)[0])
    if sharding == "exact":
        rng = partial(context.rng, "epoch", context.epoch, "tail")
        return pool_bits(shard.n, size, rng, shard.start, shard.stop)
    return _own_pool(shard, shard_size(size, shard.rank, shard.world), streams(_own_context(context, shard)))


def _without_learned(
    policy: Unlearned | SkipLearned, shard: Shard, scores: Scores, context: Context, collectives: Collectives | None
) -> BitSet:
    """Samples not learned plus some learned ones, of all ranks; without `collectives`, of this rank only."""
    # A table in parts counts no visits of single samples, but the samples of all epochs are known.
    skips = isinstance(policy, SkipLearned) or policy.skips(context.trained / context.n)
    threshold = _fixed(policy.learned) if skips else -math.inf
    learned, others = BitSet(shard.start, shard.stop), BitSet(shard.start, shard.stop)
    for low, high in learned.pieces():
        mask = scores(low, high) <= threshold
        learned.put(low, mask)
        others.put(low, ~mask)
    if collectives is None:
        kept = policy.size(context.n, context)
        mine = None if kept is None else shard_size(kept, shard.rank, shard.world)
        counts = policy.counts(shard.size, len(learned), mine)
        context, collectives = _own_context(context, shard), Collectives()
    else:
        counts = policy.counts(context.n, int(collectives.sum(np.array([len(learned)]))[0]))
    kept_bits = _some_of(others, counts[0], context, collectives, "unlearned")
    if counts[1]:
        kept_bits |= _some_of(learned, counts[1], context, collectives, "learned")
    return kept_bits


def _fixed(threshold: Threshold) -> float:
    """Value of a threshold that needs no table."""
    assert isinstance(threshold, Probability | LossBelow)
    return threshold.loss if isinstance(threshold, Probability) else threshold.value


def _some_of(members: BitSet, count: int, context: Context, collectives: Collectives, tag: str) -> BitSet:
    """This rank's part of `count` drawn uniformly from the members of all ranks."""
    of_ranks = collectives.gather(np.array([len(members)]))[:, 0]
    total = int(of_ranks.sum())
    if count >= total:
        return members
    rng = partial(context.rng, "epoch", context.epoch, tag)
    return chosen_among(members, int(of_ranks[: collectives.rank].sum()), total, count, rng)


def _own_pool(shard: Shard, s: int, rng: Streams) -> BitSet:
    """Pool of `s` of this rank's samples, at their positions in the data set."""
    everything = pool_bits(shard.n, shard.n, rng, shard.start, shard.stop)
    return everything if s == shard.size else chosen_among(everything, 0, shard.size, s, rng)


def order_streams(context: Context, shard: Shard) -> Streams:
    """Random streams of a rank's visiting order."""
    return partial(context.rng, "epoch", context.epoch, "order of shard", shard.rank, shard.world)
