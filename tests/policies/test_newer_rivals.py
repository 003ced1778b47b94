"""Rivals that go by rank, by flat losses or by what is learned: each rule restated slowly, and its limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import Pruner, policies
from orderdp.errors import ConfigError, UnknownSizeError
from orderdp.experiments.config import MethodSpec, takes_ratio
from orderdp.policies import (
    Balanced,
    Calibrated,
    InstanceEarlyStopping,
    OnlineBatchSelection,
    ProgressiveDropout,
    SelectiveByRank,
)
from orderdp.policy import Context
from orderdp.score_table import ScoreTable
from tests.support import draw, table_with


def successive(weights: dict[int, float], count: int) -> dict[int, float]:
    """The probability of each to be among `count` drawn one after the other, by weight among those left."""
    if count == 0:
        return dict.fromkeys(weights, 0.0)
    total = sum(weights.values())
    chances = {i: weight / total for i, weight in weights.items()}
    for first, weight in weights.items():
        others = {i: other for i, other in weights.items() if i != first}
        for i, chance in successive(others, count - 1).items():
            chances[i] += weight / total * chance
    return chances


def shares_kept(select: Callable[[int], np.ndarray], n: int, rounds: int) -> np.ndarray:
    """How often each sample is kept over so many seeds."""
    counts = np.zeros(n)
    for seed in range(rounds):
        counts[select(seed)] += 1 / rounds
    return counts


def assert_within_five_errors(counts: np.ndarray, wanted: np.ndarray, rounds: int) -> None:
    errors = np.sqrt(wanted * (1 - wanted) / rounds)
    assert (np.abs(counts - wanted) <= 5 * errors + 1e-9).all(), (counts, wanted)


# -- calibrated with tempered weights -------------------------------------------------------------------------------


def goss(losses: np.ndarray, a: float, b: float, kept: set[int], power: float) -> dict[int, float]:
    """LightGBM's weights: 1 for the a * n largest, (n - a * n) / (b * n) for the others; tempered, with mean 1."""
    n = len(losses)
    largest = sorted(range(n), key=lambda i: -losses[i])[: round(a * n)]
    plain = {i: 1.0 if i in largest else (n - round(a * n)) / round(b * n) for i in kept}
    tempered = {i: weight**power for i, weight in plain.items()}
    mean = sum(tempered.values()) / len(tempered)
    return {i: weight / mean for i, weight in tempered.items()}


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.1), (0.3, 0.3), (0.0, 0.5)])
@pytest.mark.parametrize("power", [1.0, 0.5, 0.0])
def test_calibrated_weights_are_those_of_goss_to_a_power(a: float, b: float, power: float) -> None:
    losses = np.random.default_rng(0).random(50).astype(np.float32)
    policy = Calibrated(1 - a - b, share=a / (a + b), power=power)
    for seed in range(5):
        chosen = policy.select(table_with(losses), Context(n=50, epoch=1, seed=seed))
        assert chosen.weights is not None
        assert set(np.argsort(-losses)[: round(a * 50)]) <= set(chosen.indices.tolist())
        wanted = goss(losses, a, b, set(chosen.indices.tolist()), power)
        np.testing.assert_allclose(chosen.weights, [wanted[i] for i in chosen.indices.tolist()], rtol=1e-5)
        assert chosen.weights.mean() == pytest.approx(1)
        if power == 0:
            assert (chosen.weights == 1).all()


def test_calibrated_at_power_1_is_what_it_was_bit_for_bit() -> None:
    scores = np.where(np.arange(80) % 9 == 0, np.inf, np.random.default_rng(1).random(80)).astype(np.float32)
    table = table_with(scores)
    for power in ({}, {"power": 1.0}, {"power": 1}):
        policy = Calibrated(0.4, share=0.3, **power)
        for epoch in range(3):
            context = Context(n=80, epoch=epoch, seed=2)
            ours, family = policy.select(table, context), policy.member.select(table, context)
            assert np.array_equal(ours.indices, family.indices)
            assert ours.weights.tobytes() == family.weights.tobytes()
        # What checkpoints and records of earlier versions say.
        assert repr(policy) == "Calibrated(prune_ratio=0.4, share=0.3)"
        assert policies.config_of(policy) == {"name": "calibrated", "prune_ratio": 0.4, "share": 0.3}
    assert repr(Calibrated(0.4, power=0.5)) == "Calibrated(prune_ratio=0.4, share=0.5, power=0.5)"


def test_the_power_changes_weights_and_not_who_is_kept() -> None:
    table = table_with(np.random.default_rng(1).random(80).astype(np.float32))
    context = Context(n=80, epoch=1, seed=0, labels=np.arange(80) % 3)
    kept = [Calibrated(0.4, power=power).select(table, context).indices for power in (0.0, 0.5, 1.0)]
    assert np.array_equal(kept[0], kept[1])
    assert np.array_equal(kept[1], kept[2])
    balanced = Balanced(Calibrated(0.4, power=0.5)).select(table, context)
    assert balanced.weights.mean() == pytest.approx(1)
    assert Calibrated(0.0, power=0.5).select(table, context).weights is None


# -- online batch selection -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pressure", [1.0, 5.0, 100.0])
def test_online_batch_selection_draws_by_rank_without_replacement(pressure: float) -> None:
    losses = np.array([0.3, 2.0, np.inf, 0.1, 1.0], dtype=np.float32)  # ranks 3, 1, 0, 4, 2: unseen before all
    ranks = {0: 3, 1: 1, 2: 0, 3: 4, 4: 2}
    wanted = successive({i: pressure ** (-rank / 5) for i, rank in ranks.items()}, 2)
    policy, table = OnlineBatchSelection(0.6, start=pressure, end=pressure), table_with(losses)
    counts = shares_kept(lambda seed: draw(policy, table, seed=seed), 5, 6000)
    assert_within_five_errors(counts, np.array([wanted[i] for i in range(5)]), 6000)
    assert counts.sum() == pytest.approx(2)


def test_the_pressure_falls_geometrically_over_the_epochs() -> None:
    policy = OnlineBatchSelection(0.5)
    shown = [policy.pressure(Context(n=10, epoch=epoch, epochs=5)) for epoch in range(7)]
    assert shown == pytest.approx([100, 100**0.75, 10, 100**0.25, 1, 1, 1])
    assert OnlineBatchSelection(0.5).pressure(Context(n=10, epoch=0, epochs=1)) == pytest.approx(100)
    rising = OnlineBatchSelection(0.5, start=2.0, end=8.0)
    assert [rising.pressure(Context(n=10, epoch=e, epochs=3)) for e in range(3)] == pytest.approx([2, 4, 8])


def test_online_batch_selection_asks_for_the_number_of_epochs_unless_the_pressure_stays() -> None:
    with pytest.raises(ConfigError, match=r"Use Pruner\(\.\.\., epochs=\.\.\.\), or .*start and end equal"):
        Pruner(OnlineBatchSelection(0.4), 100)
    assert Pruner(OnlineBatchSelection(0.4, start=10, end=10), 100).steps(3, 20) == 9
    assert Pruner(OnlineBatchSelection(0.4), 100, epochs=3).steps(3, 20) == 9


def test_equal_losses_are_ranked_by_chance() -> None:
    policy, table = OnlineBatchSelection(0.5, start=1e6, end=1e6), table_with(np.full(6, 2.0, dtype=np.float32))
    counts = shares_kept(lambda seed: draw(policy, table, seed=seed), 6, 4000)
    assert_within_five_errors(counts, np.full(6, 0.5), 4000)
    unseen = shares_kept(lambda seed: draw(policy, table_with(np.full(6, np.inf)), seed=seed), 6, 4000)
    assert_within_five_errors(unseen, np.full(6, 0.5), 4000)


def test_without_limit_the_pressure_keeps_the_hardest() -> None:
    losses = np.random.default_rng(0).permutation(40).astype(np.float32)
    kept = draw(OnlineBatchSelection(0.5, start=1e300, end=1e300), losses)
    assert losses[kept].mean() > 28  # 29.5 are the hardest twenty, 19.5 any


# -- selective by rank ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prune_ratio", [0.5, 0.25])
@pytest.mark.parametrize("plain", [0.0, 0.4])
def test_selective_by_rank_keeps_a_plain_share_and_draws_the_rest_by_rank(prune_ratio: float, plain: float) -> None:
    losses = np.array([3.0, 1.0, 2.0, 5.0, np.inf], dtype=np.float32)
    kept_whole = round(plain * 5)
    by_rank = round((1 - prune_ratio) * (5 - kept_whole))
    wanted, sets = np.zeros(5), list(itertools.combinations(range(5), kept_whole))
    for whole in sets:  # every plain set is equally likely
        rest = sorted((i for i in range(5) if i not in whole), key=lambda i: losses[i])  # easiest first
        weights = {i: ((rank + 0.5) / len(rest)) ** (1 / (1 - prune_ratio) - 1) for rank, i in enumerate(rest)}
        for i, chance in successive(weights, by_rank).items():
            wanted[i] += chance / len(sets)
        wanted[list(whole)] += 1 / len(sets)
    policy, table = SelectiveByRank(prune_ratio, start=0, end=1, plain=plain), table_with(losses)
    assert policy.size(5, Context(n=5, epoch=0)) == kept_whole + by_rank
    counts = shares_kept(lambda seed: draw(policy, table, seed=seed), 5, 6000)
    assert_within_five_errors(counts, wanted, 6000)


@pytest.mark.parametrize("epochs", [1, 3, 7, 10, 30, 100])
def test_selective_by_rank_prunes_only_in_its_window_of_whole_epochs(epochs: int) -> None:
    policy, table = SelectiveByRank(0.5), table_with(np.arange(90, dtype=np.float32))
    for epoch in range(epochs):
        inside = 10 * epoch >= 5 * epochs and 10 * epoch < 9 * epochs  # Composer's comparison, in whole numbers
        context = Context(n=90, epoch=epoch, epochs=epochs)
        assert policy.size(90, context) == (30 + 30 if inside else 90)
        assert len(policy.select(table, context)) == policy.size(90, context)
    assert Pruner(policy, 90, epochs=10).steps(10, 30) == 6 * 3 + 4 * 2


def test_selective_by_rank_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"Use Pruner\(\.\.\., epochs=\.\.\.\), or .*start=0, end=1"):
        Pruner(SelectiveByRank(0.5), 100)
    assert Pruner(SelectiveByRank(0.5, start=0, end=1, plain=0.2), 100).steps(2, 60) == 2
    with pytest.raises(ConfigError, match=r"keeps 0 of 1 samples; at least one must be kept"):
        Pruner(SelectiveByRank(0.9, start=0, end=1), 1)
    with pytest.raises(ConfigError, match="class balance needs a policy that leaves out exactly its prune ratio"):
        Pruner(Balanced(SelectiveByRank(0.5)), 100, epochs=10, labels=np.arange(100) % 2)
    whole = SelectiveByRank(0.5, start=0, end=1, plain=0)
    assert Pruner(Balanced(whole), 100, labels=np.arange(100) % 2).steps(1, 10) == 5


def test_a_steep_power_of_the_rank_neither_overflows_nor_repeats() -> None:
    losses = np.random.default_rng(0).permutation(5000).astype(np.float32)
    kept = draw(SelectiveByRank(0.99, start=0, end=1, plain=0), losses)
    assert len(set(kept.tolist())) == 50
    assert losses[kept].min() > 4000


# -- instance early stopping ----------------------------------------------------------------------------------------


def after(policy, steps: list[tuple[list[int], list[float]]], n: int) -> ScoreTable:
    """A table after some batches, each of indices and losses."""
    table = ScoreTable(n, policy.columns)
    for epoch, (index, losses) in enumerate(steps):
        table.write(torch.tensor(index), torch.tensor(losses), epoch=epoch, compute_columns=policy.compute_columns)
    return table


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 30), st.integers(0, 10), st.integers(0, 10**6))
def test_instance_early_stopping_skips_where_the_last_three_losses_lie_on_a_line(n: int, tenth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy, steps = InstanceEarlyStopping(delta=0.3, refresh=tenth / 10), []
    histories: list[list[float]] = [[] for _ in range(n)]
    for _ in range(5):
        index = rng.permutation(n)[: max(1, 2 * n // 3)].tolist()
        losses = rng.random(len(index)).astype(np.float32).tolist()
        steps.append((index, losses))
        for i, loss in zip(index, losses, strict=True):
            histories[i].append(loss)
    skipped = {
        i for i, past in enumerate(histories) if len(past) >= 3 and abs(past[-1] - 2 * past[-2] + past[-3]) < 0.3
    }
    kept = set(draw(policy, after(policy, steps, n), seed=seed, epoch=5).tolist())
    assert set(range(n)) - skipped <= kept
    back = -(-tenth * len(skipped) // 10)  # rounded up, so that none is left out forever
    assert len(kept & skipped) == (1 if not kept - skipped and back == 0 else back)


def test_instance_early_stopping_written_out() -> None:
    policy = InstanceEarlyStopping(delta=0.01, refresh=0)
    flat, falling, bent, level = [0.5, 0.5, 0.5], [0.9, 0.6, 0.3], [0.9, 0.5, 0.3], [0.0, 0.0, 0.0]
    steps = [([0, 1, 2, 3], list(losses)) for losses in zip(flat, falling, bent, level, strict=True)]
    assert sorted(draw(policy, after(policy, steps[:2], 5), epoch=2).tolist()) == [0, 1, 2, 3, 4]
    # A loss that falls in a straight line is skipped, too; sample 4 was never seen.
    assert sorted(draw(policy, after(policy, steps, 5), epoch=3).tolist()) == [2, 4]
    # What comes back is told by its newest losses: one that has jumped stays.
    steps.append(([0], [2.0]))
    assert sorted(draw(policy, after(policy, steps, 5), epoch=4).tolist()) == [0, 2, 4]


def test_those_that_come_back_are_drawn_uniformly() -> None:
    policy = InstanceEarlyStopping(refresh=0.25)
    table = after(policy, [(list(range(8)), [1.0] * 8)] * 3, 12)
    counts = shares_kept(lambda seed: draw(policy, table, seed=seed, epoch=3), 12, 4000)
    assert counts[8:] == pytest.approx(1)
    assert_within_five_errors(counts[:8], np.full(8, 0.25), 4000)


def test_if_all_are_skipped_and_none_comes_back_the_hardest_is_kept() -> None:
    policy = InstanceEarlyStopping(refresh=0)
    table = after(policy, [([0, 1, 2], [0.1, 0.3, 0.2])] * 3, 3)
    assert draw(policy, table, epoch=3).tolist() == [1]


def test_instance_early_stopping_tells_the_bounds_of_its_steps_and_names_no_ratio() -> None:
    with pytest.raises(UnknownSizeError) as caught:
        Pruner(InstanceEarlyStopping(refresh=0.1), 100).steps(2, 10)
    assert (caught.value.lower, caught.value.upper) == (2, 20)
    assert InstanceEarlyStopping(refresh=0).size_bounds(100, Context(n=100, epoch=0)) == (1, 100)
    with pytest.raises(ConfigError, match="needs a policy with a prune ratio"):
        Balanced(InstanceEarlyStopping())


def test_scores_observed_between_epochs_take_the_place_of_the_last_loss() -> None:
    policy = InstanceEarlyStopping(refresh=0)
    pruner = Pruner(policy, 6)
    for _ in range(3):
        for batch in pruner.batch_sampler(3):
            pruner.update(torch.tensor(batch), torch.ones(len(batch)))
    pruner.observe(torch.tensor([4, 5]), torch.tensor([2.0, 1.0]))
    assert pruner.preview().indices.tolist() == [4]


# -- progressive dropout --------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.integers(1, 99), st.integers(0, 10**6))
def test_progressive_dropout_trains_on_what_is_not_learned_yet(n: int, percent: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = np.where(rng.random(n) < 0.2, np.inf, rng.exponential(size=n)).astype(np.float32)
    policy = ProgressiveDropout(threshold=percent / 100)
    wanted = [i for i in range(n) if exp(-float(losses[i])) < percent / 100]
    for epoch in range(4):
        context = Context(n=n, epoch=epoch, epochs=4, seed=seed)
        kept = sorted(policy.select(table_with(losses), context).indices.tolist())
        if epoch == 3:
            assert kept == list(range(n))
        else:
            assert kept == (wanted or [int(np.argmax(losses))])


def test_progressive_dropout_uses_all_data_in_as_many_last_epochs_as_it_is_told() -> None:
    policy = ProgressiveDropout(last=3)
    sizes = [policy.size(10, Context(n=10, epoch=epoch, epochs=5)) for epoch in range(6)]
    assert sizes == [None, None, 10, 10, 10, 10]
    with pytest.raises(UnknownSizeError) as caught:
        Pruner(policy, 100, epochs=5).steps(5, 10)
    assert (caught.value.lower, caught.value.upper) == (2 * 1 + 30, 50)
    with pytest.raises(ConfigError, match=r"Use Pruner\(\.\.\., epochs=\.\.\.\), or .*last=0"):
        Pruner(ProgressiveDropout(), 100)
    assert Pruner(ProgressiveDropout(last=0), 100).size_bounds(0) == (1, 100)


def test_a_large_negative_loss_counts_as_learned() -> None:
    losses = np.array([-1e30, -5.0, 0.0, 10.0], dtype=np.float32)
    assert draw(ProgressiveDropout(last=0), losses).tolist() == [3]
    above = np.array([log(2) - 1e-3, log(2) + 1e-3], dtype=np.float32)
    assert draw(ProgressiveDropout(threshold=0.5, last=0), above).tolist() == [1]


@pytest.mark.parametrize("name", ["instance-early-stopping", "progressive-dropout"])
def test_comparisons_run_policies_without_a_ratio_once(name: str) -> None:
    assert not takes_ratio(MethodSpec(name, {}))
    assert policies.build_at(name, None) == policies.build(name)


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        (Calibrated, {"prune_ratio": 0.3, "power": 1.5}, r"power must be in \[0, 1\], got 1\.5"),
        (Calibrated, {"prune_ratio": 0.3, "power": -0.5}, r"power must be in \[0, 1\], got -0\.5"),
        (Calibrated, {"prune_ratio": 0.3, "power": None}, r"power must be in \[0, 1\], got None"),
        (OnlineBatchSelection, {"prune_ratio": 40}, "It is a fraction, not a percentage"),
        (OnlineBatchSelection, {"prune_ratio": 0.3, "start": 0.5}, r"start must be a number, at least 1, got 0\.5"),
        (OnlineBatchSelection, {"prune_ratio": 0.3, "end": float("inf")}, "end must be a number, at least 1, got inf"),
        (OnlineBatchSelection, {"prune_ratio": 0.3, "end": "1"}, "end must be a number, at least 1, got '1'"),
        (SelectiveByRank, {"prune_ratio": 1.0}, r"prune_ratio must be in \[0, 1\), got 1\.0"),
        (SelectiveByRank, {"prune_ratio": 0.3, "start": 50}, r"start must be in \[0, 1\], got 50"),
        (SelectiveByRank, {"prune_ratio": 0.3, "plain": -1}, r"plain must be in \[0, 1\], got -1"),
        (InstanceEarlyStopping, {"delta": -1}, "delta must be a number, at least 0, got -1"),
        (InstanceEarlyStopping, {"delta": float("nan")}, "delta must be a number, at least 0, got nan"),
        (InstanceEarlyStopping, {"refresh": 10}, r"refresh must be in \[0, 1\], got 10"),
        (ProgressiveDropout, {"threshold": 0}, r"threshold must be in \(0, 1\], got 0"),
        (ProgressiveDropout, {"threshold": 30}, "It is a fraction, not a percentage"),
        (ProgressiveDropout, {"last": -1}, "last must be a whole number, at least 0, got -1"),
        (ProgressiveDropout, {"last": 0.1}, r"last must be a whole number, at least 0, got 0\.1"),
        (SelectiveByRank, {"prune_ratio": 0.3, "start": 0.95}, r"start must not be above end, got start=0\.95"),
    ],
)
def test_parameters_out_of_range_are_named(kind, parameters: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**parameters)
