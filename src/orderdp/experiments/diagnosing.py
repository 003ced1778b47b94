"""Diagnostics of a run: a few in every run, more on request. They change no other number of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from orderdp import Context, Policy, Pruner, Selection
from orderdp.diagnostics import Diagnostics, KeptSets, gradient_cosine
from orderdp.diagnostics.monitor import without_lone_last
from orderdp.experiments.config import DiagnosticLevel, Settings
from orderdp.experiments.tasks import Losses, Task, task_batches
from orderdp.policy import Table

if TYPE_CHECKING:
    from orderdp.experiments.trainer import Stopwatch

__all__ = ["CHECKPOINTS", "KEPT_FILE", "Diagnosis", "checkpoints"]


#: Number of epochs in which the gradient of all data is computed and the kept set is written: two for each fifth of
#: training, the unit in which the paper reports both.
CHECKPOINTS = 10


KEPT_FILE = "kept.npz"


_RECORDED_ANYWAY = ("epoch", "samples", "coverage", "usage_mean")


def checkpoints(epochs: int, count: int = CHECKPOINTS) -> set[int]:
    """Return the epochs, counted from 1, that end equal fractions of training; the last epoch is always one.

    >>> sorted(checkpoints(200)), sorted(checkpoints(3))
    ([20, 40, 60, 80, 100, 120, 140, 160, 180, 200], [1, 2, 3])
    """
    return {math.ceil(epochs * number / count) for number in range(1, count + 1)}


class Diagnosis:
    """Computes the diagnostics of one run.

    Args:
        pruner: Pruner of the run.
        model: Model of the run, not compiled.
        task: Data and losses of the run.
        settings: Settings of the run.
        folder: Folder for the kept sets.
        level: Level of diagnostics; gradients cost time.
    """

    def __init__(
        self,
        pruner: Pruner,
        model: nn.Module,
        task: Task,
        settings: Settings,
        folder: Path,
        *,
        level: DiagnosticLevel,
    ) -> None:
        self.level = level
        self.on = on = bool(level)
        self._pruner = pruner
        self._model = model
        self._task = task
        self._settings = settings
        self._file = folder / KEPT_FILE
        self._watch = Diagnostics(pruner, model if on else None, risk=on)
        self._checkpoints = checkpoints(settings.epochs_run) if on else set()
        self._kept = KeptSets(pruner.n)

    def step(self, scaler: torch.amp.GradScaler, device: torch.device) -> float:
        """Diagnose a step, before the optimizer makes it; return the seconds spent."""
        if not self.on:
            return 0.0
        begun = time.perf_counter()
        self._watch.step(scaler.scale(torch.ones((), device=device)))
        return time.perf_counter() - begun

    def epoch(self, number: int, clock: Stopwatch) -> dict[str, Any]:
        """Return the fields for the record of the ended epoch: `diagnostics`, and their cost in samples."""
        with clock.part("diagnosis") if self.on else nullcontext():
            found = self._watch.measure()
            kept = {name: value for name, value in found.items() if name not in _RECORDED_ANYWAY}
            samples = 0
            if number in self._checkpoints:
                self._write_kept(number)
                if self.level != "steps":
                    kept["cosine"], samples = self._cosine(number)
        return {"diagnostics": kept, **({"diagnosis_samples": samples} if self.on else {})}

    def advance(self) -> None:
        """Start the next epoch, after the last one has been recorded."""
        self._watch.advance()

    def _write_kept(self, number: int) -> None:
        indices = self._watch.kept()
        if indices is not None:
            self._kept.add(number, indices)
            self._kept.save(self._file)

    def _cosine(self, number: int) -> tuple[float | None, int]:
        """Return the cosine of the next epoch's gradient with that of all data, and the number of samples computed.

        Always in single precision: without a scaler, half precision would lose small gradients.
        """
        pruner, settings = self._pruner, self._settings
        selection = pruner.preview()
        if len(selection) == pruner.n and selection.weights is None:
            return 1.0, 0

        def batches(indices: np.ndarray) -> Iterator[tuple[torch.Tensor, Any]]:
            whole = without_lone_last(indices, settings.batch_size)
            return task_batches(self._task, _Rehearsal(whole, pruner.n, number), settings.batch_size, settings.seed)

        found = gradient_cosine(self._model, selection, pruner.n, self._losses, batches, seed=settings.seed)
        return found.cosine, found.samples

    def _losses(self, model: nn.Module, batch: Any) -> torch.Tensor:
        found = self._task.losses(model, batch)
        return found.losses if isinstance(found, Losses) else found

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def begin(self, recorded: int) -> None:
        """Before the first step: load the kept sets that an interrupted run wrote, up to the last recorded epoch."""
        if self.on and self._file.exists():
            self._kept = KeptSets.load(self._file)
            self._kept.forget_after(recorded)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return self._watch.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state of `state_dict`; None comes from a checkpoint older than the diagnostics."""
        self._watch.load_state_dict(state)
        if not self.on:
            self._watch.norms.clear()  # norms of half an epoch, from a run that was diagnosed until now


@dataclass(frozen=True)
class _InOrder(Policy):
    """Selects all given indices, in the given order."""

    indices: np.ndarray

    needs_feedback = False

    def size(self, n: int, context: Context) -> int:
        return len(self.indices)

    def select(self, table: Table, context: Context) -> Selection:
        return Selection(self.indices)


class _Rehearsal(Pruner):
    """Iterates over some samples once, for tasks that take a pruner; images are augmented as in a given epoch."""

    def __init__(self, indices: np.ndarray, n: int, epoch: int) -> None:
        super().__init__(_InOrder(indices), n)
        self._shown = epoch

    @property
    def epoch(self) -> int:
        return self._shown
