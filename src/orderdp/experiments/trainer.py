"""Training of one run: steps, tests, records, checkpoints, times, and resuming after an interruption."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from orderdp import Policy, Pruner, load_checkpoint, save_checkpoint
from orderdp._training import SCHEDULES, GlobalGenerators, TrainState, build_optimizer, mixed_precision
from orderdp.errors import (
    ConfigError,
    DatasetError,
    NonFiniteLossError,
    OrderDPWarning,
    SmallEpochError,
    StateError,
    UnknownSizeError,
    warn,
)
from orderdp.experiments.config import CONTROLS, RunOptions, Settings
from orderdp.experiments.diagnosing import Diagnosis
from orderdp.experiments.loggers import Logger, make_loggers
from orderdp.experiments.records import RunLog, describe_host, notable_samples, read_run, versions
from orderdp.experiments.tasks import Losses, Task, drops_last, task_batches
from orderdp.policies import Budget, FullData, build_at

if TYPE_CHECKING:
    from orderdp.experiments.static import StaticChoice

__all__ = [
    "MODEL_FILE",
    "NOT_COUNTED",
    "PARTS",
    "DivergedError",
    "EvalResult",
    "SingleSampleError",
    "Stopwatch",
    "Training",
    "check_full_batch",
    "evaluate",
    "policy_of",
    "train_state",
    "uninterrupted",
]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the block ends. A second Ctrl-C does not wait."""
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread can set handlers. If Python cannot restore the handler, or SIGINT is ignored, do nothing.
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return
    pressed = False

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


PARTS = ("training", "selection", "evaluation", "diagnosis", "overhead")


#: Parts that are measured but are not part of the cost of training.
NOT_COUNTED = ("evaluation", "diagnosis")


class Stopwatch:
    """Sums seconds by part; time that no part claims while the stopwatch runs is overhead.

    On an asynchronous device the host's clock is right only where the host waits: the totals of an epoch are right,
    because the host waits for its end; the parts within a step are not.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._settled: tuple[float, float] | None = None  # time and seconds counted at the last flush; None if stopped

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time inside; time that no part claims is overhead."""
        self._settled = (time.perf_counter(), sum(self.seconds.values()))
        try:
            yield
        finally:
            self.flush()
            self._settled = None

    def flush(self) -> None:
        """Count unclaimed time so far as overhead; call before `seconds` is read while the stopwatch runs."""
        if self._settled is None:
            return
        now = time.perf_counter()
        then, counted = self._settled
        self.seconds["overhead"] += (now - then) - (sum(self.seconds.values()) - counted)
        self._settled = (now, sum(self.seconds.values()))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside for the part `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def since(self, before: dict[str, float]) -> dict[str, float]:
        """Return the seconds of each part since `before`, a copy of `seconds`, under the names that records use."""
        return {f"{name}_seconds": self.seconds[name] - before[name] for name in PARTS}


class EvalResult(NamedTuple):
    """Result of testing a model.

    Attributes:
        metric: The task's own number, or the mean over the samples; times 100 if its unit is "%".
        samples: Number of samples.
    """

    metric: float
    samples: int


def evaluate(model: nn.Module, task: Task, settings: Settings, device: torch.device) -> EvalResult:
    """Test the model, and leave it in evaluation mode."""
    model.eval()
    own = getattr(task, "evaluate", None)
    if own is not None:
        with torch.no_grad(), mixed_precision(settings.amp, device):
            return EvalResult(_number(own(model)), len(task.test_set))
    total, count = 0.0, 0
    with torch.no_grad(), mixed_precision(settings.amp, device):
        for batch in _test_batches(task, settings):
            values = _checked(task.metric(model, batch))
            total += values.double().sum().item()
            count += len(values)
    if count == 0:
        raise DatasetError("the test set must have samples, got none: there is nothing to test the model on.")
    return EvalResult((100 if metric_unit(task) == "%" else 1) * total / count, count)


def metric_unit(task: Task) -> str:
    """Return the unit of a task's metric."""
    return str(getattr(task, "metric_unit", "%"))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        got = type(value).__name__
        raise ConfigError(f"a task's evaluate(model) must return one number, the metric, got {got}.") from None


def _checked(values: Any) -> torch.Tensor:
    """Return the values, or raise if there is not one per sample: batches of unequal size would distort the mean."""
    if not isinstance(values, torch.Tensor) or values.ndim == 0 or values.numel() != len(values):
        got = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else f"{type(values).__name__}"
        raise ConfigError(
            f"a task's metric must return a tensor with a number for each sample of the batch, got {got}. The trainer "
            "computes the mean."
        )
    return values


def _test_batches(task: Task, settings: Settings) -> Any:
    own = getattr(task, "test_batches", None)
    if own is not None:
        return own()
    options = getattr(task, "loader_options", {})
    return torch.utils.data.DataLoader(task.test_set, batch_size=settings.batch_size, **options)


def train_state(settings: Settings, task: Task, device: torch.device) -> TrainState[torch.Tensor, Any, Losses]:
    """Return the new model of a task, with the optimizer, schedule, precision and average of the settings."""
    model = task.build_model(settings.seed).to(device)
    optimizer = build_optimizer(
        settings.optimizer,
        model,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )

    def forward(model: nn.Module, batch: Any) -> Losses:
        found = task.losses(model, batch)
        return found if isinstance(found, Losses) else Losses(found)

    return TrainState(
        model,
        optimizer,
        forward,
        lr=settings.lr,
        schedule=SCHEDULES[settings.schedule],
        amp=settings.amp,
        compile=settings.compile,
        average=settings.average,
    )


MODEL_FILE = "model.pt"
"""Name of the file of trained weights in the folder of a finished run."""


_CHECKPOINT = "checkpoint.pt"


_REPORTED = ("saved", "nominal_saved", "coverage", "staleness", "learned")


_COUNTS = ("batch", "recorded", "samples", "loss_count", "metric")


def check_full_batch(pruner: Pruner, batch_size: int, label: str) -> None:
    """Raise if an epoch may be smaller than a batch, so that it would have no step."""
    fewest, most = pruner.size_bounds(0)
    if most < batch_size or 1 < fewest < batch_size:  # 1 is the default of policies without bounds
        raise ConfigError(
            f"an epoch of {label} may have {fewest} samples, less than one batch of {batch_size}, and incomplete "
            "batches are dropped. Choose a smaller --batch-size, prune less, or give --keep-last."
        )


class DivergedError(Exception):
    """The loss is not finite; the run fails."""


class _OtherSettingsError(StateError):
    """The checkpoint is intact, but belongs to another run."""


class SingleSampleError(Exception):
    """A batch is a single sample, and the model cannot be trained on one; the run fails."""


def full_samples(settings: Settings, n: int, drop_last: bool) -> int:
    """Return the number of samples that full data trains on.

    Args:
        settings: Settings of a run.
        n: Number of samples in the data set.
        drop_last: Whether incomplete last batches are dropped.
    """
    dropped = n % settings.batch_size if drop_last and n >= settings.batch_size else 0
    return settings.epochs * (n - dropped)


def policy_of(settings: Settings, used: float = 1.0) -> Policy:
    """Build the policy of a run; controls train on all data.

    Args:
        settings: Settings of the run.
        used: Fraction of the data that an epoch of full data trains on, less than 1 if its last batch is dropped. Fewer
            epochs save a fraction of this.
    """
    if settings.policy == "reduced" and settings.prune_ratio is not None:
        return Budget(round((1 - settings.prune_ratio) * used, 12), policy=FullData())
    if settings.policy in CONTROLS:
        return FullData()
    return build_at(settings.policy, settings.prune_ratio, **settings.policy_parameters)


class Training:
    """The training of one run, in a folder of its own.

    Args:
        settings: Settings of the run.
        task: Data, model, loss and metric.
        folder: Folder for records and checkpoint. A checkpoint in it is resumed.
        options: Run options; checkpoints, logs and diagnostics are taken from them. Diagnostics change no other number
            of the run.
        device: Device of the model.
        watch: Called after every step with (epochs done, epochs, metric so far).
        static: A coreset or plan made before training, and its cost; it replaces the policy of the settings.
    """

    def __init__(
        self,
        settings: Settings,
        task: Task,
        folder: Path,
        options: RunOptions | None = None,
        *,
        device: torch.device,
        watch: Callable[[float, int, float | None], None] = lambda done, epochs, metric: None,
        static: StaticChoice | None = None,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self._task = task
        self._device = device
        self._options = options = RunOptions(folder) if options is None else options
        self._watch = watch
        self._log = RunLog(folder)
        self._loggers: list[Logger] = []
        self._static = static
        self._drop_last = drops_last(task, settings.drop_last)
        n = len(task.train_set)
        self._full_samples = full_samples(settings, n, self._drop_last)
        used = self._full_samples / (settings.epochs * n)
        self._policy = policy_of(settings, used) if static is None else static.policy
        labels = getattr(task, "labels", None)
        self._pruner = Pruner(
            self._policy, task.train_set, seed=settings.seed, epochs=settings.epochs, labels=labels, on_nan="raise"
        )
        self._batch_size, self._lr_factor = settings.batch_size, 1.0
        if static is not None and static.batch_size is not None:  # replaces the batch size of the setting `steps`, too
            self._batch_size, self._lr_factor = static.batch_size, static.batch_size / settings.batch_size
        elif settings.steps == "same":
            self._batch_size, self._lr_factor = self._pruner.same_steps(settings.batch_size)
        if self._drop_last:
            check_full_batch(self._pruner, self._batch_size, settings.label)
        self._state = train_state(settings, task, device)
        self._generators = GlobalGenerators.seeded(settings.seed, device)  # initial state
        self._diagnosis = Diagnosis(self._pruner, self._state.model, task, settings, folder, level=options.diagnose)
        self._total_steps = self._steps_known()
        self._watch_time = Stopwatch()
        self._batch = 0  # position in the current epoch
        self._recorded = 0  # number of epochs that are tested and recorded
        self._samples = 0
        self._loss_sum = torch.zeros((), device=device)
        self._loss_count = 0
        self._batch_length = 0
        self._in_step = False
        self._metric: float | None = None
        self._epoch_start = (0, dict(self._watch_time.seconds))
        self._saved_at = time.monotonic()

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Train to the end, or resume; return the summary. A finished run is not run again."""
        finished = self._finished()
        if finished is not None:
            return finished
        self._resume()
        before = read_run(self.folder).epochs if self._log.path.exists() else []
        before = [record for record in before if record["epoch"] <= self._recorded]
        self._loggers = make_loggers(self.settings, self.folder, self._options, before)
        try:
            return self._run()
        except BaseException:
            self._tell_loggers(lambda logger: logger.close("interrupted"))
            raise

    def _run(self) -> dict[str, Any]:
        self._diagnosis.begin(self._recorded)
        self._log.start(
            {**self.settings.as_dict(), "label": self.settings.label},
            versions=versions(),
            host=describe_host(self._device),
            command=self._options.command,
            diagnose=self._diagnosis.level,
        )
        if self._static is not None and self._static.failed is not None:
            return self._finish("failed", self._static.failed)
        with self._generators.used(self._device), warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderDPWarning)  # the records hold measured ratios and the like
            try:
                self._end_pending_epoch()
                while not self._pruner.done:
                    self._train_epoch()
            except (DivergedError, SingleSampleError, NonFiniteLossError, SmallEpochError) as error:
                if isinstance(error, SmallEpochError) and not self._state.steps:
                    raise  # the settings are wrong; later on, it is the losses that made an epoch too small
                # Only the first sentence: the advice after it is for users' own loops, which can set on_nan="warn".
                return self._finish("failed", str(error).partition(". ")[0])
            except (KeyboardInterrupt, BrokenPipeError):  # the second: the reader of the progress output is gone
                if not self._in_step:  # within a step the state is inconsistent; the last checkpoint is not
                    self._save()
                raise
        return self._finish("done", None)

    def _finished(self) -> dict[str, Any] | None:
        return read_run(self.folder).summary if self._log.path.exists() else None

    def _end_pending_epoch(self) -> None:
        """Test and record an epoch that was trained to its last step when the run was interrupted."""
        if self._pruner.epoch > self._recorded:
            with self._watch_time.running():
                self._end_epoch(self._pruner.epoch)

    def _train_epoch(self) -> None:
        with self._watch_time.running():
            number = self._pruner.epoch
            self._state.train()
            with self._watch_time.part("selection"):
                sampler = self._pruner.batch_sampler(self._batch_size, self._drop_last)
                next(iter(sampler), None)
                batches_left = len(sampler)
                scale = self._pruner.lr_scale * self._lr_factor
            batches = self._batches()
            while self._whole_step(batches, batches_left, scale):
                self._watch(self._pruner.progress * self.settings.epochs_run, self.settings.epochs_run, self._metric)
                if time.monotonic() - self._saved_at > self._options.checkpoint_seconds:
                    self._save()
            if self._pruner.epoch == number:
                raise StateError(f"epoch {number + 1} ended without progress: its data set is empty.")
            self._end_epoch(number + 1)

    def _whole_step(self, batches: Any, batches_in_epoch: int, scale: float) -> bool:
        """Make one step that an interrupt does not cut short; return False at the end of the epoch."""
        with uninterrupted():
            self._in_step = True
            went_on = self._one_step(batches, batches_in_epoch, scale)
            self._in_step = False
        return went_on

    def _one_step(self, batches: Any, batches_in_epoch: int, scale: float) -> bool:
        """Train on up to `accumulate` batches and make one optimizer step; return False at the end of the epoch."""
        group = self.settings.accumulate
        first = self._batch - self._batch % group
        before, waited = self._state.seconds, getattr(self._task, "index_seconds", 0.0)
        diagnosed = self._watch_time.seconds["diagnosis"]
        try:
            return self._state.train_step(
                batches,
                self._feedback,
                accumulate=max(1, min(group, batches_in_epoch - first)),
                done=self._share_done,
                scale=scale,
                before_step=self._diagnose,
            )
        except ValueError as error:
            if self._batch_length > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise SingleSampleError(
                f"the last batch of epoch {self._pruner.epoch + 1} is a single sample, on which batch normalization "
                "cannot be trained; another batch size would help"
            ) from None
        finally:
            elsewhere = getattr(self._task, "index_seconds", 0.0) - waited
            elsewhere += self._watch_time.seconds["diagnosis"] - diagnosed
            self._watch_time.seconds["training"] += max(0.0, self._state.seconds - before - elsewhere)

    def _batches(self) -> Iterator[tuple[torch.Tensor, Any]]:
        """Yield the rest of the epoch, and keep the length of the last batch."""
        for index, batch in task_batches(
            self._task, self._pruner, self._batch_size, self.settings.seed, drop_last=self._drop_last
        ):
            self._batch_length = len(index)
            yield index, batch

    def _feedback(self, index: torch.Tensor, found: Losses) -> torch.Tensor:
        loss = self._pruner.update(index, found.losses.float(), found.scores, **self._told(found))
        self._loss_sum += found.losses.detach().float().sum()
        self._loss_count += len(index)
        self._samples += len(index)
        self._batch += 1
        return loss

    def _diagnose(self) -> None:
        self._watch_time.seconds["diagnosis"] += self._diagnosis.step(self._state.scaler, self._device)

    def _told(self, found: Losses) -> dict[str, Any]:
        """Return the values besides losses that the policy uses."""
        try:
            return {name: found.told[name] for name in self._pruner.update_arguments}
        except KeyError as error:
            raise ConfigError(
                f"policy {self.settings.policy!r} needs {error.args[0]!r} of each sample, and the task does not return "
                "it. Return Losses(losses, told=predictions(logits, targets)), with predictions of orderdp.losses."
            ) from None

    def _share_done(self) -> float:
        if self._total_steps is None:
            return self._pruner.progress
        return self._state.steps / max(1, self._total_steps - 1)

    def _end_epoch(self, number: int) -> None:
        loss = (self._loss_sum / max(1, self._loss_count)).item()
        if not math.isfinite(loss):
            raise DivergedError(f"the loss became {loss} in epoch {number}")
        last = self._pruner.done
        metric = None
        if last or number % self.settings.evaluate_every == 0:
            with self._watch_time.part("evaluation"):
                metric = self._metric = self._test(last)
        with uninterrupted():
            self._record_epoch(number, loss, metric)
            self._diagnosis.advance()
            self._recorded, self._batch, self._loss_count = number, 0, 0
            self._loss_sum.zero_()
            self._epoch_start = (self._samples, dict(self._watch_time.seconds))

    def _test(self, last: bool) -> float:
        """Return the metric on the test set; the average is tested only at the end, because it is of no use before."""
        averaged = last and self._state.average is not None
        model = self._state.result if averaged else self._state.called
        return evaluate(model, self._task, self.settings, self._device).metric

    def _steps_known(self) -> int | None:
        settings = self.settings
        try:
            return self._pruner.steps(
                settings.epochs, self._batch_size, drop_last=self._drop_last, accumulate=settings.accumulate
            )
        except UnknownSizeError:
            return None

    # -- records -------------------------------------------------------------------------------------------------

    def _record_epoch(self, number: int, loss: float, metric: float | None) -> None:
        diagnosis = self._diagnosis.epoch(number, self._watch_time)
        report = self._pruner.report()
        samples, seconds = self._epoch_start
        self._watch_time.flush()  # or the next epoch would include the overhead of this one
        told: dict[str, Any] = {name: report[name] for name in _REPORTED}
        told.update(self._watch_time.since(seconds))
        told.update(epoch=number, samples=self._samples - samples, loss=loss, metric=metric, **diagnosis)
        told["progress"] = self._pruner.progress
        told["lr"] = self._state.lr
        self._log.epoch(**told)
        self._tell_loggers(lambda logger: logger.epoch(told))

    def _tell_loggers(self, tell: Callable[[Logger], None]) -> None:
        """Tell all loggers; one that fails is left out from then on, because a run need not end with it."""
        for logger in tuple(self._loggers):
            try:
                tell(logger)
            except Exception as error:
                self._loggers.remove(logger)
                name = type(logger).__name__
                warn(
                    f"{name} failed ({type(error).__name__}: {error}). The run continues without it; its records are "
                    "complete.",
                    UserWarning,
                )

    def _finish(self, status: str, reason: str | None) -> dict[str, Any]:
        seconds = self._watch_time.seconds
        proxy_seconds = None if self._static is None else self._static.seconds
        cost = sum(seconds[part] for part in PARTS if part not in NOT_COUNTED) + (proxy_seconds or 0.0)
        parts: dict[str, Any] = {f"{part}_seconds": seconds[part] for part in PARTS}
        if self._static is not None and self._static.samples is not None:
            parts["proxy_samples"] = self._static.samples
        if status == "done":  # before the summary: a run recorded as done has its weights
            save_checkpoint(self.folder / MODEL_FILE, {"model": self._state.result.state_dict()})
        summary = self._log.summary(
            status,
            reason=reason,
            metric=self._metric if status == "done" else None,
            samples=self._samples,
            full_samples=self._full_samples,
            saved=1 - self._samples / self._full_samples,
            node_hours=cost / 3600,
            proxy_seconds=proxy_seconds,
            usage=torch.bincount(self._pruner.usage).tolist(),
            metric_name=getattr(self._task, "metric_name", "accuracy"),
            metric_unit=metric_unit(self._task),
            higher_is_better=bool(getattr(self._task, "higher_is_better", True)),
            test_samples=None if hasattr(self._task, "evaluate") else len(self._task.test_set),
            notable=notable_samples(self._task, self._pruner.usage, self._pruner.scores) if status == "done" else None,
            **parts,
        )
        self._tell_loggers(lambda logger: logger.close(status, summary))
        (self.folder / _CHECKPOINT).unlink(missing_ok=True)  # a finished run needs none, and a grid's take much space
        return summary

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._watch_time.flush()
        generators = GlobalGenerators.now(self._device)
        state = {
            "settings": self.settings.as_dict(),
            **self._state.state_dict(),
            "pruner": self._pruner.state_dict(),
            "diagnosis": self._diagnosis.state_dict(),
            "rng": generators.host,
            "device_rng": generators.device,
            "counts": {"step": self._state.steps, **{name: getattr(self, f"_{name}") for name in _COUNTS}},
            "loss_sum": self._loss_sum.cpu(),
            "seconds": dict(self._watch_time.seconds),
            "epoch_start": {"samples": self._epoch_start[0], "seconds": self._epoch_start[1]},
        }
        save_checkpoint(self.folder / _CHECKPOINT, state)
        self._saved_at = time.monotonic()

    def _resume(self) -> None:
        """Resume from the checkpoint, if there is one."""
        path = self.folder / _CHECKPOINT
        for left in self.folder.glob(f".{_CHECKPOINT}.*.tmp"):  # left by a kill while a checkpoint was written
            left.unlink(missing_ok=True)
        if not path.exists():
            return
        try:
            self._take_up(load_checkpoint(path))
        except (KeyError, TypeError, RuntimeError, StateError) as error:
            if isinstance(error, _OtherSettingsError):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise StateError(
                f"cannot resume from the checkpoint {str(path)!r}: it is damaged, or of another version or model "
                f"({reason}). Remove it to train this run from its beginning."
            ) from error

    def _take_up(self, state: dict[str, Any]) -> None:
        changed = self.settings.differences(state["settings"])
        if changed:
            raise _OtherSettingsError(
                f"the checkpoint in {self.folder} is of a run with other settings: {'; '.join(changed)}. "
                "Resume with the settings it had, or use another folder."
            )
        self._state.load_state_dict(state)
        self._pruner.load_state_dict(state["pruner"])
        self._diagnosis.load_state_dict(state.get("diagnosis"))
        self._generators = self._generators.from_checkpoint(state["rng"], state.get("device_rng"))
        self._state.steps = state["counts"]["step"]
        for name in _COUNTS:
            setattr(self, f"_{name}", state["counts"][name])
        self._loss_sum = state["loss_sum"].to(self._device)
        nothing = dict.fromkeys(PARTS, 0.0)  # for parts that the checkpoint's version did not have
        self._watch_time.seconds = {**nothing, **state["seconds"]}
        self._epoch_start = (state["epoch_start"]["samples"], {**nothing, **state["epoch_start"]["seconds"]})
