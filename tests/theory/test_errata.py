"""The paper's slips, each with the number that is right. docs/theory/errata.md tells them in words."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy import stats

from orderdp.theory import limit_weights, weights
from orderdp.theory.weights import convergence_bound, deviation
from orderdp_paper import theory as toy


def test_proposition_1_the_beta_distribution_is_of_q_and_s_minus_q() -> None:
    s, q, z = 6, 2, 0.3
    gamma = float(limit_weights(z, s, q))
    assert 1 - gamma / s == pytest.approx(stats.beta(q, s - q).cdf(z))
    n = 1000
    assert not 0 <= 1 - n / s * gamma <= 1, "the main text's 1 - (n/s) gamma(z) is no distribution function"


def test_appendix_a1_the_upper_limit_is_min_q_j() -> None:
    n, s, q = 6, 4, 2

    def gamma(j: int, upper: int) -> float:
        return sum(comb(j - 1, k - 1) * comb(n - j, s - k) for k in range(max(1, s - n + j), upper + 1)) / comb(n, s)

    right = [gamma(j, min(q, j)) for j in range(1, n + 1)]
    printed = [gamma(j, min(1, j)) for j in range(1, n + 1)]
    np.testing.assert_allclose(weights(n, s, q), right)
    assert sum(right) == pytest.approx(q)
    assert sum(printed) == pytest.approx(1)


def test_the_induction_starts_from_a_sum_that_is_s_and_not_1() -> None:
    n, s = 7, 3
    assert sum(Fraction(comb(n - 1, s - 1), comb(n, s)) for _ in range(n)) == s
    assert weights(n, s, 1).sum() == pytest.approx(1)  # the claim itself is true


def test_the_toy_example_has_4_26_and_not_4_06() -> None:
    chances = toy.orderdp_chances()
    assert chances == [Fraction(1, 25), Fraction(3, 50), Fraction(1, 10), Fraction(1, 5), Fraction(3, 5)]
    assert toy.expectation(chances) == Fraction(426, 100)
    printed = [Fraction(1, 25), Fraction(3, 50), Fraction(3, 25), Fraction(9, 50), Fraction(3, 5)]
    assert sum(printed) == 1
    assert toy.expectation(printed) == Fraction(424, 100)


def test_the_toy_infobatch_prunes_0_4_and_is_unbiased_when_divided_by_n() -> None:
    outcomes = toy.infobatch_outcomes()
    assert sum(p for _, p, _, _ in outcomes) == 1
    assert 1 - Fraction(len(outcomes[0][0]), 5) == Fraction(2, 5)
    assert sum(p * by_kept for _, p, by_kept, _ in outcomes) == Fraction(4336, 1000)
    assert sum(p * by_n for _, p, _, by_n in outcomes) == 3


def test_c_s_does_not_vanish_as_q_goes_to_s() -> None:
    assert [deviation(200, 100, q) for q in (25, 50, 90, 99, 100)] == [3.0, 1.0, 1.0, 1.0, 0.0]


def test_gamma_hat_over_a_pool_does_not_sum_to_q() -> None:
    n, s, q = 4, 3, 2
    assert (n / s * weights(n, s, q))[:s].sum() / q == pytest.approx(4 / 3)


def test_not_every_sample_has_a_chance_under_top_q() -> None:
    n, s, q = 9, 6, 4
    chances = weights(n, s, q)
    assert chances[n - (s - q) :].tolist() == [0.0, 0.0]  # of any pool, the s - q easiest are left out
    assert (chances[: n - (s - q)] > 0).all()
    losses = np.arange(n, 0, -1)  # sample j has rank j + 1, in every round
    kept = {int(i) for pool in combinations(range(n), s) for i in sorted(pool, key=lambda i: -losses[i])[:q]}
    assert kept == set(range(n - (s - q)))


def test_with_the_whole_pool_kept_the_estimate_is_a_subgradient_of_the_plain_loss() -> None:
    n, s = 7, 4
    np.testing.assert_allclose(weights(n, s, s) / s, np.full(n, 1 / n))  # q = s: the expected gradient is the mean's
    assert not np.allclose(weights(n, s, s - 1) / (s - 1), np.full(n, 1 / n))
    gradients = np.full((n, 2), 0.5)  # and for any q where all samples have one gradient
    np.testing.assert_allclose(weights(n, s, 2) / 2 @ gradients, gradients.mean(0))


def test_the_proof_of_theorem_2_drops_a_half_that_the_theorem_has() -> None:
    """One step of |x|, from `distance` with rate distance / G: the bound with the half is attained."""
    distance, lipschitz = Fraction(3), Fraction(2)
    rate = distance / lipschitz
    gap = lipschitz * distance
    with_half = (distance**2 + lipschitz**2 * rate**2) / (2 * rate)
    printed = (distance**2 + lipschitz**2 * rate**2) / rate
    assert with_half == gap
    assert printed == 2 * gap
    assert convergence_bound(float(distance), float(lipschitz), [float(rate)]) == pytest.approx(float(with_half))
