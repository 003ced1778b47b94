"""The OrderDP family: which positions of a pool are kept, and weights that undo it."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import OrderDP, Pruner
from orderdp import _draw as kernels
from orderdp.errors import ConfigError
from orderdp.policies import Balanced, Mixed, Moving, Trimmed
from orderdp.policies.orderdp import PoolRule, Top, as_pool_rule
from orderdp.policy import Context, streams
from orderdp.theory import horvitz_thompson, weights
from tests.support import draw, fake_losses, table_with

RULES = ["top", "bottom", Trimmed(0.2), Mixed(top=0.6, uniform=0.4), Mixed(top=0, uniform=1), Moving(1.0, 0.5)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_each_rank_is_kept_as_often_as_the_theory_says(rule) -> None:
    n, draws = 30, 3000
    policy = OrderDP(exploration=0.8, exploitation=0.5, select=rule)
    s, q = policy.sizes(n)
    scores = np.random.default_rng(0).permutation(n).astype(np.float32)
    table, counts = table_with(scores), np.zeros(n)
    context = Context(n=n, epoch=1, epochs=3)
    for seed in range(draws):
        counts[policy.select(table, Context(n=n, epoch=1, seed=seed, epochs=3)).indices] += 1
    expected = weights(n, s, policy.rule.positions(s, q, context))
    measured = counts[np.argsort(-scores)] / draws
    assert (np.abs(measured - expected) <= 5 * np.sqrt(expected * (1 - expected) / draws) + 1e-9).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(4, 60), st.integers(0, 10**6), st.sampled_from(RULES[:5]))
def test_exactly_q_of_the_pool_are_kept_and_unseen_ones_first(n: int, seed: int, select) -> None:
    rng = np.random.default_rng(seed)
    scores = np.where(rng.random(n) < 0.3, np.inf, rng.random(n)).astype(np.float32)
    policy = OrderDP(exploration=0.8, exploitation=0.5, select=select)
    s, q = policy.sizes(n)
    context = Context(n=n, epoch=0, seed=seed)
    pool = kernels.pool_mask(n, s, streams(context))
    kept = policy.select(table_with(scores), context).indices
    assert len(set(kept.tolist())) == q
    assert pool[kept].all()
    unseen = set(np.flatnonzero(pool & np.isinf(scores)).tolist())
    by_rule = not isinstance(policy.rule, Mixed)
    if by_rule:
        assert unseen <= set(kept.tolist()) or set(kept.tolist()) <= unseen


@settings(max_examples=50, deadline=None)
@given(st.integers(4, 60), st.integers(0, 10**6))
def test_the_usual_rule_is_selected_as_its_steps_say(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.where(rng.random(n) < 0.2, np.inf, rng.integers(0, 4, n)).astype(np.float32)
    policy = OrderDP(exploration=0.8, exploitation=0.5)
    s, q = policy.sizes(n)
    context = Context(n=n, epoch=1, seed=seed)
    by_steps = Top().select(kernels.pool_scores(scores, s, streams(context)), q, context)
    assert sorted(policy.select(table_with(scores), context).indices.tolist()) == by_steps.tolist()


def test_a_trimmed_top_never_keeps_the_hardest_share_of_its_pool() -> None:
    scores = np.random.default_rng(0).random(100).astype(np.float32)
    policy = OrderDP(exploration=0.8, exploitation=0.5, select=Trimmed(0.25))
    for seed in range(50):
        context = Context(n=100, epoch=0, seed=seed)
        pool = np.flatnonzero(kernels.pool_mask(100, 80, streams(context)))
        by_loss = pool[np.argsort(-scores[pool])]
        assert set(draw(policy, scores, seed=seed).tolist()) == set(by_loss[20:60].tolist())


def test_the_bottom_is_the_easiest_of_the_pool() -> None:
    scores = np.random.default_rng(0).permutation(50).astype(np.float32)
    kept = draw(OrderDP(exploration=1, exploitation=0.3, select="bottom"), scores)
    assert set(kept.tolist()) == set(np.argsort(scores)[:15].tolist())


def test_a_rule_that_moves_keeps_hard_samples_early_and_easier_ones_late() -> None:
    scores = np.arange(200, dtype=np.float32)
    policy = OrderDP(exploration=1, exploitation=0.3, select=Moving(1.0, 0.0))
    table = table_with(scores)
    means = [
        np.mean(
            [scores[policy.select(table, Context(n=200, epoch=e, epochs=5, seed=s)).indices].mean() for s in range(20)]
        )
        for e in range(5)
    ]
    assert means[0] == np.arange(140, 200).mean()
    assert all(a > b for a, b in pairwise(means))
    assert abs(means[-1] - 99.5) < 8
    with pytest.raises(ConfigError, match="epochs="):
        draw(policy, scores)


def test_unbiased_weights_give_the_mean_gradient_of_all_data_with_ties_and_unseen_samples() -> None:
    rng = np.random.default_rng(3)
    scores = rng.integers(0, 6, 30).astype(np.float32)
    scores[:4] = np.inf
    gradients = rng.standard_normal((30, 3))
    policy = OrderDP(exploration=0.7, exploitation=0.6, select=Mixed(top=0.5, uniform=0.5), unbiased=True)
    table, steps = table_with(scores), []
    for seed in range(4000):
        chosen = policy.select(table, Context(n=30, epoch=0, seed=seed))
        steps.append((chosen.weights[:, None] * gradients[chosen.indices]).mean(0))
    mean, error = np.mean(steps, 0), np.std(steps, 0) / sqrt(4000)
    assert (np.abs(mean - gradients.mean(0)) <= 5 * error).all()


def test_unbiased_weights_are_those_of_the_theory() -> None:
    scores = np.random.default_rng(0).permutation(40).astype(np.float32)
    policy = OrderDP(0.4, select=Mixed(top=0.5, uniform=0.5), unbiased=True)
    s, q = policy.sizes(40)
    context = Context(n=40, epoch=0)
    chosen = policy.select(table_with(scores), context)
    expected = horvitz_thompson(scores, s, policy.rule.positions(s, q, context))
    np.testing.assert_allclose(chosen.weights, expected[chosen.indices], rtol=1e-6)


@pytest.mark.parametrize("rule", ["bottom", Trimmed(0.1), Mixed(top=0.5, uniform=0.5)], ids=repr)
def test_step_by_step_every_rule_trains_on_exactly_q_without_repeats(rule) -> None:
    pruner = Pruner(OrderDP(0.4, select=rule, every="batch"), 90)
    _, q = pruner.policy.sizes(90)
    for step in range(2):
        trained: list[int] = []
        for batch in pruner.batch_sampler(8):
            index = torch.tensor(batch)
            pruner.update(index, fake_losses(index, step))
            trained += batch
        assert len(set(trained)) == len(trained) == q


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"select": "hardest"}, 'select must be "top", "bottom"'),
        ({"select": Trimmed}, "select must be"),
        ({"unbiased": True}, "the 280 easiest of all samples are never among"),
        ({"unbiased": True, "select": "bottom"}, "hardest of all samples are never"),
        ({"unbiased": True, "select": Trimmed(0.1)}, "hardest of all samples are always above"),
        ({"unbiased": True, "select": Mixed(top=0.5, uniform=0.5), "every": "batch"}, 'every="epoch"'),
        ({"select": Trimmed(0.9)}, "Skip at most a fraction of 0.318"),
    ],
)
def test_rules_that_cannot_be_are_refused_with_the_reason(parameters: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pruner(OrderDP(0.4, **parameters), 1000)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Trimmed(1.0),
        lambda: Mixed(top=0.5, uniform=0.6),
        lambda: Mixed(top=1.5, uniform=-0.5),
        lambda: Moving(2, 0),
    ],
)
def test_rules_out_of_range_are_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()


def test_a_rule_of_ones_own_will_do() -> None:
    class Middle(PoolRule):
        def select(self, pooled, q, context):
            pool = np.flatnonzero(pooled > -np.inf)
            start = (len(pool) - q) // 2
            return np.sort(pool[np.argsort(-pooled[pool])][start : start + q])

        def positions(self, s, q, context):
            raise NotImplementedError

    assert isinstance(as_pool_rule(Middle()), PoolRule)
    kept = draw(OrderDP(exploration=1, exploitation=0.2, select=Middle()), np.arange(10, dtype=np.float32))
    assert sorted(kept.tolist()) == [4, 5]


def test_small_classes_are_trimmed_as_far_as_they_go() -> None:
    """In a class of six, a share that fits a large data set is too large by rounding."""
    labels = np.repeat([0, 1, 2], [900, 94, 6])
    policy = Balanced(OrderDP(0.4, select=Trimmed(0.3)))
    scores = np.arange(1000, dtype=np.float32)
    kept = policy.select(table_with(scores), Context(n=1000, epoch=0, labels=labels)).indices
    assert np.bincount(labels[kept]).tolist() == [540, 56, 4]
    assert kept.max() < 999  # the hardest of the smallest class is skipped
    with pytest.raises(ConfigError, match="would skip 15 of a pool of 50 and keep 40"):
        OrderDP(0.6, exploration=0.5, select=Trimmed(0.3)).sizes(100)


def test_a_class_that_is_too_small_for_unbiased_weights_is_named() -> None:
    labels = np.repeat([3, 5], [95, 5])
    policy = Balanced(OrderDP(0.4, select=Mixed(top=0.9, uniform=0.1), unbiased=True))
    with pytest.raises(
        ConfigError, match=r"class 5 has 5 samples, of which 3 are to be kept.* merge small classes under one label"
    ):
        policy.select(table_with(np.arange(100.0)), Context(n=100, epoch=0, labels=labels))
