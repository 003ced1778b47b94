"""Every policy: the contract, an independent restatement of its rule, and the property that defines it."""

from __future__ import annotations

import itertools
import json
import warnings
from collections import Counter
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from examples import digits
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import OrderDP, Pruner, Selection, policies
from orderdp.errors import ConfigError, UnknownSizeError, UnreachableRatioWarning
from orderdp.losses import feedback_arguments, predictions
from orderdp.policies import (
    RS2,
    UCB,
    ActiveBias,
    Adaptive,
    Balanced,
    Calibrated,
    Constant,
    Cosine,
    DynamicRandom,
    DynamicUncertainty,
    EpsilonGreedy,
    Exponential,
    Fixed,
    FullData,
    FunctionPolicy,
    InfoBatch,
    InfoBatchQuantile,
    InstanceEarlyStopping,
    Kakurenbo,
    Linear,
    LossShare,
    Mixed,
    Moving,
    OnlineBatchSelection,
    ProgressiveDropout,
    RatioFunction,
    RelativeLoss,
    RePB,
    Scheduled,
    SelectiveBackprop,
    SelectiveByRank,
    SeTa,
    Tail,
    Trimmed,
    Unlearned,
    WarmUp,
)
from orderdp.policies.registry import NAMES, build_at
from orderdp.policy import Context, Policy
from orderdp.score_table import ScoreTable
from orderdp.testing import check_policy
from tests.support import draw, table_with, toy_dataset, train_on_digits

NAMED = [
    OrderDP(0.4),
    OrderDP(0.4, every="batch"),
    OrderDP(exploration=0.5, exploitation=0.6),
    OrderDP(0.4, select="bottom"),
    OrderDP(0.4, select=Trimmed(0.1)),
    OrderDP(0.4, select=Mixed(top=0.7, uniform=0.3)),
    OrderDP(0.4, select=Mixed(top=0.7, uniform=0.3), unbiased=True),
    OrderDP(0.4, select=Mixed(top=0.7, uniform=0.3), every="batch"),
    OrderDP(0.4, select=Moving(1.0, 0.2)),
    FullData(),
    DynamicRandom(0.4),
    DynamicRandom(0),
    RS2(0.3),
    RS2(0.9),
    RS2(0),
    EpsilonGreedy(0.4),
    EpsilonGreedy(0.4, epsilon=1.0),
    EpsilonGreedy(0.4, epsilon=0, alpha=1.0),
    UCB(0.4),
    UCB(0.4, c=0, alpha=0.5),
    InfoBatch(0.5),
    InfoBatch(0.5, annealing=None, normalize="n"),
    InfoBatch(target_ratio=0.2, annealing=None),
    InfoBatch(0, annealing=None),
    InfoBatchQuantile(),
    SeTa(0.2),
    SeTa(0.5, groups=3, window=0.4, annealing=None),
    SeTa(0, groups=1, window=1.0),
    RePB(0.5),
    RePB(0.99),
    Kakurenbo(0.3),
    Kakurenbo(0.9, tau=0.0, drops=(2, 5)),
    SelectiveBackprop(1.0),
    SelectiveBackprop(0),
    SelectiveBackprop(50.0),
    SelectiveByRank(0.5),
    SelectiveByRank(0.9, start=0.0, end=1.0, plain=0.1),
    SelectiveByRank(0.5, plain=1.0),
    OnlineBatchSelection(0.4),
    OnlineBatchSelection(0.4, start=5.0, end=5.0),
    OnlineBatchSelection(0),
    InstanceEarlyStopping(),
    InstanceEarlyStopping(delta=0.5, refresh=0.0),
    InstanceEarlyStopping(delta=1e9, refresh=0.3),
    ProgressiveDropout(),
    ProgressiveDropout(threshold=0.01, last=0),
    ProgressiveDropout(threshold=1.0, last=2),
    ActiveBias(),
    ActiveBias(0.4),
    ActiveBias(0.4, by="sampling", epsilon=0.01),
    DynamicUncertainty(0.4),
    DynamicUncertainty(0.4, window=2, warm_up=0),
    Calibrated(0.4),
    Calibrated(0.4, share=0.0),
    Calibrated(0.4, power=0.5),
    Scheduled(UCB(0.4), WarmUp(0.3, epochs=1)),
    Scheduled(OnlineBatchSelection(0.4), Linear(0.0, 0.5)),
    Scheduled(DynamicRandom(0.5), Exponential(0.8)),
    Scheduled(Kakurenbo(0.4), Linear(0.0, 0.5)),
    Scheduled(OrderDP(exploration=0.8, exploitation=0.5), Tail(0.4)),
    Scheduled(InfoBatch(target_ratio=0.2, annealing=None), Cosine(0.1, 0.3)),
]

NEEDING_LABELS = [
    Balanced(OrderDP(0.4)),
    Balanced(OrderDP(exploration=0.8, exploitation=0.5)),
    Balanced(OrderDP(0.4, select=Mixed(top=0.7, uniform=0.3), unbiased=True)),
    Balanced(UCB(0.4)),
    Balanced(EpsilonGreedy(0.4)),
    Balanced(Calibrated(0.4)),
    Balanced(OnlineBatchSelection(0.4)),
    Balanced(SelectiveByRank(0.4, plain=0.0)),
    Balanced(ActiveBias(0.4, by="sampling")),
    Balanced(DynamicUncertainty(0.4, window=2, warm_up=1)),
    Scheduled(Balanced(OrderDP(0.4)), Constant(0.2)),
]


@pytest.mark.parametrize("policy", NAMED, ids=repr)
def test_the_contract(policy) -> None:
    check_policy(policy)
    assert policies.build(**json.loads(json.dumps(policies.config_of(policy)))) == policy


@pytest.mark.parametrize("policy", NEEDING_LABELS, ids=repr)
@pytest.mark.parametrize("classes", ["three", "one", "all different"])
def test_the_contract_with_classes(policy, classes: str) -> None:
    labels = {"three": np.arange(60) % 7 % 3, "one": np.zeros(60, dtype=int), "all different": np.arange(60)}[classes]
    check_policy(policy, labels=labels)
    assert policies.build(**json.loads(json.dumps(policies.config_of(policy)))) == policy


def hard_half(scores: np.ndarray, context: Context) -> np.ndarray:
    return np.argsort(-scores)[: max(1, len(scores) // 2)]


def test_the_contract_for_functions_and_fixed_selections() -> None:
    check_policy(FunctionPolicy(hard_half))
    check_policy(FunctionPolicy(lambda scores, context: scores >= np.median(scores)), picklable=False)
    check_policy(Fixed([0]))


# -- the contract can fail ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken(FullData):
    """Does what it is told, wrong."""

    fault: str = ""

    def select(self, table, context):
        if self.fault == "repeats":
            return Selection(np.zeros(context.n, dtype=np.int64))
        if self.fault == "too few":
            return Selection(np.arange(max(1, context.n - 1)))
        if self.fault == "outside":
            return Selection(np.arange(context.n) + 1)
        if self.fault == "global generator":
            return Selection(np.random.permutation(context.n))
        if self.fault == "weights":
            return Selection(np.arange(context.n), np.zeros(context.n, dtype=np.float32))
        if self.fault == "writes":
            table.column("score")[0] = 9.0
        if self.fault == "not a function":
            return Selection(np.random.default_rng().permutation(context.n))
        return super().select(table, context)


@pytest.mark.parametrize(
    "fault", ["repeats", "too few", "outside", "global generator", "weights", "writes", "not a function"]
)
def test_the_contract_notices(fault: str) -> None:
    with pytest.raises(AssertionError):
        check_policy(Broken(fault=fault))


# -- each rule, restated --------------------------------------------------------------------------------------------


# -- extreme losses ----------------------------------------------------------------------------------------------

LARGEST = float(np.finfo(np.float32).max)
EXTREMES = [0.0, -0.0, 1.0, 1e-45, 1e19, 1e20, 2.0**53, 2.0**60, LARGEST / 2, LARGEST]
MIXED = {"prune_ratio": 0.5, "select": Mixed(top=0.5, uniform=0.5), "unbiased": True}


FURTHER = {
    "unbiased": OrderDP(**MIXED),
    "adaptive": Adaptive(0.1),
    "relative-loss": Unlearned(0.5, learned=RelativeLoss()),
    "loss-share": Unlearned(0.5, learned=LossShare()),
}


@pytest.mark.parametrize("name", sorted({*NAMES, *FURTHER}))
@settings(max_examples=25, deadline=None)
@given(data=st.data(), n=st.integers(2, 7))
def test_finite_losses_of_any_size_leave_finite_columns_and_a_valid_selection(name: str, data: Any, n: int) -> None:
    policy = FURTHER[name] if name in FURTHER else build_at(name, 0.5)
    table, required = ScoreTable(n, policy.columns), feedback_arguments(policy.compute_columns).required
    sizes = st.sampled_from([sign * size for size in EXTREMES for sign in (1, -1)])
    nans = st.just(float("nan"))
    for step in range(data.draw(st.integers(1, 5))):
        index = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)))
        losses = data.draw(st.lists(sizes | nans, min_size=len(index), max_size=len(index)))
        extra = {
            argument: torch.tensor(data.draw(st.lists(sizes, min_size=len(index), max_size=len(index))))
            for argument in required
        }
        table.write(
            index, torch.tensor(losses), epoch=step, compute_columns=policy.compute_columns, extra=extra, mean=None
        )
        context = Context(n=n, epoch=step + 1, seed=1, epochs=20)
        for column, values in ((column, table[column]) for column in table.declared):
            none = np.isposinf(values) if np.isposinf(table.declared[column].initial) else np.zeros(n, np.bool_)
            assert np.isfinite(values[~none]).all(), (column, values)
        assert np.isfinite(table["score"][index.numpy()[np.isfinite(losses)]]).all()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UnreachableRatioWarning)
            selection = policy.select(table, context)
        assert 1 <= len(np.unique(selection.indices)) == len(selection)
        assert selection.weights is None or (np.isfinite(selection.weights).all() and (selection.weights > 0).all())


def test_one_huge_loss_does_not_rank_a_sample_with_the_unseen_for_ever() -> None:
    policy = UCB(0.5)
    pruner = Pruner(policy, 4)
    index = torch.arange(3)
    pruner.update(index, torch.tensor([1.0, 1e20, 2.0]))
    pruner.update(index, torch.tensor([1.0, 1.0, 2.0]))
    for name, values in pruner.state_dict()["table"]["columns"].items():
        assert np.isfinite(values[:3].numpy()).all(), name
    assert sorted(policy.select(pruner._table, Context(n=4, epoch=1)).indices.tolist()) == [1, 3]
    for _ in range(600):
        pruner.update(index, torch.tensor([1.0, 0.5, 2.0]))
    assert sorted(policy.select(pruner._table, Context(n=4, epoch=1)).indices.tolist()) == [2, 3]


def test_unseen_samples_are_not_tied_with_a_huge_score() -> None:
    policy = OrderDP(**MIXED)
    plain = table_with(np.array([1.0, 2.0, 3.0, 4.0, np.inf, np.inf]))
    huge = table_with(np.array([1.0, 2.0, 3.0, 1e20, np.inf, np.inf]))
    context = Context(n=6, epoch=1)
    first, second = policy.select(plain, context), policy.select(huge, context)
    assert np.array_equal(first.indices, second.indices)
    assert np.array_equal(first.weights, second.weights)


@pytest.mark.parametrize("policy", [ActiveBias(0.5), DynamicUncertainty(0.5, window=2)], ids=lambda p: type(p).__name__)
def test_visits_are_counted_beyond_two_bytes_in_old_states_too(policy: Policy) -> None:
    pruner = Pruner(policy, 2)
    index = torch.arange(2)

    def visits() -> list[int]:
        pruner.observe(index, torch.ones(2), probability=torch.tensor([0.25, 0.5]))
        return pruner.state_dict()["table"]["columns"]["history"].tolist()

    visits()
    state = pruner.state_dict()
    state["table"]["columns"]["history"] = torch.full((2,), 32_766, dtype=torch.int16)  # as it was stored before
    pruner.load_state_dict(state)
    assert [visits() for _ in range(3)] == [[32_767] * 2, [32_768] * 2, [32_769] * 2]
    assert len(policy.select(pruner._table, Context(n=2, epoch=9, epochs=10))) == 1


def test_uses_within_one_epoch_are_counted_beyond_two_bytes() -> None:
    table = ScoreTable(3)
    for _ in range(9):
        table.write(torch.zeros(8000, dtype=torch.int64), torch.ones(8000), epoch=0)
        table.flush()
    assert table["usage"].tolist() == [72_000, 0, 0]


def test_dynamic_random_is_order_dp_with_exploitation_1() -> None:
    scores = np.random.default_rng(0).random(300).astype(np.float32)
    for epoch in range(3):
        ours = draw(DynamicRandom(0.4), scores, seed=5, epoch=epoch)
        assert np.array_equal(ours, draw(OrderDP(0.4, exploitation=1), scores, seed=5, epoch=epoch))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(0, 95), st.integers(0, 5))
def test_rs2_shows_every_sample_once_before_any_twice(n: int, percent: int, seed: int) -> None:
    policy = RS2(percent / 100)
    k = round((1 - percent / 100) * n)
    if k < 1:
        return
    table, shown = ScoreTable(n), Counter(dict.fromkeys(range(n), 0))
    stream: list[int] = []
    for epoch in range(12):
        chunk = draw(policy, table, seed=seed, epoch=epoch).tolist()
        assert len(set(chunk)) == len(chunk) == k
        shown.update(chunk)
        stream += chunk
        assert max(shown.values()) - min(shown.values()) <= 2
    # After p whole passes every sample has been shown p times, and none more than once beyond that.
    whole, extra = divmod(len(stream), n)
    counts = sorted(shown.values())
    assert counts[0] >= whole - 1
    if extra == 0:
        assert counts[0] == whole


def test_rs2_written_out() -> None:
    """Ten samples in chunks of four: the third chunk is two of the first pass and two of the second."""
    n, table = 10, ScoreTable(10)
    chunks = [draw(RS2(0.6), table, seed=1, epoch=epoch).tolist() for epoch in range(5)]
    context = Context(n=n, epoch=0, seed=1)
    first, second = (context.rng("pass", p).permutation(n).tolist() for p in range(2))
    assert chunks[0] == first[:4]
    assert chunks[1] == first[4:8]
    rest = first[8:]
    early = [i for i in second if i not in rest][:2]
    assert chunks[2] == rest + early
    left = [i for i in second if i not in early]
    assert chunks[3] == left[:4]
    assert chunks[4] == left[4:]
    assert Counter(i for chunk in chunks for i in chunk) == dict.fromkeys(range(n), 2)


def dealt_out(sizes: list[int], n: int, seed: int) -> list[list[int]]:
    """RS2 as one would deal cards: a chunk that is short is completed from the next shuffle, without repeats."""
    context, passes, chunks = Context(n=n, epoch=0, seed=seed), 1, []
    deck = context.rng("pass", 0).permutation(n).tolist()
    for k in sizes:
        chunk, deck = deck[:k], deck[k:]
        if len(chunk) < k:
            deck = context.rng("pass", passes).permutation(n).tolist()
            passes += 1
            early = [card for card in deck if card not in chunk][: k - len(chunk)]
            chunk, deck = chunk + early, [card for card in deck if card not in early]
        chunks.append(chunk)
    return chunks


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 30), st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 5))
def test_rs2_cuts_one_shuffle_however_the_chunks_change(n: int, sizes: list[int], seed: int) -> None:
    sizes = [min(size, n) for size in sizes]
    schedule = RatioFunction(lambda epoch, epochs: 1 - sizes[epoch] / n)
    for policy in (Scheduled(RS2(0.5), schedule), *([RS2(1 - sizes[0] / n)] if len(set(sizes)) == 1 else [])):
        drawn = [draw(policy, ScoreTable(n), seed=seed, epoch=epoch).tolist() for epoch in range(len(sizes))]
        for chunk, wanted in zip(drawn, dealt_out(sizes, n, seed), strict=True):
            assert sorted(chunk) == sorted(wanted) if len(wanted) == n else chunk == wanted


def test_rs2_with_a_schedule_goes_through_each_class_in_passes() -> None:
    labels = np.repeat([0, 1], [60, 20])
    policy = Scheduled(Balanced(RS2(0.5)), Linear(0.8, 0.6))
    shown = np.zeros(80)
    for epoch in range(3):  # 20 + 30 + 40 % of the samples: none is shown twice
        shown[policy.select(ScoreTable(80), Context(n=80, epoch=epoch, epochs=3, labels=labels)).indices] += 1
    assert shown.max() == 1
    assert [shown[:60].sum(), shown[60:].sum()] == [54, 18]


def test_rs2_of_almost_everything_draws_late_epochs_too() -> None:
    assert len(draw(RS2(0.001), ScoreTable(1000), seed=0, epoch=900)) == 999


def feed(policy, losses: np.ndarray) -> ScoreTable:
    """A table after one batch of all samples for each row of losses."""
    table = ScoreTable(losses.shape[1], getattr(policy, "columns", ()))
    for epoch, row in enumerate(losses):
        table.write(
            torch.arange(losses.shape[1]),
            torch.from_numpy(row).float(),
            epoch=epoch,
            compute_columns=policy.compute_columns,
        )
    return table


def test_epsilon_greedy_is_the_top_of_an_exponential_average_and_some_of_the_rest() -> None:
    rng = np.random.default_rng(0)
    losses, alpha, policy = rng.random((6, 50)), 0.3, EpsilonGreedy(0.4, epsilon=0.2, alpha=0.3)
    mean = losses[0]
    for row in losses[1:]:
        mean = (1 - alpha) * mean + alpha * row
    table = feed(policy, losses)
    np.testing.assert_allclose(table["score"], mean, rtol=1e-5)
    counts = np.zeros(50)
    for seed in range(2000):
        counts[draw(policy, table, seed=seed)] += 1 / 2000
    best = np.argsort(-mean)[:24]  # 30 kept, a fifth of them at random
    assert (counts[best] > 0.9999).all()
    others = np.setdiff1d(np.arange(50), best)
    assert np.abs(counts[others] - 6 / 26).max() < 5 * sqrt(6 / 26 * 20 / 26 / 2000)


def test_ucb_is_the_top_of_mean_plus_c_variance() -> None:
    rng = np.random.default_rng(1)
    losses, alpha, policy = rng.random((6, 50)), 0.3, UCB(0.4, c=2.0, alpha=0.3)
    mean, variance = losses[0].copy(), np.zeros(50)
    for row in losses[1:]:
        variance = (1 - alpha) * (variance + alpha * (row - mean) ** 2)
        mean = mean + alpha * (row - mean)
    table = feed(policy, losses)
    np.testing.assert_allclose(table["variance"], variance, rtol=1e-4, atol=1e-6)
    assert set(draw(policy, table).tolist()) == set(np.argsort(-(mean + 2 * variance))[:30].tolist())


def test_ucb_prefers_the_noisier_of_two_equal_means() -> None:
    steady, noisy = [1.0] * 8, [0.5, 1.5, 0.5, 1.5, 0.5, 1.5, 0.5, 1.6]
    table = feed(UCB(0.5, alpha=0.2), np.array([steady, noisy]).T)
    assert draw(UCB(0.5, alpha=0.2), table).tolist() == [1]
    assert table["variance"][0] == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.integers(0, 95), st.integers(0, 10**6))
def test_infobatch_keeps_all_above_the_mean_and_a_share_below_it(n: int, percent: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.where(rng.random(n) < 0.3, np.inf, rng.random(n)).astype(np.float32)
    ratio = percent / 100
    table = table_with(scores)
    selection = InfoBatch(ratio, annealing=None).select(table, Context(n=n, epoch=1, seed=seed))
    seen = scores[np.isfinite(scores)]
    below = {i for i in range(n) if np.isfinite(scores[i]) and scores[i] < (seen.astype(np.float64).mean())}
    kept = dict(zip(selection.indices.tolist(), selection.weights.tolist(), strict=True))
    assert set(range(n)) - below <= set(kept)
    assert all(kept[i] == 1 for i in kept if i not in below)
    kept_below = below & set(kept)
    if below:
        assert len(kept_below) == max(1, len(below) - round(ratio * len(below)))
        assert all(kept[i] == pytest.approx(len(below) / len(kept_below)) for i in kept_below)


def test_infobatch_divided_by_n_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    scores, gradients = rng.random(40).astype(np.float32), rng.standard_normal((40, 3))
    table, policy = table_with(scores), InfoBatch(0.6, annealing=None, normalize="n")
    steps = []
    for seed in range(3000):
        chosen = policy.select(table, Context(n=40, epoch=0, seed=seed))
        steps.append((chosen.weights[:, None] * gradients[chosen.indices]).mean(0))
    mean, error = np.mean(steps, 0), np.std(steps, 0) / sqrt(3000)
    assert (np.abs(mean - gradients.mean(0)) <= 5 * error).all()


def test_infobatch_reaches_a_target_ratio_or_says_how_far_it_can() -> None:
    scores = np.random.default_rng(0).random(100).astype(np.float32)
    assert len(draw(InfoBatch(target_ratio=0.3, annealing=None), scores)) == 70
    skewed = np.concatenate((np.full(90, 1.0), np.full(10, 0.1))).astype(np.float32)
    with pytest.warns(UnreachableRatioWarning, match=r"10 of 100 are, so at most 9\.0% can be pruned, not 30\.0%"):
        assert len(draw(InfoBatch(target_ratio=0.3, annealing=None), skewed)) == 91


@pytest.mark.parametrize("epochs", [1, 2, 7, 8, 90, 100, 200])
def test_infobatch_anneals_exactly_the_last_share_of_any_number_of_epochs(epochs: int) -> None:
    policy, scores = InfoBatch(0.9), table_with(np.arange(50, dtype=np.float32))
    full = [
        len(policy.select(scores, Context(n=50, epoch=epoch, epochs=epochs, seed=0))) == 50 for epoch in range(epochs)
    ]
    start = ceil(7 * epochs / 8)
    assert full == [epoch >= start for epoch in range(epochs)]


def test_infobatch_tells_its_steps_where_it_knows_them_and_their_bounds_where_not() -> None:
    with pytest.raises(UnknownSizeError) as caught:
        Pruner(InfoBatch(0.5), 100, epochs=8).steps(8, 10)
    assert (caught.value.lower, caught.value.upper) == (7 * 5 + 10, 80)
    with pytest.raises(ConfigError, match=r"Pruner\(\.\.\., epochs=\.\.\.\)"):
        Pruner(InfoBatch(0.5), 100)


def test_infobatch_quantile_keeps_a_quarter_a_half_and_all() -> None:
    scores = np.random.default_rng(0).permutation(400).astype(np.float32)
    selection = InfoBatchQuantile().select(table_with(scores), Context(n=400, epoch=1, seed=0))
    kept = scores[selection.indices]
    assert Counter((kept >= 339.15).tolist())[True] == 60
    assert ((kept >= 79.8) & (kept < 339.15)).sum() == 130
    assert (kept < 79.8).sum() == 20
    by_weight = {weight: scores[selection.indices[selection.weights == weight]] for weight in (4.0, 2.0, 1.0)}
    assert by_weight[4.0].max() < by_weight[2.0].min()
    assert by_weight[2.0].max() < by_weight[1.0].min()


def test_a_fixed_selection_is_served_every_epoch_in_another_order() -> None:
    policy = Fixed(Selection(np.array([5, 2, 9]), np.array([1.0, 2.0, 3.0], dtype=np.float32)))
    context = [Context(n=10, epoch=epoch, seed=0) for epoch in range(6)]
    selections = [policy.select(ScoreTable(10), c) for c in context]
    assert all(sorted(s.indices.tolist()) == [2, 5, 9] for s in selections)
    assert len({tuple(s.indices.tolist()) for s in selections}) > 1
    for s in selections:
        assert dict(zip(s.indices.tolist(), s.weights.tolist(), strict=True)) == {5: 1.0, 2: 2.0, 9: 3.0}
    assert repr(Fixed([1, 2])) != repr(Fixed([1, 3]))


@pytest.mark.parametrize("given", [[False, True], [0.5, 1.9], np.array([1.0])])
def test_a_fixed_selection_takes_whole_numbers_only(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be a list of indices, got (bool|float64).*np\.flatnonzero"):
        Fixed(given)
    with pytest.raises(ConfigError, match="at least one index"):
        Fixed([])


@pytest.mark.parametrize("length", [5, 11])
def test_a_mask_has_an_entry_for_every_sample(length: int) -> None:
    policy = FunctionPolicy(lambda scores, context: np.arange(length) < 3)
    with pytest.raises(ConfigError, match=rf"each of the 10 samples, got shape \({length},\)"):
        policy.select(ScoreTable(10), Context(n=10, epoch=0))


def test_fixed_selections_that_differ_are_told_apart_by_a_checkpoint() -> None:
    pairs = [repr(Fixed(pair)) for pair in itertools.combinations(range(120), 2)]
    assert len(set(pairs)) == len(pairs)
    ones, others = np.ones(2, dtype=np.float32), np.array([0.5, 1.5], dtype=np.float32)
    kept = np.array([4, 1])
    kinds = {repr(Fixed(Selection(kept, weights))) for weights in (None, ones, others, others[::-1].copy())}
    assert len(kinds) == 4
    assert repr(Fixed(Selection(kept, others))) == repr(Fixed(Selection(kept[::-1].copy(), others[::-1].copy())))


# -- training -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full() -> float:
    return digits.train(None, 0).accuracy


@pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")
@pytest.mark.parametrize(
    "policy",
    [
        FullData(),
        DynamicRandom(0.3),
        RS2(0.3),
        EpsilonGreedy(0.3),
        UCB(0.3),
        InfoBatch(0.5),
        InfoBatchQuantile(),
        SeTa(0.2),
        RePB(0.5),
        Kakurenbo(0.3),
        SelectiveBackprop(0.45),
        SelectiveByRank(0.5),
        OnlineBatchSelection(0.3),
        InstanceEarlyStopping(delta=0.01),
        ProgressiveDropout(threshold=0.99),  # at 0.3 it does not, which its card says
        Scheduled(DynamicRandom(0.5), Exponential(0.95)),
        ActiveBias(0.3),
        ActiveBias(0.3, by="sampling"),
        DynamicUncertainty(0.3, window=5),
        Calibrated(0.3),
        Calibrated(0.3, power=0.5),
        Balanced(OrderDP(0.3)),
        Scheduled(OrderDP(0.3), Cosine(0.0, 0.6)),
    ],
    ids=repr,
)
def test_training_with_it_learns(policy, full: float) -> None:
    assert train_on_digits(policy) >= full - 0.03


@pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")
@pytest.mark.parametrize("policy", [*NAMED, *NEEDING_LABELS], ids=repr)
def test_training_with_it_resumes_bit_for_bit(policy) -> None:
    dataset = toy_dataset(40)

    def run(stop: int | None, state: dict | None = None) -> tuple[list, dict | None]:
        pruner = Pruner(policy, dataset, seed=1, epochs=4, labels=dataset.tensors[1])
        visited, step = [], 0
        if state is not None:
            pruner.load_state_dict(state)
        for _ in range(pruner.epoch, 4):
            for index, (x, y) in pruner.loader(dataset, batch_size=7):
                told = predictions(x[:, :3] * (1 + pruner.epoch), y)
                extra = {name: told[name] for name in pruner.update_arguments}
                loss = pruner.update(index, x.square().sum(1) + 0.1 * pruner.epoch, **extra)
                visited.append((index.tolist(), loss.item()))
                step += 1
                if step == stop:
                    return visited, pruner.state_dict()
        return visited, None

    straight, _ = run(None)
    for stop in (1, len(straight) // 2):
        first, state = run(stop)
        assert state is not None
        second, _ = run(None, state)
        assert first + second == straight


# -- names and bad input --------------------------------------------------------------------------------------------


def test_names_that_do_not_exist_suggest_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"there is no policy 'orderpd'\. Did you mean 'orderdp'\?"):
        policies.build("orderpd")
    with pytest.raises(ConfigError, match=r"no parameter 'prune_ration'\. Did you mean 'prune_ratio'\?"):
        policies.build("ucb", prune_ration=0.4)
    with pytest.raises(ConfigError, match=r"cannot be created: .*prune_ratio"):
        policies.build("ucb")
    with pytest.raises(ConfigError, match="is not a registered policy"):
        policies.config_of(Fixed([1]))


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (DynamicRandom, {"prune_ratio": 40}),
        (RS2, {"prune_ratio": -0.1}),
        (EpsilonGreedy, {"prune_ratio": 0.4, "epsilon": 1.1}),
        (EpsilonGreedy, {"prune_ratio": 0.4, "alpha": 0}),
        (UCB, {"prune_ratio": 0.4, "c": -1}),
        (UCB, {"prune_ratio": 1.0}),
        (InfoBatch, {}),
        (InfoBatch, {"prune_ratio": 0.4, "target_ratio": 0.2}),
        (InfoBatch, {"prune_ratio": 1.0}),
        (InfoBatch, {"prune_ratio": 0.5, "annealing": 2}),
        (InfoBatch, {"prune_ratio": 0.5, "normalize": "batch"}),
        (Fixed, {"selection": []}),
        (FunctionPolicy, {"choose": 3}),
    ],
)
def test_parameters_out_of_range_are_refused(kind, parameters: dict) -> None:
    with pytest.raises(ConfigError):
        kind(**parameters)


@pytest.mark.parametrize("chosen", [[], [0, 0], [99], [-1], [0.5], [[1]]])
def test_what_a_function_chooses_must_be_indices(chosen: list) -> None:
    with pytest.raises(ConfigError, match="must give"):
        draw(FunctionPolicy(lambda scores, context: chosen), np.arange(5, dtype=np.float32))
