"""The OrderDP policy: sizes, dials, and that it keeps the hard ones."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import OrderDP, Policy, Selection
from orderdp.errors import ConfigError
from orderdp.policy import Context
from orderdp.score_table import ScoreTable
from tests.support import draw


@pytest.mark.parametrize(
    ("policy", "n", "sizes"),
    [
        (OrderDP(exploration=0.8, exploitation=0.375), 50_000, (40_000, 15_000)),
        (OrderDP(exploration=0.5, exploitation=0.6), 50_000, (25_000, 15_000)),
        (OrderDP(exploration=0.75, exploitation=0.8), 1_281_167, (960_875, 768_700)),
        (OrderDP(0.4), 10, (9, 6)),
        (OrderDP(0), 7, (7, 7)),
        (OrderDP(0.7, exploration=0.6), 1000, (600, 300)),
        (OrderDP(0.7, exploitation=0.5), 1000, (600, 300)),
        (OrderDP(0.4, exploration=0.75, exploitation=0.8), 100, (75, 60)),
        (OrderDP(0.99), 50_000, (15_811, 500)),
    ],
)
def test_sizes(policy: OrderDP, n: int, sizes: tuple[int, int]) -> None:
    assert policy.sizes(n) == sizes


@given(st.integers(1, 10**6), st.integers(0, 99))
def test_the_share_kept_is_exact_to_the_nearest_sample(n: int, percent: int) -> None:
    exact = (1 - Fraction(percent, 100)) * n
    policy = OrderDP(percent / 100)
    if round(exact) < 1:
        with pytest.raises(ConfigError):
            policy.sizes(n)
        return
    s, q = policy.sizes(n)
    assert abs(q - exact) <= Fraction(1, 2)
    assert q <= s <= n


def test_29_percent_of_100_is_not_truncated_to_28() -> None:
    assert int(0.29 * 100) == 28
    assert OrderDP(exploration=1, exploitation=0.29).sizes(100) == (100, 29)
    assert OrderDP(0.71).sizes(100)[1] == 29


@pytest.mark.parametrize("value", [40, 1, 1.0, -0.1, float("nan"), float("inf"), "0.4", True, 1.5])
def test_a_prune_ratio_outside_0_to_1_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"prune_ratio must be in \[0, 1\), got"):
        OrderDP(prune_ratio=value)  # type: ignore[arg-type]


def test_a_percentage_gets_a_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        OrderDP(prune_ratio=40)
    assert str(caught.value) == "prune_ratio must be in [0, 1), got 40. It is a fraction, not a percentage."
    with pytest.raises(ConfigError, match=r"got -1\.$"):
        OrderDP(prune_ratio=-1)


@pytest.mark.parametrize("name", ["exploration", "exploitation"])
@pytest.mark.parametrize("value", [0, -1, 1.01, 80, float("nan"), "a", True])
def test_a_dial_outside_0_to_1_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be in \(0, 1\], got"):
        OrderDP(0.9, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give prune_ratio, or both"),
        ({"exploration": 0.5}, "give prune_ratio, or both"),
        ({"exploitation": 0.5}, "give prune_ratio, or both"),
        ({"prune_ratio": 0.4, "exploration": 0.8, "exploitation": 0.8}, "Leave one of the three out"),
        ({"prune_ratio": 0.4, "exploration": 0.5}, "exploration must be at least the kept fraction, 0.6"),
        ({"prune_ratio": 0.4, "exploitation": 0.5}, "exploitation must be at least the kept fraction, 0.6"),
        ({"prune_ratio": 0.4, "every": "step"}, 'every must be "epoch" or "batch"'),
    ],
)
def test_dials_that_contradict_each_other_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OrderDP(**arguments)


def test_keeping_nothing_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"keeps 0 of 100 samples"):
        OrderDP(0.999).sizes(100)
    with pytest.raises(ConfigError, match=r"keeps 0 of 3 samples"):
        OrderDP(exploration=0.1, exploitation=0.1).sizes(3)


def test_a_pool_is_never_smaller_than_what_is_kept_of_it_after_rounding() -> None:
    assert OrderDP(0.5, exploration=0.5).sizes(10) == (5, 5)
    assert OrderDP(0.7, exploration=0.3).sizes(15) == (5, 5)  # 1 - 0.7 is a little more than 0.3
    s, q = OrderDP(1 / 3, exploration=2 / 3 - 1e-10).sizes(10**10)
    assert s == q == round(2 / 3 * 10**10)


@pytest.mark.parametrize("n", [0, -3, 2.5, True, "9"])
def test_sizes_needs_a_number_of_samples(n: object) -> None:
    with pytest.raises(ConfigError, match="n must be a whole number of samples"):
        OrderDP(0.4).sizes(n)  # type: ignore[arg-type]


def test_it_prints_as_it_was_written_compares_by_value_and_pickles() -> None:
    policy = OrderDP(0.4, exploration=0.8, every="batch")
    assert repr(policy) == "OrderDP(prune_ratio=0.4, exploration=0.8, every='batch')"
    assert eval(repr(policy)) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert OrderDP(np.float32(0.5)) == OrderDP(0.5)
    assert isinstance(policy, Policy)


def test_it_needs_no_feedback_where_it_keeps_its_whole_pool() -> None:
    assert not OrderDP(0).needs_feedback
    assert not OrderDP(exploration=0.5, exploitation=1).needs_feedback
    assert OrderDP(0.4).needs_feedback


def test_the_default_pool_is_between_plain_random_and_plain_top() -> None:
    for percent in range(1, 100):
        s, q = OrderDP(percent / 100).sizes(100_000)
        assert q < s < 100_000


# -- the negative control: the checks of "keeps the hardest" must fail for a policy that keeps the easiest ----------


def check_it_keeps_the_hardest(policy: Policy) -> None:
    """What a policy of the OrderDP kind must do, as one check that can be turned on others."""
    n, draws = 60, 300
    scores = np.random.default_rng(1).permutation(n).astype(np.float32)
    kept = np.zeros(n)
    for seed in range(draws):
        kept[draw(policy, scores, seed=seed)] += 1
    hardest, easiest = np.argsort(-scores)[:10], np.argsort(scores)[:10]
    assert kept[hardest].mean() > kept[easiest].mean()
    assert np.corrcoef(kept, scores)[0, 1] > 0.5


class KeepEasiest(OrderDP):
    def select(self, table: ScoreTable, context: Context) -> Selection:
        class Upside:
            n = table.n

            def __getitem__(self, name: str) -> np.ndarray:
                return -table[name]

        return super().select(Upside(), context)


def test_it_keeps_the_hardest() -> None:
    check_it_keeps_the_hardest(OrderDP(0.5))


def test_the_check_fails_for_a_policy_that_keeps_the_easiest() -> None:
    with pytest.raises(AssertionError):
        check_it_keeps_the_hardest(KeepEasiest(0.5))


def test_the_check_fails_for_a_policy_that_draws_at_random() -> None:
    with pytest.raises(AssertionError):
        check_it_keeps_the_hardest(OrderDP(0.5, exploitation=1))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 99), st.integers(0, 100))
def test_a_ratio_and_an_exploitation_that_go_together_do_so_for_every_length(n: int, percent: int, more: int) -> None:
    """The pool may be the whole data set, whatever is rounded."""
    keep = 1 - percent / 100
    exploitation = keep + (1 - keep) * more / 100
    if round(keep * n) >= 1:
        s, q = OrderDP(percent / 100, exploitation=exploitation).sizes(n)
        assert q == round(keep * n)
        assert q <= s <= n


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 99), st.integers(0, 100))
def test_a_ratio_and_an_exploration_that_go_together_do_so_for_every_length(n: int, percent: int, more: int) -> None:
    """From the pool that is kept whole up to all data: what the dials' check accepts, every length accepts."""
    exploration = min(1.0, round((100 - percent) / 100 + percent * more / 10_000, 12))
    q = round((1 - percent / 100) * n)
    if q >= 1:
        found = OrderDP(percent / 100, exploration=exploration).sizes(n)
        assert found == (max(q, round(exploration * n)), q)
