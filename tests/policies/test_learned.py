"""Rules that skip what is learned: independent restatements, exact chances, the theorem, thresholds of other tasks."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from fractions import Fraction
from functools import partial
from math import comb, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.data import RandomSampler

from orderdp import Budget, OrderDP, Pruner, SpacedRepetition, Unlearned, policies, theory
from orderdp.errors import ConfigError
from orderdp.losses import per_sample, smallest_loss
from orderdp.policies import (
    RS2,
    Balanced,
    FullData,
    LossBelow,
    LossShare,
    Probability,
    RelativeLoss,
    Scheduled,
    SkipLearned,
    UniformTail,
    WarmUp,
)
from orderdp.policy import Context
from orderdp.score_table import ScoreTable
from orderdp.streaming import GrowingPruner, KeyFilter
from orderdp.testing import check_policy
from tests.support import draw, table_with, toy_dataset

LOSSES = st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.11, 0.5, 2.0, math.inf]), min_size=2, max_size=40)


def learned_by_hand(scores: np.ndarray, threshold: float) -> set[int]:
    return {i for i, score in enumerate(scores.tolist()) if score <= threshold}


# -- what is kept ------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    LOSSES,
    st.sampled_from([0.0, 0.3, 0.5, 0.7]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.booleans(),
    st.integers(0, 3),
)
def test_unlearned_keeps_as_many_of_either_kind_as_a_restatement_says(losses, ratio, refresh, in_turn, epoch) -> None:
    scores = np.array(losses)
    learned = learned_by_hand(scores, 0.1)
    kept = round((1 - ratio) * len(scores))
    if kept < 1:
        return
    policy = Unlearned(ratio, learned=LossBelow(0.1), refresh=refresh, in_turn=in_turn)
    chosen = draw(policy, scores, epoch=epoch)
    assert len(chosen) == len(set(chosen.tolist())) == kept
    others = len(scores) - len(learned)
    wanted = 0
    if refresh and learned:
        wanted = min(len(learned), kept, max(1, round(refresh * len(learned))))
    from_learned = max(kept - others, wanted)
    assert len(learned & set(chosen.tolist())) == from_learned


@settings(max_examples=200, deadline=None)
@given(LOSSES, st.sampled_from([0.05, 0.1, 0.5, 1.0]), st.integers(0, 3))
def test_skip_learned_keeps_everything_not_learned_and_a_share_of_the_rest(losses, refresh, epoch) -> None:
    scores = np.array(losses)
    learned = learned_by_hand(scores, 0.1)
    chosen = set(draw(SkipLearned(learned=LossBelow(0.1), refresh=refresh), scores, epoch=epoch).tolist())
    assert set(range(len(scores))) - learned <= chosen
    assert len(chosen & learned) == (min(len(learned), max(1, round(refresh * len(learned)))) if learned else 0)


@pytest.mark.parametrize(
    ("n_learned", "ratio", "refresh"), [(3, 0.5, 0.0), (6, 0.25, 0.0), (5, 0.5, 0.4), (8, 0.5, 0.0)]
)
def test_chances_are_those_of_the_theory(n_learned: int, ratio: float, refresh: float) -> None:
    n, draws = 8, 4000
    scores = np.where(np.arange(n) < n_learned, 0.0, 1.0)
    policy = Unlearned(ratio, refresh=refresh, in_turn=False)
    counts = Counter(int(i) for epoch in range(draws) for i in draw(policy, scores, epoch=epoch))
    kept = policy.size(n, Context(n=n, epoch=0))
    refreshed = max(1, round(refresh * n_learned)) if refresh else 0
    chances = theory.skip_chances(n, n_learned, kept, refreshed)
    for i in range(n):
        p = chances.learned if i < n_learned else chances.unlearned
        assert abs(counts[i] / draws - p) <= 5 * sqrt(max(p * (1 - p), 1e-9) / draws) + 1e-12


def test_chances_by_enumeration() -> None:
    """All draws of two groups, counted: the probability of one member is that of the formula, as a fraction."""
    n, n_learned, kept, refreshed = 7, 3, 4, 1
    learned, others = range(n_learned), range(n_learned, n)
    of_learned = max(kept - len(others), refreshed)
    pairs = list(
        itertools.product(
            itertools.combinations(others, kept - of_learned), itertools.combinations(learned, of_learned)
        )
    )
    assert len(pairs) == comb(4, 3) * comb(3, 1)
    chances = theory.skip_chances(n, n_learned, kept, refreshed)
    assert Fraction(sum(0 in again for _, again in pairs), len(pairs)) == Fraction(1, 3)
    assert chances.learned == pytest.approx(1 / 3)
    assert Fraction(sum(5 in first for first, _ in pairs), len(pairs)) == Fraction(3, 4)
    assert chances.unlearned == pytest.approx(3 / 4)
    losses = np.array([0.01, 0.02, 0.03, 1.0, 2.0, 3.0, 4.0])
    mean = np.mean([losses[list(a + b)].mean() for a, b in pairs])
    assert theory.skip_surrogate_loss(losses, 0.1, kept, refreshed) == pytest.approx(mean)


def test_a_negative_control_the_easiest_are_not_what_is_kept() -> None:
    scores = np.array([0.0] * 50 + [1.0] * 50)
    assert set(draw(Unlearned(0.5, refresh=0), scores).tolist()) == set(range(50, 100))
    assert set(draw(OrderDP(0.5, exploration=1.0, select="bottom"), scores).tolist()) == set(range(50))


@pytest.mark.parametrize(
    "policy",
    [SkipLearned(refresh=0.2, unbiased=True), Unlearned(0.3, refresh=0.2, unbiased=True, in_turn=False)],
    ids=repr,
)
def test_unbiased_weights_give_the_mean_over_all_data(policy) -> None:
    rng = np.random.default_rng(0)
    scores = np.where(rng.random(40) < 0.6, 0.05 * rng.random(40), 1 + rng.random(40)).astype(np.float32)
    values, table = rng.standard_normal(40), table_with(scores)
    estimates = []
    for epoch in range(6000):
        selection = policy.select(table, Context(n=40, epoch=epoch))
        assert selection.weights is not None
        estimates.append(float((selection.weights * values[selection.indices]).mean()))
    assert abs(np.mean(estimates) - values.mean()) <= 5 * np.std(estimates) / sqrt(len(estimates))


def test_unbiased_weights_need_a_uniform_draw() -> None:
    with pytest.raises(ConfigError, match=r"unbiased weights need a uniform draw.*in_turn=False"):
        Unlearned(0.5, unbiased=True)


def test_unbiased_weights_need_a_refresh() -> None:
    with pytest.raises(ConfigError, match=r"Use refresh=0\.1"):
        Unlearned(0.5, refresh=0, unbiased=True, in_turn=False)


# -- the theorem -------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=2, max_size=12), st.data())
def test_the_gradient_of_a_sample_is_bounded_by_its_loss(logits, data) -> None:
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(data.draw(st.integers(0, len(logits) - 1)))
    loss = F.cross_entropy(x, y)
    loss.backward()
    assert x.grad is not None
    assert x.grad.norm().item() <= theory.gradient_bound(max(0.0, loss.item())) + 1e-9


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12), st.sampled_from([0.01, 0.1, 0.5]), st.data())
def test_with_label_smoothing_it_is_bounded_by_what_is_above_the_floor(logits, smoothing, data) -> None:
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(data.draw(st.integers(0, len(logits) - 1)))
    loss = F.cross_entropy(x, y, label_smoothing=smoothing)
    loss.backward()
    floor = smallest_loss(smoothing, len(logits))
    assert loss.item() >= floor - 1e-9
    assert x.grad is not None
    assert x.grad.norm().item() <= theory.gradient_bound(loss.item(), floor) + 1e-6


def test_the_bound_is_met_by_two_classes_and_by_no_smaller_number() -> None:
    x = torch.tensor([2.0, 0.0], dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy(x, torch.tensor(0))
    loss.backward()
    assert x.grad is not None
    assert x.grad.norm().item() == pytest.approx(theory.gradient_bound(loss.item()))


def test_skipping_changes_the_mean_gradient_by_no_more_than_the_bound() -> None:
    torch.manual_seed(0)
    logits = torch.randn(400, 10, dtype=torch.float64) * 2
    targets = torch.randint(0, 10, (400,))
    logits[torch.arange(400), targets] += torch.where(torch.rand(400) < 0.6, 12.0, 1.0)
    losses = F.cross_entropy(logits, targets, reduction="none")
    gradients = logits.softmax(1) - F.one_hot(targets, 10)
    threshold = Probability(0.9).loss
    learned = losses <= threshold
    share, refresh = learned.double().mean().item(), 0.1
    chances = torch.where(learned, refresh, 1.0)
    difference = ((chances - 1)[:, None] * gradients).sum(0).norm().item() / 400
    bound = theory.skip_bias_bound(threshold, share, refresh)
    assert 0 < difference <= bound


def test_keeping_the_hardest_has_no_such_bound() -> None:
    """One class is hard and the other half learned: without its samples the mean gradient points another way."""
    logits = torch.tensor([[1.0, 0.0]] * 50 + [[3.0, 0.0]] * 50, dtype=torch.float64)
    targets = torch.tensor([0] * 50 + [1] * 50)
    losses = F.cross_entropy(logits, targets, reduction="none")
    gradients = logits.softmax(1) - F.one_hot(targets, 2)
    learned = losses <= Probability(0.9).loss
    assert not learned.any()  # so nothing is skipped, and the bound is 0
    assert theory.skip_bias_bound(Probability(0.9).loss, 0.0) == 0
    assert losses.topk(50).indices.min() >= 50
    assert (gradients[:50].sum(0) / 100).norm().item() > 0.15


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.skip_chances(10, 11, 5), "0 <= n_learned <= n"),
        (lambda: theory.skip_chances(10, 2, 5, 3), "refreshed must be a whole number from 0 to 2"),
        (lambda: theory.gradient_bound(-1.0), "loss must be at least 0"),
        (lambda: theory.skip_bias_bound(0.1, 1.5), r"learned_share must be in \[0, 1\]"),
    ],
)
def test_the_theory_refuses_what_has_no_meaning(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


# -- thresholds --------------------------------------------------------------------------------------------------------


def test_a_probability_is_a_loss() -> None:
    logits = torch.tensor([[math.log(9.0), 0.0]])
    loss = F.cross_entropy(logits, torch.tensor([0])).item()
    assert Probability(0.9).loss == pytest.approx(loss)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.1])
def test_the_smallest_loss_is_reached_by_the_smoothed_target_itself(classes: int, smoothing: float) -> None:
    target = torch.full((classes,), smoothing / classes, dtype=torch.float64)
    target[3 % classes] += 1 - smoothing
    best = F.cross_entropy(target.clamp(min=1e-300).log()[None], torch.tensor([3 % classes]), label_smoothing=smoothing)
    assert smallest_loss(smoothing, classes) == pytest.approx(best.item(), abs=1e-9)


def test_label_smoothing_without_its_floor_would_learn_nothing() -> None:
    floor = smallest_loss(0.1, 10)
    scores = np.full(10, floor + 0.05)
    assert Unlearned(0.5).is_learned(table_with(scores)).sum() == 0
    assert Unlearned(0.5, learned=Probability(0.9, floor=floor)).is_learned(table_with(scores)).sum() == 10


def loss_share_by_hand(scores: np.ndarray, share: float) -> set[int]:
    seen = sorted((float(score), i) for i, score in enumerate(scores.tolist()) if math.isfinite(score))
    total = sum(max(0.0, score) for score, _ in seen)
    best: set[int] = set()
    for cut in sorted({score for score, _ in seen}):
        below = [(score, i) for score, i in seen if score <= cut]
        if len(below) < len(seen) and sum(max(0.0, score) for score, _ in below) <= share * total:
            best = {i for _, i in below}
    return best


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0, math.inf]), min_size=1, max_size=25))
def test_the_easiest_that_hold_a_share_of_all_loss(losses) -> None:
    scores = np.array(losses)
    learned = Unlearned(0.5, learned=LossShare(0.25)).is_learned(table_with(scores))
    assert set(np.flatnonzero(learned).tolist()) == loss_share_by_hand(scores, 0.25)


def test_a_relative_loss_is_measured_by_the_first_losses_and_needs_no_scale() -> None:
    for scale in (1.0, 1e-6, 1e6):
        pruner = Pruner(SkipLearned(learned=RelativeLoss(0.1)), 4)
        index = torch.arange(4)
        pruner.update(index, scale * torch.tensor([1.0, 2.0, 3.0, 2.0]))
        pruner.update(index, scale * torch.tensor([0.19, 0.2, 0.21, 5.0]))  # the mean first loss is 2
        assert pruner.policy.is_learned(pruner._table).tolist() == [True, True, False, False]


TASKS = {
    "regression": lambda model, x: (model(x)[:, 0] - x.sum(1)).square(),
    "segmentation": lambda model, x: per_sample(
        F.binary_cross_entropy_with_logits(model(x), (x > 0).float(), reduction="none")
    ),
    "language model": lambda model, x: per_sample(
        # A token for each feature, of a vocabulary of two.
        F.cross_entropy(torch.stack((model(x), -model(x)), 1), (x > 0).long(), reduction="none")
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_relative_loss_finds_learned_samples_in_other_tasks(task: str) -> None:
    """Without tuning little is learned at the start, most is at the end, and training on a budget learns as much."""
    torch.manual_seed(0)
    x = torch.randn(256, 4)

    def train(policy) -> tuple[float, list[float]]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        pruner = Pruner(policy, 256, epochs=40)
        shares = []
        for _ in pruner.remaining_epochs():
            for index, (batch,) in pruner.loader(torch.utils.data.TensorDataset(x), 16, drop_last=True):
                loss = pruner.update(index, TASKS[task](model, batch))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            shares.append(pruner.report().get("learned", float("nan")))
        with torch.no_grad():
            return TASKS[task](model, x).mean().item(), shares

    full, _ = train(Budget(0.5, policy=FullData()))
    pruned, shares = train(Budget(0.5, learned=RelativeLoss(0.1)))
    assert shares[0] < 0.6
    assert shares[-1] > 0.5
    assert pruned <= 2 * full + 0.02


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (lambda: Unlearned(0.5, learned=1.0), r"must be in \(0, 1\), got 1.0"),
        (lambda: Unlearned(0.5, learned="most"), "learned must be the probability of the right class"),
        (
            lambda: Unlearned(0.5, learned={"name": "relative-loss", "shar": 1}),
            "no parameter 'shar'. Did you mean 'share'",
        ),
        (lambda: Unlearned(1.0), r"prune_ratio must be in \[0, 1\)"),
        (lambda: Unlearned(0.5, until_pass=0), "until_pass must be a number of passes.*or None.*got 0"),
        (lambda: Unlearned(0.5, until_pass=0.5), "until_pass must be a number of passes.*or None.*got 0.5"),
        (lambda: SkipLearned(refresh=0), r"refresh must be in \(0, 1\], got 0"),
        (lambda: Budget(0), r"share must be in \(0, 1\], got 0"),
        (lambda: Budget(50), "It is a fraction, not a percentage"),
        (lambda: Budget(0.5, learned=0.8, policy=FullData()), "learned configure the default policy"),
        (lambda: Budget(0.5, policy=Budget(0.5)), "budgets cannot be nested"),
        (lambda: Budget(0.5, policy=OrderDP(0.5, every="batch")), 'got every="batch"'),
        (lambda: UniformTail(OrderDP(0.5), 1.5), r"tail must be in \[0, 1\]"),
        (lambda: Pruner(Budget(0.5), 100), r"Use Pruner\(..., epochs=...\)"),
        (lambda: Pruner(UniformTail(OrderDP(0.5)), 100), "a uniform tail needs to know how many epochs are planned"),
        (lambda: Scheduled(Budget(0.5), WarmUp(0.5, 1)), "a schedule needs a policy with a prune ratio"),
        (lambda: Balanced(Budget(0.5)), "class balance must be inside the schedule"),
        (lambda: smallest_loss(2.0, 10), r"label_smoothing must be in \[0, 1\]"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(given_, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        given_()


# -- the tail ----------------------------------------------------------------------------------------------------------


def test_the_tail_draws_uniformly_at_the_same_size() -> None:
    scores = np.concatenate((np.zeros(50), np.ones(50)))
    policy = UniformTail(OrderDP(0.5, exploration=1.0), 0.3)
    table = table_with(scores)
    for epoch in range(10):
        chosen = policy.select(table, Context(n=100, epoch=epoch, epochs=10)).indices
        assert len(chosen) == len(set(chosen.tolist())) == 50
        easy = int((chosen < 50).sum())
        assert easy == 0 if epoch < 7 else 10 < easy < 40


def test_without_a_tail_it_is_the_policy_and_with_all_of_it_a_random_draw() -> None:
    scores = np.random.default_rng(0).random(60)
    table = table_with(scores)
    context = Context(n=60, epoch=4, epochs=10, seed=2)
    none, whole = UniformTail(OrderDP(0.5), 0.0), UniformTail(OrderDP(0.5), 1.0)
    assert np.array_equal(none.select(table, context).indices, OrderDP(0.5).select(table, context).indices)
    other = table_with(scores[::-1].copy())
    assert np.array_equal(whole.select(table, context).indices, whole.select(other, context).indices)


@pytest.mark.parametrize(
    "policy",
    [
        Unlearned(0.4),
        Unlearned(0.4, learned=0.97, refresh=0.2),
        Unlearned(0.4, refresh=0.2, unbiased=True, in_turn=False),
        Unlearned(0.4, in_turn=False),
        Unlearned(0.4, until_pass=None),
        Unlearned(0.4, until_pass=1),
        Unlearned(0.4, learned=RelativeLoss(0.2)),
        SkipLearned(),
        SkipLearned(learned=LossShare(0.1), refresh=0.5),
        SkipLearned(learned=LossBelow(0.3), unbiased=True),
        SpacedRepetition(0.4),
        SpacedRepetition(0.7, learned=RelativeLoss(0.2), slowest=0.3),
        SpacedRepetition(0.7, learned=LossShare(0.1), slowest=1.0),
        Budget(0.5),
        Budget(0.3, learned=0.8, refresh=0.3),
        Budget(0.3, policy=FullData()),
        UniformTail(OrderDP(0.4), 0.3),
        UniformTail(Budget(0.4), 0.3),
        UniformTail(policies.InfoBatch(0.4, annealing=None), 0.5),
    ],
    ids=repr,
)
def test_the_contract(policy) -> None:
    check_policy(policy)
    assert policies.build(**json.loads(json.dumps(policies.config_of(policy)))) == policy


def test_thresholds_pass_through_json() -> None:
    for threshold in (Probability(0.8), Probability(0.8, 0.5), LossBelow(1.0), RelativeLoss(0.2, 0.1), LossShare(0.01)):
        policy = Unlearned(0.5, learned=threshold)
        assert policies.build(**json.loads(json.dumps(policies.config_of(policy)))) == policy


def test_unseen_samples_are_not_learned_and_come_back_when_asked_for() -> None:
    table = ScoreTable(10)
    assert not Unlearned(0.5).is_learned(table).any()
    assert set(draw(Unlearned(0.5, refresh=0), np.array([0.0] * 5 + [np.inf] * 5)).tolist()) == {5, 6, 7, 8, 9}


def test_classes_keep_their_share() -> None:
    labels = np.array([0] * 80 + [1] * 20)
    table = table_with(np.concatenate((np.zeros(80), np.ones(20))))
    context = Context(n=100, epoch=1, labels=labels)
    chosen = Balanced(Unlearned(0.5)).select(table, context).indices
    assert np.bincount(labels[chosen]).tolist() == [40, 10]


def test_a_pruner_with_it_forgets_nothing_of_a_data_set() -> None:
    dataset = toy_dataset(60)
    pruner = Pruner(Unlearned(0.5), dataset, epochs=4)
    for _ in pruner.remaining_epochs():
        for index, _ in pruner.loader(dataset, batch_size=10):
            pruner.update(index, torch.zeros(len(index)))
    assert pruner.report()["coverage"] == 1.0


# -- spaced repetition -------------------------------------------------------------------------------------------------


def table_at(scores: np.ndarray, seen: np.ndarray) -> ScoreTable:
    """A table whose finite scores were seen in these epochs."""
    table = ScoreTable(len(scores))
    for epoch in np.unique(seen):
        of_epoch = np.flatnonzero((seen == epoch) & np.isfinite(scores))
        table.write(torch.from_numpy(of_epoch), torch.tensor(scores[of_epoch], dtype=torch.float32), epoch=int(epoch))
    return table


@settings(max_examples=200, deadline=None)
@given(LOSSES, st.sampled_from([0.0, 0.3, 0.5, 0.7]), st.sampled_from([0.05, 0.5, 1.0]), st.integers(0, 99))
def test_spaced_repetition_keeps_what_is_most_due(losses, ratio, slowest, seed) -> None:
    scores, epoch = np.array(losses), 9
    seen = np.random.default_rng(seed).integers(0, epoch, len(scores))
    kept = round((1 - ratio) * len(scores))
    if kept < 1:
        return
    policy = SpacedRepetition(ratio, learned=LossBelow(0.1), slowest=slowest)
    chosen = draw(policy, table_at(scores, seen), epoch=epoch, seed=seed).tolist()
    assert len(chosen) == len(set(chosen)) == kept
    due = [
        math.inf if math.isinf(score) else (epoch - last + 0.5) * min(1.0, max(slowest, score / 0.1))
        for score, last in zip(losses, seen.tolist(), strict=True)
    ]
    left_out = [due[i] for i in range(len(due)) if i not in chosen]
    assert min(due[i] for i in chosen) >= max(left_out, default=0) * (1 - 1 / 64)


def trained(policy, n: int, epochs: int, loss_of, seed: int = 0) -> np.ndarray:
    """How often each sample is trained on: a row per epoch."""
    pruner, rows = Pruner(policy, n, seed=seed, epochs=epochs), []
    for _ in range(epochs):
        for batch in pruner.batch_sampler(n):
            pruner.update(torch.tensor(batch), loss_of(torch.tensor(batch)))
        rows.append(pruner.usage.numpy().copy())
    return np.array(rows)


@pytest.mark.parametrize("rule", [SpacedRepetition, partial(Unlearned, until_pass=None)])
@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.7, 0.9])
def test_while_nothing_is_learned_no_sample_comes_twice_before_all_have_come(ratio: float, rule) -> None:
    usage = trained(rule(ratio), 97, 25, lambda index: 1 + index.float())
    assert (usage.max(axis=1) - usage.min(axis=1) <= 1).all()


def test_a_uniform_draw_does_not_come_in_turn() -> None:
    usage = trained(Unlearned(0.5, in_turn=False), 97, 25, lambda index: 1 + index.float())
    assert (usage.max(axis=1) - usage.min(axis=1)).max() > 5


@settings(max_examples=200, deadline=None)
@given(LOSSES, st.sampled_from([0.3, 0.5, 0.7]), st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 99))
def test_in_turn_no_sample_is_kept_before_one_of_its_kind_that_waits_longer(losses, ratio, refresh, seed) -> None:
    scores, epoch = np.array(losses), 9
    seen = np.random.default_rng(seed).integers(0, epoch, len(scores))
    if round((1 - ratio) * len(scores)) < 1:
        return
    policy = Unlearned(ratio, learned=LossBelow(0.1), refresh=refresh)
    chosen = set(draw(policy, table_at(scores, seen), epoch=epoch, seed=seed).tolist())
    waits = [math.inf if math.isinf(score) else epoch - last for score, last in zip(losses, seen.tolist(), strict=True)]
    learned = learned_by_hand(scores, 0.1)
    for kind in (learned, set(range(len(losses))) - learned):
        left_out = [waits[i] for i in kind - chosen]
        assert min((waits[i] for i in kind & chosen), default=math.inf) >= max(left_out, default=0)


def test_in_turn_a_learned_sample_waits_no_longer_than_one_over_the_refresh() -> None:
    """50 of 100 are learned, five of them come back each epoch: each after ten epochs."""
    losses = torch.where(torch.arange(100) < 50, 0.0, 1.0)
    usage = trained(Unlearned(0.7, refresh=0.1, until_pass=None), 100, 60, lambda index: losses[index])
    gaps = [np.diff(np.flatnonzero(np.diff(usage[8:, sample], prepend=0))) for sample in range(50)]
    assert {int(gap) for found in gaps for gap in found[1:]} == {10}


@settings(max_examples=100, deadline=None)
@given(
    LOSSES, st.sampled_from([0.3, 0.5, 0.7]), st.booleans(), st.integers(1, 3), st.integers(0, 7), st.integers(0, 99)
)
def test_learned_samples_are_skipped_until_a_pass_and_not_after_it(losses, ratio, in_turn, last, passes, seed) -> None:
    n = len(losses)
    if round((1 - ratio) * n) < 1:
        return
    usage = np.random.default_rng(seed).permutation(np.arange(n) * passes // n)  # in the mean about half of `passes`
    table = {"score": np.array(losses), "seen": np.zeros(n, int), "usage": usage}
    rule = partial(Unlearned, ratio, learned=LossBelow(0.1), in_turn=in_turn)
    if sum(usage.tolist()) < last * n:
        as_if = rule(until_pass=None)
    else:
        as_if = RS2(ratio) if in_turn else rule(learned=LossBelow(-1), until_pass=None)  # nothing is learned
    context = Context(n=n, epoch=9, seed=seed)
    chosen = rule(until_pass=last).select(table, context).indices.tolist()
    assert chosen == as_if.select(table, context).indices.tolist()


@pytest.mark.parametrize("until_pass", [2, 5])
@pytest.mark.parametrize("ratio", [0.5, 0.7])
def test_after_that_pass_all_samples_come_equally_often(until_pass: int, ratio: float) -> None:
    """60 of 100 are learned at once."""
    losses = torch.where(torch.arange(100) < 60, 0.0, 1.0)

    def visits_after(policy: Unlearned) -> np.ndarray:
        usage = trained(policy, 100, 60, lambda index: losses[index])
        return usage[-1] - usage[int((usage.mean(axis=1) < until_pass).sum())]

    visits = visits_after(Unlearned(ratio, until_pass=until_pass))
    assert np.ptp(visits) <= 2  # a pass is under way at the beginning and another one at the end
    skipping = visits_after(Unlearned(ratio, until_pass=None))
    assert skipping[:60].max() < skipping[60:].min() / 2


def test_after_that_pass_samples_do_not_come_in_the_same_groups_for_ever() -> None:
    """Half of the samples come per epoch. By the longest wait, two halves would take turns."""

    def halves(policy: Unlearned) -> list[set[int]]:
        usage = trained(policy, 100, 40, lambda index: 1 + index.float())
        return [set(np.flatnonzero(visits)) for visits in np.diff(usage, axis=0, prepend=0)]

    def overlaps(epochs: list[set[int]]) -> list[int]:
        return [len(first & second) for first, second in zip(epochs, epochs[2:], strict=False)]

    assert set(overlaps(halves(Unlearned(0.5, until_pass=None)))) == {50}
    assert max(overlaps(halves(Unlearned(0.5, until_pass=5))[10:])) < 40


def test_a_sampler_that_yields_other_samples_in_every_epoch_is_followed_by_the_longest_wait() -> None:
    """Positions mean other samples in every epoch: chunks of positions would be draws, and samples not come in turn."""
    pruner = Pruner(Unlearned(0.5, until_pass=2), 100, seed=0)
    sampler = pruner.filter(RandomSampler(range(100), generator=torch.Generator().manual_seed(0)))
    for _ in range(40):
        index = torch.tensor(list(sampler))
        pruner.update(index, 1 + index.float())
    usage = pruner.usage.numpy()
    assert usage.sum() == 40 * 50
    assert np.ptp(usage) <= 1


def test_keeping_the_hardest_goes_through_nothing_in_turn() -> None:
    usage = trained(OrderDP(0.5), 97, 25, lambda index: 1 + index.float())
    assert (usage.max(axis=1) - usage.min(axis=1)).max() > 5


@pytest.mark.parametrize(("kept", "slowest"), [(10, 0.1), (30, 0.05), (50, 0.25)])
def test_samples_come_as_often_as_their_rates_say(kept: int, slowest: float) -> None:
    n, epochs, threshold = 100, 1000, 0.4
    losses = torch.linspace(0, 0.8, n)
    policy = SpacedRepetition(1 - kept / n, learned=LossBelow(threshold), slowest=slowest)
    visits = trained(policy, n, epochs, lambda index: losses[index])[-1] / epochs
    expected = theory.visiting_shares(theory.learned_rates(losses.numpy(), threshold, slowest=slowest), kept)
    assert expected.sum() == pytest.approx(kept)
    # Ages are whole epochs, so a gap of 1.5 epochs is one of 1 or 2.
    assert np.corrcoef(visits, expected)[0, 1] > 0.97
    assert np.abs(1 / visits - 1 / expected).max() <= 1 + 0.05 / expected.min()


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=30),
    st.data(),
)
def test_visiting_shares_are_the_rates_times_one_factor_or_all_epochs(rates, data) -> None:
    kept = data.draw(st.integers(1, len(rates)))
    shares = theory.visiting_shares(rates, kept)
    assert shares.sum() == pytest.approx(kept)
    below = shares < 1 - 1e-12
    factors = shares[below] / np.array(rates)[below]
    assert np.allclose(factors, factors[:1]) if below.any() else kept == len(rates)
    if below.any() and (~below).any():  # a sample of every epoch has a rate that would give it more than that
        assert np.array(rates)[~below].min() * factors[0] >= 1 - 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.sampled_from([0.2, 0.5, 0.8, 0.9]), st.sampled_from([0.1, 0.3, 1.0]), st.integers(0, 99))
def test_no_sample_waits_longer_than_the_bound(n: int, ratio: float, slowest: float, seed: int) -> None:
    kept = round((1 - ratio) * n)
    if kept < 1:
        return
    rng, bound = np.random.default_rng(seed), theory.longest_gap(n, kept, slowest)
    policy = SpacedRepetition(ratio, learned=LossBelow(0.5), slowest=slowest)
    losses = torch.from_numpy(np.where(rng.random(n) < 0.5, 0.0, rng.random(n)).astype(np.float32))
    usage = trained(policy, n, min(3 * bound, 400), lambda index: losses[index], seed)
    for sample in range(n):
        epochs = np.flatnonzero(np.diff(usage[:, sample], prepend=0))
        assert np.diff(epochs, prepend=-1, append=len(usage)).max() <= bound


def test_the_risk_of_spaced_repetition_is_the_huber_loss_of_the_losses() -> None:
    losses = torch.tensor([0.02, 0.1, 0.35, 0.36, 2.0], requires_grad=True, dtype=torch.float64)
    threshold = Probability(0.7).loss
    ours = theory.spaced_surrogate_loss(losses.detach(), threshold)
    assert ours == pytest.approx(F.huber_loss(losses, torch.zeros(5), delta=threshold).item() / threshold)
    (F.huber_loss(losses, torch.zeros(5, dtype=torch.float64), delta=threshold) / threshold * 5).backward()
    rates = theory.learned_rates(losses.detach().numpy(), threshold)
    assert np.allclose(losses.grad.numpy(), rates, atol=1e-6)


def test_training_at_rates_changes_the_mean_gradient_by_no_more_than_the_bound() -> None:
    rng = torch.Generator().manual_seed(0)
    for scale in (0.5, 2.0, 8.0):
        logits = (scale * torch.randn(50, 5, generator=rng)).requires_grad_()
        targets = torch.randint(0, 5, (50,), generator=rng)
        losses = F.cross_entropy(logits, targets, reduction="none")
        losses.sum().backward()
        rates = torch.from_numpy(theory.learned_rates(losses.detach().numpy(), 0.4, slowest=0.05))
        # The mean of the norms is at least the norm of the mean, whatever network comes before the logits.
        change = ((1 - rates)[:, None] * logits.grad).norm(dim=1).mean().item()
        assert change <= theory.spaced_bias_bound(losses.detach(), 0.4, 0.05) + 1e-6


def test_all_is_due_at_the_slowest_rate_if_it_is_one() -> None:
    usage = trained(SpacedRepetition(0.5, slowest=1.0), 50, 20, lambda index: torch.zeros(len(index)))
    assert (usage.max(axis=1) - usage.min(axis=1) <= 1).all()


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [Unlearned(0.5, learned=LossBelow(0.5)), SkipLearned(learned=LossBelow(0.5))], ids=repr
)
def test_keys_of_a_stream_are_kept_as_the_rule_says(policy) -> None:
    keys = KeyFilter(policy, seed=1, key=lambda sample: f"sample {sample}")
    seen: set[int] = set()
    for _ in range(4):
        learned, kept = {sample for sample in seen if sample < 120}, []
        for sample in keys.one_epoch(keys.only(range(200))):
            keys.update([f"sample {sample}"], torch.tensor([0.1 if sample < 120 else 2.0]))
            kept.append(sample)
        assert len(set(kept)) == len(kept)
        seen |= set(kept)
    others = set(range(200)) - learned
    if isinstance(policy, SkipLearned):
        assert len(learned) == 120
        assert others <= set(kept)
        assert len(set(kept) & learned) == 12
    else:
        assert len(kept) == 100
        assert len(set(kept) & learned) == max(100 - len(others), round(0.1 * len(learned)))


def test_keys_of_a_stream_come_back_when_they_are_due() -> None:
    keys = KeyFilter(SpacedRepetition(0.5, learned=LossBelow(0.5), slowest=0.1), key=lambda sample: f"sample {sample}")
    counts = Counter()
    for _ in range(24):
        kept = []
        for sample in keys.one_epoch(keys.only(range(200))):
            keys.update([f"sample {sample}"], torch.tensor([0.05 if sample < 120 else 2.0]))
            kept.append(sample)
        counts.update(kept)
    assert len(kept) == 100
    # 80 keys of rate 1, in every epoch, and 120 of rate 0.1, which share the other 20.
    assert all(counts[sample] >= 22 for sample in range(120, 200))
    assert {counts[sample] for sample in range(120)} <= {4, 5, 6}


@pytest.mark.parametrize(
    "make", [lambda policy: KeyFilter(policy, epochs=3), lambda policy: GrowingPruner(policy, 9, epochs=3)]
)
@pytest.mark.parametrize("policy", [Budget(0.5), UniformTail(Budget(0.5))], ids=repr)
def test_data_without_a_known_number_of_samples_have_no_budget(make, policy) -> None:
    with pytest.raises(ConfigError, match=r"a budget is a fraction of full training.*SkipLearned"):
        make(policy)
