"""Runs that are diagnosed: the same runs, with more in their records."""

from __future__ import annotations

import math
import pickle
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from orderdp.checkpoint import load_checkpoint, save_checkpoint
from orderdp.cli import main
from orderdp.diagnostics import KeptSets, accuracy_correlation, stability
from orderdp.errors import ConfigError
from orderdp.experiments.config import RunOptions, Settings
from orderdp.experiments.diagnosing import checkpoints
from orderdp.experiments.records import read_run, read_runs
from orderdp.experiments.runner import compare_all
from orderdp.experiments.tasks import ImageTask
from orderdp.testing import global_generators_untouched
from tests.experiments.test_training_runs import BASE, CPU, DATA, StopAfter, same, training, weights

ALWAYS = {"jaccard", "age_mean", "age_median", "age_p95", "unseen", "usage_min", "usage_max"}
DIAGNOSED = {"gradient_norm", "gradient_norm_std", "cosine"}
RISK = {"surrogate_risk", "bias", "bias_bound"}


class Restless(ImageTask):
    """A model with everything that a look could disturb: running statistics and dropout."""

    def build_model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)
            )


def restless(settings: Settings, folder: Path, **options):
    return training(settings, folder, Restless, **options)


def without_times(record: dict) -> dict:
    left_out = ("diagnostics", "diagnosis_samples", "finished", "node_hours")
    return {name: value for name, value in record.items() if name not in left_out and not name.endswith("_seconds")}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": 673},  # all data are two batches and one sample, too few for BatchNorm
        {"policy": "infobatch", "prune_ratio": 0.5, "average": True},
        {"policy_parameters": {"every": "batch"}, "accumulate": 3},
        {"mixup": 0.4, "amp": True, "optimizer": "adamw", "lr": 0.01},
    ],
    ids=str,
)
def test_a_diagnosed_run_is_the_same_run_bit_for_bit(tmp_path: Path, changes: dict) -> None:
    settings = replace(BASE, **changes)
    for make in (training, restless):
        plain, looked = tmp_path / f"{make.__name__}-plain", tmp_path / f"{make.__name__}-looked"
        with global_generators_untouched():
            first, second = make(settings, plain).run(), make(settings, looked, diagnose=True).run()
        assert same(weights(plain), weights(looked))
        assert without_times(first) == without_times(second)
        one, two = read_run(plain), read_run(looked)
        assert [without_times(epoch) for epoch in one.epochs] == [without_times(epoch) for epoch in two.epochs]
        for before, after in zip(one.epochs, two.epochs, strict=True):
            assert set(before["diagnostics"]) == ALWAYS
            assert before["diagnostics"].items() <= after["diagnostics"].items()
            assert set(after["diagnostics"]) - RISK == ALWAYS | DIAGNOSED
            assert 0 < after["diagnostics"]["cosine"] < 1
        assert not (plain / "kept.npz").exists()


@pytest.mark.parametrize("steps", [1, 6, 13, 14, 20, 26])
def test_an_interrupted_diagnosed_run_has_the_records_of_a_straight_one(tmp_path: Path, steps: int) -> None:
    restless(BASE, tmp_path / "straight", diagnose=True).run()
    with pytest.raises(KeyboardInterrupt):
        restless(BASE, tmp_path / "cut", diagnose=True, watch=StopAfter(steps)).run()
    restless(BASE, tmp_path / "cut", diagnose=True).run()
    first, second = read_run(tmp_path / "straight").epochs, read_run(tmp_path / "cut").epochs
    assert [epoch["diagnostics"] for epoch in first] == [epoch["diagnostics"] for epoch in second]
    assert [epoch["diagnosis_samples"] for epoch in first] == [epoch["diagnosis_samples"] for epoch in second]
    assert (tmp_path / "straight" / "kept.npz").read_bytes() == (tmp_path / "cut" / "kept.npz").read_bytes()
    assert same(weights(tmp_path / "straight"), weights(tmp_path / "cut"))


def test_a_look_at_the_steps_alone_is_that_of_all_without_the_gradient_of_all_data(tmp_path: Path) -> None:
    steps, everything = tmp_path / "steps", tmp_path / "everything"
    for folder, level in ((steps, "steps"), (everything, True)):
        with global_generators_untouched():
            training(BASE, folder, diagnose=level).run()
    assert same(weights(steps), weights(everything))
    assert (steps / "kept.npz").read_bytes() == (everything / "kept.npz").read_bytes()
    for one, two in zip(read_run(steps).epochs, read_run(everything).epochs, strict=True):
        assert {**one["diagnostics"], "cosine": two["diagnostics"]["cosine"]} == two["diagnostics"]
        assert "cosine" not in one["diagnostics"]
        assert one["diagnosis_samples"] == 0 < two["diagnosis_samples"]
        assert one["diagnosis_seconds"] > 0


def test_how_closely_to_look_is_named_or_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="diagnose must be False, True or \"steps\", got 'cosine'"):
        training(BASE, tmp_path, diagnose="cosine")


def test_an_interruption_while_looking_costs_nothing_but_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    restless(BASE, tmp_path / "straight", diagnose=True).run()
    with monkeypatch.context() as patch:
        patch.setattr("orderdp.experiments.diagnosing.gradient_cosine", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restless(BASE, tmp_path / "cut", diagnose=True).run()
    restless(BASE, tmp_path / "cut", diagnose=True).run()
    first, second = read_run(tmp_path / "straight").epochs, read_run(tmp_path / "cut").epochs
    assert [epoch["diagnostics"] for epoch in first] == [epoch["diagnostics"] for epoch in second]
    assert same(weights(tmp_path / "straight"), weights(tmp_path / "cut"))


def test_a_run_can_be_gone_on_with_more_or_less_closely_watched(tmp_path: Path) -> None:
    training(BASE, tmp_path / "straight").run()
    for before, after in ((False, True), (True, False), (True, "steps"), ("steps", False)):
        folder = tmp_path / f"{before}-{after}"
        with pytest.raises(KeyboardInterrupt):
            training(BASE, folder, diagnose=before, watch=StopAfter(20)).run()
        training(BASE, folder, diagnose=after).run()
        assert same(weights(folder), weights(tmp_path / "straight"))
        found = ["gradient_norm" in epoch["diagnostics"] for epoch in read_run(folder).epochs]
        assert found == [bool(before), bool(after), bool(after)]


def test_a_checkpoint_from_before_there_were_diagnostics_can_be_resumed(tmp_path: Path) -> None:
    training(BASE, tmp_path / "straight").run()
    with pytest.raises(KeyboardInterrupt):
        training(BASE, tmp_path / "old", watch=StopAfter(6)).run()
    state = load_checkpoint(tmp_path / "old" / "checkpoint.pt")
    del state["diagnosis"], state["seconds"]["diagnosis"], state["epoch_start"]["seconds"]["diagnosis"]
    save_checkpoint(tmp_path / "old" / "checkpoint.pt", state)
    training(BASE, tmp_path / "old").run()
    assert same(weights(tmp_path / "old"), weights(tmp_path / "straight"))
    found, known = (
        [epoch["diagnostics"] for epoch in read_run(tmp_path / name).epochs] for name in ("old", "straight")
    )
    assert [each["jaccard"] for each in found] == [None, None, known[2]["jaccard"]]
    assert [each["age_mean"] for each in found] == [each["age_mean"] for each in known]


# -- what the numbers are -------------------------------------------------------------------------------------------


def test_the_recorded_norm_is_what_clipping_by_infinity_would_measure(tmp_path: Path) -> None:
    run = training(replace(BASE, accumulate=2), tmp_path, diagnose=True)
    norms: list[float] = []
    step = run._state.optimizer.step

    def measured(*arguments, **options):
        norms.append(float(nn.utils.clip_grad_norm_(run._state.model.parameters(), math.inf)))
        return step(*arguments, **options)

    run._state.optimizer.step = measured
    run.run()
    assert len(norms) == 3 * 7  # of 13 batches two by two
    for number, epoch in enumerate(read_run(tmp_path).epochs):
        of_epoch = norms[7 * number : 7 * number + 7]
        assert epoch["diagnostics"]["gradient_norm"] == pytest.approx(statistics.fmean(of_epoch), rel=1e-6)
        assert epoch["diagnostics"]["gradient_norm_std"] == pytest.approx(statistics.stdev(of_epoch), rel=1e-5)


@pytest.mark.parametrize("policy", ["orderdp", "infobatch"])
def test_the_cosine_is_that_of_the_next_draw_and_all_data_at_the_final_weights(tmp_path: Path, policy: str) -> None:
    settings = replace(BASE, policy=policy, policy_parameters={"annealing": None} if policy == "infobatch" else {})
    run = training(settings, tmp_path, diagnose=True)
    run.run()
    task, selection = ImageTask(DATA, settings, CPU), run._pruner.preview()
    index = torch.arange(1347)
    model = run._state.model
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    losses = F.cross_entropy(model(task._train.train_batch(index, 3, 0)), DATA.train.labels, reduction="none")
    weight = torch.zeros(1347)
    weight[selection.indices] = 1.0 if selection.weights is None else selection.weights
    assert (policy == "infobatch") == (selection.weights is not None)
    full, pruned = (
        torch.cat(
            [each.flatten() for each in torch.autograd.grad((w * losses).mean(), model.parameters(), retain_graph=True)]
        )
        for w in (torch.ones(1347), weight)
    )
    expected = F.cosine_similarity(full, pruned, dim=0).item()
    last = read_run(tmp_path).epochs[-1]
    assert last["diagnostics"]["cosine"] == pytest.approx(expected, abs=1e-4)
    assert last["diagnosis_samples"] == 1347 + len(selection)


def test_full_data_pull_where_full_data_pull_and_nobody_pays_to_find_out(tmp_path: Path) -> None:
    training(replace(BASE, policy="full", prune_ratio=None), tmp_path, diagnose=True).run()
    for epoch in read_run(tmp_path).epochs:
        assert epoch["diagnostics"]["cosine"] == 1.0
        assert epoch["diagnosis_samples"] == 0
        assert epoch["diagnostics"]["jaccard"] == (None if epoch["epoch"] == 1 else 1.0)
        assert epoch["diagnostics"]["age_mean"] == epoch["diagnostics"]["age_p95"] == 1.0
        assert epoch["diagnostics"]["bias"] == pytest.approx(0.0, abs=1e-12)


def test_kept_sets_are_those_the_similarities_speak_of(tmp_path: Path) -> None:
    summary = training(BASE, tmp_path, diagnose=True).run()
    sets = KeptSets.load(tmp_path / "kept.npz")
    assert (sets.n, sets.epochs) == (1347, [1, 2, 3])
    assert [len(kept) for kept in sets] == [808] * 3
    recorded = [epoch["diagnostics"]["jaccard"] for epoch in read_run(tmp_path).epochs]
    assert recorded == [None, *sets.consecutive()]
    usage = torch.zeros(1347, dtype=torch.int64)
    for kept in sets:
        usage[torch.from_numpy(kept)] += 1
    assert torch.bincount(usage).tolist() == summary["usage"]
    last = read_run(tmp_path).epochs[-1]
    assert (last["diagnostics"]["usage_min"], last["diagnostics"]["usage_max"]) == (usage.min(), usage.max())
    assert last["diagnostics"]["unseen"] == pytest.approx(1 - last["coverage"])
    assert last["diagnostics"]["age_mean"] == pytest.approx(last["staleness"])


def test_long_runs_look_at_all_data_ten_times_and_at_the_end(tmp_path: Path) -> None:
    for epochs in (1, 7, 10, 11, 25, 200):
        chosen = sorted(checkpoints(epochs))
        assert len(chosen) == min(epochs, 10)
        assert chosen[-1] == epochs
        assert {math.ceil(epochs * fifth / 5) for fifth in range(1, 6)} <= set(chosen)
    training(replace(BASE, epochs=12, evaluate_every=12), tmp_path, diagnose=True).run()
    run = read_run(tmp_path)
    with_cosine = {epoch["epoch"] for epoch in run.epochs if "cosine" in epoch["diagnostics"]}
    assert with_cosine == checkpoints(12) == set(KeptSets.load(tmp_path / "kept.npz").epochs)
    assert all("gradient_norm" in epoch["diagnostics"] for epoch in run.epochs)


def test_what_a_diagnosis_takes_is_kept_apart_and_costs_the_run_nothing(tmp_path: Path) -> None:
    plain, looked = training(BASE, tmp_path / "plain").run(), training(BASE, tmp_path / "looked", diagnose=True).run()
    assert plain["diagnosis_seconds"] == 0
    assert looked["diagnosis_seconds"] > 0
    for summary, name in ((plain, "plain"), (looked, "looked")):
        run = read_run(tmp_path / name)
        parts = sum(summary[f"{part}_seconds"] for part in ("training", "selection", "overhead"))
        assert summary["node_hours"] * 3600 == pytest.approx(parts)
        assert run.seconds == pytest.approx(parts)
        told = sum(epoch["diagnosis_seconds"] for epoch in run.epochs)
        assert told == pytest.approx(summary["diagnosis_seconds"])


def test_a_diagnosed_run_that_diverges_is_marked_failed(tmp_path: Path) -> None:
    summary = training(replace(BASE, lr=1e30, schedule="constant"), tmp_path, diagnose=True).run()
    assert summary["status"] == "failed"


# -- the command line -----------------------------------------------------------------------------------------------


def test_both_commands_diagnose_into_the_folders_they_would_use_anyway(tmp_path: Path) -> None:
    small = [
        "--data",
        "digits",
        "--model",
        "mlp",
        "--width",
        "16",
        "--epochs",
        "3",
        "--device",
        "cpu",
        "--threads",
        "1",
    ]
    assert main(["train", *small, "--prune-ratio", "0.5", "--out", str(tmp_path / "a"), "--quiet", "--diagnose"]) == 0
    assert main(["train", *small, "--prune-ratio", "0.5", "--out", str(tmp_path / "b"), "--quiet"]) == 0
    steps = ["--prune-ratio", "0.5", "--out", str(tmp_path / "steps"), "--quiet", "--diagnose", "steps"]
    assert main(["train", *small, *steps]) == 0
    (watched,) = read_runs(tmp_path / "steps")
    assert watched.epochs[0]["diagnostics"].keys() >= {"gradient_norm", "jaccard"}
    assert "cosine" not in watched.epochs[0]["diagnostics"]
    names = [[folder.name for folder in (tmp_path / out / "runs").iterdir()] for out in "ab"]
    assert names[0] == names[1]
    compare = ["compare", *small, "--policies", "orderdp", "--prune-ratios", "0.5", "--seeds", "0,1", "--no-controls"]
    assert main([*compare, "--out", str(tmp_path / "c"), "--quiet", "--diagnose"]) == 0
    runs = read_runs(tmp_path / "c")
    assert [run.id for run in runs if run.seed == 0] == names[0]
    stages = stability([run.epochs for run in runs])
    assert [stage.runs for stage in stages] == [2] * 4
    assert all(stage.gradient and stage.gradient_spread is not None for stage in stages)
    assert -1 <= accuracy_correlation(runs[0].epochs) <= 1
    page = (tmp_path / "c" / "report.html").read_text()
    for title in ("Kept again", "Gradient norm", "Cosine with the full gradient"):
        assert title in page


def test_the_place_says_whether_runs_are_diagnosed(tmp_path: Path) -> None:
    place = RunOptions(tmp_path, device="cpu", threads=1, diagnose=True)
    list(compare_all([replace(BASE, epochs=1)], pickle.loads(pickle.dumps(place))))
    (run,) = read_runs(tmp_path)
    assert run.epochs[0]["diagnostics"]["cosine"] > 0
