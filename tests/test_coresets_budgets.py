"""Budgets: exact in total, fair, never more than there is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp.coresets.budgets import budgets, even_budgets, proportional_budgets
from orderdp.errors import ConfigError

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(SIZES, st.floats(0, 1))
def test_shares_are_exact_in_total_and_within_one_of_proportional(sizes: list[int], share: float) -> None:
    n = sum(sizes)
    k = round(share * n)
    given = proportional_budgets(np.array(sizes), k)
    assert given.sum() == k
    for size, count in zip(sizes, given.tolist(), strict=True):
        assert 0 <= count <= size
        assert n == 0 or abs(Fraction(size * k, n) - count) < 1


@settings(max_examples=200, deadline=None)
@given(SIZES, st.floats(0, 1))
def test_equal_budgets_are_what_dealing_one_at_a_time_gives(sizes: list[int], share: float) -> None:
    k = round(share * sum(sizes))
    dealt, left = [0] * len(sizes), k
    while left:
        # A round gives one to everybody who has some left; the last, incomplete one to the largest, then the last.
        hungry = sorted((i for i in range(len(sizes)) if dealt[i] < sizes[i]), key=lambda i: (-sizes[i], -i))
        for i in hungry[:left]:
            dealt[i] += 1
        left -= min(left, len(hungry))
    assert even_budgets(np.array(sizes), k).tolist() == dealt


def test_a_class_smaller_than_its_equal_budget_leaves_the_rest_to_the_others() -> None:
    labels = np.repeat([0, 1, 2], [50, 3, 50])
    assert budgets(labels, 30, "equal") == {0: 13, 1: 3, 2: 14}
    assert budgets(labels, 30) == {0: 15, 1: 1, 2: 14}


def test_equal_remainders_go_to_the_larger_class_then_to_the_earlier() -> None:
    assert proportional_budgets(np.array([3, 3, 3]), 4).tolist() == [2, 1, 1]
    assert proportional_budgets(np.array([1, 3, 2]), 3).tolist() == [0, 2, 1]


def test_a_budget_above_what_there_is_is_refused() -> None:
    with pytest.raises(ConfigError, match="between 0 and the 5 samples there are, got 6"):
        even_budgets(np.array([2, 3]), 6)
