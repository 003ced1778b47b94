"""Weights against exact enumeration, other libraries and the properties that pin them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orderdp._draw import generator
from orderdp.errors import ConfigError
from orderdp.theory import Bottom, Mixed, RankRule, Top, Trimmed, Window, limit_weights, weights, weights_at
from orderdp.theory.rank_rules import Steps

SMALL = [(n, s, q) for n in range(1, 10) for s in range(1, n + 1) for q in range(1, s + 1)]


def enumerated(n: int, s: int, rule: RankRule) -> list[Fraction]:
    """Every pool there is, and of each what the rule keeps: the definition, in fractions."""
    chances = [Fraction(0)] * n
    for pool in combinations(range(n), s):  # ranks from 0, hardest first
        for position, rank in enumerate(pool, start=1):
            chances[rank] += keeps(rule, position, s) * Fraction(1, comb(n, s))
    return chances


def keeps(rule: RankRule, position: int, s: int) -> Fraction:
    """How likely a pool's member at `position` is kept."""
    if isinstance(rule, Top):
        return Fraction(position <= rule.q)
    if isinstance(rule, Bottom):
        return Fraction(position > s - rule.q)
    if isinstance(rule, Window):
        return Fraction(rule.first <= position <= rule.last)
    if isinstance(rule, Trimmed):
        return Fraction(rule.skip < position <= rule.skip + rule.q)
    assert isinstance(rule, Mixed)
    return Fraction(1) if position <= rule.top else Fraction(rule.uniform, s - rule.top)


def rules_for(s: int) -> list[RankRule]:
    rules: list[RankRule] = [Top(q) for q in range(1, s + 1)] + [Bottom(q) for q in range(1, s + 1)]
    rules += [Window(a, b) for a in range(1, s + 1) for b in range(a, s + 1)]
    rules += [Trimmed(skip, q) for skip in range(s) for q in range(1, s - skip + 1)]
    rules += [Mixed(a, b) for a in range(s + 1) for b in range(s - a + 1) if a + b >= 1]
    return rules


@pytest.mark.parametrize(("n", "s", "q"), SMALL)
def test_weights_are_those_of_enumerating_every_pool(n: int, s: int, q: int) -> None:
    exact = enumerated(n, s, Top(q))
    assert sum(exact) == q
    np.testing.assert_allclose(weights(n, s, q), [float(x) for x in exact], rtol=1e-13, atol=0)
    np.testing.assert_allclose(weights_at(np.arange(1, n + 1), n, s, q), [float(x) for x in exact], rtol=1e-13, atol=0)


@pytest.mark.parametrize(("n", "s"), [(n, s) for n in range(1, 7) for s in range(1, n + 1)])
def test_every_rule_has_the_chances_of_enumerating_every_pool(n: int, s: int) -> None:
    for rule in rules_for(s):
        exact = enumerated(n, s, rule)
        assert sum(exact) == rule.kept
        expected = [float(x) for x in exact]
        np.testing.assert_allclose(weights(n, s, rule), expected, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(weights_at(range(1, n + 1), n, s, rule), expected, rtol=1e-12, atol=1e-15)
        assert (rule.never_kept(n, s) is None) == all(x > 0 for x in exact)


@pytest.mark.parametrize(("n", "s"), [(n, s) for n in range(1, 6) for s in range(1, n + 1)])
def test_every_rule_keeps_of_every_pool_the_positions_that_its_chances_say(n: int, s: int) -> None:
    """Selection and chances of one rule, each against the definition."""
    for rule in rules_for(s):
        for pool in combinations(range(n), s):  # ranks from 0, hardest first
            pooled = np.full(n, -np.inf, dtype=np.float32)
            pooled[list(pool)] = [n - rank for rank in pool]
            kept = rule.select(pooled, 7, partial(generator, 3)).tolist()
            certain = {rank for place, rank in enumerate(pool, start=1) if keeps(rule, place, s) == 1}
            possible = {rank for place, rank in enumerate(pool, start=1) if keeps(rule, place, s) > 0}
            assert certain <= set(kept) <= possible
            assert kept == sorted(set(kept))
            assert len(kept) == rule.kept


def test_unseen_samples_are_never_skipped() -> None:
    pooled = np.array([np.inf, 5, 4, -np.inf, 3, 2], dtype=np.float32)
    assert Trimmed(2, 2).select(pooled, 0, partial(generator, 0)).tolist() == [0, 4]
    nearly_unseen = np.array([np.inf, np.inf, 1], dtype=np.float32)
    assert Trimmed(2, 1).select(nearly_unseen, 0, partial(generator, 0))[0] < 2


@dataclass(frozen=True)
class SkipsAndDraws(RankRule):
    """A rule of one's own, from its steps alone: skips, keeps and draws."""

    skipped: int
    by_rank: int
    drawn: int
    easiest_first: bool

    @property
    def steps(self) -> Steps:
        return Steps(self.skipped, self.by_rank, self.drawn, self.easiest_first)


@pytest.mark.parametrize("s", range(1, 6))
@pytest.mark.parametrize("easiest_first", [False, True])
def test_the_chances_of_any_steps_are_those_of_enumerating_every_pool(s: int, easiest_first: bool) -> None:
    n = 6
    for skip, top in ((a, b) for a in range(s) for b in range(s - a + 1)):
        for uniform in range(0 if top else 1, s - skip - top + 1):
            rule = SkipsAndDraws(skip, top, uniform, easiest_first)
            by_position = [Fraction(0)] * skip + [Fraction(1)] * top
            by_position += [Fraction(uniform, s - skip - top)] * (s - skip - top) if s > skip + top else []
            exact = [Fraction(0)] * n
            for pool in combinations(range(n), s):
                for rank, chance in zip(pool, reversed(by_position) if easiest_first else by_position, strict=True):
                    exact[rank] += chance / comb(n, s)
            expected = [float(x) for x in exact]
            np.testing.assert_allclose(weights(n, s, rule), expected, rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(weights_at(range(1, n + 1), n, s, rule), expected, rtol=1e-12, atol=1e-15)
            assert (rule.never_kept(n, s) is None) == all(x > 0 for x in exact)
    with pytest.raises(ConfigError, match="skip and keep no more than"):
        weights(n, s, SkipsAndDraws(s, 1, 0, easiest_first))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4000), st.data())
def test_weights_are_those_of_scipys_hypergeometric(n: int, data: st.DataObject) -> None:
    s = data.draw(st.integers(1, n))
    q = data.draw(st.integers(1, s))
    gamma = weights(n, s, q)
    j = np.arange(1, n + 1)
    expected = s / n * stats.hypergeom.cdf(q - 1, n - 1, j - 1, s - 1)
    np.testing.assert_allclose(gamma, expected, rtol=1e-7, atol=1e-12)
    assert gamma.sum() == pytest.approx(q, rel=1e-11)
    assert (np.diff(gamma) <= 1e-16).all()
    assert (gamma >= 0).all()
    some = data.draw(st.integers(1, n))
    assert weights_at(some, n, s, q) == pytest.approx(gamma[some - 1], rel=1e-9, abs=1e-40)


@pytest.mark.parametrize(
    ("n", "s", "q"), [(10**7, 8 * 10**6, 6 * 10**6), (10**7, 100, 30), (10**7, 10**7, 3), (10**6, 2, 1)]
)
def test_large_designs_sum_to_what_is_kept_and_are_never_negative(n: int, s: int, q: int) -> None:
    gamma = weights(n, s, q)
    assert gamma.sum() == pytest.approx(q, rel=1e-9)
    assert gamma.min() >= 0
    assert gamma[0] == s / n
    if q < s:
        assert (gamma[n - (s - q) :] == 0).all()


def test_single_ranks_of_a_billion_and_more() -> None:
    n, s, q = 10**9, 8 * 10**8, 6 * 10**8
    values = weights_at([1, 750_000_000, n], n, s, q)
    assert values[0] == s / n
    assert 0.45 * s / n < values[1] < 0.55 * s / n  # the cliff is at j/n = q/s
    assert values[2] == 0
    assert weights_at(10**12, 10**12, 1000, 500) == 0


def test_limits_that_must_equal_something_known() -> None:
    assert weights(7, 5, 5).tolist() == [5 / 7] * 7
    assert weights(7, 7, 3).tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert weights(1, 1, 1).tolist() == [1.0]


@pytest.mark.parametrize(("s", "q"), [(3, 2), (100, 30), (100, 99), (2, 1), (5000, 1), (5000, 2500)])
def test_the_limit_is_one_minus_a_beta_distribution(s: int, q: int) -> None:
    z = np.linspace(0, 1, 41)
    np.testing.assert_allclose(1 - limit_weights(z, s, q) / s, stats.beta(q, s - q).cdf(z), atol=1e-11)


def test_the_limit_is_that_of_growing_data_sets() -> None:
    s, q = 10, 4
    gaps = []
    for n in (100, 1000, 10_000):
        z = np.arange(1, n + 1) / n
        gaps.append(np.abs(n * weights(n, s, q) - limit_weights(z, s, q)).max())
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2]


def test_where_the_whole_pool_is_kept_the_limit_is_flat() -> None:
    assert limit_weights([0.0, 0.3, 1.0], 5, 5).tolist() == [5.0, 5.0, 5.0]


@pytest.mark.parametrize(
    "design", [(0, 1, 1), (5, 6, 1), (5, 3, 4), (5, 3, 0), (5.0, 3, 2), (5, True, 1), (5, 3, "2"), (-1, -1, -1)]
)
def test_an_impossible_design_is_refused_with_its_three_numbers(design: tuple) -> None:
    n, s, q = design
    with pytest.raises(ConfigError) as caught:
        weights(n, s, q)
    for number in design:
        assert repr(number) in str(caught.value)
    with pytest.raises(ConfigError):
        weights_at([1], n, s, q)


@pytest.mark.parametrize(
    "rule", [Window(0, 2), Window(2, 1), Window(1, 9), Trimmed(-1, 2), Trimmed(3, 3), Mixed(0, 0), Mixed(3, 3)]
)
def test_rules_that_do_not_fit_the_pool_are_refused(rule: RankRule) -> None:
    with pytest.raises(ConfigError, match="must satisfy"):
        weights(8, 5, rule)


def test_bad_ranks_and_positions_are_refused() -> None:
    for ranks in ([0], [10], [1.5]):
        with pytest.raises(ConfigError, match="ranks must be whole numbers from 1 to n = 9"):
            weights_at(ranks, 9, 5, 2)
    with pytest.raises(ConfigError, match=r"z must be in \[0, 1\]"):
        limit_weights([1.2], 5, 2)
