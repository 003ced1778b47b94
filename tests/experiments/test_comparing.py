"""Comparisons: which runs there are, killed and started again, searched for the largest ratio without loss."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import pytest

from orderdp._files import try_lock
from orderdp.cli import main
from orderdp.cli._common import show_progress
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.experiments import runner as comparing
from orderdp.experiments.config import (
    MethodSpec,
    RunOptions,
    Settings,
    grid,
    import_object,
    parse_method,
    split_outside_brackets,
)
from orderdp.experiments.records import Run, RunRecords, read_run, read_runs
from orderdp.experiments.runner import (
    Runner,
    compare_all,
    find_lossless,
    possible_ratios,
    remember_settings,
)

ROOT = Path(__file__).parents[2]
BASE = Settings(data="digits", model="mlp", width=16, policy="full", epochs=2)
SMALL = ["--data", "digits", "--model", "mlp", "--width", "16", "--epochs", "2", "--device", "cpu", "--threads", "1"]


# -- the grid -------------------------------------------------------------------------------------------------------


def test_the_grid_has_every_policy_at_every_ratio_with_every_seed_and_the_controls() -> None:
    runs = grid(BASE, [MethodSpec("orderdp", {})], [0.3, 0.5], [0, 1])
    named = [(run.policy, run.prune_ratio, run.seed) for run in runs]
    one_seed = [("full", None), *[(name, ratio) for name in ("reduced", "random", "orderdp") for ratio in (0.3, 0.5)]]
    assert named == [(*entry, seed) for seed in (0, 1) for entry in one_seed]
    assert len({run.run_id for run in runs}) == len(runs)
    without = grid(BASE, [MethodSpec("orderdp", {})], [0.3], [0], controls=False)
    assert [run.policy for run in without] == ["orderdp"]
    twice = grid(BASE, [MethodSpec("full", {}), MethodSpec("full", {})], [0.3, 0.5], [0], controls=False)
    assert len(twice) == 1


def test_methods_as_they_are_written() -> None:
    assert parse_method("ucb:c=2:alpha=0.1") == MethodSpec("ucb", {"c": 2, "alpha": 0.1})
    mixed = parse_method('orderdp:select={"name":"mixed","top":0.9,"uniform":0.1}:unbiased=True')
    assert mixed.parameters == {"select": {"name": "mixed", "top": 0.9, "uniform": 0.1}, "unbiased": True}
    with pytest.raises(ConfigError, match=r"there is no policy 'orderpd'\. Did you mean 'orderdp'\?"):
        parse_method("orderpd")
    with pytest.raises(ConfigError, match="name:key=value"):
        parse_method("ucb:2")
    with pytest.raises(ConfigError, match="at least one policy and one seed"):
        grid(BASE, [], [0.3], [0])
    with pytest.raises(ConfigError, match=r"'prune_ratio' is the prune ratio of 'orderdp'\. Set it with --prune-ratio"):
        parse_method("orderdp:prune_ratio=0.9")
    with pytest.raises(ConfigError, match="'fraction' is the prune ratio of 'kakurenbo'"):
        parse_method("kakurenbo:fraction=0.3")
    with pytest.raises(ConfigError, match="'full' trains on all data and takes no parameters, got foo"):
        parse_method("full:foo=1")


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("orderdp:select=top", "orderdp"),
        ('orderdp:select={"name":"top"}', "orderdp"),
        ("orderdp:every=epoch:unbiased=false", "orderdp"),
        ("orderdp:balanced=false", "orderdp"),
        ("orderdp:exploration=0.9:select=top", "orderdp:exploration=0.9"),
        ("infobatch:annealing=0.875", "infobatch"),
        ("ucb:c=1", "ucb"),
        ("ucb:c=2,ucb:c=2.0", "ucb:c=2"),
        ("el2n:balanced=true", "el2n"),
    ],
)
def test_a_method_whose_parameters_are_the_defaults_is_run_once(written: str, plain: str) -> None:
    both = [parse_method(text) for text in (*split_outside_brackets(written, ","), plain)]
    runs, alone = (grid(BASE, methods, [0.3, 0.5], [0, 1], controls=False) for methods in (both, both[-1:]))
    assert runs == alone
    assert [run.run_id for run in runs] == [run.run_id for run in alone]


@pytest.mark.parametrize(
    "written",
    [
        "orderdp:select=uniform",
        "orderdp:exploration=0.9",
        "orderdp:exploration=0.5:exploitation=0.6",
        "orderdp:balanced=true",
        "infobatch:annealing=none",
        "ucb:c=2",
        "el2n:epoch=3",
        "proxy-plan:backward_every=2",
    ],
)
def test_a_method_with_other_parameters_keeps_them(written: str) -> None:
    method = parse_method(written)
    runs = grid(BASE, [method, parse_method(method.policy)], [0.5], [0], controls=False)
    assert [run.policy_parameters for run in runs] == [method.parameters, {}]


def test_a_method_with_both_dials_has_its_own_ratio_and_is_run_once() -> None:
    dials = MethodSpec("orderdp", {"exploration": 0.5, "exploitation": 0.6})
    assert [run.prune_ratio for run in grid(BASE, [dials], [0.3, 0.5], [0], controls=False)] == [None]
    one = MethodSpec("orderdp", {"exploration": 0.9})
    assert [run.prune_ratio for run in grid(BASE, [one], [0.3, 0.5], [0], controls=False)] == [0.3, 0.5]


# -- running it -----------------------------------------------------------------------------------------------------


def test_what_is_finished_is_not_run_again_and_one_at_a_time_is_like_two(tmp_path: Path) -> None:
    runs = grid(BASE, [MethodSpec("orderdp", {})], [0.5], [0])
    alone = dict(_labeled(compare_all(runs, RunOptions(tmp_path / "one", threads=1))))
    together = dict(_labeled(compare_all(runs, RunOptions(tmp_path / "two", threads=1, jobs=2))))
    assert alone == together
    assert list(compare_all(runs, RunOptions(tmp_path / "one"))) == []
    assert all(RunRecords(tmp_path / "one").finished(run.run_id) is not None for run in runs)


def _labeled(results) -> list[tuple[str, tuple]]:
    return [(run.run_id, (summary["metric"], summary["samples"], tuple(summary["usage"]))) for run, summary in results]


def test_a_failed_run_is_a_result_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--policies", "orderdp", "--prune-ratios", "0.5", "--seeds", "0", "--no-controls"]
    diverging = ["--lr", "1e30", "--schedule", "constant"]
    assert main(["compare", *SMALL, *options, *diverging, "--out", str(tmp_path / "a")]) == 1
    assert "failed" in capsys.readouterr().out
    assert "failed" in (tmp_path / "a" / "report.html").read_text()


def test_killed_at_any_moment_it_goes_on_and_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    methods = ["--policies", "orderdp,infobatch", "--prune-ratios", "0.5", "--seeds", "0", "--no-controls"]
    arguments = ["compare", *SMALL, *methods, "--epochs", "8", "--checkpoint-seconds", "0.05", "--out"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert main([*arguments, str(straight)]) == 0
    for lines in (4, 9, 15):  # in the first run, at its end or soon after it, and in the second run
        process = subprocess.Popen(
            [sys.executable, "-m", "orderdp", *arguments, str(killed)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        _wait_for_records(killed, more_than=lines, process=process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=180)
        process.stderr.close()
    assert main([*arguments, str(killed)]) == 0
    once, again = ({run.id: run for run in read_runs(folder)} for folder in (straight, killed))
    assert once.keys() == again.keys()
    for name, run in once.items():
        for field in ("metric", "samples", "usage"):
            assert run.summary[field] == again[name].summary[field]
        assert [epoch["epoch"] for epoch in again[name].epochs] == [epoch["epoch"] for epoch in run.epochs]
        lines = (killed / "runs" / name / "records.jsonl").read_text().splitlines()
        kinds = [json.loads(line)["kind"] for line in lines]
        assert kinds.count("summary") == 1  # no finished run was repeated


def _wait_for_records(folder: Path, more_than: int, process: subprocess.Popen) -> None:
    for _ in range(15000):
        lines = sum(len(file.read_bytes().splitlines()) for file in folder.glob("runs/*/records.jsonl"))
        if lines > more_than:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    raise AssertionError("no records came")


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = ["train", *SMALL, "--epochs", "500", "--prune-ratio", "0.5", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "orderdp", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Tests that run in the background ignore it, and their processes would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _wait_for_records(tmp_path, more_than=3, process=process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 130, errors
    assert "Interrupted; saved. Resume with: orderdp train" in errors
    assert "--resume" in errors
    assert output == ""
    assert "Traceback" not in errors
    assert list(tmp_path.glob("runs/*/checkpoint.pt"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_several_at_a_time_end_with_the_process_that_started_them(tmp_path: Path, number: int) -> None:
    arguments = ["--policies", "full", "--no-controls", "--seeds", "0,1", "--jobs", "2", "--epochs", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "orderdp", "compare", *SMALL, *arguments, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        for seed in (0, 1):
            _wait_for_epochs(tmp_path, f"full-seed{seed}-*", process)
        process.send_signal(number)  # to it alone: the others are not told by a terminal
        output, errors = process.communicate(timeout=180)  # the pipes are closed when the last of them has ended
    finally:
        process.kill()
    assert process.returncode == {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 130}[number], errors
    assert "Traceback" not in errors
    assert ("Interrupted; saved." in errors) == (number == signal.SIGINT)
    assert output == ""
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert (folder / "checkpoint.pt").exists()
        with try_lock(folder):
            assert read_run(folder).summary is None


def _wait_for_epochs(folder: Path, name: str, process: subprocess.Popen) -> None:
    for _ in range(15000):
        if any(b'"epoch"' in file.read_bytes() for file in folder.glob(f"runs/{name}/records.jsonl")):
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    raise AssertionError("no records came")


def test_a_process_that_is_killed_while_it_trains_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "_run_here", _die)
    with pytest.raises(StateError, match="was killed, perhaps because memory ran out"):
        list(compare_all([BASE], RunOptions(tmp_path, device="cpu", threads=1, jobs=2)))


def _die(settings: Settings, place: RunOptions) -> None:
    os._exit(137)


def test_two_processes_do_not_train_the_same_run(tmp_path: Path) -> None:
    runner = Runner(RunOptions(tmp_path, device="cpu"))
    runner.options.folder(BASE).mkdir(parents=True)
    with try_lock(runner.options.folder(BASE)), pytest.raises(StateError, match="another process is training in"):
        runner.run(BASE)
    assert runner.run(BASE)["status"] == "done"


def test_settings_may_not_change_under_a_comparison(tmp_path: Path) -> None:
    remember_settings(BASE, tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "records.jsonl").touch()
    remember_settings(BASE, tmp_path)
    with pytest.raises(ConfigError, match=r"holds runs with other settings: lr: was 0\.1, is 0\.5"):
        remember_settings(Settings.from_dict({**BASE.as_dict(), "lr": 0.5}), tmp_path)


def test_settings_differ_where_runs_do() -> None:
    whole, broken = replace(BASE, lr=1), replace(BASE, lr=1.0)  # a file may say lr = 1; --lr 1 is 1.0
    assert whole.run_id != broken.run_id
    assert broken.differences(whole.as_dict()) == ["lr: was 1, is 1.0"]
    assert BASE.run_id == replace(BASE, mixup=0).run_id
    assert BASE.differences(replace(BASE, mixup=0).as_dict()) == []


# -- the search -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.0, 0.05, 0.32, 0.6, 0.9, 0.95])
def test_bisection_finds_the_largest_ratio_without_measurable_loss(limit: float) -> None:
    asked: list[str] = []

    def train(runs: list[Settings]) -> list[Run]:
        asked.extend(run.run_id for run in runs)
        return [_made_up(run, limit) for run in runs]

    probes = list(find_lossless(BASE, MethodSpec("orderdp", {}), [0, 1, 2], train))
    found = max((probe.prune_ratio for probe in probes if probe.lossless), default=0.0)
    assert found == pytest.approx(min(0.9, int(limit * 20 + 1e-9) / 20))
    assert len(probes) <= 5
    with pytest.raises(ConfigError, match="at least two seeds"):
        list(find_lossless(BASE, MethodSpec("orderdp", {}), [0], train))


def test_only_ratios_that_can_be_made_are_searched() -> None:
    method = MethodSpec("orderdp", {"exploration": 0.9})
    assert possible_ratios(BASE, method, resolution=0.05)[0] == 0.1
    probes = list(find_lossless(BASE, method, [0, 1, 2], lambda runs: [_made_up(run, 0.12) for run in runs]))
    assert [probe.prune_ratio for probe in probes if probe.lossless] == [0.1]
    for wrong in (
        MethodSpec("infobatch-quantile", {}),
        MethodSpec("orderdp", {"exploration": 0.5, "exploitation": 0.6}),
    ):
        with pytest.raises(ConfigError, match="decides by itself how much it leaves out"):
            possible_ratios(BASE, wrong)
    for resolution in (0.0, -0.1, 2.0, float("nan")):
        with pytest.raises(ConfigError, match=r"resolution must be above 0 and at most 0\.9"):
            possible_ratios(BASE, MethodSpec("orderdp", {}), resolution=resolution)


@pytest.mark.parametrize(
    ("high", "resolution", "last"), [(0.9, 0.07, 0.84), (0.5, 0.3, 0.3), (0.9, 0.05, 0.9), (0.7, 0.1, 0.7)]
)
def test_no_ratio_above_the_largest_one_is_searched(high: float, resolution: float, last: float) -> None:
    assert possible_ratios(BASE, MethodSpec("orderdp", {}), high=high, resolution=resolution)[-1] == last


def test_a_ratio_at_which_a_run_failed_is_not_without_a_loss() -> None:
    def train(runs: list[Settings]) -> list[Run]:
        made = [_made_up(run, limit=1.0) for run in runs]
        return [_broken_down(run) if run.config["prune_ratio"] == 0.6 and run.seed == 2 else run for run in made]

    probes = list(find_lossless(BASE, MethodSpec("orderdp", {}), [0, 1, 2], train, resolution=0.3))
    assert [(probe.prune_ratio, probe.lossless) for probe in probes] == [(0.6, False), (0.3, True)]
    assert probes[0].said == "within 0.5 points of full data; 1 of its runs failed"
    assert probes[1].said == "within 0.5 points of full data"


def test_a_seed_that_is_given_twice_is_searched_with_once() -> None:
    asked: list[list[int]] = []

    def train(runs: list[Settings]) -> list[Run]:
        asked.append([run.seed for run in runs])
        return [_made_up(run, limit=1.0) for run in runs]

    list(find_lossless(BASE, MethodSpec("orderdp", {}), [1, 0, 0, 1], train, resolution=0.9))
    assert asked == [[1, 0, 1, 0]]  # full data, and the only ratio
    with pytest.raises(ConfigError, match=r"at least two seeds, got \[3\]"):
        list(find_lossless(BASE, MethodSpec("orderdp", {}), [3, 3], train))


def _broken_down(run: Run) -> Run:
    return replace(run, summary={**(run.summary or {}), "status": "failed", "metric": None})


def _made_up(settings: Settings, limit: float) -> Run:
    """Loses a point as soon as more than the limit is pruned."""
    ratio = settings.prune_ratio or 0.0
    metric = 90 + settings.seed - (1.0 + 0.01 * settings.seed if ratio > limit else 0.02 * (settings.seed - 1))
    summary = {"status": "done", "metric": metric, "samples": 100, "full_samples": 100, "saved": ratio}
    return Run(settings.run_id, {**settings.as_dict(), "label": settings.label}, summary=summary)


def test_a_line_of_progress_has_the_time_of_the_table_with_that_of_the_proxy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = {"training_seconds": 8.0, "selection_seconds": 1.0, "overhead_seconds": 1.0, "proxy_seconds": 30.0}
    summary = {"status": "done", "metric": 90.0, "saved": 0.5, "evaluation_seconds": 5.0, **parts}
    settings = replace(BASE, policy="el2n", prune_ratio=0.5)
    with show_progress(1, 0, quiet=False) as progress:
        progress.ended(settings, summary)
    assert capsys.readouterr().err == "[1/1] el2n 50%, seed 0: 90.00 %, 50.0% fewer samples, 40 s\n"


# -- the commands ---------------------------------------------------------------------------------------------------


def test_compare_prints_a_table_writes_a_page_and_can_be_extended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["compare", *SMALL, "--policies", "orderdp", "--prune-ratios", "0.5", "--out", str(tmp_path)]
    assert main([*options, "--seeds", "0"]) == 0
    output, errors = capsys.readouterr()
    assert "[4/4]" in errors
    assert "one seed, no interval" in output
    assert str(tmp_path / "report.html") in output
    assert main([*options, "--seeds", "0,1", "--quiet"]) == 0
    assert "95 % interval" in capsys.readouterr().out  # which one seed has not
    assert len(read_runs(tmp_path)) == 8
    assert main(["report", str(tmp_path), "--markdown"]) == 0
    assert "| orderdp 50%" in capsys.readouterr().out


def test_a_task_of_ones_own_is_trained_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = ["--task", f"{ROOT / 'examples' / 'own_task.py'}:make", "--epochs", "3", "--threads", "1"]
    assert main(["compare", *task, "--prune-ratios", "0.4", "--seeds", "0", "--out", str(tmp_path)]) == 0
    assert "orderdp 40%" in capsys.readouterr().out
    assert {run.config["policy"] for run in read_runs(tmp_path)} == {
        "full",
        "reduced",
        "unlearned",
        "random",
        "infobatch",
        "orderdp",
    }


def test_a_file_may_have_the_name_of_a_module_that_is_loaded_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder, found in ((tmp_path, 1), (tmp_path / "sub", 2)):
        folder.mkdir(exist_ok=True)
        (folder / "random.py").write_text(f"def make():\n    return {found}\n")
        assert import_object(f"{folder}/random.py:make", "task")() == found
    assert random.random() < 1  # Python's own is still there
    found_later = PathFinder.find_spec("random", sys.path)  # by a process that is started with this path
    assert found_later is not None
    assert found_later.origin == random.__file__


@pytest.mark.parametrize("place", ["..mine:make", ".mine:make", ":make", "mine:", "mine"])
def test_a_place_that_is_none_is_said(place: str) -> None:
    with pytest.raises(ConfigError, match="must be given as module:name"):
        import_object(place, "task")


def test_train_refuses_what_is_there_and_resumes_it_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["train", *SMALL, "--prune-ratio", "0.5", "--out", str(tmp_path)]
    assert main(options) == 0
    assert main(options) == 2
    assert "Resume it with --resume" in capsys.readouterr().err
    assert main([*options, "--resume"]) == 0
    assert "finished already" in capsys.readouterr().err
    assert main([*options, "--lr", "0.7", "--resume"]) == 2
    assert "lr: was 0.1, is 0.7" in capsys.readouterr().err


def test_a_config_file_and_a_preset_give_settings_and_the_command_line_goes_before_them(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('preset = "cpu"\ndata = "digits"\nmodel = "mlp"\nwidth = 16\nepochs = 7\nlr = 0.05\n')
    assert (
        main(["train", "--config", str(config), "--epochs", "1", "--prune-ratio", "0.5", "--out", str(tmp_path / "o")])
        == 0
    )
    (run,) = read_runs(tmp_path / "o")
    assert (run.config["epochs"], run.config["lr"], run.config["batch_size"]) == (1, 0.05, 128)


def test_a_folder_in_which_nothing_was_trained_takes_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", "--data", "digits", "--epochs", "1", "--quiet", "--policies", "full", "--no-controls"]
    remember_settings(Settings(model="mpl", epochs=1), tmp_path)
    assert main([*arguments, "--model", "mlp", "--width", "4", "--seeds", "0", "--out", str(tmp_path)]) == 0
    assert main([*arguments, "--model", "mlp", "--width", "8", "--seeds", "0", "--out", str(tmp_path)]) == 2
    assert "width: was 4, is 8" in capsys.readouterr().err
    (tmp_path / "settings.json").write_text("[1]")
    assert main([*arguments, "--model", "mlp", "--width", "4", "--seeds", "0", "--out", str(tmp_path)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_a_file_may_say_what_train_trains_and_not_what_a_comparison_varies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('seed = 7\npolicy = "orderdp"\npolicy_parameters = { exploration = 0.9 }\nprune_ratio = 0.5\n')
    assert main(["train", *SMALL, "--quiet", "--config", str(file), "--out", str(tmp_path / "one")]) == 0
    assert main(["train", *SMALL, "--quiet", "--config", str(file), "--seed", "3", "--out", str(tmp_path / "two")]) == 0
    runs = [*read_runs(tmp_path / "one"), *read_runs(tmp_path / "two")]
    assert [run.config["seed"] for run in runs] == [7, 3]
    assert {run.config["label"] for run in runs} == {"orderdp (exploration=0.9) 50%"}
    assert main(["compare", *SMALL, "--config", str(file), "--out", str(tmp_path / "three")]) == 2
    assert (
        "sets 'policy' and 'policy_parameters' and 'prune_ratio' and 'seed', which a comparison varies"
        in capsys.readouterr().err
    )


def test_find_lossless_says_what_it_tried_and_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["compare", *SMALL, "--policies", "orderdp", "--find-lossless", "--resolution", "0.3", "--seeds", "0,1"]
    assert main([*options, "--quiet", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "orderdp 60%: not settled" in output
    assert (
        "orderdp: no ratio that was tried is within 0.5 points of full data" in output
    )  # two seeds of two epochs decide nothing


def test_find_lossless_tries_no_ratio_that_a_comparison_would_and_names_what_it_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A pool of 0.6 leaves out 40 % at least: at 30 %, the first ratio of a comparison, there is no such policy.
    options = ["compare", *SMALL, "--policies", "orderdp:exploration=0.6", "--find-lossless", "--resolution", "0.9"]
    assert main([*options, "--seeds", "0,1", "--quiet", "--out", str(tmp_path)]) == 0
    assert (
        "orderdp (exploration=0.6): no ratio that was tried is within 0.5 points of full data"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "digits", "--policy", "orderpd"], "Did you mean 'orderdp'?"),
        (["train", "--data", "digits", "--policy", "ucb:cc=1", "--prune-ratio", "0.3"], "Did you mean 'c'?"),
        (["train", "--data", "digitz", "--prune-ratio", "0.3"], "Did you mean 'digits'?"),
        (["train", "--data", "digits", "--model", "cmn", "--prune-ratio", "0.3"], "Did you mean 'cnn'?"),
        (["train", "--data", "digits", "--preset", "cpuu", "--prune-ratio", "0.3"], "Did you mean 'cpu'?"),
        (["train", "--data", "digits", "--optimizer", "sdg", "--prune-ratio", "0.3"], "Did you mean 'sgd'?"),
        (["train", "--data", "digits", "--schedule", "cosinus", "--prune-ratio", "0.3"], "Did you mean 'cosine'?"),
        (["train", "--data", "digits", "--prune-ratio", "40"], "It is a fraction, not a percentage."),
        (["train", "--data", "digits"], "policy 'orderdp' needs a prune ratio, got none. Give --prune-ratio;"),
        (["train", "--data", "digits", "--policy", "ucb"], "policy 'ucb' needs a prune ratio, got none. Give"),
        (["train", "--data", "digits", "--policy", "ucb:cc=1"], "Did you mean 'c'?"),
        (
            [
                "train",
                "--data",
                "digits",
                "--policy",
                "orderdp:exploration=0.8:exploitation=0.5",
                "--prune-ratio",
                "0.4",
            ],
            "--prune-ratio 0.4 keeps a fraction of 0.6, but exploration=0.8 times exploitation=0.5 keeps 0.4",
        ),
        (
            ["train", "--data", "digits", "--policy", "infobatch-quantile", "--prune-ratio", "0.4"],
            "'infobatch-quantile' decides by itself how much it leaves out, got a prune ratio of 0.4",
        ),
        (["train", "--data", "digits", "--prune-ratio", "0.3", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["compare", "--data", "digits", "--prune-ratios", "a"], "--prune-ratios: must be a number in [0, 1), got 'a'"),
        (["compare", "--data", "digits", "--jobs", "0"], "--jobs must be at least 1"),
        (["compare", "--data", "digits", "--find-lossless", "--seeds", "0"], "at least two seeds"),
        (["compare", "--data", "digits", "--find-lossless", "--prune-ratios", "0.3"], "chooses the ratios itself"),
        (["compare", "--data", "digits", "--find-lossless", "--policies", "full"], "needs a policy with a ratio"),
        (
            ["compare", "--data", "digits", "--policies", "random", "--prune-ratios", "0.9999"],
            "keeps 0 of 1347 samples",
        ),
        (["compare", "--data", "digits", "--policies", "el2n", "--prune-ratios", "0.9999"], "keeps 0 of 1347 samples"),
        (["compare", "--data", "digits", "--policies", "el2n:epoch=20"], "Give --proxy-epochs 20."),
        (["compare", "--data", "digits", "--policies", "own-scores"], "needs precomputed scores"),
        (["compare", "--data", "digits", "--threads", "0"], "--threads must be at least 1"),
        (["compare", "--data", "digits", "--checkpoint-seconds", "nan"], "--checkpoint-seconds must be a number"),
        (["compare", "--data", "digits", "--prune-ratios", ""], "at least one prune ratio"),
        (["compare", "--data", "digits", "--prune-ratios", "", "--no-controls"], "at least one prune ratio"),
        (["train", "--data", "digits", "--policy", "el2n"], "'el2n' needs a prune ratio"),
        (["train", "--data", "digits", "--prune-ratio", "0.3", "--width", "-1"], "--width must be a whole number"),
        (["train", "--data", "digits", "--prune-ratio", "0.3", "--seed", str(2**70)], "below 2**64"),
        (["train", "--data", "digits", "--prune-ratio", "0.3", "--nesterov", "--momentum", "0"], "above 0, got 0"),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, list) else "",
)
def test_bad_usage_is_said_before_anything_is_trained(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out/runs/*/records.jsonl"))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ('augment = "no"', "augment must be true or false, got 'no'"),
        ("policy_parameters = 3", "policy_parameters must be names with values, got 3"),
        ("policy_parameters = { prune_ratio = 0.3 }", "'prune_ratio' is the prune ratio of 'orderdp'"),
        (
            'policy = "kakurenbo"\npolicy_parameters = { fraction = 0.3 }',
            "'fraction' is the prune ratio of 'kakurenbo'",
        ),
        (
            'policy = "full"\npolicy_parameters = { tau = 1 }',
            "'full' trains on all data and takes no parameters, got tau",
        ),
    ],
)
def test_a_file_is_held_to_what_the_command_line_is(
    written: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(f"prune_ratio = 0.4\n{written}\n")
    options = ["--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]
    assert main(["train", *SMALL, *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return torch.tensor(1.0)", r"a number for each sample of the batch, got shape \(\)"),
        ("return 1.0", "a number for each sample of the batch, got float"),
        ("return torch.ones(len(batch[0]), 2)", "a number for each sample of the batch, got shape"),
    ],
)
def test_a_metric_that_is_none_of_each_sample_is_refused(tmp_path: Path, body: str, message: str) -> None:
    place = _task(tmp_path, f"    def metric(self, model, batch):\n        {body}\n")
    with pytest.raises(ConfigError, match=message):
        Runner(RunOptions(tmp_path / "out", device="cpu")).run(Settings(task=place, policy="full", epochs=1))


def test_an_empty_test_set_is_no_accuracy_of_nought(tmp_path: Path) -> None:
    empty = "torch.utils.data.TensorDataset(torch.empty(0, 5), torch.empty(0))"
    place = _task(tmp_path, f"    def __init__(self):\n        super().__init__()\n        self.test_set = {empty}\n")
    with pytest.raises(DatasetError, match="the test set must have samples, got none"):
        Runner(RunOptions(tmp_path / "out", device="cpu")).run(Settings(task=place, policy="full", epochs=1))


def test_a_metric_that_is_no_number_is_said_and_the_other_runs_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = _task(tmp_path, "    def metric(self, model, batch):\n        return batch[1] * float('nan')\n")
    options = ["--task", place, "--epochs", "1", "--device", "cpu", "--threads", "1", "--out", str(tmp_path / "out")]
    assert main(["compare", *options, "--policies", "full", "--no-controls", "--seeds", "0,1"]) == 0
    said = capsys.readouterr().err
    assert "full data, seed 0: its metric is not a number, 0.0% fewer samples" in said
    assert "full data, seed 1: its metric is not a number" in said
    assert main(["train", *options, "--policy", "full", "--resume"]) == 0
    assert "full data, seed 0: its metric is not a number" in capsys.readouterr().out


def _task(folder: Path, changes: str) -> str:
    """A task in a file of its own, with something changed."""
    name = f"task_{folder.name}"
    (folder / f"{name}.py").write_text(
        "import torch\n"
        "from examples.own_task import make as plain\n"
        f"class Changed(type(plain())):\n{changes}\n"
        "def make():\n    return Changed()\n"
    )
    return f"{folder / name}.py:make"


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["compare", *SMALL, "--prune-ratios", "0.5", "--out", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written to" in capsys.readouterr().err


def test_plain_lines_of_progress_have_the_time_left_while_there_is_some(capsys: pytest.CaptureFixture[str]) -> None:
    run = Settings.from_dict({**BASE.as_dict(), "policy": "orderdp", "prune_ratio": 0.5})
    seconds = dict.fromkeys(("training_seconds", "selection_seconds", "overhead_seconds"), 2.0)
    with show_progress(3, 1, quiet=False) as progress:
        progress.watch(run, 1.0, 2, None)
        progress.ended(run, {"status": "done", "metric": 91.234, "saved": 0.5, **seconds})
        progress.ended(run, {"status": "failed", "reason": "the loss became nan in epoch 1"})
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("[2/3] orderdp 50%, seed 0: 91.23 %, 50.0% fewer samples, 6.0 s; about ")
    assert said[1] == "[3/3] orderdp 50%, seed 0: failed, the loss became nan in epoch 1"
    with show_progress(3, 1, quiet=True) as progress:
        progress.ended(run, {"status": "done", "metric": 91.234, "saved": 0.5, **seconds})
    assert capsys.readouterr() == ("", "")


def test_bars_on_a_terminal_come_and_go(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    seconds = dict.fromkeys(("training_seconds", "selection_seconds", "overhead_seconds"), 2.0)
    with show_progress(2, 0, quiet=False) as progress:
        progress.watch(BASE, 1.0, 2, 88.0)
        progress.ended(BASE, {"status": "done", "metric": 90.0, "saved": 0.0, **seconds})
    assert "full data, seed 0: 90.00 %" in capsys.readouterr().err


def test_a_coreset_says_what_is_wrong_on_the_command_line_before_a_proxy_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["coreset", "--method", "el2n:epoch=5", "--data", "digits", "--model", "mlp", "--prune-ratio", "0.5"]
    assert main([*options, "--proxy-epochs", "1", "--out", str(tmp_path / "c.npz")]) == 2
    assert "Give --proxy-epochs 5." in capsys.readouterr().err
    if Path("/proc").is_dir():  # a folder that is there and takes no files
        assert main([*options, "--cache", str(tmp_path / "proxies"), "--out", "/proc/c.npz"]) == 2
        assert "'/proc' cannot be written to: " in capsys.readouterr().err
        assert not (tmp_path / "proxies").exists()


def test_data_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "list"]) == 0
    assert "fashion-mnist" in capsys.readouterr().out
    assert main(["data", "fetch"]) == 2
    assert "needs the name of a data set" in capsys.readouterr().err
    assert main(["data", "fetch", "fashion-mist"]) == 2
    assert "Did you mean 'fashion-mnist'?" in capsys.readouterr().err


def test_records_of_a_run_name_what_was_typed(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "orderdp",
            "train",
            *SMALL,
            "--epochs",
            "1",
            "--prune-ratio",
            "0.5",
            "--out",
            str(tmp_path),
        ],
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_run(folder).command.startswith("orderdp train --data digits")
    assert str(folder) in result.stderr


# -- static coresets --------------------------------------------------------------------------------------------------


def test_static_methods_compare_by_name_with_the_proxys_time_in_the_total(tmp_path: Path) -> None:
    options = [
        "--policies",
        "el2n:epoch=2,static-random",
        "--prune-ratios",
        "0.5",
        "--seeds",
        "0",
        "--no-controls",
        "--keep-last",
    ]
    assert main(["compare", *SMALL, *options, "--proxy-epochs", "2", "--quiet", "--out", str(tmp_path)]) == 0
    runs = {run.config["policy"]: run for run in read_runs(tmp_path)}
    assert runs["el2n"].summary["samples"] == runs["static-random"].summary["samples"] == 2 * 674
    assert runs["el2n"].summary["proxy_seconds"] > 0
    assert runs["el2n"].seconds > runs["el2n"].summary["proxy_seconds"]
    usage = runs["el2n"].summary["usage"]
    assert usage == [1347 - 674, 0, 674]  # the same half in both epochs
    with np.load(tmp_path / "runs" / runs["el2n"].id / "selection.npz") as chosen:
        assert len(chosen["indices"]) == 674
        assert chosen["scores"][chosen["indices"]].mean() > chosen["scores"].mean()  # the hardest of each class


def test_the_coreset_command_writes_indices_and_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "coreset.npz"
    options = ["--data", "digits", "--model", "mlp", "--width", "16", "--proxy-epochs", "2", "--prune-ratio", "0.7"]
    cache = ["--cache", str(tmp_path / "proxies"), "--out", str(out)]
    assert main(["coreset", "--method", "entropy", *options, *cache]) == 0
    assert "404 samples are in" in capsys.readouterr().out
    with np.load(out) as found:
        assert len(np.unique(found["indices"])) == 404
        assert found["scores"].shape == (1347,)
    features = tmp_path / "features.npz"
    np.savez(features, features=np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32))
    own = ["--from-features", str(features), "--prune-ratio", "0.8", "--out", str(out)]
    assert main(["coreset", "--method", "k-center", *own]) == 0
    assert main(["coreset", "--list"]) == 0
    assert "facility-location" in capsys.readouterr().out


def test_a_coreset_goes_to_a_new_folder_and_its_proxy_goes_when_nobody_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    out = tmp_path / "new" / "coreset.npz"
    options = ["--data", "digits", "--model", "mlp", "--width", "4", "--proxy-epochs", "1", "--prune-ratio", "0.7"]
    assert main(["coreset", "--method", "entropy", *options, "--out", str(out)]) == 0
    assert out.exists()
    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_damaged_coreset_is_named(tmp_path: Path) -> None:
    settings = Settings.from_dict({**BASE.as_dict(), "policy": "static-random", "prune_ratio": 0.5})
    runner = Runner(RunOptions(tmp_path, device="cpu"))
    runner.options.folder(settings).mkdir(parents=True)
    (runner.options.folder(settings) / "selection.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(StateError, match=r"is damaged .* Remove it to select again"):
        runner.run(settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "el3n", "--data", "digits"], "Did you mean 'el2n'?"),
        (["--method", "el2n:epok=2", "--data", "digits"], "Did you mean 'epoch'?"),
        (["--method", "el2n"], "either --data D or --from-features FILE"),
        (["--data", "digits"], "give --method, --prune-ratio and --out"),
    ],
    ids=str,
)
def test_bad_usage_of_the_coreset_command(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["coreset", *arguments, "--prune-ratio", "0.5", "--out", str(tmp_path / "x.npz")]) == 2
    assert message in capsys.readouterr().err


def test_policies_that_do_not_say_how_few_they_keep_are_not_refused(tmp_path: Path) -> None:
    options = ["--policies", "repb,selective-backprop,seta", "--prune-ratios", "0.3", "--seeds", "0", "--no-controls"]
    assert main(["compare", *SMALL, *options, "--quiet", "--out", str(tmp_path)]) == 0
    assert all(run.done for run in read_runs(tmp_path))
