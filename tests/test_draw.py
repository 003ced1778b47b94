"""The draw against enumeration, closed forms and the properties that pin it."""

from __future__ import annotations

from itertools import combinations, permutations, product
from math import comb, factorial, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import OrderDP
from orderdp import _draw as kernels
from orderdp import _draw as populations
from orderdp.testing import global_generators_untouched
from tests.support import draw, streams, table_with


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a handful of samples span several blocks."""
    monkeypatch.setattr(kernels, "BLOCK", 3)


def exact_distribution(scores: np.ndarray, s: int, q: int) -> dict[frozenset[int], float]:
    """Every pool there is, each kept down to its q largest: the definition, written out."""
    n = len(scores)
    chances: dict[frozenset[int], float] = {}
    for pool in combinations(range(n), s):
        kept = frozenset(sorted(pool, key=lambda i: -scores[i])[:q])
        chances[kept] = chances.get(kept, 0.0) + 1 / comb(n, s)
    return chances


def assert_frequencies(counts: dict, chances: dict, draws: int) -> None:
    """Every outcome's frequency is within five standard errors of its chance, and nothing else occurs."""
    assert set(counts) <= set(chances)
    for outcome, chance in chances.items():
        error = sqrt(max(chance * (1 - chance), 1e-12) / draws)
        assert abs(counts.get(outcome, 0) / draws - chance) <= 5 * error + 1e-9, (outcome, chance)


DESIGNS = [(n, s, q) for n in range(2, 6) for s in range(1, n + 1) for q in range(1, s + 1)] + [
    (7, 4, 2), (8, 5, 3), (8, 6, 5), (8, 3, 1), (8, 8, 3), (8, 4, 4),
]  # fmt: skip


@pytest.mark.parametrize(("n", "s", "q"), DESIGNS)
def test_the_draw_has_the_distribution_of_enumerating_every_pool(n: int, s: int, q: int, small_blocks: None) -> None:
    scores = np.random.default_rng(n).permutation(n).astype(np.float32)
    chances = exact_distribution(scores, s, q)
    policy = OrderDP(exploration=s / n, exploitation=q / s)
    assert policy.sizes(n) == (s, q)
    table = table_with(scores)
    draws, counts = 1000, {}
    for seed in range(draws):
        kept = frozenset(draw(policy, table, seed=seed).tolist())
        counts[kept] = counts.get(kept, 0) + 1
    assert_frequencies(counts, chances, draws)


@pytest.mark.parametrize("block", [1 << 16, 7])
def test_each_rank_is_kept_as_often_as_the_closed_form_says(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK", block)
    n, s, q, draws = 40, 28, 12, 4000
    scores = np.random.default_rng(0).permutation(n).astype(np.float32)
    by_rank = np.argsort(-scores)
    gamma = [
        sum(comb(j - 1, k - 1) * comb(n - j, s - k) for k in range(max(1, s - n + j), min(q, j) + 1)) / comb(n, s)
        for j in range(1, n + 1)
    ]
    policy, table, counts = OrderDP(exploration=s / n, exploitation=q / s), table_with(scores), np.zeros(n)
    for seed in range(draws):
        counts[draw(policy, table, seed=seed)] += 1
    for chance, kept in zip(gamma, counts[by_rank] / draws, strict=True):
        assert abs(kept - chance) <= 5 * sqrt(max(chance * (1 - chance), 1e-9) / draws)


@pytest.mark.parametrize("value", [np.inf, 0.0, 2.5])
def test_equal_scores_give_a_uniform_subset_without_index_bias(value: float, small_blocks: None) -> None:
    n, draws = 12, 4000
    policy = OrderDP(exploration=0.75, exploitation=4 / 9)
    s, q = policy.sizes(n)
    assert (s, q) == (9, 4)
    table = table_with(np.full(n, value, dtype=np.float32))
    single, pairs = np.zeros(n), np.zeros((n, n))
    for seed in range(draws):
        kept = draw(policy, table, seed=seed)
        single[kept] += 1
        pairs[np.ix_(kept, kept)] += 1
    chance, pair = q / n, q * (q - 1) / (n * (n - 1))
    assert np.abs(single / draws - chance).max() <= 5 * sqrt(chance * (1 - chance) / draws)
    off_diagonal = pairs[~np.eye(n, dtype=bool)] / draws
    assert np.abs(off_diagonal - pair).max() <= 5 * sqrt(pair * (1 - pair) / draws)


def test_ties_at_the_threshold_are_broken_fairly_and_larger_scores_always_kept() -> None:
    scores = np.array([5.0, 1.0, 1.0, 1.0, 1.0, 0.0], dtype=np.float32)
    table, draws, counts = table_with(scores), 2000, np.zeros(6)
    for seed in range(draws):
        counts[draw(OrderDP(exploration=1, exploitation=0.5), table, seed=seed)] += 1
    assert counts[0] == draws
    assert counts[5] == 0
    assert np.abs(counts[1:5] / draws - 0.5).max() <= 5 * sqrt(0.25 / draws)


@pytest.mark.parametrize("by_sorting", [False, True])
def test_the_visiting_order_is_uniform_over_all_permutations(by_sorting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_sorting:
        monkeypatch.setattr(kernels, "_SHUFFLE", 0)
    indices = np.array([1, 4, 5, 9], dtype=np.int64)
    draws, counts = 4800, dict.fromkeys(permutations(indices.tolist()), 0)
    for seed in range(draws):
        counts[tuple(kernels.visiting_order(indices.copy(), 10, streams(seed)("order")).tolist())] += 1
    chance = 1 / factorial(4)
    assert max(abs(c / draws - chance) for c in counts.values()) <= 5 * sqrt(chance * (1 - chance) / draws)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40), st.integers(0, 5))
def test_a_ranking_is_what_sorting_gives(values: list[float], seed: int) -> None:
    scores = np.array(values, dtype=np.float32)
    ranked = kernels.ranking(scores, streams(seed)("ranks"))
    assert sorted(ranked.tolist()) == list(range(len(values)))
    assert scores[ranked].tolist() == sorted(values, reverse=True)


def test_a_ranking_puts_equal_scores_in_every_order_equally_often() -> None:
    scores = np.array([1.0, 0.0, np.inf, -0.0, 0.0], dtype=np.float32)
    orders = dict.fromkeys(permutations((1, 3, 4)), 0)
    for seed in range(3000):
        first, second, *tied = kernels.ranking(scores, streams(seed)("ranks")).tolist()
        assert (first, second) == (2, 0)
        orders[tuple(tied)] += 1
    assert max(abs(count / 3000 - 1 / 6) for count in orders.values()) < 5 * sqrt(1 / 6 * 5 / 6 / 3000)


def test_equal_random_words_do_not_leave_indices_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_SHUFFLE", 0)

    class Colliding:
        """A generator whose first words have all the same random part."""

        def __init__(self, seed: int) -> None:
            self.real, self.calls, self.bit_generator = np.random.SFC64(seed), 0, self

        def random_raw(self, size: int) -> np.ndarray:
            self.calls += 1
            return np.zeros(size, dtype=np.uint64) if self.calls == 1 else self.real.random_raw(size)

    orders = [tuple(kernels.visiting_order(np.arange(3), 3, Colliding(seed)).tolist()) for seed in range(1200)]  # type: ignore[arg-type]
    frequency = {order: orders.count(order) / len(orders) for order in permutations(range(3))}
    assert max(abs(f - 1 / 6) for f in frequency.values()) <= 5 * sqrt(1 / 6 * 5 / 6 / 1200)


def test_a_long_order_is_a_permutation_and_sorted_in_parallel_like_in_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    indices = np.arange(0, 600_000, 2, dtype=np.int64)
    monkeypatch.setattr(kernels, "_SHUFFLE", 0)
    monkeypatch.setattr(kernels, "_SORT_ALONE", 1000)
    several = kernels.visiting_order(indices.copy(), 600_000, streams(3)("order"))
    monkeypatch.setattr(kernels, "_SORT_ALONE", 1 << 60)
    one = kernels.visiting_order(indices.copy(), 600_000, streams(3)("order"))
    assert np.array_equal(several, one)
    assert np.array_equal(np.sort(several), indices)
    assert abs(np.corrcoef(several, indices)[0, 1]) < 5 / sqrt(len(indices))


@st.composite
def designs(draws: st.DrawFn) -> tuple[int, int, int]:
    n = draws(st.integers(1, 60))
    s = draws(st.integers(1, n))
    return n, s, draws(st.integers(1, s))


score_values = st.one_of(st.floats(0, 100, width=32), st.just(float("inf")), st.sampled_from([0.0, 1.0, 2.0]))


@settings(max_examples=150, deadline=None)
@given(designs(), st.integers(0, 2**40), st.integers(0, 1000), st.data())
def test_counts_are_exact_and_indices_unique(
    design: tuple[int, int, int], seed: int, epoch: int, data: st.DataObject
) -> None:
    n, s, q = design
    scores = np.array(data.draw(st.lists(score_values, min_size=n, max_size=n)), dtype=np.float32)
    pool = kernels.pool_mask(n, s, streams(seed, epoch))
    assert pool.sum() == s
    pooled = kernels.pool_scores(scores, s, streams(seed, epoch))
    assert np.array_equal(pooled, np.where(pool, scores, -np.inf))
    kept = kernels.top_of_pool(pooled, q, tie_key=seed)
    assert len(kept) == q
    assert len(set(kept.tolist())) == q
    assert pool[kept].all()
    left_out = np.setdiff1d(np.flatnonzero(pool), kept)
    if len(left_out):
        assert scores[kept].min() >= scores[left_out].max()


@settings(max_examples=50, deadline=None)
@given(st.lists(score_values, min_size=1, max_size=60), st.integers(0, 2**32), st.data())
def test_the_top_is_the_same_in_double_precision(values: list[float], key: int, data: st.DataObject) -> None:
    scores, q = np.array(values, dtype=np.float32), data.draw(st.integers(1, len(values)))
    in_double = kernels.top_of_pool(scores.astype(np.float64), q, key)
    assert np.array_equal(in_double, kernels.top_of_pool(scores, q, key))
    close = 1e9 + np.arange(len(values), dtype=np.float64)
    assert kernels.top_of_pool(close, q, key).tolist() == list(range(len(values) - q, len(values)))


@settings(max_examples=150, deadline=None)
@given(designs(), st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_relabelling_a_pool_relabels_its_top(design: tuple[int, int, int], seed: int, shuffler) -> None:
    n, s, q = design
    scores = np.random.default_rng(seed).permutation(n).astype(np.float32)
    pool = kernels.pool_mask(n, s, streams(seed))
    new_place = np.array(shuffler.sample(range(n), n))
    pooled = np.where(pool, scores, -np.inf)
    moved = np.empty_like(pooled)
    moved[new_place] = pooled
    kept = kernels.top_of_pool(pooled, q, tie_key=1)
    moved_kept = kernels.top_of_pool(moved, q, tie_key=1)
    assert set(new_place[kept].tolist()) == set(moved_kept.tolist())


@settings(max_examples=150, deadline=None)
@given(designs(), st.integers(0, 2**32), st.integers(1, 6))
def test_a_monotone_transform_of_the_scores_changes_nothing(
    design: tuple[int, int, int], seed: int, levels: int
) -> None:
    n, s, q = design
    scores = np.random.default_rng(seed).integers(0, levels, n).astype(np.float32)
    policy = OrderDP(exploration=s / n, exploitation=q / s)
    assert np.array_equal(draw(policy, scores, seed=seed), draw(policy, np.exp(scores) * 3 - 50, seed=seed))


@settings(max_examples=60, deadline=None)
@given(designs(), st.integers(0, 2**32))
def test_a_step_takes_the_largest_scores_of_its_share(design: tuple[int, int, int], seed: int) -> None:
    n, s, q = design
    part = np.random.default_rng(seed).permutation(n)[:s].astype(np.int64)
    scores = np.random.default_rng(seed + 1).integers(0, 5, s).astype(np.float32)
    kept = kernels.top_of_part(part, scores, q, tie_key=seed)
    score_of = dict(zip(part.tolist(), scores.tolist(), strict=True))
    assert len(set(kept.tolist())) == q
    assert sorted((score_of[i] for i in kept.tolist()), reverse=True) == sorted(scores.tolist(), reverse=True)[:q]


def test_exploitation_1_is_a_uniform_draw_whatever_the_scores() -> None:
    scores = np.arange(100, dtype=np.float32)
    policy = OrderDP(exploration=0.6, exploitation=1)
    kept = draw(policy, scores, seed=5)
    assert len(kept) == 60
    assert np.array_equal(kept, draw(policy, scores[::-1].copy(), seed=5))


def test_exploration_1_is_the_top_of_all_scores() -> None:
    scores = np.random.default_rng(0).permutation(100).astype(np.float32)
    kept = draw(OrderDP(exploration=1, exploitation=0.3), scores)
    assert set(kept.tolist()) == set(np.argsort(-scores)[:30].tolist())


def test_unseen_samples_rank_first() -> None:
    scores = np.full(50, 1e30, dtype=np.float32)
    scores[[3, 17, 40]] = np.inf
    assert set(draw(OrderDP(exploration=1, exploitation=3 / 50), scores).tolist()) == {3, 17, 40}


def test_a_draw_is_a_function_of_seed_epoch_and_table_and_leaves_global_generators_alone() -> None:
    scores = np.random.default_rng(0).random(200).astype(np.float32)
    policy = OrderDP(0.4)
    with global_generators_untouched():
        first = draw(policy, scores, seed=1, epoch=2)
        np.random.default_rng(9).random(5)
        assert np.array_equal(first, draw(policy, scores, seed=1, epoch=2))
        assert not np.array_equal(first, draw(policy, scores, seed=2, epoch=2))
        assert not np.array_equal(first, draw(policy, scores, seed=1, epoch=3))


def test_a_pool_is_made_of_blocks_that_can_be_drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in a block depends on the block's own generator and on its count, and on nothing else."""
    monkeypatch.setattr(kernels, "BLOCK", 10)
    pool = kernels.pool_mask(95, 60, streams(4))
    calls: list[tuple] = []

    def spied(*tags: int | str) -> np.random.Generator:
        calls.append(tags)
        return streams(4)(*tags)

    assert np.array_equal(kernels.pool_mask(95, 60, spied), pool)
    assert calls == [("pool",), *[("pool", block) for block in range(10)]]


def test_a_draw_of_several_blocks_of_real_size_is_exact() -> None:
    n = 3 * kernels.BLOCK + 17
    scores = np.random.default_rng(0).random(n).astype(np.float32)
    kept = draw(OrderDP(exploration=0.8, exploitation=0.75), scores)
    assert len(np.unique(kept)) == len(kept) == round(0.75 * round(0.8 * n))
    # With a pool this large the kept ones are all but exactly the top three quarters of a random 80 %.
    assert abs(scores[kept].min() - 0.25) < 0.01


def test_hashes_of_different_indices_never_collide() -> None:
    hashes = kernels.fair_hash(np.arange(200_000), key=12345)
    assert len(np.unique(hashes)) == 200_000


def test_pools_of_more_samples_than_numpy_can_count_are_exact() -> None:
    n, s = 3 * 10**9, 2 * 10**9
    counts = kernels._counts(n, s, np.random.default_rng(0))
    assert counts.sum() == s
    assert counts.min() >= 0
    assert counts.max() <= kernels.BLOCK
    assert counts[-1] <= n % kernels.BLOCK


@pytest.mark.parametrize(("widths", "s"), [([3, 3, 2], 4), ([5, 1, 2], 7), ([4, 4], 1), ([2, 6], 8)])
def test_counts_of_large_populations_have_the_distribution_of_enumeration(widths: list[int], s: int) -> None:
    total, draws, found = comb(sum(widths), s), 20_000, {}
    chances = {
        counts: np.prod([comb(width, count) for width, count in zip(widths, counts, strict=True)]) / total
        for counts in product(*(range(width + 1) for width in widths))
        if sum(counts) == s
    }
    rng = np.random.default_rng(5)
    for _ in range(draws):
        counts = tuple(populations._tossed(np.array(widths), s, rng).tolist())
        found[counts] = found.get(counts, 0) + 1
    assert_frequencies(found, chances, draws)
