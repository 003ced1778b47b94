"""Comparisons: numbers by hand, and words that claim no more than was measured."""

from __future__ import annotations

import math
import random as randomness
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderdp.errors import ConfigError
from orderdp.experiments.intervals import Own, critical_value
from orderdp.experiments.records import Run
from orderdp.experiments.statistics import Difference, Metric, Row, compare, verdict, word
from tests.runs import full, random, reduced, run

metrics = st.lists(st.floats(60, 100), min_size=2, max_size=8)  # none is half as good as another: that is divergence


def row(rows: list[Row], label: str) -> Row:
    return next(row for row in rows if row.label == label)


def test_a_worked_example() -> None:
    """Three seeds. Differences to full data: -0.2, 0.4, 0.1: mean 0.1; the variance is that of all four settings."""
    runs = [full(90.0, 0, seconds=20), full(91.0, 1, seconds=22), full(92.0, 2, seconds=18)]
    runs += [run(89.8, 0, seconds=12), run(91.4, 1, seconds=14), run(92.1, 2, seconds=13)]
    runs += [reduced(88.0 + seed, seed) for seed in range(3)] + [random(88.5 + seed, seed) for seed in range(3)]
    rows = compare(runs)
    assert [each.label for each in rows] == ["Full data", "OrderDP 40 %", "Dynamic random 40 %", "Fewer epochs"]
    reference, method = rows[0], rows[1]
    assert (reference.metric, reference.deviation, reference.saved) == (91.0, 1.0, 0.0)
    assert reference.verdict == "the reference"
    assert reference.against_full is None

    assert method.metric == pytest.approx((89.8 + 91.4 + 92.1) / 3)
    assert method.saved == pytest.approx(0.4)
    assert method.seconds == 13.0
    assert method.saved_time == pytest.approx(1 - 39 / 60)
    difference = method.against_full
    assert difference is not None
    # The fit of settings and seeds leaves 0.75 of the squares of (-0.3, 0.3, 0), of 12 - 6 = 6 degrees of freedom. By
    # its share of them the method's own variance is 0.09, and that of the other settings 0, with 1.5 degrees each.
    pool = 0.75 * (0.3**2 + 0.3**2) / 6
    variance = (2 * pool + 1.5 * 0.09) / (2 + 1.5)
    reach = 3.10 * math.sqrt((variance + pool) / 3)  # 3.10: Dunnett's table, three treatments, six degrees of freedom
    assert (difference.mean, difference.low, difference.high) == pytest.approx(
        (0.1, 0.1 - reach, 0.1 + reach), abs=1e-3
    )
    assert method.verdict == "within 0.5 points of full data, or better"
    assert method.against_reduced is not None
    assert method.against_reduced.mean == pytest.approx(2.1)
    assert method.against_random is not None
    assert method.against_random.mean == pytest.approx(1.6)
    assert method.against_random.high - method.against_random.mean == pytest.approx(
        critical_value((0.5, 0.5), 6) * math.sqrt((variance + pool) / 3)
    )


def test_a_method_that_loses_is_called_a_loss() -> None:
    runs = [full(90 + seed / 10, seed) for seed in range(3)]
    runs += [run(88 + seed / 10 + 0.05 * (-1) ** seed, seed, label="Keeps the easiest") for seed in range(3)]
    found = row(compare(runs), "Keeps the easiest")
    assert found.verdict == "worse by more than 0.5"
    assert found.against_full is not None
    assert found.against_full.mean == pytest.approx(-1.98, abs=0.005)


def test_the_seeds_of_a_comparison_that_was_called_a_loss_too_early() -> None:
    """Three differences whose spread happened to be a tenth of a run's are no measure of it."""
    full_data, orderdp, shares = (89.40, 89.72, 89.50), (89.34, 89.66, 89.41), (89.01, 89.30, 89.05)
    runs = [full(value, seed) for seed, value in enumerate(full_data)]
    runs += [run(value, seed) for seed, value in enumerate(orderdp)]
    runs += [random(value, seed) for seed, value in enumerate(shares)]
    runs += [reduced(value, seed) for seed, value in enumerate((89.21, 88.95, 89.09))]
    found = row(compare(runs), "OrderDP 40 %")
    assert found.against_full is not None
    assert found.against_full.low < -0.2
    assert found.against_full.high > 0.1
    assert found.verdict == "within 0.5 points of full data"


WORDS = [
    (-0.42, 0.28, "within 0.5 points of full data"),
    (-0.5, 0.5, "within 0.5 points of full data"),
    (91.7 - 92.2, 0.3, "within 0.5 points of full data"),  # -0.5 but for rounding
    (-0.35, -0.05, "within 0.5 points of full data"),
    (0.05, 0.35, "within 0.5 points of full data"),
    (-0.2, 0.8, "within 0.5 points of full data, or better"),
    (-3.33, -1.29, "worse by more than 0.5"),
    (1.29, 3.33, "better by more than 0.5"),
    (-0.79, -0.09, "worse: -0.44 (-0.79 to -0.09)"),
    (-1.5, -0.5, "worse: -1.00 (-1.50 to -0.50)"),
    (0.09, 0.79, "better: +0.44 (0.09 to 0.79)"),
    (-0.62, 0.08, "not settled: -0.27 (-0.62 to 0.08)"),
    (-25.0, 1.0, "not settled: -12.00 (-25.00 to 1.00)"),
    (-0.6, 0.9, "not settled: +0.15 (-0.60 to 0.90)"),
    (None, None, "one seed, no interval: -3.00"),
]


@pytest.mark.parametrize(("low", "high", "words"), WORDS)
def test_words_of_a_verdict(low: float | None, high: float | None, words: str) -> None:
    mean = -3.0 if low is None or high is None else (low + high) / 2
    assert verdict(Difference(mean, low, high, 1 if low is None else 3)) == words


@given(st.floats(-5, 5), st.floats(0, 5), st.floats(0.01, 3))
def test_words_never_claim_more_than_the_interval(mean: float, reach: float, margin: float) -> None:
    low, high = mean - reach, mean + reach
    words = word(Difference(mean, low, high, 3), margin)
    size = f"{margin:g}"
    if words == f"within {size} points of full data":
        assert -margin - 1e-8 <= low
        assert high <= margin + 1e-8
    elif words == f"within {size} points of full data, or better":
        assert -margin - 1e-8 <= low <= 1e-8
    elif words == f"worse by more than {size}":
        assert high < -margin
    elif words == f"better by more than {size}":
        assert low > margin
    elif words in ("worse", "better"):
        assert not low <= 0 <= high
        assert (high < 0) == (words == "worse")
    else:
        assert words == "not settled"
        assert low < -margin
        assert high >= -1e-8


@given(st.floats(-5, 5), st.floats(0, 5))
def test_where_lower_is_better_the_words_are_turned_round(mean: float, reach: float) -> None:
    up, down = Difference(mean, mean - reach, mean + reach, 3), Difference(-mean, -mean - reach, -mean + reach, 3)
    assert word(down, 0.5, Metric("perplexity", "", higher_is_better=False)) == word(up, 0.5, Metric("F1", ""))


def test_a_metric_may_have_any_unit_and_direction() -> None:
    """A perplexity that falls by 3 is better, and the margin is half a percent of full data's unless it is said."""
    told = {"metric_name": "perplexity", "metric_unit": "", "higher_is_better": False}

    def runs(*metrics: float, make: Callable[..., Run] = run, **options: Any) -> list[Run]:
        made = [make(metric, seed, **options) for seed, metric in enumerate(metrics)]
        return [replace(each, summary={**(each.summary or {}), **told}) for each in made]

    found = runs(20.0, 20.02, 20.01, make=full) + runs(17.0, 17.03, 17.01) + runs(25.0, 25.04, 25.02, make=random)
    found += runs(20.05, 20.02, 20.03, label="near", policy="ucb") + runs(60.0, 60.0, 60.0, label="lost", policy="rs2")
    rows = compare(found)
    assert row(rows, "OrderDP 40 %").verdict == "better by more than 0.1"
    assert row(rows, "Dynamic random 40 %").verdict == "worse by more than 0.1"
    assert row(rows, "near").verdict == "within 0.1 of full data"
    assert row(rows, "lost").diverged == "it is less than half as good as full data"
    assert row(compare(found, margin=10.0), "Dynamic random 40 %").verdict == "within 10 of full data"
    assert row(rows, "near").measure == Metric("perplexity", "", higher_is_better=False, digits=2)
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"--margin must be a number above 0"):
            compare(found, margin=wrong)


def test_what_is_not_settled_says_how_many_seeds_would_settle_it() -> None:
    """The slow version: draw the further seeds many times, and see with how many four of five verdicts are settled."""
    runs = [full(metric, seed) for seed, metric in enumerate((90.2, 89.8, 90.1))]
    runs += [run(metric, seed) for seed, metric in enumerate((89.5, 89.9, 89.8))]
    runs += [random(metric, seed) for seed, metric in enumerate((89.1, 89.3, 88.8))]
    found = row(compare(runs), "OrderDP 40 %")
    difference = found.against_full
    assert difference is not None
    assert found.word == "not settled"
    seeds = int(re.fullmatch(r"not settled: .* to .*; about (\d+) seeds would settle it", found.verdict)[1])
    assert seeds > 3
    rng = np.random.default_rng(0)
    truths = difference.mean + difference.deviation * rng.standard_normal(4000) / math.sqrt(3)

    def settled(count: int) -> float:
        further = truths + difference.deviation * rng.standard_normal(4000) / math.sqrt(count - 3)
        means = (3 * difference.mean + (count - 3) * further) / count
        reach = difference.reach(count)
        return np.mean([word(Difference(mean, mean - reach, mean + reach, count)) != "not settled" for mean in means])

    assert settled(seeds) > 0.77
    assert settled(seeds - 1) < 0.83
    parts = (Own(800.0, 1.0, 2.0),) * 2
    far = Difference(-0.25, -9.0, 8.5, 2, deviation=40.0, parts=parts, pooled=1.0, shares=(0.5,))
    assert verdict(far).endswith("; 100 seeds would not settle it")


def test_a_diverged_row_is_named_and_changes_no_other_interval() -> None:
    rng = randomness.Random(2)
    runs = [make(90 + rng.gauss(0, 0.2), seed) for make in (full, run, random, reduced) for seed in range(4)]
    before = row(compare(runs), "OrderDP 40 %")
    runs += [run(metric, seed, label="lost", policy="ucb") for seed, metric in enumerate((90.0, 89.9, 10.0, 90.1))]
    after = compare(runs)
    assert row(after, "lost").diverged.startswith("its runs spread")
    assert not before.diverged
    assert before.against_full is not None
    found = row(after, "OrderDP 40 %").against_full
    assert found is not None
    assert found.deviation == pytest.approx(before.against_full.deviation)
    assert found.degrees(4) == before.against_full.degrees(4)


def test_the_step_of_a_test_set_is_read_from_metrics_where_it_was_not_recorded() -> None:
    """Ties of 360 test samples: a difference of one sample is 0.28 points, and no interval reaches less far."""
    counts = {"full": (350, 351, 349), "run": (350, 351, 349)}
    runs = [full(100 * count / 360, seed) for seed, count in enumerate(counts["full"])]
    runs += [run(100 * count / 360, seed) for seed, count in enumerate(counts["run"])]
    for each in runs:
        assert each.summary is not None
        del each.summary["test_samples"]
    found = row(compare(runs), "OrderDP 40 %").against_full
    assert found is not None
    assert (found.low, found.high) == pytest.approx((-100 / 360, 100 / 360))


@given(metrics, st.randoms())
def test_order_of_the_runs_and_a_shift_of_all_metrics_change_nothing(values: list[float], rng: object) -> None:
    def runs(shift: float) -> list[Run]:
        return [full(80 + seed + shift, seed) for seed in range(len(values))] + [
            run(value + shift, seed) for seed, value in enumerate(values)
        ]

    shuffled = runs(0)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    straight = row(compare(runs(0)), "OrderDP 40 %")
    assert row(compare(shuffled), "OrderDP 40 %") == straight
    moved = row(compare(runs(7)), "OrderDP 40 %")
    assert straight.against_full is not None
    assert moved.against_full is not None
    assert moved.against_full.mean == pytest.approx(straight.against_full.mean, abs=1e-9)
    assert moved.against_full.low == pytest.approx(straight.against_full.low, abs=1e-6)


def test_pairs_are_by_seed_and_only_shared_seeds_count() -> None:
    """Metrics rise with the seed: unpaired, the missing seed would look like a loss."""
    runs = [full(80 + 5 * seed, seed, seconds=10 + seed) for seed in range(4)]
    runs += [run(80 + 5 * seed, seed, seconds=5) for seed in range(3)]
    method = row(compare(runs), "OrderDP 40 %")
    assert method.against_full == Difference(0.0, -0.01, 0.01, 3)  # ties: one of 10,000 test samples to either side
    assert method.saved_time == pytest.approx(1 - 15 / 33)
    assert method.verdict == "within 0.5 points of full data"


def test_one_seed_has_no_interval_and_no_spread() -> None:
    method = row(compare([full(90.0), run(95.0)]), "OrderDP 40 %")
    assert method.verdict == "one seed, no interval: +5.00"
    assert method.deviation is None


def test_without_full_data_of_the_same_seeds_nothing_is_claimed() -> None:
    assert compare([run(95.0)])[0].verdict == "no full data of the same seeds"
    assert row(compare([full(90.0, 1), run(95.0, 2)]), "OrderDP 40 %").verdict == "no full data of the same seeds"


def test_failed_and_unfinished_runs_are_listed_not_averaged() -> None:
    bad = run(10.0, 2)
    bad.summary = {**(bad.summary or {}), "status": "failed", "metric": None, "reason": "the loss became NaN"}
    unfinished = replace(run(10.0, 3), summary=None)
    nameless = replace(run(None, 4))
    runs = [full(90.0, seed) for seed in range(5)] + [run(90.0, 0), run(92.0, 1), bad, unfinished, nameless]
    method = row(compare(runs), "OrderDP 40 %")
    assert method.metric == 91.0
    assert [each.seed for each in method.runs] == [0, 1]
    assert [each.seed for each in method.failed] == [2, 4]
    assert [each.seed for each in method.unfinished] == [3]
    only_bad = compare([full(90.0), bad])[1]
    assert (only_bad.metric, only_bad.verdict) == (None, "failed")
    assert compare([unfinished])[0].verdict == "not finished"


def test_the_final_metric_counts_never_the_best() -> None:
    method = run(88.0)
    method.epochs = [{"epoch": 1, "metric": 99.0}, {"epoch": 2, "metric": 88.0}]
    assert compare([method])[0].metric == 88.0


def test_a_seed_that_was_run_twice_counts_once() -> None:
    """Twice the same number would make the interval narrower than what is known."""
    first, second = run(80.0, 1), replace(run(90.0, 1), id="again", started="2026-02-01T00:00:00")
    method = compare([second, first])[0]
    assert (method.metric, method.repeated, len(method.runs)) == (90.0, 1, 1)


def test_other_data_models_and_budgets_are_never_set_against_each_other() -> None:
    runs = [full(90.0, data="cifar10"), full(91.0, model="cnn"), run(95.0)]
    longer = full(92.0, epochs=20)
    longer.summary = {**(longer.summary or {}), "full_samples": 20000, "samples": 20000}
    rows = compare([*runs, longer])
    assert row(rows, "OrderDP 40 %").against_full is None
    assert len({each.task for each in rows}) == 3


def test_controls_are_those_of_the_same_real_cost_whatever_ratio_was_asked_for() -> None:
    runs = [full(90.0), run(90.0, saved=0.25, prune_ratio=0.5, label="InfoBatch 50 %", policy="infobatch")]
    runs += [reduced(80.0, saved=0.5), reduced(85.0, saved=0.3, label="Fewer epochs 30 %")]
    runs += [random(70.0, saved=0.5, prune_ratio=0.5, label="Random 50 %"), random(75.0, prune_ratio=0.4)]
    method = row(compare(runs), "InfoBatch 50 %")
    assert method.against_reduced is not None
    assert method.against_reduced.mean == 5.0  # its real cost is near that of 30 %, whatever it was asked for
    assert method.against_random is None  # nothing that trained on as many samples was drawn at random
    near = row(compare([*runs, random(84.0, saved=0.25, prune_ratio=0.25, label="Random 25 %")]), "InfoBatch 50 %")
    assert near.against_random is not None
    assert near.against_random.mean == 6.0
    far = row(compare([*runs[:2], runs[2]]), "InfoBatch 50 %")
    assert far.against_reduced is None


def test_the_label_of_fewer_epochs_says_what_they_really_cost() -> None:
    runs = [full(90.0)]
    runs += [reduced(88.0, label="fewer epochs 30%", prune_ratio=0.3, saved=1 / 3)]
    runs += [reduced(85.0, label="fewer epochs 50%", prune_ratio=0.5, saved=0.498)]
    assert [each.label for each in compare(runs)[1:]] == ["fewer epochs 33%", "fewer epochs 50%"]


def test_a_control_has_no_difference_to_itself() -> None:
    rows = compare([full(90.0), reduced(80.0), random(85.0)])
    assert row(rows, "Fewer epochs").against_reduced is None
    assert row(rows, "Dynamic random 40 %").against_random is None
    assert row(rows, "Dynamic random 40 %").against_reduced is not None


def test_the_cost_of_a_proxy_counts_and_evaluation_does_not() -> None:
    coreset = run(90.0, seconds=5.0, label="EL2N 40 %", policy="el2n")
    coreset.summary = {**(coreset.summary or {}), "proxy_seconds": 20.0, "evaluation_seconds": 1000.0}
    method = row(compare([full(90.0, seconds=10.0), coreset]), "EL2N 40 %")
    assert method.seconds == 25.0
    assert method.saved_time == -1.5
    assert method.evaluation_seconds == 1000.0


def test_settings_with_the_same_label_are_told_apart() -> None:
    runs = [run(90.0, policy_parameters={"exploration": 0.8}), run(80.0, policy_parameters={"exploration": 0.9})]
    labels = [each.label for each in compare(runs)]
    assert len(set(labels)) == 2
    assert any("exploration=0.8" in label for label in labels)


@pytest.mark.parametrize(
    "other",
    [{"width": 256}, {"weight_decay": 0.0}, {"mixup": 0.8}, {"augment": False}, {"task": "own.py:make"}],
    ids=str,
)
def test_runs_of_another_training_are_not_set_against_each_other(other: dict) -> None:
    rows = compare([full(90.0), full(60.0, **other), run(89.0), run(61.0, **other)])
    assert [each.repeated for each in rows] == [0] * 4
    differences = [each.against_full.mean for each in rows if each.against_full is not None]
    assert sorted(differences) == [-1.0, 1.0]


def test_what_was_not_recorded_is_as_if_it_had_not_been_chosen() -> None:
    rows = compare([full(90.0), run(89.0, mixup=0.0, average=False, weight_decay=5e-4)])
    assert [each.against_full.mean for each in rows if each.against_full is not None] == [-1.0]


def test_how_often_a_run_was_tested_does_not_tell_it_apart() -> None:
    rows = compare([full(90.0, evaluate_every=5), run(89.0, evaluate_every=1)])
    assert rows[1].against_full is not None
