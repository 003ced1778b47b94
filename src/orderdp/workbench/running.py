"""From settings to a finished run: finds the data, makes the task, trains."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from orderdp.coresets.registry import build
from orderdp.errors import ConfigError
from orderdp.naming import checked_name
from orderdp.planning import check_dials
from orderdp.workbench.diagnosing import Closeness
from orderdp.workbench.grid import Contender, check_parameters, takes_ratio
from orderdp.workbench.learning_rates import SCHEDULES
from orderdp.workbench.locking import alone_in
from orderdp.workbench.optimisers import OPTIMISERS
from orderdp.workbench.proxy_plan import check_plan, is_recorded, plan_for
from orderdp.workbench.settings import CONTROLS, Settings
from orderdp.workbench.static import choose, is_static
from orderdp.workbench.task import Task, load_task
from orderdp.workbench.training import Training, policy_of

__all__ = ["Runner", "check", "choose_device"]

_DATA_KEPT = 2  # what is trained on, and a further test set


def check(settings: Settings) -> None:
    """Raises what would go wrong later, before anything is spent."""
    check_parameters(settings.policy, settings.policy_parameters)
    checked_name(settings.optimiser, OPTIMISERS, "optimiser")
    checked_name(settings.schedule, SCHEDULES, "learning-rate schedule")
    if is_static(settings.policy):
        _check_static(settings)
    elif is_recorded(settings.policy):
        check_plan(settings)
    else:
        policy_of(settings)
        _check_ratio(settings)


def _check_ratio(settings: Settings) -> None:
    """Raises where tables would show a ratio that the policy does not keep to."""
    parameters = settings.policy_parameters
    if settings.prune_ratio is None or settings.policy in CONTROLS:
        return
    if {"exploration", "exploitation"} <= set(parameters):
        check_dials(settings.prune_ratio, parameters["exploration"], parameters["exploitation"])
    elif not takes_ratio(Contender(settings.policy, dict(parameters))):
        raise ConfigError(
            f"{settings.policy!r} decides by itself how much it leaves out, got a prune ratio of "
            f"{settings.prune_ratio}. Leave it out."
        )


def _check_static(settings: Settings) -> None:
    if settings.prune_ratio is None:
        raise ConfigError(f"the static method {settings.policy!r} needs a prune ratio.")
    needs = build(settings.policy, **settings.policy_parameters).needs
    if needs.scores:
        raise ConfigError(
            f"{settings.policy!r} needs scores made elsewhere, and a run has none. Choose with `orderdp coreset "
            "--from-features FILE`, and train on what it writes."
        )
    if needs.epoch is not None and needs.epoch > settings.proxy_epochs:
        raise ConfigError(
            f"{settings.policy!r} needs the proxy after {needs.epoch} epochs, and it is trained for "
            f"{settings.proxy_epochs}. Give --proxy-epochs {needs.epoch}."
        )


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" takes a graphics card if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device


class Runner:
    """Runs settings one after the other, and keeps the data of the last ones.

    Args:
        out: Folder of the comparison; each run has its own in ``runs``.
        data_dir: Where data are looked for first.
        device: Name of the device, or "auto".
        checkpoint_seconds: Time between checkpoints.
        command: What was typed, for the records.
        tensorboard: Whether to write for TensorBoard as well.
        diagnose: Whether runs look at their gradients and kept sets more closely, and at which gradients.
    """

    def __init__(
        self,
        out: Path,
        *,
        data_dir: Path | None = None,
        device: str = "auto",
        checkpoint_seconds: float = 30.0,
        command: str | None = None,
        tensorboard: bool = False,
        diagnose: Closeness = False,
    ) -> None:
        self.out = out
        self._data_dir = data_dir
        self.device = choose_device(device)
        self._checkpoint_seconds = checkpoint_seconds
        self._command = command
        self._tensorboard = tensorboard
        self._diagnose = diagnose
        self._data: dict[str, Any] = {}

    def run(
        self, settings: Settings, watch: Callable[[float, int, float | None], None] | None = None
    ) -> dict[str, Any]:
        """Trains, or goes on with it; returns the summary."""
        folder = self.folder(settings)
        make_folder(folder)
        with alone_in(folder):
            return self._train(settings, folder, watch)

    def _train(
        self, settings: Settings, folder: Path, watch: Callable[[float, int, float | None], None] | None
    ) -> dict[str, Any]:
        task = self.task(settings)
        options: dict[str, Any] = {} if watch is None else {"watch": watch}
        if is_static(settings.policy):
            options["static"] = choose(settings, task, folder, self.out / "proxies", self.device)
        elif is_recorded(settings.policy):
            options["static"] = plan_for(settings, task, folder, self.device, **options)
        training = Training(
            settings,
            task,
            folder,
            device=self.device,
            checkpoint_seconds=self._checkpoint_seconds,
            command=self._command,
            tensorboard=self._tensorboard,
            diagnose=self._diagnose,
            **options,
        )
        return training.run()

    def folder(self, settings: Settings) -> Path:
        """Where a run's records go."""
        return self.out / "runs" / settings.run_id

    def task(self, settings: Settings) -> Task:
        """Data, model, loss and metric of the settings."""
        if settings.task is not None:
            return load_task(settings.task)
        return self.task_of(self.load(settings.data), settings)

    def task_of(self, data: Any, settings: Settings) -> Task:
        """The same for data that are loaded already."""
        from orderdp.workbench.data import FolderData
        from orderdp.workbench.folder_task import FolderTask
        from orderdp.workbench.image_task import ImageTask

        if isinstance(data, FolderData):
            return FolderTask(data, settings, self.device)
        return ImageTask(data, settings, self.device)

    def load(self, name: str) -> Any:
        """The data of this name; those of the last two names are kept."""
        from orderdp.workbench.data import load

        if name not in self._data:
            if len(self._data) == _DATA_KEPT:
                self._data.pop(next(iter(self._data)))
            self._data[name] = load(name, self._data_dir)
        return self._data[name]


def make_folder(folder: Path) -> None:
    """Makes the folder, or says why it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{str(folder)!r} cannot be written to: {error.strerror or error}. Choose another --out."
        ) from None
