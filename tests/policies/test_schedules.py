"""Prune ratios that change: by a schedule, or with the losses."""

from __future__ import annotations

from math import cos, pi

import numpy as np
import pytest
import torch
from examples import digits

from orderdp import OrderDP, Pruner, policies
from orderdp.errors import BeyondPlanWarning, ConfigError, NoFeedbackWarning, UnknownSizeError
from orderdp.policies import (
    UCB,
    Adaptive,
    Constant,
    Cosine,
    DynamicRandom,
    Exponential,
    FullData,
    InfoBatch,
    Linear,
    Moving,
    RatioFunction,
    Scheduled,
    Tail,
    Trimmed,
    WarmUp,
)
from orderdp.policy import Context
from orderdp.streaming import KeyFilter
from orderdp.testing import check_policy
from orderdp.theory import surrogate_loss
from tests.support import table_with, toy_dataset, train_epoch

SCHEDULES = [
    (Constant(0.3), [0.3] * 5),
    (WarmUp(0.4, epochs=2), [0, 0, 0.4, 0.4, 0.4]),
    (Linear(0.0, 0.8), [0, 0.2, 0.4, 0.6, 0.8]),
    (Linear(0.8, 0.0), [0.8, 0.6, 0.4, 0.2, 0]),
    (Cosine(0.2, 0.6), [0.2 + 0.4 * (1 - cos(pi * t / 4)) / 2 for t in range(5)]),
    (Tail(0.5, share=0.4), [0.5, 0.5, 0.5, 0, 0]),
    (Exponential(0.8), [0, 0.2, 1 - 0.8**2, 1 - 0.8**3, 0]),
    (Exponential(0.5, full_last=0), [0, 0.5, 0.75, 0.875, 0.9375]),
    (Exponential(0.9, full_last=3), [0, 0.1, 0, 0, 0]),
    (RatioFunction(lambda epoch, epochs: epoch / 10), [0, 0.1, 0.2, 0.3, 0.4]),
]


def test_nobody_asks_a_schedule_about_the_time_after_its_end() -> None:
    ratios = [0.0, 0.3, 0.5]
    dataset = toy_dataset(100)
    policy = Scheduled(OrderDP(0.5), RatioFunction(lambda epoch, epochs: ratios[epoch]))
    pruner = Pruner(policy, dataset, epochs=3)
    loader = pruner.loader(dataset, batch_size=10)
    for epoch in range(3):
        train_epoch(pruner, loader, epoch)
    assert pruner.report()["saved"] == pytest.approx(0.8 / 3)
    assert pruner.report()["nominal_saved"] == 0.5
    assert len(loader) == 5
    assert pruner.lr_scale == 1.0


@pytest.mark.parametrize(
    "policy",
    [
        Scheduled(OrderDP(0.5, select=Trimmed(0.2)), Linear(0.5, 0.1)),
        OrderDP(0.4, select=Moving(0.5, 1.0), unbiased=True),
        Scheduled(OrderDP(0.5), RatioFunction(lambda epoch, epochs: 0.3 * epoch)),
    ],
    ids=["a share to trim that a later epoch has not", "a mix without chance in the end", "a ratio above 1"],
)
def test_what_an_epoch_cannot_do_is_said_before_the_first(policy) -> None:
    with pytest.raises(ConfigError):
        Pruner(policy, 1000, epochs=10)


def test_a_rule_that_moves_asks_for_the_number_of_epochs_before_the_first() -> None:
    policy = OrderDP(0.4, select=Moving(1.0, 0.5))
    with pytest.raises(ConfigError, match="how many epochs are planned"):
        Pruner(policy, 1000)
    with pytest.raises(ConfigError, match="how many epochs are planned"):
        KeyFilter(policy)  # whose first epoch draws by no rule


@pytest.mark.parametrize(("schedule", "ratios"), SCHEDULES, ids=lambda value: repr(value)[:30])
def test_a_schedule_says_what_it_says_and_steps_stay_exact(schedule, ratios) -> None:
    assert [schedule.ratio(epoch, 5) for epoch in range(5)] == pytest.approx(ratios)
    dataset = toy_dataset(100)
    for policy in (OrderDP(0.5), DynamicRandom(0.5), UCB(0.5)):
        pruner = Pruner(Scheduled(policy, schedule), dataset, epochs=5)
        expected = pruner.steps(5, 8)
        loader = pruner.loader(dataset, batch_size=8)
        sizes, steps = [], 0
        for epoch in range(5):
            assert len(loader) == -(-round((1 - ratios[epoch]) * 100) // 8)
            batches = train_epoch(pruner, loader, epoch)
            sizes.append(sum(map(len, batches)))
            steps += len(batches)
        assert sizes == [round((1 - ratio) * 100) for ratio in ratios]
        assert steps == expected


@pytest.mark.parametrize("policy", [OrderDP(0.5), UCB(0.4), InfoBatch(0.5, annealing=None)], ids=repr)
@pytest.mark.parametrize(
    "schedule",
    [Constant(0.3), WarmUp(0.4, 1), Linear(0.1, 0.6), Cosine(0.6, 0.1), Tail(0.4), Exponential(0.9)],
    ids=repr,
)
def test_scheduled_policies_keep_the_contract(policy, schedule) -> None:
    check_policy(Scheduled(policy, schedule))


def test_a_constant_schedule_is_the_policy_itself() -> None:
    scores = table_with(np.random.default_rng(0).random(100).astype(np.float32))
    context = Context(n=100, epoch=3, seed=1)
    assert np.array_equal(
        Scheduled(OrderDP(0.9), Constant(0.4)).select(scores, context).indices,
        OrderDP(0.4).select(scores, context).indices,
    )


def test_the_dials_and_rules_of_a_policy_stay_as_they_are() -> None:
    policy = Scheduled(OrderDP(0.5, exploration=0.9, select="bottom"), Constant(0.4))
    assert policy.at(Context(n=10, epoch=0)) == OrderDP(0.4, exploration=0.9, select="bottom")
    assert Scheduled(DynamicRandom(0.5), Constant(0.0)).at(Context(n=10, epoch=0)) == FullData()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scheduled(FullData(), Constant(0.3)),
        lambda: Scheduled(OrderDP(0.3), 0.3),
        lambda: Scheduled(OrderDP(0.3, every="batch"), Constant(0.3)),
        lambda: Constant(1.0),
        lambda: WarmUp(0.3, -1),
        lambda: Linear(0.3, 30),
        lambda: Tail(0.3, 1.5),
        lambda: Exponential(0),
        lambda: Exponential(1.1),
        lambda: Exponential(0.9, full_last=-1),
        lambda: Exponential(0.9, full_last=0.5),
        lambda: Exponential(0.9).ratio(0, None),
        lambda: Pruner(Scheduled(DynamicRandom(0.5), Exponential(0.5)), 100, epochs=50),
        lambda: RatioFunction(lambda epoch, epochs: 1.5).ratio(0, 5),
        lambda: Linear(0.1, 0.5).ratio(0, None),
        lambda: Adaptive(-0.1),
        lambda: Adaptive(0.1, low=0.5, high=0.4),
        lambda: Adaptive(0.1, grid=0),
    ],
)
def test_nonsense_is_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()


# -- Adaptive -------------------------------------------------------------------------------------------------------


def bias(losses: np.ndarray, ratio: float) -> float:
    """The relative bias of OrderDP at a ratio, by the theory's own functions."""
    s, q = OrderDP(ratio).sizes(len(losses))
    return (surrogate_loss(losses, s, q) - losses.mean()) / losses.mean()


@pytest.mark.parametrize("tolerance", [0.05, 0.2, 0.5])
def test_it_takes_the_largest_ratio_whose_bias_is_within_the_tolerance(tolerance: float) -> None:
    losses = np.random.default_rng(0).exponential(1.0, 300)
    ratio = Adaptive(tolerance, high=0.8).ratio(losses.astype(np.float32))
    assert bias(losses, ratio) <= tolerance + 1e-6
    larger = [r / 100 for r in range(round(ratio * 100) + 1, 81)]
    assert all(bias(losses, r) > tolerance for r in larger)


def test_equal_losses_prune_most_and_a_few_large_ones_least() -> None:
    policy = Adaptive(0.1, low=0.1, high=0.6)
    assert policy.ratio(np.full(100, 2.0, dtype=np.float32)) == pytest.approx(0.6)
    peaked = np.full(100, 1e-6, dtype=np.float32)
    peaked[:10] = 5.0
    assert Adaptive(0.1, low=0.2, high=0.6).ratio(peaked) == pytest.approx(0.2)
    assert policy.ratio(np.full(100, np.inf, dtype=np.float32)) == pytest.approx(0.1)
    assert policy.ratio(np.zeros(100, dtype=np.float32)) == pytest.approx(0.6)


@pytest.mark.parametrize(("low", "high", "grid"), [(0.1, 0.12, 0.05), (0.1, 0.7, 0.25), (0.0, 0.7, 0.01)])
def test_the_largest_ratio_is_tried_though_the_grid_does_not_meet_it(low: float, high: float, grid: float) -> None:
    policy = Adaptive(0.1, low=low, high=high, grid=grid)
    assert policy.ratio(np.full(100, 2.0, dtype=np.float32)) == high


def test_it_keeps_the_contract_and_tells_the_bounds_of_its_steps() -> None:
    for policy in (Adaptive(0.1), Adaptive(0.3, low=0.2, high=0.5), Adaptive(0.0, low=0.3, high=0.3)):
        check_policy(policy)
        assert policies.build(**policies.config_of(policy)) == policy
    with pytest.raises(UnknownSizeError) as caught:
        Pruner(Adaptive(0.1, low=0.2, high=0.5), 100).steps(3, 10)
    assert (caught.value.lower, caught.value.upper) == (15, 24)
    assert Pruner(Adaptive(0.1, low=0.3, high=0.3), 100).steps(3, 10) == 21


@pytest.mark.parametrize("schedule", [{"prune_ratio": 0.3}, "tail", {}, ["tail"]])
def test_a_schedule_in_a_config_has_a_name(schedule: object) -> None:
    with pytest.raises(ConfigError, match=r'must be the name of a schedule and its parameters, \{"name": "tail"'):
        policies.build("orderdp", prune_ratio=0.5, schedule=schedule)  # type: ignore[arg-type]


def test_an_exponential_schedule_comes_out_of_a_config_and_needs_no_plan_without_full_epochs() -> None:
    policy = policies.build("random", prune_ratio=0.5, schedule={"name": "exponential", "decay": 0.9})
    assert policy == Scheduled(DynamicRandom(0.5), Exponential(0.9))
    assert policies.build(**policies.config_of(policy)) == policy
    endless = Pruner(Scheduled(DynamicRandom(0.5), Exponential(0.5, full_last=0)), 100)
    assert [endless.size_bounds(epoch) for epoch in range(3)] == [(100, 100), (50, 50), (25, 25)]
    with pytest.raises(ConfigError, match=r"Use Pruner\(\.\.\., epochs=\.\.\.\)"):
        Pruner(policy, 100)


def test_it_learns_and_resumes() -> None:
    assert digits.train(Adaptive(0.3), 0).accuracy >= digits.train(None, 0).accuracy - 0.03
    dataset = toy_dataset(60)

    def run(pruner: Pruner, epochs: int) -> list:
        return [
            train_epoch(pruner, pruner.loader(dataset, batch_size=8), epoch) for epoch in range(pruner.epoch, epochs)
        ]

    undisturbed = Pruner(Adaptive(0.2), dataset)
    straight = run(undisturbed, 4)
    stopped = Pruner(Adaptive(0.2), dataset)
    first = run(stopped, 2)
    resumed = Pruner(Adaptive(0.2), dataset)
    resumed.load_state_dict(stopped.state_dict())
    assert first + run(resumed, 4) == straight
    assert torch.equal(resumed.scores, undisturbed.scores)


@pytest.mark.parametrize("policy", [OrderDP(0.0), OrderDP(exploration=0.6, exploitation=1.0)])
def test_a_schedule_waits_for_losses_though_the_policy_alone_would_not(policy: OrderDP) -> None:
    assert not policy.needs_feedback
    dataset = toy_dataset(40)
    pruner = Pruner(Scheduled(policy, WarmUp(0.5, epochs=1)), dataset, epochs=4)
    loader = pruner.loader(dataset, batch_size=8)
    list(loader)
    with pytest.warns(NoFeedbackWarning, match="received no losses"):
        list(loader)
    assert pruner.epoch == 0
    assert not Scheduled(DynamicRandom(0.0), WarmUp(0.5, epochs=1)).needs_feedback


def test_training_longer_than_was_planned_is_said_once() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(Scheduled(OrderDP(0.5), Tail(0.5, share=0.25)), dataset, epochs=4)
    loader = pruner.loader(dataset, batch_size=8)
    for epoch in range(4):
        train_epoch(pruner, loader, epoch)
    next(iter(loader))  # a look at one more epoch is no training
    with pytest.warns(BeyondPlanWarning, match=r"epoch 5 is being trained, but .*epochs=4\) planned 4") as said:
        train_epoch(pruner, loader, 4)
    train_epoch(pruner, loader, 5)
    assert len(said) == 1
    assert said[0].filename.endswith("support.py")  # where update is called
