"""Draws from a table in parts, against the draw that has all of it; and the pieces they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import Budget, Context, OrderDP, Unlearned, theory
from orderdp import _draw as kernels
from orderdp.distributed import sharded as order_module
from orderdp.distributed import sharded_table as bits_module
from orderdp.distributed.collectives import Collectives
from orderdp.distributed.sharded import TwoLevelOrder
from orderdp.distributed.sharded_table import BitSet, Shard, ones_in
from orderdp.distributed.sharded_topk import (
    DIGIT,
    OUTSIDE,
    UNSEEN,
    chosen_among,
    digit_counts,
    keys_of,
    pool_bits,
    select_shard,
    smallest,
    turned,
)
from orderdp.errors import ConfigError
from orderdp.policies import FullData, LossBelow, Probability, SkipLearned, UniformTail
from orderdp.policies.orderdp import Bottom, Mixed, Moving, PoolRule, Top, Trimmed
from orderdp.policy import total_samples
from orderdp.theory import RankRule
from orderdp.theory.rank_rules import Steps
from tests.ranks import FullRank, MemoryRank, all_fine, in_threads
from tests.support import streams, table_with


@dataclass(frozen=True)
class Middle(PoolRule):
    """A rule of one's own: the middle of the pool, and one sample from the easier half."""

    def positions(self, s: int, q: int, context: Context, count_seen: Any = None) -> RankRule:
        return MiddleAndOne((s - q) // 2, q - 1)


@dataclass(frozen=True)
class MiddleAndOne(RankRule):
    skipped: int
    by_rank: int

    @property
    def steps(self) -> Steps:
        return Steps(self.skipped, self.by_rank, 1)


RULES = [
    Top(),
    Bottom(),
    Trimmed(0.1),
    Mixed(top=0.6, uniform=0.4),
    Mixed(top=0.0, uniform=1.0),
    Moving(1.0, 0.3),
    Middle(),
]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a few hundred samples span many blocks, pieces and windows."""
    monkeypatch.setattr(kernels, "BLOCK", 37)
    monkeypatch.setattr(bits_module, "PIECE", 64)
    monkeypatch.setattr(order_module, "WINDOW", 2)


def members(bits: BitSet) -> list[int]:
    return [int(sample) for start, stop in bits.pieces() for sample in bits.samples(start, stop)]


def scores_with_ties(n: int, levels: int, unseen: float, seed: int) -> np.ndarray:
    """Few different scores, some negative, zeros of both signs, and unseen samples."""
    rng = np.random.default_rng(seed)
    scores = (rng.integers(-2, max(1, levels), n) / 4).astype(np.float32)
    scores[rng.random(n) < 0.1] *= np.float32(-0.0)
    if levels > 50:
        scores = rng.standard_normal(n).astype(np.float32)
    scores[rng.random(n) < unseen] = np.inf
    return scores


def sharded_draw(
    policy: OrderDP, scores: np.ndarray, world: int, context: Context, sharding: Any = "exact", kind: Any = FullRank
) -> tuple[list[list[int]], list[Collectives]]:
    """What each rank draws."""

    def work(rank: MemoryRank) -> tuple[list[int], Collectives]:
        shard, collectives = Shard(len(scores), rank.rank, world), Collectives(rank if world > 1 else None)
        return members(
            select_shard(policy, shard, lambda a, b: scores[a:b], context, collectives, sharding)
        ), collectives

    results = all_fine(in_threads(world, work, kind=kind))
    return [kept for kept, _ in results], [collectives for _, collectives in results]


SKIPPING = [
    Unlearned(0.4, in_turn=False),
    Unlearned(0.7, learned=LossBelow(0.5), refresh=0.2, in_turn=False),
    Unlearned(0.4, in_turn=False, until_pass=1),
    SkipLearned(learned=0.8, refresh=0.3),
    Budget(0.5, learned=LossBelow(0.25)),
    Budget(0.1, policy=FullData()),
    Budget(0.2, policy=OrderDP(0.5)),
    UniformTail(OrderDP(0.5), 0.5),
    UniformTail(Budget(0.5, learned=0.8), 1.0),
    FullData(),
]


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(10, 300),
    world=st.integers(1, 4),
    policy=st.sampled_from(SKIPPING),
    unseen=st.sampled_from([0.0, 0.2, 1.0]),
    trained=st.integers(0, 3),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 9),
)
def test_rules_that_skip_draw_from_parts_what_they_draw_from_the_whole(n, world, policy, unseen, trained, seed, epoch):
    scores = scores_with_ties(n, 8, unseen, seed)
    total = total_samples(policy, n, 10)
    context = Context(n=n, epoch=epoch, seed=seed, epochs=10, trained=trained * n // 2, total=total)
    whole, usage = table_with(scores), np.diff(np.arange(n + 1) * context.trained // n)  # as many as the context says
    table = {"score": whole["score"], "seen": whole["seen"], "usage": usage}
    expected = sorted(policy.select(table, context).indices.tolist())
    parts, _ = sharded_draw(policy, scores, world, context)
    assert sorted(i for part in parts for i in part) == expected


@settings(max_examples=100, deadline=None)
@given(n=st.integers(20, 200), world=st.integers(1, 4), policy=st.sampled_from(SKIPPING), seed=st.integers(0, 99))
def test_stratified_rules_that_skip_keep_as_many_in_all(n, world, policy, seed):
    scores = scores_with_ties(n, 8, 0.2, seed)
    context = Context(n=n, epoch=2, seed=seed, epochs=10, total=total_samples(policy, n, 10))
    parts, _ = sharded_draw(policy, scores, world, context, "stratified")
    kept = [i for part in parts for i in part]
    assert len(set(kept)) == len(kept)
    for rank, part in enumerate(parts):
        shard = Shard(n, rank, world)
        assert all(shard.start <= i < shard.stop for i in part)
    size = policy.size(n, context)
    if size is not None:
        assert len(kept) == size
    elif isinstance(policy, SkipLearned):
        learned = {i for i in range(n) if scores[i] <= Probability(0.8).loss}
        assert set(range(n)) - learned <= set(kept)
        assert abs(len(learned & set(kept)) - 0.3 * len(learned)) <= world


# -- exact equals replicated -----------------------------------------------------------------------------------------


@given(
    n=st.integers(5, 300),
    world=st.integers(1, 5),
    dials=st.tuples(st.floats(0.3, 1), st.floats(0.2, 1)),
    rule=st.sampled_from(RULES),
    levels=st.sampled_from([1, 3, 20, 1000]),
    unseen=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_ranks_together_draw_what_one_process_with_all_scores_draws(
    n: int, world: int, dials: tuple[float, float], rule: Any, levels: int, unseen: float, seed: int
) -> None:
    patch = pytest.MonkeyPatch()
    with patch.context() as changes:
        changes.setattr(kernels, "BLOCK", 37)
        changes.setattr(bits_module, "PIECE", 64)
        policy = OrderDP(exploration=dials[0], exploitation=dials[1], select=rule)
        try:
            _, q = policy.sizes(n)
        except ConfigError:
            return  # so few that nothing is left, or that as many cannot be skipped
        scores = scores_with_ties(n, levels, unseen, seed)
        context = Context(n=n, epoch=seed % 7, seed=seed, epochs=9)
        expected = policy.select(table_with(scores), context).indices
        kept, _ = sharded_draw(policy, scores, world, context)
    together = [sample for part in kept for sample in part]
    assert together == sorted(expected.tolist())
    assert len(together) == q
    for rank, part in enumerate(kept):
        shard = Shard(n, rank, world)
        assert all(shard.start <= sample < shard.stop for sample in part)


@pytest.mark.parametrize("unseen", [0.1, 1.0], ids=["some unseen", "all tied"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_it_holds_with_blocks_of_full_size_too(rule: Any, unseen: float) -> None:
    n, policy = 200_001, OrderDP(exploration=0.8, exploitation=0.75, select=rule)
    scores = scores_with_ties(n, 1000, unseen, 3)
    context = Context(n=n, epoch=2, seed=5, epochs=4)
    kept, _ = sharded_draw(policy, scores, 3, context)
    expected = policy.select(table_with(scores), context).indices
    assert np.array_equal(np.concatenate(kept), np.sort(expected))


def test_groups_that_can_only_gather_draw_the_same() -> None:
    policy, scores, context = OrderDP(0.4), scores_with_ties(200, 3, 0.2, 1), Context(n=200, epoch=1, seed=2)
    full, _ = sharded_draw(policy, scores, 3, context)
    plain, _ = sharded_draw(policy, scores, 3, context, kind=MemoryRank)
    assert full == plain


@pytest.mark.parametrize("unseen", [0.0, 1.0], ids=["all different", "all tied"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_what_a_selection_exchanges_does_not_depend_on_the_number_of_samples(rule: Any, unseen: float) -> None:
    histogram, passes, second_cut = 8 * 2**DIGIT, 3 + 6, isinstance(rule, Trimmed | Middle)
    for n in (600, 60_000):
        context = Context(n=n, epoch=0, seed=0, epochs=9)
        policy = OrderDP(exploration=0.8, exploitation=0.75, select=rule)
        _, collectives = sharded_draw(policy, scores_with_ties(n, 1000, unseen, 0), 3, context)
        for collective in collectives:
            assert 0 < collective.received <= (1 + second_cut) * passes * histogram + 100
            assert collective.sent <= collective.received


# -- stratified --------------------------------------------------------------------------------------------------------


@given(n=st.integers(10, 200), world=st.integers(1, 6), rule=st.sampled_from(RULES), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_in_strata_every_rank_keeps_its_share_of_its_own_and_says_nothing(
    n: int, world: int, rule: Any, seed: int
) -> None:
    policy = OrderDP(exploration=0.8, exploitation=0.75, select=rule)
    _, q = policy.sizes(n)
    context = Context(n=n, epoch=1, seed=seed, epochs=9)
    kept, collectives = sharded_draw(policy, scores_with_ties(n, 10, 0.1, seed), world, context, "stratified")
    assert [len(part) for part in kept] == theory.stratum_sizes(q, world).tolist()
    assert all(len(set(part)) == len(part) for part in kept)
    for rank, (part, collective) in enumerate(zip(kept, collectives, strict=True)):
        assert all(Shard(n, rank, world).start <= sample < Shard(n, rank, world).stop for sample in part)
        assert (collective.sent, collective.received) == (0, 0)


def test_ranks_draw_independently_of_each_other_in_strata() -> None:
    n, policy = 400, OrderDP(exploration=0.8, exploitation=0.75)
    scores = np.tile(np.arange(100, dtype=np.float32), 4)  # all parts alike, and no ties that a hash would break
    kept, _ = sharded_draw(policy, scores, 4, Context(n=n, epoch=0, seed=0), "stratified")
    places = {tuple(sample - 100 * rank for sample in part) for rank, part in enumerate(kept)}
    assert len(places) == 4, "the same places in every part would be one draw, four times"


def chances_by_enumeration(losses: np.ndarray, s: int, q: int, world: int) -> np.ndarray:
    """Every pool of every part, each kept down to its largest: the definition, written out."""
    chances, n = np.zeros(len(losses)), len(losses)
    for rank in range(world):
        shard = Shard(n, rank, world)
        s_r, q_r = (Shard(total, rank, world).size for total in (s, q))
        for pool in combinations(range(shard.start, shard.stop), s_r):
            for sample in sorted(pool, key=lambda i: -losses[i])[:q_r]:
                chances[sample] += 1 / comb(shard.size, s_r)
    return chances


@pytest.mark.parametrize(
    ("n", "s", "q", "world"), [(7, 5, 3, 2), (9, 7, 5, 3), (12, 9, 6, 4), (8, 8, 4, 2), (6, 4, 4, 1)]
)
def test_weights_in_strata_are_those_of_enumeration(n: int, s: int, q: int, world: int) -> None:
    losses = np.random.default_rng(n).permutation(n).astype(float)
    expected = chances_by_enumeration(losses, s, q, world)
    assert np.allclose(theory.stratified_weights(losses, s, q, world), expected, atol=1e-12)
    assert np.isclose(expected.sum(), q)


def test_equal_losses_share_their_weight_in_strata() -> None:
    found = theory.stratified_weights([5.0, 5.0, 1.0, 2.0, 2.0, 2.0], s=4, q=2, world=2)
    ordered = (theory.weights(3, 2, 1), theory.weights(3, 2, 1))
    assert np.allclose(found[:2], ordered[0][:2].mean())
    assert np.allclose(found[3:], ordered[1].mean())


def test_draws_in_strata_follow_the_weights() -> None:
    n, world, draws = 20, 3, 3000
    losses = np.random.default_rng(0).permutation(n).astype(np.float32)
    policy = OrderDP(exploration=0.7, exploitation=0.5)
    s, q = policy.sizes(n)
    counts = np.zeros(n)
    for seed in range(draws):
        for rank in range(world):
            shard = Shard(n, rank, world)
            context = Context(n=n, epoch=0, seed=seed)
            kept = select_shard(policy, shard, lambda a, b: losses[a:b], context, Collectives(), "stratified")
            counts[members(kept)] += 1
    expected = theory.stratified_weights(losses, s, q, world)
    error = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(counts / draws - expected) <= 5 * error + 1e-9).all()


@pytest.mark.parametrize(("s", "q", "world"), [(3, 4, 1), (4, 2, 3), (4, 2, 0), (7, 2, 1)])
def test_strata_that_cannot_be_are_refused(s: int, q: int, world: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        theory.stratified_weights([1.0, 2.0, 3.0, 4.0, 5.0], s, q, world)
    with pytest.raises(ConfigError, match="world at least 1"):
        theory.stratum_sizes(3, 0)


# -- pieces ------------------------------------------------------------------------------------------------------------


@given(
    values=st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 5), min_size=1, max_size=200),
    share=st.floats(0, 1),
    parts=st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_radix_select_ends_where_a_partition_does(values: list[int], share: float, parts: int) -> None:
    numbers = np.array(values, dtype=np.uint32)
    k = round(share * len(numbers))
    split = np.array_split(numbers, parts)
    limit = smallest(k, 32, lambda *digit: sum(digit_counts(part, *digit) for part in split), lambda counts: counts)
    below = int((numbers < limit.below).sum())
    assert below + limit.missing == k
    if k:
        kth = np.partition(numbers, k - 1)[k - 1]
        if limit.missing:
            assert limit.below == kth
            assert limit.missing < (numbers == kth).sum()
        else:
            assert sorted(numbers[numbers < limit.below]) == sorted(values)[:k]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=50))
def test_keys_are_ordered_as_scores_are(values: list[float]) -> None:
    scores = np.array([*values, 0.0, -0.0, np.inf], dtype=np.float32)
    keys = keys_of(scores).astype(np.int64)
    assert ((scores[:, None] > scores) == (keys[:, None] < keys)).all()
    assert (keys < OUTSIDE).all()
    assert ((keys == UNSEEN) == np.isposinf(scores)).all()
    upside_down = keys_of(turned(scores[scores > -np.inf])).astype(np.int64)
    finite = np.isfinite(scores[scores > -np.inf])
    rest, turned_keys = scores[scores > -np.inf][finite], upside_down[finite]
    assert ((rest[:, None] < rest) == (turned_keys[:, None] < turned_keys)).all()
    assert (upside_down[~finite] == UNSEEN).all()


@given(n=st.integers(1, 400), share=st.floats(0, 1), cut=st.floats(0, 1), seed=st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_parts_of_a_pool_are_parts_of_the_pool(n: int, share: float, cut: float, seed: int) -> None:
    with pytest.MonkeyPatch().context() as changes:
        changes.setattr(kernels, "BLOCK", 29)
        changes.setattr(bits_module, "PIECE", 64)
        s, start = round(share * n), round(cut * n)
        whole = kernels.pool_mask(n, s, streams(seed))
        parts = [pool_bits(n, s, streams(seed), 0, start), pool_bits(n, s, streams(seed), start, n)]
    assert members(parts[0]) + members(parts[1]) == np.flatnonzero(whole).tolist()


def test_bits_are_a_set() -> None:
    rng = np.random.default_rng(0)
    for start, stop in [(0, 1), (3, 70), (64, 128), (100, 1000), (65_000, 200_000)]:
        chosen = np.sort(rng.choice(np.arange(start, stop), (stop - start + 1) // 2, replace=False))
        bits = BitSet(start, stop)
        bits.add(chosen)
        assert members(bits) == chosen.tolist()
        assert len(bits) == len(chosen) == ones_in(bits.words).sum()
        twin = BitSet(start, stop)
        for low, high in twin.pieces():
            twin.put(low, bits.mask(low, high))
        assert np.array_equal(twin.words, bits.words)
        twin.remove(chosen[::2])
        assert members(twin) == np.setdiff1d(chosen, chosen[::2]).tolist()
        assert members(bits) == chosen.tolist()
    assert len(BitSet(5, 5)) == 0
    assert members(BitSet(70, 64)) == []


def test_members_are_chosen_as_positions_of_one_list(small_pieces: None) -> None:
    everything = np.sort(np.random.default_rng(1).choice(500, 260, replace=False))
    mask = kernels.pool_mask(260, 90, streams(4))
    found, before = [], 0
    for rank in range(3):
        shard = Shard(500, rank, 3)
        part = BitSet(shard.start, shard.stop)
        part.add(everything[(everything >= shard.start) & (everything < shard.stop)])
        found += members(chosen_among(part, before, 260, 90, streams(4)))
        before += len(part)
    assert found == everything[mask].tolist()


# -- the visiting order --------------------------------------------------------------------------------------------


def some_order(seed: int = 0, n_remote: int = 9) -> tuple[TwoLevelOrder, list[int]]:
    own = BitSet(100, 900)
    own.add(np.sort(np.random.default_rng(seed).choice(np.arange(100, 900), 350, replace=False)))
    remote = np.arange(1000, 1000 + n_remote)
    return TwoLevelOrder(own, remote, streams(seed)), [*members(own), *remote.tolist()]


@pytest.mark.parametrize("n_remote", [0, 1, 9])
def test_an_order_visits_everything_once_whatever_stretches_are_asked_for(small_pieces: None, n_remote: int) -> None:
    order, everything = some_order(n_remote=n_remote)
    whole = order.samples(0, len(order) + 5)
    assert sorted(whole.tolist()) == sorted(everything)
    assert len(order) == len(everything)
    assert whole.tolist() != everything
    for start, stop in [(0, 1), (7, 200), (355, 359), (300, 1000), (400, 500)]:
        assert np.array_equal(order.samples(start, stop), whole[start:stop])
    assert np.array_equal(some_order(n_remote=n_remote)[0].samples(0, 400), whole)
    assert not np.array_equal(some_order(1, n_remote)[0].samples(0, 400), whole)


@pytest.mark.parametrize("position", [0, 1, 100, 358, 359])
def test_what_is_left_is_what_comes_later(small_pieces: None, position: int) -> None:
    order, _ = some_order()
    own, remote = order.after(position)
    assert sorted([*members(own), *remote.tolist()]) == sorted(order.samples(position, 1000).tolist())
    assert all(sample >= 1000 for sample in remote)


def test_every_sample_is_as_likely_early_as_late(small_pieces: None) -> None:
    n, rounds = 320, 2000
    everything = BitSet(0, n)
    everything.add(np.arange(n))
    places = np.zeros(n)
    for seed in range(rounds):
        order = TwoLevelOrder(everything, np.empty(0, dtype=np.int64), streams(seed))
        places[order.samples(0, n)] += np.arange(n)
    spread = n / np.sqrt(12 * rounds)
    assert (np.abs(places / rounds - (n - 1) / 2) < 5 * spread).all()


def test_a_window_mixes_samples_from_all_over() -> None:
    everything = BitSet(0, 1_000_000)
    for start, stop in everything.pieces():
        everything.put(start, np.ones(stop - start, dtype=np.bool_))
    order = TwoLevelOrder(everything, np.empty(0, dtype=np.int64), streams(0))
    first = order.samples(0, 1000)
    by_tenth = np.bincount(first // 100_000, minlength=10)
    assert by_tenth.min() > 50
