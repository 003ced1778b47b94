"""Loggers: what each gets of a run, of a resumed one, and of one that failed."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orderdp.cli import main
from orderdp.datasets import load
from orderdp.errors import ConfigError
from orderdp.experiments.config import RunOptions, Settings
from orderdp.experiments.loggers import CSVLogger, check_loggers
from orderdp.experiments.records import read_run
from orderdp.experiments.tasks import ImageTask
from orderdp.experiments.trainer import Training

CPU = torch.device("cpu")
DATA = load("digits")
BASE = Settings(data="digits", model="mlp", width=8, policy="orderdp", prune_ratio=0.5, epochs=3)


def training(folder: Path, watch: Any = None, settings: Settings = BASE, **options: Any) -> Training:
    own = {} if watch is None else {"watch": watch}
    return Training(settings, ImageTask(DATA, settings, CPU), folder, RunOptions(folder, **options), device=CPU, **own)


def interrupted_at(epochs: float) -> Any:
    def watch(done: float, of: int, metric: float | None) -> None:
        if done >= epochs:
            raise KeyboardInterrupt

    return watch


def read_csv(folder: Path) -> list[dict[str, str]]:
    with open(folder / "epochs.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# -- CSV --------------------------------------------------------------------------------------------------------------


def test_every_run_has_its_epochs_as_csv(tmp_path: Path) -> None:
    training(tmp_path).run()
    lines, epochs = read_csv(tmp_path), read_run(tmp_path).epochs
    assert [int(line["epoch"]) for line in lines] == [1, 2, 3]
    for line, epoch in zip(lines, epochs, strict=True):
        for name in ("loss", "metric", "lr", "samples", "saved", "training_seconds"):
            assert float(line[name]) == epoch[name]


def test_an_interrupted_run_has_every_epoch_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path, interrupted_at(1.5)).run()
    assert [line["epoch"] for line in read_csv(tmp_path)] == ["1"]
    (tmp_path / "epochs.csv").unlink()  # as a run of an earlier version has none
    training(tmp_path).run()
    assert [line["epoch"] for line in read_csv(tmp_path)] == ["1", "2", "3"]
    training(tmp_path / "straight").run()
    assert [line["metric"] for line in read_csv(tmp_path)] == [
        line["metric"] for line in read_csv(tmp_path / "straight")
    ]


def test_an_epoch_that_comes_again_replaces_what_followed_it(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "epochs.csv", [])
    for epoch, loss in ((1, 0.5), (2, 0.4), (3, 0.3), (2, 0.1)):
        logger.epoch({"epoch": epoch, "loss": loss, "diagnostics": {"cosine": None if epoch == 1 else 0.9}})
    assert read_csv(tmp_path) == [
        {"epoch": "1", "loss": "0.5", "diagnostics/cosine": ""},
        {"epoch": "2", "loss": "0.1", "diagnostics/cosine": "0.9"},
    ]


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def test_tensorboard_gets_the_numbers_of_every_epoch(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training(tmp_path, tensorboard=True).run()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    recorded = read_run(tmp_path).epochs
    for name in ("metric", "lr"):
        assert [event.value for event in events.Scalars(name)] == pytest.approx([e[name] for e in recorded])
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]


# -- Weights & Biases, by a stand-in with the calls that are used -----------------------------------------------------


class Wandb:
    """Takes what `wandb.init` takes, and keeps what its run is told."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, float] = {}
        self.ended: list[int] = []

    def init(self, *, project, id, name, group, config, dir, resume, reinit) -> Any:
        self.begun.append({"project": project, "id": id, "name": name, "config": config, "resume": resume})
        return SimpleNamespace(
            log=lambda numbers, step: self.logged.append((step, numbers)),
            summary=self.summary,
            finish=lambda exit_code: self.ended.append(exit_code),
        )


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    made = Wandb()
    module = SimpleNamespace(init=made.init, __spec__=importlib.util.find_spec("json"))
    monkeypatch.setitem(sys.modules, "wandb", module)
    return made


def test_weights_and_biases_gets_settings_epochs_and_the_result(wandb: Wandb, tmp_path: Path) -> None:
    summary = training(tmp_path, wandb="mine").run()
    (begun,) = wandb.begun
    assert begun["project"] == "mine"
    assert begun["name"] == "orderdp 50%, seed 0"
    assert begun["config"] == BASE.as_dict()
    recorded = read_run(tmp_path).epochs
    assert [(step, told["metric"], told["lr"]) for step, told in wandb.logged] == [
        (epoch["epoch"], epoch["metric"], epoch["lr"]) for epoch in recorded
    ]
    assert wandb.summary["final/metric"] == summary["metric"]
    assert wandb.ended == [0]


def test_a_resumed_run_goes_on_under_its_id(wandb: Wandb, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path, interrupted_at(1.5), wandb="mine").run()
    training(tmp_path, wandb="mine").run()
    training(tmp_path / "other", wandb="mine").run()
    first, second, other = (begun["id"] for begun in wandb.begun)
    assert first == second != other
    assert wandb.ended == [1, 0, 0]
    assert [step for step, _ in wandb.logged[:3]] == [1, 2, 3]


def test_a_logger_that_fails_does_not_end_the_run(wandb: Wandb, tmp_path: Path) -> None:
    class Gone(list):
        def append(self, entry: Any) -> None:
            raise ConnectionError("no route to host")

    wandb.logged = Gone()
    with pytest.warns(UserWarning, match="WandbLogger failed .ConnectionError: no route to host.. The run continues"):
        assert training(tmp_path, wandb="mine").run()["status"] == "done"
    assert len(read_csv(tmp_path)) == 3


# -- MLflow, with its file store --------------------------------------------------------------------------------------


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which MLflow maintains and does not recommend
    return tmp_path / "store"


@pytest.mark.usefixtures("mlflow_store")
def test_mlflow_gets_settings_epochs_and_the_result_also_of_a_resumed_run(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "run", interrupted_at(1.5), mlflow="mine").run()
    client = MlflowClient()
    experiment = client.get_experiment_by_name("mine").experiment_id
    (stopped,) = client.search_runs([experiment])
    assert stopped.info.status == "KILLED"
    summary = training(tmp_path / "run", mlflow="mine").run()
    (found,) = client.search_runs([experiment])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "orderdp 50%, seed 0"
    assert found.data.params["prune_ratio"] == "0.5"
    assert found.data.metrics["final/metric"] == pytest.approx(summary["metric"])
    recorded = read_run(tmp_path / "run").epochs
    for name in ("metric", "lr", "loss"):
        history = client.get_metric_history(found.info.run_id, name)
        assert [(entry.step, entry.value) for entry in history] == [(e["epoch"], e[name]) for e in recorded]


@pytest.mark.usefixtures("mlflow_store")
def test_mlflow_is_told_of_a_run_that_failed(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    diverging = replace(BASE, lr=1e30, schedule="constant")
    assert training(tmp_path / "run", settings=diverging, mlflow="mine").run()["status"] == "failed"
    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.info.status == "FAILED"


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "module", "extra"),
    [
        ({"tensorboard": True}, "tensorboard", "workbench"),
        ({"wandb": "x"}, "wandb", "wandb"),
        ({"mlflow": "x"}, "mlflow", "mlflow"),
    ],
)
def test_a_logger_that_is_not_installed_is_said_before_anything_is_trained(
    options: dict[str, Any], module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_loggers(RunOptions(tmp_path))
    with pytest.raises(ConfigError, match=rf"--{module} needs .*pip install '\.\[{extra}\]'"):
        check_loggers(RunOptions(tmp_path, **options))


def test_the_command_line_names_project_and_experiment(wandb: Wandb, tmp_path: Path) -> None:
    small = ["--data", "digits", "--model", "mlp", "--width", "4", "--epochs", "1", "--prune-ratio", "0.5", "--quiet"]
    assert main(["train", *small, "--wandb", "--out", str(tmp_path / "a")]) == 0
    assert main(["train", *small, "--wandb", "mine", "--out", str(tmp_path / "b")]) == 0
    assert [begun["project"] for begun in wandb.begun] == ["orderdp", "mine"]
    (folder,) = (tmp_path / "a" / "runs").iterdir()
    assert json.loads((folder / "wandb.json").read_text())["id"] == wandb.begun[0]["id"]
