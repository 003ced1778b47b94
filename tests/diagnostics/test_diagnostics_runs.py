"""What records say of runs, the risk of scores, and Diagnostics in a loop, each on a case whose answer is known."""

from __future__ import annotations

import json
import math
import statistics
from itertools import chain, combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import Context, OrderDP, Pruner, theory
from orderdp.diagnostics import (
    Diagnostics,
    accuracy_correlation,
    correlation,
    design_of,
    jaccard,
    stability,
    surrogate_risk,
    time_to_accuracy,
)
from orderdp.errors import ConfigError
from orderdp.policies import (
    RS2,
    UCB,
    DynamicRandom,
    EpsilonGreedy,
    FullData,
    InfoBatch,
    Linear,
    Mixed,
    Moving,
    Scheduled,
    Trimmed,
)
from orderdp.testing import global_generators_untouched
from tests.support import fake_losses, toy_dataset, train_epoch


def record(epoch: int, metric: float | None, **diagnostics: float | None) -> dict:
    return {
        "epoch": epoch,
        "metric": metric,
        "samples": 100,
        "training_seconds": 2.0,
        "selection_seconds": 0.25,
        "overhead_seconds": 0.25,
        "evaluation_seconds": 50.0,
        "diagnosis_seconds": 70.0,
        "diagnostics": diagnostics,
    }


# -- time to accuracy -----------------------------------------------------------------------------------------------

CURVE = [record(1, 50.0), record(2, None), record(3, 80.0), record(4, 70.0), record(5, 90.0)]


@pytest.mark.parametrize(
    ("target", "found"),
    [(50, (1, 100, 2.5)), (60, (3, 300, 7.5)), (80, (3, 300, 7.5)), (81, (5, 500, 12.5)), (91, None)],
)
def test_time_to_accuracy_of_a_curve_that_was_written_out(target: float, found: tuple | None) -> None:
    assert time_to_accuracy(CURVE, target) == found


def test_a_proxy_is_paid_for_before_the_first_epoch() -> None:
    assert time_to_accuracy(CURVE, 50, proxy_seconds=10.0) == (1, 100, 12.5)


def test_old_records_and_records_by_hand_can_be_read() -> None:
    assert time_to_accuracy([{"epoch": 1, "metric": 90.0}], 80) == (1, 0, 0.0)
    assert time_to_accuracy([], 80) is None
    assert accuracy_correlation([{"epoch": 1, "metric": 90.0}] * 4) is None
    assert stability([[{"epoch": 1, "metric": 90.0}]])[-1].gradient is None


# -- correlation ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=3, max_size=15))
def test_the_correlation_is_pearson_s(pairs: list[tuple[int, int]]) -> None:
    one, two = zip(*pairs, strict=True)
    if len(set(one)) == 1 or len(set(two)) == 1:
        assert correlation(one, two) is None
    else:
        assert correlation(one, two) == pytest.approx(np.corrcoef(one, two)[0, 1], abs=1e-9)


@pytest.mark.parametrize("still", [[0.1] * 3, [0.7] * 7, [1.0, 2.0, math.nan], [1.0, math.inf, 2.0]])
def test_what_does_not_vary_or_is_no_number_has_no_correlation(still: list[float]) -> None:
    moving = [float(place**2) for place in range(len(still))]
    assert correlation(still, moving) is None
    assert correlation(moving, still) is None


def test_the_correlation_of_gradient_norm_and_accuracy_takes_epochs_that_have_both() -> None:
    norms = [5.0, 4.0, None, 2.0, 1.0]
    run = [record(epoch, 100 - 10 * (norm or 9), gradient_norm=norm) for epoch, norm in enumerate(norms, start=1)]
    run[1]["metric"] = None
    assert accuracy_correlation(run) == pytest.approx(-1.0)
    assert accuracy_correlation(run[:3]) is None  # two of them are no correlation
    with pytest.raises(ConfigError, match="needs pairs"):
        correlation([1, 2], [1])


# -- stability ------------------------------------------------------------------------------------------------------


def test_stability_of_records_that_were_written_out() -> None:
    def run(shift: float) -> list[dict]:
        return [
            record(epoch, 10.0 * epoch + shift, gradient_norm=7.0 - epoch + shift, gradient_norm_std=0.5 * epoch)
            for epoch in range(1, 7)
        ]

    first, second, third, final = stability([run(-1.0), run(0.0), run(1.0)])
    assert [(stage.start, stage.end) for stage in (first, second, third, final)] == [
        (0.0, pytest.approx(1 / 3)),
        (pytest.approx(1 / 3), pytest.approx(2 / 3)),
        (pytest.approx(2 / 3), 1.0),
        (1.0, 1.0),
    ]
    assert [stage.accuracy for stage in (first, second, third, final)] == pytest.approx([15.0, 35.0, 55.0, 60.0])
    assert [stage.gradient for stage in (first, second, third, final)] == pytest.approx([5.5, 3.5, 1.5, 1.0])
    assert [stage.gradient_swing for stage in (first, second, third, final)] == pytest.approx([0.75, 1.75, 2.75, 3.0])
    for stage in (first, second, third, final):
        assert stage.runs == 3
        assert stage.accuracy_spread == stage.gradient_spread == pytest.approx(statistics.stdev([-1, 0, 1]))


def test_the_stages_of_the_paper_part_ten_epochs_as_three_two_two_three() -> None:
    run = [record(epoch, float(epoch)) for epoch in range(1, 11)]
    found = stability([run], (0.3, 0.5, 0.7, 1.0))
    assert [stage.accuracy for stage in found] == [2.0, 4.5, 6.5, 9.0, 10.0]
    assert {stage.accuracy_spread for stage in found} == {None}


def test_a_stage_that_no_run_tested_has_no_accuracy() -> None:
    run = [record(1, None), record(2, 70.0)]
    assert [stage.accuracy for stage in stability([run], 2)] == [None, 70.0, 70.0]
    for wrong in (0, (), (0.5,), (0.5, 0.3, 1.0), (0.0, 1.0)):
        with pytest.raises(ConfigError, match="stages must"):
            stability([run], wrong)


# -- risk -----------------------------------------------------------------------------------------------------------

LOSSES = [0.1, 4.0, 2.5, 0.7, 3.0, 1.1, 0.2, 5.0]
CONTEXT = Context(n=8, epoch=0, epochs=3)


def enumerated(s: int, keep) -> float:
    """The mean over all pools of what is kept of them, on average: the definition."""
    pools = [sorted(pool, reverse=True) for pool in combinations(LOSSES, s)]
    return statistics.fmean(statistics.fmean(keep(pool)) for pool in pools)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (FullData(), statistics.fmean(LOSSES)),
        (DynamicRandom(0.5), statistics.fmean(LOSSES)),
        (RS2(0.5), statistics.fmean(LOSSES)),
        (OrderDP(0.75, exploration=0.625), enumerated(5, lambda pool: pool[:2])),
        (OrderDP(0.75, exploration=0.625, select="bottom"), enumerated(5, lambda pool: pool[-2:])),
        (OrderDP(0.75, exploration=0.625, select=Trimmed(0.2)), enumerated(5, lambda pool: pool[1:3])),
        (
            OrderDP(0.5, exploration=0.75, select=Mixed(top=0.5, uniform=0.5)),
            enumerated(6, lambda pool: [*pool[:2], *[statistics.fmean(pool[2:])] * 2]),
        ),
        (OrderDP(0.5, exploration=0.75, select=Mixed(top=0.5, uniform=0.5), unbiased=True), statistics.fmean(LOSSES)),
        (OrderDP(0.75, exploration=0.625, select=Moving(1.0, 0.5)), enumerated(5, lambda pool: pool[:2])),
        (EpsilonGreedy(0.5, epsilon=0.25), enumerated(8, lambda pool: [*pool[:3], statistics.fmean(pool[3:])])),
        (Scheduled(OrderDP(0.5, exploration=0.625), Linear(0.75, 0.5)), enumerated(5, lambda pool: pool[:2])),
    ],
    ids=str,
)
def test_the_surrogate_risk_is_the_mean_over_all_pools(policy, expected: float) -> None:
    with_unseen = [np.inf, *LOSSES, np.inf]  # the unseen do not count
    for scores in (LOSSES, torch.tensor(with_unseen)):
        risk = surrogate_risk(policy, scores, CONTEXT)
        assert risk.surrogate == pytest.approx(expected, rel=1e-6)
        assert risk.mean == pytest.approx(statistics.fmean(LOSSES))
        assert risk.bias == pytest.approx(expected - statistics.fmean(LOSSES), abs=1e-6)


def test_the_bound_is_the_bias_term_of_the_theorem() -> None:
    risk = surrogate_risk(OrderDP(0.75, exploration=0.625), LOSSES, CONTEXT)
    terms = theory.bias_terms(LOSSES, 5, 2)
    assert risk.bias == pytest.approx(terms.shift)
    assert risk.bound == pytest.approx(terms.bound)
    assert surrogate_risk(OrderDP(0.5, select="bottom"), LOSSES, CONTEXT).bound is None


@pytest.mark.parametrize("policy", [UCB(0.5), InfoBatch(0.5), OrderDP(0.5, every="batch")], ids=str)
def test_policies_outside_the_family_have_no_surrogate_risk(policy) -> None:
    assert design_of(policy, CONTEXT) is None
    assert surrogate_risk(policy, LOSSES, CONTEXT) is None


def test_nothing_seen_or_too_little_for_the_ratio_has_no_risk() -> None:
    assert surrogate_risk(OrderDP(0.5), [np.inf] * 8, CONTEXT) is None
    assert surrogate_risk(OrderDP(0.9), [1.0, *[np.inf] * 99], CONTEXT) is None


# -- in a loop ------------------------------------------------------------------------------------------------------


def watched(pruner: Pruner, watch: Diagnostics, model: torch.nn.Module, batches: list) -> None:
    """The rest of an epoch, as in the docstring; a step's gradient is the number of the step so far, times two."""
    for index, _ in pruner.loader(toy_dataset(), batch_size=7):
        pruner.update(index, fake_losses(index, len(batches)))
        batches.append(index.tolist())
        model.weight.grad = torch.full_like(model.weight, float(len(batches)))  # four of them
        watch.step()


def test_three_lines_in_a_loop_tell_what_an_oracle_tells() -> None:
    model = torch.nn.Linear(4, 1, bias=False)
    pruner = Pruner(OrderDP(0.6, exploration=0.7), 100, epochs=4)
    watch = Diagnostics(pruner, model)
    sets: list[list[int]] = []
    for epoch in range(1, 5):
        batches: list[list[int]] = []
        with global_generators_untouched():
            watched(pruner, watch, model, batches)
            told = watch.epoch(metric=10.0 * epoch)
        sets.append(list(chain(*batches)))
        usage = [sum(sample in kept for kept in sets) for sample in range(100)]
        last = [max((e for e, kept in enumerate(sets) if sample in kept), default=-1) for sample in range(100)]
        ages = sorted(epoch - seen for seen in last if seen >= 0)
        expected = {
            "epoch": epoch,
            "samples": 40,
            "jaccard": jaccard(*sets[-2:]) if epoch > 1 else None,
            "coverage": sum(count > 0 for count in usage) / 100,
            "usage_min": min(usage),
            "usage_mean": 0.4 * epoch,
            "usage_max": max(usage),
            "age_mean": statistics.fmean(ages),
            "age_median": statistics.median_low(ages),
            "age_p95": ages[-(-95 * len(ages) // 100) - 1],
            "unseen": usage.count(0) / 100,
            "gradient_norm": 2 * statistics.fmean(range(1, 7)),
            "gradient_norm_std": 2 * statistics.stdev(range(1, 7)),
            "surrogate_risk": surrogate_risk(pruner.policy, pruner.scores, Context(100, 0)).surrogate,
            "metric": 10.0 * epoch,
        }
        assert {name: told[name] for name in expected} == pytest.approx(expected)
    assert [told["epoch"] for told in watch.history] == [1, 2, 3, 4]
    assert accuracy_correlation(watch.history, "coverage") > 0.8


def test_scores_that_are_only_observed_were_not_kept() -> None:
    pruner = Pruner(OrderDP(0.5), 10)
    watch = Diagnostics(pruner)
    train_epoch(pruner, pruner.loader(toy_dataset(10), batch_size=5))
    pruner.observe(torch.arange(10), torch.rand(10, generator=torch.Generator().manual_seed(0)))
    assert watch.epoch()["samples"] == 5
    assert watch.epoch()["samples"] == 0  # since the last time


def test_a_sharded_table_keeps_no_ages_and_the_rest_is_that_of_the_owned_samples() -> None:
    pruner = Pruner(OrderDP(0.6), 100, table="sharded")
    watch = Diagnostics(pruner)
    for _ in range(3):
        train_epoch(pruner, pruner.loader(toy_dataset(), batch_size=10))
        told = watch.epoch()
    assert [told[name] for name in ("age_mean", "age_median", "age_p95")] == [None] * 3
    assert (told["samples"], told["usage_mean"]) == (40, pytest.approx(1.2))
    assert 0 < told["jaccard"] < 1
    never = int((pruner.usage == 0).sum())
    assert (told["unseen"], told["coverage"]) == (pytest.approx(never / 100), pytest.approx(1 - never / 100))
    risk = surrogate_risk(pruner.policy, pruner.scores, Context(100, 0))
    assert told["surrogate_risk"] == pytest.approx(risk.surrogate)


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.tensor, int, float], ids=lambda kind: kind.__name__)
def test_an_accuracy_may_be_any_kind_of_number(kind) -> None:
    pruner = Pruner(OrderDP(0.6), 100)
    watch = Diagnostics(pruner)
    for epoch in range(1, 4):
        train_epoch(pruner, pruner.loader(toy_dataset(), batch_size=10))
        assert watch.epoch(metric=kind(10 * epoch))["metric"] == 10.0 * epoch
    assert json.loads(json.dumps([told["metric"] for told in watch.history])) == [10.0, 20.0, 30.0]
    assert accuracy_correlation(watch.history, "coverage") > 0.8
    assert time_to_accuracy(watch.history, 20).epochs == 2


def test_records_by_hand_may_have_numpy_numbers() -> None:
    rising = [record(epoch, np.float32(epoch), gradient_norm=np.float32(9 - epoch)) for epoch in range(1, 5)]
    assert accuracy_correlation(rising) == pytest.approx(-1.0)


def test_a_watch_without_a_model_has_no_gradients() -> None:
    watch = Diagnostics(Pruner(OrderDP(0.5), 10), risk=False)
    assert "gradient_norm" not in watch.epoch()
    assert "surrogate_risk" not in watch.epoch()
    for ask in (watch.step, lambda: watch.full_gradient_cosine(toy_dataset(10), lambda model, batch: batch)):
        with pytest.raises(ConfigError, match="Use Diagnostics"):
            ask()


def test_a_watch_resumed_in_mid_epoch_tells_what_the_straight_one_tells(tmp_path) -> None:
    model = torch.nn.Linear(4, 1, bias=False)

    def start() -> tuple[Pruner, Diagnostics]:
        pruner = Pruner(OrderDP(0.6), 100)
        return pruner, Diagnostics(pruner, model)

    pruner, watch = start()
    told = []
    for _ in range(3):
        watched(pruner, watch, model, [])
        told.append(watch.epoch())
    pruner, watch = start()
    watched(pruner, watch, model, [])
    assert watch.epoch() == told[0]
    batches: list = []
    for index, _ in pruner.loader(toy_dataset(), batch_size=7):
        pruner.update(index, fake_losses(index, len(batches)))
        batches.append(index.tolist())
        model.weight.grad = torch.full_like(model.weight, float(len(batches)))
        watch.step()
        if len(batches) == 3:
            break
    torch.save({"pruner": pruner.state_dict(), "watch": watch.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    pruner, watch = start()
    pruner.load_state_dict(state["pruner"])
    watch.load_state_dict(state["watch"])
    watched(pruner, watch, model, batches)
    assert watch.epoch() == told[1]
    watched(pruner, watch, model, [])
    assert watch.epoch() == told[2]


def test_without_the_state_of_the_watch_it_says_what_it_cannot_know() -> None:
    pruner = Pruner(OrderDP(0.6), 100)
    watch = Diagnostics(pruner)
    watch.load_state_dict(None)
    found = []
    for _ in range(3):
        train_epoch(pruner, pruner.loader(toy_dataset(), batch_size=10))
        found.append(watch.epoch())
    assert [each["samples"] for each in found] == [None, 40, 40]
    assert [each["jaccard"] is None for each in found] == [True, True, False]
