"""Trained models evaluated on further test sets: exactly as if they had been trained beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orderdp.cli import main
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.experiments.config import MethodSpec, RunOptions, Settings, grid
from orderdp.experiments.records import RunLog, read_run, read_runs, with_further_tests
from orderdp.experiments.runner import check_tests, compare_all, evaluate_all
from orderdp.report.page import markdown_report, report_command, write_report
from tests import runs as written

NOISY, DULL = "digits?corrupt=noise:3", "digits?corrupt=contrast:3"
BASE = Settings(data="digits", model="mlp", width=16, policy="full", epochs=2)
SMALL = ["--data", "digits", "--model", "mlp", "--width", "16", "--epochs", "2", "--device", "cpu", "--threads", "1"]
TWO = ["--policies", "full,orderdp", "--prune-ratios", "0.5", "--seeds", "0", "--no-controls", "--quiet"]


def finals(folder: Path) -> dict[str, float | None]:
    return {run.label: run.final_metric for run in read_runs(folder)}


def test_a_model_is_evaluated_as_if_it_had_been_tested_there_all_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oracle = [*SMALL, *TWO, "--data", NOISY]  # the last --data counts
    assert main(["compare", *oracle, "--out", str(tmp_path / "oracle")]) == 0
    assert main(["compare", *SMALL, *TWO, "--out", str(tmp_path / "both"), "--also-test", f"{NOISY},{DULL}"]) == 0
    tests = {run.label: run.tests for run in read_runs(tmp_path / "both")}
    assert {label: found[NOISY] for label, found in tests.items()} == finals(tmp_path / "oracle")
    assert all(list(found) == [NOISY, DULL] for found in tests.values())
    assert finals(tmp_path / "both") != finals(tmp_path / "oracle")
    assert f"tested on {DULL}" in capsys.readouterr().out


def test_test_sets_can_be_added_to_finished_runs_and_no_model_is_evaluated_twice(tmp_path: Path) -> None:
    place = RunOptions(tmp_path, threads=1, device="cpu")
    runs = grid(BASE, [MethodSpec("orderdp", {})], [0.5], [0, 1], controls=False)
    list(compare_all(runs, place))
    before = finals(tmp_path)
    assert len(list(evaluate_all(runs, replace(place, tests=(NOISY,))))) == 2
    found = [run.tests for run in read_runs(tmp_path)]
    assert [
        (evaluated.data, evaluated.settings.seed)
        for evaluated in evaluate_all(runs, replace(place, tests=(NOISY, DULL)))
    ] == [
        (DULL, 0),
        (DULL, 1),
    ]
    assert [run.tests[NOISY] for run in read_runs(tmp_path)] == [tests[NOISY] for tests in found]
    assert finals(tmp_path) == before
    assert all(run.done for run in read_runs(tmp_path))


def test_the_images_are_prepared_with_the_statistics_of_the_training_data(tmp_path: Path) -> None:
    """A test set from elsewhere brings its own training split; its mean and deviation must not matter."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), rng.integers(0, 3, 60)
    mine = {"x_train": images[:40], "y_train": labels[:40]}
    theirs = {"x_train": images[:40] // 8, "y_train": labels[:40]}
    test = {"x_test": images[40:], "y_test": labels[40:]}
    np.savez(tmp_path / "mine.npz", **mine, **test)
    np.savez(tmp_path / "theirs.npz", **theirs, **test)
    settings = Settings(data=str(tmp_path / "mine.npz"), model="mlp", width=16, policy="full", epochs=3, batch_size=40)
    place = RunOptions(tmp_path / "out", threads=1, device="cpu")
    list(compare_all([settings], place))
    (evaluated,) = evaluate_all([settings], replace(place, tests=(str(tmp_path / "theirs.npz"),)))
    assert evaluated.metric == read_runs(tmp_path / "out")[0].final_metric


def test_the_average_of_the_iterates_is_evaluated_where_it_is_what_is_tested(tmp_path: Path) -> None:
    options = [*SMALL, *TWO, "--average"]
    assert main(["compare", *options, "--data", NOISY, "--out", str(tmp_path / "oracle")]) == 0
    assert main(["compare", *options, "--out", str(tmp_path / "both"), "--also-test", NOISY]) == 0
    tests = {run.label: run.tests[NOISY] for run in read_runs(tmp_path / "both")}
    assert tests == finals(tmp_path / "oracle")


def test_train_evaluates_too_also_when_the_run_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["train", *SMALL, "--prune-ratio", "0.5", "--quiet", "--out", str(tmp_path)]
    assert main([*options, "--also-test", NOISY]) == 0
    assert NOISY in capsys.readouterr().out
    assert main([*options, "--resume", "--also-test", f"{NOISY},{DULL}"]) == 0
    printed = capsys.readouterr().out
    assert DULL in printed
    (run,) = read_runs(tmp_path)
    assert list(run.tests) == [NOISY, DULL]


# -- bad input, before anything is spent ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ("digitz", ConfigError, "there is no data set 'digitz'"),
        ("digits?corrupt=fog:3", ConfigError, "fog"),
        ("other.npz", DatasetError, "must have the classes and the shape"),
    ],
)
def test_a_test_set_that_does_not_fit_is_refused_before_training(
    tmp_path: Path, data: str, error: type[Exception], message: str
) -> None:
    images = np.zeros((10, 9, 9), dtype=np.uint8)
    labels = np.arange(10) % 3
    np.savez(tmp_path / "other.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    named = str(tmp_path / data) if data.endswith(".npz") else data
    with pytest.raises(error, match=message):
        check_tests(BASE, RunOptions(tmp_path / "out", device="cpu", tests=(named,)))


def test_a_task_of_ones_own_has_its_own_test_set(tmp_path: Path) -> None:
    settings = Settings(task="examples/own_task.py:make", policy="full", epochs=1)
    with pytest.raises(ConfigError, match="--also-test needs --data"):
        check_tests(settings, RunOptions(tmp_path, device="cpu", tests=(NOISY,)))


def test_a_run_without_its_weights_says_so(tmp_path: Path) -> None:
    place = RunOptions(tmp_path, threads=1, device="cpu")
    list(compare_all([BASE], place))
    (tmp_path / "runs" / BASE.run_id / "model.pt").unlink()
    with pytest.raises(StateError, match=r"the trained weights .* are missing"):
        list(evaluate_all([BASE], replace(place, tests=(NOISY,))))


def test_a_failed_run_is_not_evaluated(tmp_path: Path) -> None:
    failing = replace(BASE, lr=1e30, schedule="constant")
    place = RunOptions(tmp_path, threads=1, device="cpu")
    list(compare_all([failing], place))
    assert list(evaluate_all([failing], replace(place, tests=(NOISY,)))) == []


# -- records and reports --------------------------------------------------------------------------------------------


def test_tests_come_after_the_end_and_are_forgotten_when_a_run_starts_again(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "a")
    written.start(log)
    log.epoch(epoch=1, **written.EPOCH)
    log.summary("done", **written.SUMMARY)
    log.test(data=NOISY, metric=71.5, samples=360)
    run = read_run(tmp_path / "a")
    assert run.done
    assert run.tests == {NOISY: 71.5}
    log.test(data=NOISY, metric=72.0, samples=360)
    assert read_run(tmp_path / "a").tests == {NOISY: 72.0}
    written.start(log)
    assert read_run(tmp_path / "a").tests == {}


def test_each_test_set_has_a_section_of_its_own_on_the_page(tmp_path: Path) -> None:
    runs = [written.full(95.0 + seed, seed) for seed in (0, 1)] + [written.run(94.0 + seed, seed) for seed in (0, 1)]
    written.write(tmp_path, runs)
    for run in runs:
        if run.seed == 0 or run.config["policy"] == "full":  # one seed has not been evaluated yet
            metric = 80.0 if run.config["policy"] == "full" else 77.0
            RunLog(tmp_path / "runs" / run.id).test(data=NOISY, metric=metric, samples=360)
    seen = with_further_tests(read_runs(tmp_path))
    evaluated = [run for run in seen if "tested on" in run.config["data"]]
    assert len(seen) == 4 + 3
    assert [run.final_metric for run in evaluated] == [80.0, 80.0, 77.0]
    assert all(run.epochs == [] for run in evaluated)  # what was recorded on the way is of the other test set
    text = markdown_report(tmp_path)
    first, second = text.split("### ")[1:]
    assert first.startswith("digits, mlp")
    assert second.startswith("digits, tested on digits?corrupt=noise:3, mlp")
    assert "-3.00" in second
    page = write_report(tmp_path).read_text()
    assert "<h2>digits, tested on digits?corrupt=noise:3, mlp</h2>" in page
    assert "<title>Comparison of digits, mlp</title>" in page
    said: list[str] = []
    report_command(tmp_path, say=said.append)
    assert said[1].startswith("digits, tested on digits?corrupt=noise:3, mlp: OrderDP 40 %")
