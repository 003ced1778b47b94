"""Budgets: exact in total, fair, never more than there is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp.coresets.base import budgets, even_budgets, proportional_budgets
from orderdp.errors import ConfigError
from orderdp.policy import proportional

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def by_remainders(sizes: list[int], k: int) -> list[int]:
    """Shares rounded down, and the rest to the largest fractions, of these to the larger, then to the earlier."""
    shares = [Fraction(size * k, max(1, sum(sizes))) for size in sizes]
    given = [int(share) for share in shares]
    ranked = sorted(range(len(sizes)), key=lambda i: (given[i] - shares[i], -sizes[i], i))
    for i in ranked[: k - sum(given)]:
        given[i] += 1
    return given


@settings(max_examples=300, deadline=None)
@given(SIZES, st.floats(0, 1))
def test_shares_are_exact_and_no_group_goes_without_while_there_is_one_for_each(sizes: list[int], share: float) -> None:
    k = round(share * sum(sizes))
    given, plain = proportional_budgets(np.array(sizes), k).tolist(), by_remainders(sizes, k)
    assert sum(given) == k
    assert all(0 <= count <= size for count, size in zip(given, sizes, strict=True))
    there = [i for i, size in enumerate(sizes) if size]
    if k < len(there) or all(plain[i] for i in there):
        assert given == plain
    else:
        assert all(given[i] for i in there)
        # What they got was a rounding up of others, or was taken from those with most.
        assert all(given[i] >= min(sizes[i] * k // sum(sizes), max(given) - 1) for i in there)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.floats(0, 1))
def test_coresets_and_policies_share_a_budget_by_one_rule(sizes: list[int], share: float) -> None:
    """Sorted, because equal remainders go to the larger class here and to the earlier one there."""
    sizes, k = sorted(sizes, reverse=True), round(share * sum(sizes))
    assert proportional_budgets(np.array(sizes), k).tolist() == proportional(np.array(sizes), k).tolist()


def test_a_rare_class_is_not_left_out() -> None:
    assert budgets(np.repeat([0, 1, 2], [30, 30, 2]), 12) == {0: 6, 1: 5, 2: 1}
    assert budgets(np.repeat([0, 1, 2], [2, 30, 30]), 12) == {0: 1, 1: 6, 2: 5}
    assert budgets(np.repeat([0, 1, 2], [30, 30, 2]), 2) == {0: 1, 1: 1, 2: 0}


@settings(max_examples=200, deadline=None)
@given(SIZES, st.floats(0, 1))
def test_equal_budgets_are_what_dealing_one_at_a_time_gives(sizes: list[int], share: float) -> None:
    k = round(share * sum(sizes))
    filled, left = [0] * len(sizes), k
    while left:
        # A round gives one to each group that has some left; the last, incomplete one to the largest, then the last.
        hungry = sorted((i for i in range(len(sizes)) if filled[i] < sizes[i]), key=lambda i: (-sizes[i], -i))
        for i in hungry[:left]:
            filled[i] += 1
        left -= min(left, len(hungry))
    assert even_budgets(np.array(sizes), k).tolist() == filled


def test_a_class_smaller_than_its_equal_budget_leaves_the_rest_to_the_others() -> None:
    labels = np.repeat([0, 1, 2], [50, 3, 50])
    assert budgets(labels, 30, "equal") == {0: 13, 1: 3, 2: 14}
    assert budgets(labels, 30) == {0: 15, 1: 1, 2: 14}


def test_equal_remainders_go_to_the_larger_class_then_to_the_earlier() -> None:
    assert proportional_budgets(np.array([3, 3, 3]), 4).tolist() == [2, 1, 1]
    assert proportional_budgets(np.array([3, 5, 4]), 6).tolist() == [1, 3, 2]


def test_a_budget_above_what_there_is_is_refused() -> None:
    with pytest.raises(ConfigError, match="between 0 and the 5 samples there are, got 6"):
        even_budgets(np.array([2, 3]), 6)
