"""Rivals with more to remember than a loss: each rule restated, and the property that defines it."""

from __future__ import annotations

from math import sqrt
from statistics import stdev

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import OrderDP, Pruner, policies
from orderdp.errors import ConfigError, FeedbackError, RealRatioWarning
from orderdp.losses import SelectiveMean, predictions
from orderdp.policies import (
    ActiveBias,
    Balanced,
    Calibrated,
    DynamicUncertainty,
    InfoBatch,
    Kakurenbo,
    Linear,
    Mixed,
    RePB,
    Scheduled,
    SelectiveBackprop,
    SeTa,
)
from orderdp.policies.infobatch import group_edges
from orderdp.policy import Context, proportional
from orderdp.score_table import ScoreTable
from tests.support import draw, table_with


def fed(policy, *steps: tuple[np.ndarray, dict[str, np.ndarray]], index: np.ndarray | None = None) -> ScoreTable:
    """A table after one batch of all samples a step: losses, and what else the policy is told."""
    n = len(steps[0][0])
    table = ScoreTable(n, policy.columns)
    for epoch, (losses, told) in enumerate(steps):
        extra = {name: torch.from_numpy(values) for name, values in told.items()}
        table.write(
            torch.arange(n),
            torch.from_numpy(losses).float(),
            epoch=epoch,
            compute_columns=policy.compute_columns,
            extra=extra,
        )
    return table


# -- SeTa -----------------------------------------------------------------------------------------------------------


def lloyd(values: np.ndarray, groups: int) -> np.ndarray:
    """K-means on a line as a textbook has it: assign every value to its nearest center, move the centers, repeat."""
    ordered = np.sort(values)
    starts = sorted(
        {int(np.searchsorted(ordered, ordered[g * len(ordered) // groups])) for g in range(1, groups)} - {0}
    )
    labels = np.searchsorted(starts, np.arange(len(ordered)), side="right")
    for _ in range(200):
        centers = np.array([ordered[labels == g].mean() for g in np.unique(labels)])
        nearest = np.abs(ordered[:, None] - centers[None]).argmin(1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
    return np.array([ordered[labels == g].min() for g in np.unique(labels)[1:]])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(1, 6))
def test_setas_groups_are_those_of_k_means(values: list[int], groups: int) -> None:
    # Roots, no two of which are commensurable: so that no value is as far from one center as from the next.
    losses = np.array(values) * sqrt(2) + np.sqrt(np.arange(len(values)) + 3.0) * 1e-4
    np.testing.assert_allclose(group_edges(losses, groups), lloyd(losses, groups))


def test_setas_groups_cannot_be_improved_by_moving_one_sample() -> None:
    losses = np.random.default_rng(0).exponential(size=500)
    labels = np.searchsorted(group_edges(losses, 5), losses, side="right")
    assert len(np.unique(labels)) == 5
    centers = np.array([losses[labels == g].mean() for g in range(5)])
    assert (np.abs(losses[:, None] - centers).argmin(1) == labels).all()


def test_setas_window_slides_from_easy_to_hard_and_starts_again() -> None:
    losses = np.repeat([1.0, 10.0, 20.0, 30.0, 40.0], 20).astype(np.float32)
    policy = SeTa(0, groups=5, window=0.6, annealing=None)
    shown = [sorted({float(losses[i]) for i in draw(policy, losses, epoch=epoch)}) for epoch in range(4)]
    assert shown == [[1, 10, 20], [10, 20, 30], [20, 30, 40], [1, 10, 20]]


def test_seta_leaves_out_a_random_share_first_and_only_that_at_the_end() -> None:
    scores = table_with(np.random.default_rng(0).random(400).astype(np.float32))
    policy = SeTa(0.25, groups=5, window=0.9)
    sizes = [len(policy.select(scores, Context(n=400, epoch=e, epochs=8))) for e in range(8)]
    assert all(size < 300 for size in sizes[:7])
    assert sizes[7] == 300
    assert policy.size(400, Context(n=400, epoch=7, epochs=8)) == 300


def test_seta_keeps_what_was_never_seen() -> None:
    scores = np.where(np.arange(100) < 50, np.inf, np.arange(100)).astype(np.float32)
    assert set(range(50)) <= set(draw(SeTa(0, window=0.4, annealing=None), scores, epoch=1).tolist())


# -- RePB -----------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 30), st.integers(0, 99), st.integers(0, 10**6))
def test_repb_keeps_what_is_above_its_batchs_mean_and_weighs_by_use(n: int, percent: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy, table = RePB(percent / 100), ScoreTable(n, RePB.columns)
    used, above, last = np.zeros(n), np.ones(n, dtype=bool), np.full(n, -1)
    for epoch in range(3):
        batch = rng.permutation(n)[: max(1, n // 2)]
        losses = rng.random(len(batch)).astype(np.float32)
        table.write(
            torch.from_numpy(batch), torch.from_numpy(losses), epoch=epoch, compute_columns=policy.compute_columns
        )
        used[batch] += 1
        above[batch] = losses >= torch.from_numpy(losses).mean().item()
        last[batch] = epoch
    selection = policy.select(table, Context(n=n, epoch=3, seed=seed))
    kept = dict(zip(selection.indices.tolist(), selection.weights.tolist(), strict=True))
    assert {i for i in range(n) if used[i] == 0 or (above[i] and last[i] == 2)} <= set(kept)
    for i, weight in kept.items():
        assert weight == pytest.approx(1.0 if used[i] == 0 else 4 / (used[i] + 1))


def test_repb_lets_the_others_in_with_probability_1_minus_rho() -> None:
    losses = np.concatenate((np.full(50, 0.0), np.full(50, 1.0)))
    table = fed(RePB(0.7), (losses, {}))
    counts = np.zeros(100)
    for seed in range(2000):
        counts[draw(RePB(0.7), table, seed=seed, epoch=1)] += 1 / 2000
    assert counts[50:] == pytest.approx(1.0)
    assert np.abs(counts[:50] - 0.3).max() < 5 * sqrt(0.21 / 2000)
    # An epoch later the samples above the mean have not been used either: they have lost their place.
    assert len(draw(RePB(0.7), table, epoch=2)) < 60


@pytest.mark.parametrize("when", ["never", "between epochs", "before the first"])
def test_repb_marks_what_was_trained_on_and_not_what_was_scored(when: str) -> None:
    pruner = Pruner(RePB(0.9), 200, epochs=3)
    losses = torch.arange(200.0)
    if when == "before the first":
        pruner.observe(torch.arange(200), losses)
    trained, marked = 0, set()
    for batch in pruner.batch_sampler(20):
        index = torch.tensor(batch)
        pruner.update(index, losses[index])
        trained += len(batch)
        marked |= set(index[losses[index] >= losses[index].mean()].tolist())
    if when == "between epochs":
        pruner.observe(torch.arange(200), losses.flip(0))
    kept = set(pruner.preview().indices.tolist())
    assert marked <= kept
    assert trained < 200 or when != "before the first"
    assert len(kept) < len(marked) + 60  # a tenth of the others come in


# -- Kakurenbo ------------------------------------------------------------------------------------------------------


def test_kakurenbo_hides_the_easy_and_moves_back_the_wrong_and_the_unsure() -> None:
    losses = np.arange(10.0)
    correct = np.array([1, 0, 1, 1, 1, 1, 1, 1, 1, 1], dtype=bool)
    confidence = np.array([0.9, 0.9, 0.5, 0.7, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9])
    policy = Kakurenbo(0.5, tau=0.7)
    table = fed(policy, (losses, {"correct": correct, "confidence": confidence}))
    # Candidates 0 to 4; 1 was wrong, 2 unsure, 3 just sure enough.
    assert sorted(draw(policy, table).tolist()) == [1, 2, 5, 6, 7, 8, 9]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 99), st.integers(0, 10), st.integers(0, 10**6))
def test_kakurenbo_against_a_loop(n: int, percent: int, tenth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses, correct, confidence = rng.permutation(n).astype(float), rng.random(n) < 0.7, rng.random(n)
    policy = Kakurenbo(percent / 100, tau=tenth / 10)
    table = fed(policy, (losses, {"correct": correct, "confidence": confidence}))
    hidden = [
        i
        for i in np.argsort(losses)[: min(round(percent / 100 * n), n - 1)]
        if correct[i] and np.float32(confidence[i]) >= tenth / 10
    ]
    assert sorted(draw(policy, table).tolist()) == sorted(set(range(n)) - set(hidden))


def test_kakurenbos_learning_rate_grows_with_what_is_hidden_and_its_fraction_falls_with_the_drops() -> None:
    pruner = Pruner(Kakurenbo(0.4, tau=0.0), 100)
    for batch in pruner.batch_sampler(100):
        index = torch.tensor(batch)
        pruner.update(index, index.float(), correct=torch.ones(100), confidence=torch.ones(100))
    assert pruner.lr_scale == pytest.approx(1 / 0.6)
    policy = Kakurenbo(0.5, drops=(3, 6))
    ratios = [policy.nominal_ratio(Context(n=100, epoch=epoch)) for epoch in (0, 2, 3, 5, 6, 99)]
    assert ratios == pytest.approx([0.5, 0.5, 0.4, 0.4, 0.3, 0.3])


@pytest.mark.parametrize("asked", ["nothing", "length", "rate"])
def test_kakurenbo_hides_by_a_pass_between_epochs_whatever_was_asked_before(asked: str) -> None:
    pruner = Pruner(Kakurenbo(0.5), 100, epochs=2)
    wrong = {"correct": torch.zeros(20, dtype=torch.bool), "confidence": torch.zeros(20)}
    batches = pruner.batch_sampler(20)
    for batch in batches:
        pruner.update(torch.tensor(batch), torch.rand(20), **wrong)
    if asked == "length":
        assert len(batches) == 5
    elif asked == "rate":
        assert pruner.lr_scale == 1.0
    sure = {"correct": torch.ones(100, dtype=torch.bool), "confidence": torch.ones(100)}
    pruner.observe(torch.arange(100), torch.arange(100.0), **sure)
    assert sum(map(len, batches)) == 50


# -- selective backprop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_selective_backprop_keeps_by_the_power_of_the_percentile(beta: float) -> None:
    scores = np.array([1.0, 2.0, 2.0, 3.0, np.inf], dtype=np.float32)
    counts, rounds = np.zeros(5), 3000
    for seed in range(rounds):
        counts[draw(SelectiveBackprop(beta), scores, seed=seed)] += 1 / rounds
    expected = np.array([0.25, 0.75, 0.75, 1.0]) ** beta
    assert (np.abs(counts[:4] - expected) <= 5 * np.sqrt(expected * (1 - expected) / rounds) + 1e-9).all()
    assert counts[4] == pytest.approx(1)


def test_selective_backprop_at_a_ratio_leaves_out_about_that_share() -> None:
    scores = np.random.default_rng(0).exponential(size=20_000).astype(np.float32)
    policy = policies.build_at("selective-backprop", 0.4)
    assert 1 - len(draw(policy, scores)) / 20_000 == pytest.approx(0.4, abs=0.02)


def test_the_fresh_form_goes_by_the_recent_losses_and_lets_gradients_through_the_chosen_only() -> None:
    chosen = np.zeros(4)
    for seed in range(2000):
        mean = SelectiveMean(beta=1.0, history=4, seed=seed)
        losses = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
        mask = mean.choose(losses)
        chosen += mask.numpy() / 2000
        loss = SelectiveMean(beta=1.0, history=4, seed=seed)(losses)
        loss.backward()
        assert torch.equal(losses.grad > 0, mask)
        assert loss.item() == pytest.approx(losses.detach()[mask].mean().item())
    assert np.abs(chosen - [0.25, 0.5, 0.75, 1]).max() < 5 * sqrt(0.25 / 2000)


def test_the_fresh_form_forgets_old_losses_and_resumes() -> None:
    straight = SelectiveMean(beta=2.0, history=6, seed=1)
    batches = [torch.rand(4, generator=torch.Generator().manual_seed(step)) for step in range(6)]
    masks = [straight.choose(batch) for batch in batches]
    first = SelectiveMean(beta=2.0, history=6, seed=1)
    assert all(torch.equal(first.choose(batch), mask) for batch, mask in zip(batches[:3], masks[:3], strict=True))
    second = SelectiveMean(beta=2.0, history=6, seed=9)
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(second.choose(batch), mask) for batch, mask in zip(batches[3:], masks[3:], strict=True))
    steep = SelectiveMean(beta=500.0, history=6)
    steep.choose(torch.zeros(6))
    assert steep.choose(torch.ones(1)).item()  # the largest of the last six
    steep.choose(torch.full((5,), 1000.0))
    assert not steep.choose(torch.ones(1)).item()  # the zeros are forgotten: now it is the smallest
    with pytest.raises(FeedbackError, match="one number for each sample"):
        second.choose(torch.ones(2, 2))
    with pytest.raises(ConfigError, match="beta"):
        SelectiveMean(beta=-1)
    with pytest.raises(ConfigError, match="history"):
        SelectiveMean(history=0)


# -- active bias and dynamic uncertainty ----------------------------------------------------------------------------


def history_of(policy, seen: np.ndarray) -> ScoreTable:
    """A table after `seen` probabilities, (epochs, samples)."""
    return fed(policy, *[(np.ones(seen.shape[1]), {"probability": row}) for row in seen])


def test_active_bias_weighs_by_the_uncertainty_of_the_probabilities_so_far() -> None:
    seen = np.random.default_rng(0).random((7, 30))
    policy = ActiveBias(epsilon=0.05)
    variance = seen.var(0)
    wanted = np.sqrt(variance + variance**2 / 6) + 0.05
    np.testing.assert_allclose(policy.weights(history_of(policy, seen)), wanted / wanted.mean(), rtol=1e-4)
    automatic = np.sqrt(variance + variance**2 / 6)
    automatic += automatic.mean()
    weights = ActiveBias().weights(history_of(ActiveBias(), seen))
    np.testing.assert_allclose(weights, automatic / automatic.mean(), rtol=1e-4)
    selection = ActiveBias(0.5).select(history_of(ActiveBias(0.5), seen), Context(n=30, epoch=7))
    np.testing.assert_allclose(selection.weights, weights[selection.indices], rtol=1e-5)


def test_active_bias_by_sampling_draws_by_weight_without_replacement() -> None:
    seen = np.random.default_rng(0).random((5, 4)) * np.array([0.1, 0.4, 0.7, 1.0])
    policy = ActiveBias(0.5, by="sampling")
    table = history_of(policy, seen)
    weights = policy.weights(table)
    shares = weights / weights.sum()
    # The first of two is drawn by weight, the second by weight among the other three.
    wanted = [shares[i] + sum(shares[j] * shares[i] / (1 - shares[j]) for j in range(4) if j != i) for i in range(4)]
    counts = np.zeros(4)
    for seed in range(6000):
        counts[draw(policy, table, seed=seed)] += 1 / 6000
    assert np.abs(counts - wanted).max() < 5 * sqrt(0.25 / 6000)


def test_dynamic_uncertainty_is_the_mean_deviation_over_all_windows() -> None:
    seen = np.random.default_rng(0).random((9, 20))
    policy = DynamicUncertainty(0.6, window=4)
    table = history_of(policy, seen)
    wanted = [np.mean([stdev(seen[start : start + 4, i].tolist()) for start in range(9 - 4 + 1)]) for i in range(20)]
    assert sorted(draw(policy, table, epoch=9).tolist()) == sorted(np.argsort(wanted)[-8:].tolist())
    np.testing.assert_allclose(table["deviations"] / 6, wanted, rtol=1e-4)


def test_dynamic_uncertainty_trains_on_everything_until_the_windows_are_full() -> None:
    assert Pruner(DynamicUncertainty(0.5, window=3), 100).steps(5, 10) == 3 * 10 + 2 * 5
    assert Pruner(DynamicUncertainty(0.5, window=3, warm_up=0), 100).steps(5, 10) == 5 * 5
    half_known = history_of(DynamicUncertainty(0.5, window=3), np.random.default_rng(0).random((3, 10)))
    half_known.write(torch.arange(5), torch.ones(5), epoch=3)
    fresh = ScoreTable(10, DynamicUncertainty(0.5, window=3).columns)
    assert len(draw(DynamicUncertainty(0.5, window=3), fresh, epoch=3)) == 5


# -- calibrated -----------------------------------------------------------------------------------------------------


def test_calibrated_is_unbiased_and_keeps_the_hardest_for_sure() -> None:
    rng = np.random.default_rng(0)
    scores, gradients = rng.random(40).astype(np.float32), rng.standard_normal((40, 3))
    table, policy, steps = table_with(scores), Calibrated(0.5, share=0.4), []
    hardest = set(np.argsort(-scores)[:8].tolist())
    for seed in range(3000):
        chosen = policy.select(table, Context(n=40, epoch=0, seed=seed))
        assert hardest <= set(chosen.indices.tolist())
        steps.append((chosen.weights[:, None] * gradients[chosen.indices]).mean(0))
    mean, error = np.mean(steps, 0), np.std(steps, 0) / sqrt(3000)
    assert (np.abs(mean - gradients.mean(0)) <= 5 * error).all()


# -- class balance --------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(0, 1000))
def test_budgets_are_proportional_exact_in_total_and_leave_no_class_out(sizes: list[int], part: int) -> None:
    n = sum(sizes)
    total = round(n * part / 1000)
    budgets = proportional(np.array(sizes), total)
    assert budgets.sum() == total
    assert all(0 <= budget <= size for budget, size in zip(budgets, sizes, strict=True))
    if total >= len(sizes):
        assert budgets.min() >= 1
    lifted = int(sum(total * size < n for size in sizes))
    for budget, size in zip(budgets, sizes, strict=True):
        assert budget > total * size / n - 1 - lifted
        assert budget < max(1, total * size / n + 1) + 1e-9


@pytest.mark.parametrize("policy", [OrderDP(0.4), OrderDP(0.4, exploration=1.0), policies.UCB(0.4)], ids=repr)
def test_each_class_keeps_its_share_and_within_it_what_the_policy_would_keep(policy) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    # Class 2 is hardest by far: without balance it would be kept whole.
    scores = (rng.random(100) + 10 * labels).astype(np.float32)
    table = ScoreTable(100, getattr(policy, "columns", ()))
    table.write(torch.arange(100), torch.from_numpy(scores), epoch=0)
    kept = Balanced(policy).select(table, Context(n=100, epoch=1, seed=0, labels=labels)).indices
    assert np.bincount(labels[kept]).tolist() == [30, 18, 12]
    unbalanced = policy.select(table, Context(n=100, epoch=1, seed=0)).indices
    assert np.bincount(labels[unbalanced])[2] > 12
    if policy != OrderDP(0.4):  # these take the largest of all
        for label, budget in enumerate([30, 18, 12]):
            members = np.flatnonzero(labels == label)
            assert set(members[np.argsort(-scores[members])[:budget]]) <= set(kept.tolist())


def test_classes_that_are_kept_whole_do_not_count_more_than_others() -> None:
    labels = np.repeat([0, 1, 2], [30, 3, 1])
    table = table_with(np.random.default_rng(0).random(34))
    policy = Balanced(OrderDP(0.4, select=Mixed(top=0.5, uniform=0.5), unbiased=True))
    total = 20
    for epoch in range(5):
        selection = policy.select(table, Context(n=34, epoch=epoch, labels=labels))
        assert selection.weights is not None
        assert len(selection) == total
        alone = selection.weights[selection.indices == 33]  # in every draw, so it weighs what it is of all data
        assert alone == pytest.approx([total / 34])


def test_balance_keeps_unbiased_weights_unbiased() -> None:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([0, 1, 2], [21, 12, 7]))
    scores, gradients = rng.random(40).astype(np.float32), rng.standard_normal((40, 3))
    table, steps = table_with(scores), []
    policy = Balanced(OrderDP(0.5, select=Mixed(top=0.5, uniform=0.5), unbiased=True))
    for seed in range(1000):
        chosen = policy.select(table, Context(n=40, epoch=0, seed=seed, labels=labels))
        steps.append((chosen.weights[:, None] * gradients[chosen.indices]).mean(0))
    mean, error = np.mean(steps, 0), np.std(steps, 0) / sqrt(1000)
    assert (np.abs(mean - gradients.mean(0)) <= 5 * error).all()


def test_balance_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"needs the class of every sample\. Use Pruner\(\.\.\., labels=\.\.\.\)"):
        Pruner(Balanced(OrderDP(0.4)), 100)
    with pytest.raises(ConfigError, match="decides by the losses how much it keeps"):
        Pruner(Balanced(Kakurenbo(0.4)), 100, labels=np.zeros(100, dtype=int))
    with pytest.raises(ConfigError, match="must be inside the schedule"):
        Balanced(Scheduled(OrderDP(0.4), Linear(0.1, 0.2)))
    with pytest.raises(ConfigError, match="needs a policy with a prune ratio"):
        Balanced(policies.FullData())
    with pytest.raises(ConfigError, match='every="batch"'):
        Balanced(OrderDP(0.4, every="batch"))


# -- what update is told ---------------------------------------------------------------------------------------------


def test_what_a_policy_needs_to_be_told_and_is_not_is_an_error_before_anything_is_written() -> None:
    pruner = Pruner(Kakurenbo(0.3), 10)
    assert pruner.update_arguments == ("correct", "confidence")
    with pytest.raises(
        FeedbackError, match=r"needs correct and confidence with every step.*update\(index, losses, cor"
    ):
        pruner.update(torch.arange(4), torch.ones(4))
    with pytest.raises(FeedbackError, match="needs confidence with every step"):
        pruner.update(torch.arange(4), torch.ones(4), correct=torch.ones(4))
    with pytest.raises(
        FeedbackError, match=r"unexpected keyword 'confidance': .* does not take it\. Did you mean 'confidence'\?"
    ):
        pruner.update(
            torch.arange(4), torch.ones(4), correct=torch.ones(4), confidence=torch.ones(4), confidance=torch.ones(4)
        )
    with pytest.raises(FeedbackError, match="correct must have one value for each of the 4 indices"):
        pruner.update(torch.arange(4), torch.ones(4), correct=torch.ones(3), confidence=torch.ones(4))
    assert pruner.scores.isinf().all()
    with pytest.raises(
        FeedbackError, match=r"unexpected keyword 'correct': .* takes no extra values\. Leave the argument out"
    ):
        Pruner(OrderDP(0.3), 10).update(torch.arange(4), torch.ones(4), correct=torch.ones(4))


def test_a_pass_over_the_hidden_samples_refreshes_all_that_is_remembered() -> None:
    pruner = Pruner(Kakurenbo(0.5), 4)
    pruner.observe(torch.arange(4), torch.arange(4.0), correct=torch.ones(4), confidence=torch.tensor([1, 0.1, 1, 1]))
    assert pruner.usage.sum() == 0
    assert sorted(i for i in pruner.sampler) == [1, 2, 3]


def test_a_nan_among_what_a_policy_is_told_never_reaches_the_table() -> None:
    policy = ActiveBias()
    table = fed(policy, (np.ones(3), {"probability": np.array([0.5, np.nan, 0.2])}))
    assert not any(np.isnan(table[name]).any() for name in table.declared)


def test_predictions_are_those_of_the_largest_logit() -> None:
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(20) % 5
    told = predictions(logits, targets)
    for i in range(20):
        shares = torch.exp(logits[i]) / torch.exp(logits[i]).sum()
        assert told["correct"][i] == (int(logits[i].argmax()) == int(targets[i]))
        assert told["confidence"][i] == pytest.approx(float(shares.max()), rel=1e-5)
        assert told["probability"][i] == pytest.approx(float(shares[targets[i]]), rel=1e-5)
    soft = torch.nn.functional.one_hot(targets, 5) * 0.9 + 0.02
    assert all(torch.equal(told[name], predictions(logits, soft)[name]) for name in told)
    with pytest.raises(FeedbackError, match="logits must be"):
        predictions(logits, targets[:3])


# -- real savings ---------------------------------------------------------------------------------------------------


def trained_for(policy, epochs: int) -> Pruner:
    pruner = Pruner(policy, 200, epochs=10)
    for _ in range(epochs):
        for batch in pruner.batch_sampler(50):
            index = torch.tensor(batch)
            pruner.update(index, (index.float() * 0.7).sin().abs())
    return pruner


def test_a_policy_whose_real_ratio_is_not_the_nominal_one_says_so_once() -> None:
    with pytest.warns(
        RealRatioWarning, match=r"leaves out \d\d\.\d% of the samples in epoch 1, not the nominal 50"
    ) as said:
        pruner = trained_for(InfoBatch(0.5, annealing=None), 5)
    assert len(said) == 1
    report = pruner.report()
    assert report["nominal_saved"] == 0.5
    assert 0.1 < report["saved"] < 0.4
    assert report["weight_min"] == 1
    assert report["weight_max"] == pytest.approx(2, abs=0.1)
    assert 1 < report["weight_mean"] < 2


def test_a_policy_that_keeps_to_its_ratio_says_nothing() -> None:
    report = trained_for(OrderDP(0.5), 3).report()
    assert report["nominal_saved"] == report["saved"] == 0.5
    assert report["weight_min"] == report["weight_mean"] == report["weight_max"] == 1


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("orderdp", OrderDP(0.3)),
        ("seta", SeTa(0.3)),
        ("repb", RePB(0.3)),
        ("kakurenbo", Kakurenbo(0.3)),
        ("infobatch", InfoBatch(0.3)),
        ("full", policies.FullData()),
    ],
)
def test_a_ratio_goes_to_whatever_a_policy_calls_it(name: str, policy) -> None:
    assert policies.build_at(name, 0.3) == policy


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (SeTa, {"r": 1.0}),
        (SeTa, {"r": 0.2, "groups": 0}),
        (SeTa, {"r": 0.2, "window": 0}),
        (RePB, {"rho": -0.1}),
        (Kakurenbo, {"fraction": 30}),
        (Kakurenbo, {"fraction": 0.3, "tau": 1.1}),
        (Kakurenbo, {"fraction": 0.3, "drops": (5, 3)}),
        (Kakurenbo, {"fraction": 0.3, "drops": (1, 2), "factors": (0.5,)}),
        (SelectiveBackprop, {"beta": -1}),
        (SelectiveBackprop, {"beta": float("nan")}),
        (ActiveBias, {"prune_ratio": 0.3, "by": "chance"}),
        (ActiveBias, {"epsilon": 0}),
        (DynamicUncertainty, {"prune_ratio": 0.3, "window": 1}),
        (DynamicUncertainty, {"prune_ratio": 0.3, "warm_up": -1}),
        (Calibrated, {"prune_ratio": 0.3, "share": 1.0}),
    ],
)
def test_parameters_out_of_range(kind, parameters: dict) -> None:
    with pytest.raises(ConfigError):
        kind(**parameters)


def test_schedules_and_rules_out_of_config_files() -> None:
    config = {
        "prune_ratio": 0.5,
        "select": {"name": "trimmed", "share": 0.1},
        "schedule": {"name": "tail", "prune_ratio": 0.4},
    }
    policy = policies.build("orderdp", **config)
    assert repr(policy) == (
        "Scheduled(policy=OrderDP(prune_ratio=0.5, select=Trimmed(share=0.1)), "
        "schedule=Tail(prune_ratio=0.4, share=0.125))"
    )
    with pytest.raises(ConfigError, match=r"there is no schedule 'cosinus'\. Did you mean 'cosine'\?"):
        policies.build("orderdp", prune_ratio=0.5, schedule={"name": "cosinus"})
    with pytest.raises(ConfigError, match="schedule 'tail' cannot be created"):
        policies.build("orderdp", prune_ratio=0.5, schedule={"name": "tail"})
    with pytest.raises(ConfigError, match="rule 'trimmed' cannot be created"):
        policies.build("orderdp", prune_ratio=0.5, select={"name": "trimmed"})
