"""Loggers: the numbers of each epoch as CSV, and for TensorBoard, Weights & Biases and MLflow.

Records are what the project reads; loggers copy them for others, and nothing here is read back.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from orderdp._files import replacing, write_text
from orderdp.errors import ConfigError, install_command
from orderdp.experiments.config import RunOptions, Settings

__all__ = ["CSVLogger", "Logger", "MLflowLogger", "TensorBoardLogger", "WandbLogger", "check_loggers", "make_loggers"]


_SHOWN = ("loss", "metric", "lr", "samples", "saved", "coverage", "staleness", "learned", "progress")


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an epoch's record by name; diagnostics have a prefix, and missing numbers are left out."""
    found = {name: record.get(name) for name in _SHOWN}
    found.update({name: value for name, value in record.items() if name.endswith("_seconds")})
    found.update({f"diagnostics/{name}": value for name, value in (record.get("diagnostics") or {}).items()})
    return {name: value for name, value in found.items() if value is not None}


class Logger(Protocol):
    """What a run tells: its epochs, and how it ended."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Take the record of an epoch; after a kill an epoch may come again."""

    def close(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """End the log of this process: the run is "done", has "failed", or is "interrupted" and may be resumed."""


def check_loggers(options: RunOptions) -> None:
    """Raise if a logger that the options name is not installed, before any time is spent on training."""
    wanted = {
        "tensorboard": (options.tensorboard, "TensorBoard", "workbench"),
        "wandb": (options.wandb is not None, "Weights & Biases", "wandb"),
        "mlflow": (options.mlflow is not None, "MLflow", "mlflow"),
    }
    for module, (is_wanted, name, extra) in wanted.items():
        if is_wanted and importlib.util.find_spec(module) is None:
            raise ConfigError(f"--{module} needs {name}, which is not installed: {install_command(extra)}.")


def make_loggers(settings: Settings, folder: Path, options: RunOptions, before: list[dict[str, Any]]) -> list[Logger]:
    """Return the loggers of a run: CSV, and those that the options name.

    Args:
        settings: Settings of the run.
        folder: Folder of the run.
        options: Run options.
        before: Records of the epochs of an earlier process, if the run is resumed.
    """
    check_loggers(options)
    folder.mkdir(parents=True, exist_ok=True)
    loggers: list[Logger] = [CSVLogger(folder / "epochs.csv", before)]
    if options.tensorboard:
        loggers.append(TensorBoardLogger(folder / "tensorboard"))
    if options.wandb is not None:
        loggers.append(WandbLogger(settings, folder, options.wandb))
    if options.mlflow is not None:
        loggers.append(MLflowLogger(settings, folder, options.mlflow))
    return loggers


class CSVLogger:
    """Writes one line per epoch to a file, which is written anew each time: an epoch that comes again is there once.

    Args:
        path: The file.
        before: Records of earlier epochs.
    """

    def __init__(self, path: Path, before: list[dict[str, Any]]) -> None:
        self._path = path
        self._lines = [{"epoch": record["epoch"], **numbers_of(record)} for record in before]

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Write the record of an epoch; those of later epochs are dropped, as the run went back to a checkpoint."""
        self._lines = [line for line in self._lines if line["epoch"] < record["epoch"]]
        self._lines.append({"epoch": record["epoch"], **numbers_of(record)})
        names = dict.fromkeys(name for line in self._lines for name in line)
        with replacing(self._path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(names), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self._lines)

    def close(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """Do nothing: the file is complete after each epoch."""


class TensorBoardLogger:
    """Writes the numbers of each epoch for TensorBoard.

    Args:
        folder: Output folder; ``tensorboard --logdir`` takes it or any folder above it.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Write the record of an epoch."""
        for name, value in numbers_of(record).items():
            self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()

    def close(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """Close the file."""
        self._writer.close()


class WandbLogger:
    """Sends the numbers of each epoch to Weights & Biases; its environment variables say where and as what.

    Args:
        settings: Settings of the run.
        folder: Folder of the run; a resumed run goes on under the id that is kept there.
        project: Name of the project.
    """

    def __init__(self, settings: Settings, folder: Path, project: str) -> None:
        import wandb

        self._run = wandb.init(
            project=project,
            id=_kept_id(folder / "wandb.json", lambda: secrets.token_hex(8)),
            name=f"{settings.label}, seed {settings.seed}",
            group=settings.label,
            config=settings.as_dict(),
            dir=str(folder),
            resume="allow",
            reinit="create_new",
        )

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Send the record of an epoch."""
        self._run.log({"epoch": record["epoch"], **numbers_of(record)}, step=record["epoch"])

    def close(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """End the run there, with its result."""
        self._run.summary.update({f"final/{name}": value for name, value in _results(summary).items()})
        self._run.finish(exit_code=0 if status == "done" else 1)


class MLflowLogger:
    """Sends the numbers of each epoch to MLflow; ``MLFLOW_TRACKING_URI`` says where.

    Args:
        settings: Settings of the run.
        folder: Folder of the run; a resumed run goes on under the id that is kept there.
        experiment: Name of the experiment, which is created if it is missing.
    """

    def __init__(self, settings: Settings, folder: Path, experiment: str) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        self._id = _kept_id(folder / "mlflow.json", lambda: self._created(settings, experiment))
        self._client.update_run(self._id, status="RUNNING")

    def _created(self, settings: Settings, experiment: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        place = self._client.create_experiment(experiment) if found is None else found.experiment_id
        run = self._client.create_run(place, run_name=f"{settings.label}, seed {settings.seed}")
        for name, value in settings.as_dict().items():
            self._client.log_param(run.info.run_id, name, value)
        return str(run.info.run_id)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Send the record of an epoch."""
        for name, value in numbers_of(record).items():
            self._client.log_metric(self._id, name, value, step=record["epoch"])

    def close(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """End the run there, with its result."""
        for name, value in _results(summary).items():
            self._client.log_metric(self._id, f"final/{name}", value)
        state = {"done": "FINISHED", "failed": "FAILED"}.get(status, "KILLED")
        self._client.set_terminated(self._id, status=state)


def _results(summary: Mapping[str, Any] | None) -> dict[str, float]:
    names = ("metric", "samples", "saved", "node_hours")
    return {name: summary[name] for name in names if summary.get(name) is not None} if summary else {}


def _kept_id(path: Path, make: Callable[[], str]) -> str:
    """Return the id in the file, or a new one, which is written to it."""
    if not path.exists():
        write_text(path, json.dumps({"id": make()}) + "\n")
    return str(json.loads(path.read_text(encoding="utf-8"))["id"])
