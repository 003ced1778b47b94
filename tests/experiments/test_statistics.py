"""Comparisons: numbers by hand, intervals against scipy, and words that claim no more than was measured."""

from __future__ import annotations

import math
import random as randomness
import statistics
from dataclasses import replace

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from orderdp.experiments.records import Run
from orderdp.experiments.statistics import Difference, Row, compare, paired_difference, student_t, verdict
from tests.runs import full, random, reduced, run

metrics = st.lists(st.floats(0, 100), min_size=2, max_size=8)


def row(rows: list[Row], label: str) -> Row:
    return next(row for row in rows if row.label == label)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 30, 99, 100])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_the_quantile_is_scipys(degrees: int, confidence: float) -> None:
    expected = scipy.stats.t.ppf((1 + confidence) / 2, degrees)
    assert student_t(confidence, degrees) == pytest.approx(expected, rel=1e-9)


@given(metrics)
def test_the_interval_is_that_of_scipys_paired_test(values: list[float]) -> None:
    others = [value / 2 + place for place, value in enumerate(values)]
    found = paired_difference([a - b for a, b in zip(values, others, strict=True)])
    differences = [a - b for a, b in zip(values, others, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(values))
    if error < 1e-9:
        assert found.low == pytest.approx(found.mean, abs=1e-6)
        return
    expected = scipy.stats.ttest_rel(values, others).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-6)


def test_an_interval_of_95_percent_holds_the_truth_95_times_in_100() -> None:
    rng = randomness.Random(0)
    trials = 2000
    hits = 0
    for _ in range(trials):
        found = paired_difference([rng.gauss(-0.3, 0.5) for _ in range(4)])
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= -0.3 <= found.high
    assert abs(hits / trials - 0.95) < 5 * math.sqrt(0.95 * 0.05 / trials)


def test_a_worked_example() -> None:
    """Three seeds. Differences to full data: -0.2, 0.4, 0.1: mean 0.1, deviation 0.3, t = 4.30265."""
    runs = [full(90.0, 0, seconds=20), full(91.0, 1, seconds=22), full(92.0, 2, seconds=18)]
    runs += [run(89.8, 0, seconds=12), run(91.4, 1, seconds=14), run(92.1, 2, seconds=13)]
    runs += [reduced(89.0, seed) for seed in range(3)] + [random(89.5, seed) for seed in range(3)]
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
    reach = 4.30265 * 0.3 / math.sqrt(3)  # 0.7453
    assert (difference.mean, difference.low, difference.high) == pytest.approx(
        (0.1, 0.1 - reach, 0.1 + reach), abs=1e-5
    )
    assert method.verdict == "no measurable loss (within 0.65 points)"
    assert method.against_reduced is not None
    assert method.against_reduced.mean == pytest.approx(2.1)
    assert method.against_random is not None
    assert method.against_random.mean == pytest.approx(1.6)


def test_a_method_that_loses_is_called_a_loss() -> None:
    runs = [full(90 + seed / 10, seed) for seed in range(3)]
    runs += [run(88 + seed / 10 + 0.05 * (-1) ** seed, seed, label="Keeps the easiest") for seed in range(3)]
    found = row(compare(runs), "Keeps the easiest").verdict
    assert found == "loses 1.98 points (-2.13 to -1.84)"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.1, 0.3, "lossless"),
        (92.1 - 92.2, 0.3, "lossless"),  # -0.1 but for rounding
        (0.2, 0.4, "lossless"),
        (-0.08, -0.02, "lossless"),
        (-0.101, 0.3, "no measurable loss (within 0.11 points)"),
        (-0.5, 0.0, "no measurable loss (within 0.50 points)"),
        (-1.0, 0.4, "no measurable loss (within 1.00 points)"),
        (-1.01, 0.4, "undecided (-1.01 to 0.40)"),
        (-25.0, 0.0, "undecided (-25.00 to 0.00)"),
        (-25.0, -0.5, "loses 12.75 points (-25.00 to -0.50)"),
        (-0.5, -0.01, "loses 0.26 points (-0.50 to -0.01)"),
        (-0.2, -0.2, "loses 0.20 points (-0.20 to -0.20)"),
        (None, None, "one seed, no interval"),
    ],
)
def test_words_of_a_verdict(low: float | None, high: float | None, words: str) -> None:
    mean = -3.0 if low is None or high is None else (low + high) / 2
    assert verdict(Difference(mean, low, high, 1 if low is None else 3)) == words


@given(st.floats(-5, 5), st.floats(0, 5))
def test_words_never_claim_more_than_the_interval(mean: float, reach: float) -> None:
    low, high = mean - reach, mean + reach
    words = verdict(Difference(mean, low, high, 3))
    if words == "lossless":
        assert low >= -0.1 - 1e-8
    elif words.startswith("no measurable loss"):
        assert float(words.split()[-2]) >= -low - 1e-8
        assert -1.0 - 1e-8 <= low < -0.1
        assert high >= -1e-8
    elif words.startswith("undecided"):
        assert low < -1.0
        assert high >= -1e-8
    else:
        assert words.startswith("loses")
        assert high < 0


@given(metrics, st.randoms())
def test_order_of_the_runs_and_a_shift_of_all_metrics_change_nothing(values: list[float], rng: object) -> None:
    def runs(shift: float) -> list[Run]:
        return [full(50 + seed + shift, seed) for seed in range(len(values))] + [
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
    assert method.against_full == Difference(0.0, 0.0, 0.0, 3)
    assert method.saved_time == pytest.approx(1 - 15 / 33)
    assert method.verdict == "lossless"


def test_one_seed_has_no_interval_and_no_spread() -> None:
    method = row(compare([full(90.0), run(95.0)]), "OrderDP 40 %")
    assert method.verdict == "one seed, no interval"
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


def test_controls_are_those_of_the_same_cost_and_ratio() -> None:
    runs = [full(90.0), run(90.0, saved=0.25, prune_ratio=0.5, label="InfoBatch 50 %", policy="infobatch")]
    runs += [reduced(80.0, saved=0.5), reduced(85.0, saved=0.3, label="Fewer epochs 30 %")]
    runs += [random(70.0, saved=0.5, prune_ratio=0.5, label="Random 50 %"), random(75.0, prune_ratio=0.4)]
    method = row(compare(runs), "InfoBatch 50 %")
    assert method.against_reduced is not None
    assert method.against_reduced.mean == 5.0  # its real cost is near that of 30 %, whatever it was asked for
    assert method.against_random is not None
    assert method.against_random.mean == 20.0
    far = row(compare([*runs[:2], runs[2]]), "InfoBatch 50 %")
    assert far.against_reduced is None


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
