"""Runs of the workbench: settings, records, and a resumed run that is the straight one."""

from __future__ import annotations

import re
import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orderdp.datasets import load
from orderdp.errors import ConfigError, StateError
from orderdp.experiments.config import PRESETS, RunOptions, Settings, preset_values, read_config
from orderdp.experiments.records import read_run
from orderdp.experiments.runner import Runner
from orderdp.experiments.tasks import ImageTask, cutmix
from orderdp.experiments.trainer import Stopwatch, Training, uninterrupted
from orderdp.testing import global_generators_untouched

BASE = Settings(
    data="digits", model="mlp", width=16, policy="orderdp", prune_ratio=0.4, epochs=3, batch_size=64, drop_last=False
)
DATA = load("digits")
CPU = torch.device("cpu")


def training(settings: Settings, folder: Path, task: type = ImageTask, watch=None, **options) -> Training:
    own = {} if watch is None else {"watch": watch}
    return Training(settings, task(DATA, settings, CPU), folder, RunOptions(folder, **options), device=CPU, **own)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)["model"]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class StopAfter:
    """Ctrl-C after so many steps, or something else."""

    def __init__(self, steps: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.left, self.error = steps, error

    def __call__(self, done: float, epochs: int, metric: float | None) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


def test_a_run_leaves_records_that_add_up(tmp_path: Path) -> None:
    with global_generators_untouched():
        summary = training(BASE, tmp_path).run()
    run = read_run(tmp_path)
    assert run.done
    assert run.config == {**BASE.as_dict(), "label": "orderdp 40%"}
    assert len(run.epochs) == 3
    assert [epoch["samples"] for epoch in run.epochs] == [808] * 3
    assert summary["samples"] == 3 * 808
    assert summary["saved"] == pytest.approx(1 - 808 / 1347)
    assert sum(count * times for times, count in enumerate(summary["usage"])) == summary["samples"]
    assert summary["metric"] == run.epochs[-1]["metric"] > 40
    notable = summary["notable"]
    assert set(notable) == {"most", "least", "hardest"}
    assert all(len(found) == 8 for found in notable.values())
    counts = [times for times, count in enumerate(summary["usage"]) for _ in range(count)]
    assert [each["used"] for each in notable["least"]] == counts[:8]
    assert [each["used"] for each in notable["most"]] == counts[:-9:-1]
    assert run.epochs[-1]["coverage"] == pytest.approx(1 - summary["usage"][0] / 1347)
    for part in ("training", "selection", "evaluation"):
        total = sum(epoch[f"{part}_seconds"] for epoch in run.epochs)
        assert 0 < total == pytest.approx(summary[f"{part}_seconds"])
    assert all(epoch["overhead_seconds"] > 0 for epoch in run.epochs)  # each has its own, not that of the one before
    assert sum(epoch["overhead_seconds"] for epoch in run.epochs) <= summary["overhead_seconds"]
    assert {"python", "torch", "numpy", "orderdp"} <= set(run.versions)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_time_that_nothing_claims_is_overhead_of_the_epoch_it_was_spent_in(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("orderdp.experiments.trainer.time.perf_counter", lambda: now)
    clock = Stopwatch()
    told = []
    for wait in (1.0, 10.0):
        before = dict(clock.seconds)
        with clock.running():
            now += wait
            with clock.part("evaluation"):
                now += 100.0
                clock.flush()  # what is going on is claimed at its end
            clock.flush()
            told.append(clock.since(before))
            now += 0.25  # after the record: the run's
    assert [epoch["overhead_seconds"] for epoch in told] == [1.0, 10.0]
    assert [epoch["evaluation_seconds"] for epoch in told] == [100.0, 100.0]
    now += 1000.0
    clock.flush()  # it does not run
    assert sum(clock.seconds.values()) == 211.5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policy": "full", "prune_ratio": None},
        {"policy": "infobatch", "prune_ratio": 0.5},
        {"policy": "kakurenbo", "prune_ratio": 0.3},
        {"policy": "orderdp", "policy_parameters": {"every": "batch"}},
        {"model": "cnn", "width": 2, "data": "digits", "average": True, "channels_last": True},
        {"mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1},
        {"accumulate": 3, "optimizer": "adamw", "lr": 0.01, "schedule": "cosine"},
        {"amp": True, "nesterov": True, "schedule": "step"},
    ],
    ids=str,
)
def test_an_interrupted_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path, changes: dict) -> None:
    settings = replace(BASE, **changes)
    straight = training(settings, tmp_path / "straight").run()
    for steps in (1, 6, 11):
        folder = tmp_path / str(steps)
        with pytest.raises(KeyboardInterrupt):
            training(settings, folder, watch=StopAfter(steps)).run()
        resumed = training(settings, folder).run()
        assert same(weights(folder), weights(tmp_path / "straight"))
        for field in ("metric", "samples", "saved", "usage"):
            assert resumed[field] == straight[field]
        first, second = read_run(folder).epochs, read_run(tmp_path / "straight").epochs
        assert [epoch["loss"] for epoch in first] == pytest.approx([epoch["loss"] for epoch in second])


def test_a_run_whose_output_nobody_reads_any_more_is_saved(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError):
        training(BASE, tmp_path, watch=StopAfter(6, BrokenPipeError)).run()
    assert (tmp_path / "checkpoint.pt").exists()  # there was no end of an epoch that would have left one


@pytest.mark.parametrize("steps", [12, 13, 14, 26, 27, 38, 39])
def test_an_interruption_round_the_end_of_an_epoch_loses_neither_its_test_nor_its_record(
    tmp_path: Path, steps: int
) -> None:
    straight = training(BASE, tmp_path / "straight").run()  # 13 steps an epoch
    with pytest.raises(KeyboardInterrupt):
        training(BASE, tmp_path / "cut", watch=StopAfter(steps)).run()
    resumed = training(BASE, tmp_path / "cut").run()
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "straight"))
    assert resumed["metric"] == straight["metric"]
    first, second = read_run(tmp_path / "cut").epochs, read_run(tmp_path / "straight").epochs
    for field in ("epoch", "samples", "metric"):
        assert [epoch[field] for epoch in first] == [epoch[field] for epoch in second]
    assert [epoch["loss"] for epoch in first] == pytest.approx([epoch["loss"] for epoch in second])


class Pressing(ImageTask):
    """Ctrl-C is pressed while a batch is computed: once, or twice in a row."""

    def __init__(self, settings: Settings, batch: int, times: int) -> None:
        super().__init__(DATA, settings, CPU)
        self.left, self.times = batch, times

    def losses(self, model: torch.nn.Module, batch: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)
        return super().losses(model, batch)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("batch", [1, 15, 26])
def test_ctrl_c_in_mid_step_does_not_leave_half_of_it(tmp_path: Path, batch: int, times: int, accumulate: int) -> None:
    """A step that has begun is ended; with a second Ctrl-C it is not, and the run goes on from before it."""
    settings = replace(BASE, accumulate=accumulate)
    training(settings, tmp_path / "straight").run()
    task = Pressing(settings, batch, times)
    with pytest.raises(KeyboardInterrupt):
        Training(settings, task, tmp_path / "cut", RunOptions(tmp_path, checkpoint_seconds=0.0), device=CPU).run()
    summary = training(settings, tmp_path / "cut").run()
    assert summary["samples"] == 3 * 808
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "straight"))
    straight, cut = (read_run(tmp_path / name).epochs for name in ("straight", "cut"))
    assert [(e["samples"], e["loss"], e["lr"]) for e in straight] == [(e["samples"], e["loss"], e["lr"]) for e in cut]


def test_ctrl_c_waits_for_what_belongs_together_and_is_left_alone_elsewhere() -> None:
    done = []
    before = signal.getsignal(signal.SIGINT)

    def press(times: int, then: str) -> None:
        with uninterrupted():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            done.append(then)

    with pytest.raises(KeyboardInterrupt):
        press(1, "whole")
    assert done == ["whole"]
    with pytest.raises(KeyboardInterrupt):
        press(2, "never")
    with pytest.raises(ValueError, match="other"), uninterrupted():
        raise ValueError("other")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    thread = threading.Thread(target=lambda: done.append(uninterrupted().__enter__()))
    thread.start()
    thread.join(30)
    assert done == ["whole", None]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_that_says_it_is_done_has_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(BASE, tmp_path, checkpoint_seconds=0.0)
    monkeypatch.setattr(run._log, "summary", lambda *_, **__: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        run.run()
    assert (tmp_path / "model.pt").exists()
    again = training(BASE, tmp_path)
    assert again.run()["samples"] == 3 * 808


def test_a_task_that_does_not_tell_what_a_policy_needs_is_told(tmp_path: Path) -> None:
    class Silent(ImageTask):
        def losses(self, model: torch.nn.Module, batch: Any) -> Any:
            return super().losses(model, batch).losses

    settings = replace(BASE, policy="kakurenbo")
    with pytest.raises(ConfigError, match="needs 'correct' of each sample, and the task does not"):
        Training(settings, Silent(DATA, settings, CPU), tmp_path, device=CPU).run()


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = training(BASE, tmp_path).run()
    before = (tmp_path / "records.jsonl").read_bytes()
    assert training(BASE, tmp_path).run() == first
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_a_checkpoint_of_other_settings_is_refused_with_the_difference(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        training(BASE, tmp_path, watch=StopAfter(5)).run()
    with pytest.raises(StateError, match=r"lr: was 0\.1, is 0\.3"):
        training(replace(BASE, lr=0.3), tmp_path).run()


@pytest.mark.parametrize("how", ["cut short", "empty", "without its counts", "of another model"])
def test_a_checkpoint_that_cannot_be_gone_on_with_says_what_to_do(tmp_path: Path, how: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        training(BASE, tmp_path, watch=StopAfter(3)).run()
    file = tmp_path / "checkpoint.pt"
    state = torch.load(file, weights_only=True)
    if how in ("cut short", "empty"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if how == "cut short" else b"")
    elif how == "without its counts":
        torch.save({name: value for name, value in state.items() if name != "counts"}, file)
    else:
        torch.save({**state, "model": {"weight": torch.zeros(2)}}, file)
    message = r"cannot resume from the checkpoint .*checkpoint\.pt': .* Remove it to train this run"
    with pytest.raises(StateError, match=message):
        training(BASE, tmp_path).run()
    file.unlink()
    assert training(BASE, tmp_path).run()["status"] == "done"


def test_a_run_that_diverges_is_marked_failed(tmp_path: Path) -> None:
    summary = training(replace(BASE, lr=1e30, schedule="constant"), tmp_path).run()
    assert summary["status"] == "failed"
    assert "NaN" in summary["reason"] or "nan" in summary["reason"] or "inf" in summary["reason"]
    assert "on_nan" not in summary["reason"]  # which no run of the workbench can be given
    assert not summary["reason"].endswith(".")  # a sentence goes on after it
    assert read_run(tmp_path).failed


def test_a_batch_of_one_sample_fails_a_run_of_batch_normalization_and_says_why(tmp_path: Path) -> None:
    settings = replace(BASE, data="digits?train=129&test=50", model="cnn", width=4, policy="full", prune_ratio=None)
    summary = Runner(RunOptions(tmp_path, device="cpu")).run(settings)
    assert summary["status"] == "failed"
    assert "the last batch of epoch 1 is a single sample" in summary["reason"]


def test_a_run_whose_epochs_become_smaller_than_a_batch_fails_and_says_why(tmp_path: Path) -> None:
    """Its losses decide that, so it is a result of this run; the other runs of a comparison go on."""
    shrinking = replace(
        BASE, policy="progressive-dropout", policy_parameters={"threshold": 0.02}, prune_ratio=None, drop_last=True
    )
    summary = training(replace(shrinking, epochs=4, schedule="constant"), tmp_path).run()
    assert summary["status"] == "failed"
    assert re.fullmatch(r"an epoch of \d+ samples has no full batch of \d+", summary["reason"])
    assert read_run(tmp_path).epochs  # the epochs before it are recorded


def test_what_a_kill_left_of_a_checkpoint_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.pt.123.tmp").write_bytes(b"half")
    training(replace(BASE, epochs=1), tmp_path).run()
    assert not list(tmp_path.glob(".checkpoint.pt.*"))


def test_accumulated_batches_make_the_step_of_one_large_batch(tmp_path: Path) -> None:
    base = replace(BASE, policy="full", prune_ratio=None, schedule="constant", lr=0.05, epochs=2)
    training(replace(base, batch_size=64, accumulate=2), tmp_path / "two").run()
    training(replace(base, batch_size=128), tmp_path / "one").run()
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    # 1,347 samples make 22 batches of 64, the last of 3: its half of a step weighs more than its samples.
    assert all(torch.allclose(one[name], two[name], atol=0.05) for name in one)
    assert not same(one, two)
    assert read_run(tmp_path / "two").summary["samples"] == read_run(tmp_path / "one").summary["samples"]


def test_full_data_for_fewer_epochs_costs_what_a_pruned_run_costs(tmp_path: Path) -> None:
    settings = replace(BASE, policy="reduced", epochs=5)
    summary = training(settings, tmp_path).run()
    assert settings.epochs_run == 3
    assert summary["samples"] == 3 * 1347
    assert summary["saved"] == pytest.approx(0.4)
    assert read_run(tmp_path).epochs[-1]["lr"] < 1e-4  # its schedule is fitted to its own end


@pytest.mark.parametrize("ratio", [0.33, 0.4, 0.5])
def test_fewer_epochs_save_what_was_asked_also_where_incomplete_batches_are_dropped(
    tmp_path: Path, ratio: float
) -> None:
    settings = replace(BASE, policy="reduced", epochs=6, batch_size=128, drop_last=True, prune_ratio=ratio)
    summary = training(settings, tmp_path).run()
    assert summary["full_samples"] == 6 * 10 * 128  # of 1,347 samples, 67 are dropped
    assert summary["samples"] == 128 * int(60 * (1 - ratio))
    epochs = read_run(tmp_path).epochs
    assert all(epoch["samples"] > 0 for epoch in epochs)
    assert epochs[-1]["lr"] < 1e-3


def test_the_learning_rate_ends_where_it_should_for_policies_that_know_their_steps_and_those_that_do_not(
    tmp_path: Path,
) -> None:
    for policy in ("orderdp", "infobatch"):
        training(replace(BASE, policy=policy), tmp_path / policy).run()
        assert read_run(tmp_path / policy).epochs[-1]["lr"] < 1e-3


def test_images_do_not_depend_on_where_a_run_was_interrupted() -> None:
    task = ImageTask(DATA, replace(BASE, model="cnn"), CPU)
    index = torch.tensor([5, 9, 100])
    whole = task._train.train_batch(index, 2, 7)
    assert torch.equal(whole[1:2], task._train.train_batch(index[1:2], 2, 7))


def test_a_compiled_model_trains_and_its_checkpoint_is_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Graphs are captured, but not handed to a C++ compiler, which a machine need not have.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    settings = replace(BASE, compile=True, epochs=1)
    summary = training(settings, tmp_path).run()
    assert summary["status"] == "done"
    assert all(not name.startswith("_orig_mod") for name in weights(tmp_path))


# -- settings -------------------------------------------------------------------------------------------------------


def test_settings_out_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('preset = "cpu"\ndata = "digits"\nlr = 0.3\n[policy_parameters]\nexploration = 0.9\n')
    values = read_config(file)
    assert values["width"] == PRESETS["cpu"]["width"]
    assert Settings.from_dict(values).policy_parameters == {"exploration": 0.9}
    file.write_text("learning_rate = 3\n")
    with pytest.raises(ConfigError, match="there is no setting 'learning_rate'"):
        Settings.from_dict(read_config(file))
    file.write_text("lr = \n")
    with pytest.raises(ConfigError, match="must be TOML"):
        read_config(file)
    with pytest.raises(ConfigError, match="there is no config file"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=r"there is no preset 'paper-cifar-resnet81'\. Did you mean"):
        preset_values("paper-cifar-resnet81")


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 1.5},
        {"seed": -1},
        {"lr": -0.1},
        {"prune_ratio": 40},
        {"label_smoothing": 1.0},
        {"policy": "reduced", "prune_ratio": None},
        {"accumulate": True},
        {"augment": "no"},
        {"nesterov": 1},
        {"task": 5},
        {"policy_parameters": 3},
    ],
    ids=str,
)
def test_settings_out_of_range(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        replace(BASE, **wrong)


@pytest.mark.parametrize(("ratio", "shown"), [(0.3, "30%"), (0.999, "99.9%"), (0.125, "12.5%"), (0.7, "70%")])
def test_a_ratio_is_shown_as_it_is(ratio: float, shown: str) -> None:
    assert replace(BASE, prune_ratio=ratio).label == f"orderdp {shown}"


def test_cutmix_of_what_is_no_image_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"CutMix needs images, these samples have the shape \(5,\)"):
        cutmix(torch.rand(3, 5), 1.0, np.random.default_rng(0))


def test_every_preset_is_a_setting_and_different_settings_have_different_folders() -> None:
    made = [Settings.from_dict({**preset_values(name), "data": "x"}) for name in PRESETS]
    assert len({settings.run_id for settings in [*made, BASE, replace(BASE, lr=0.2)]}) == len(made) + 2
    assert BASE.run_id == replace(BASE).run_id
