"""Runs from settings: one, or a grid of them in several processes that can be killed and resumed."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from orderdp import load_checkpoint
from orderdp._files import try_lock, write_text
from orderdp._training import OPTIMIZERS, SCHEDULES
from orderdp._validation import check_dials, checked_name
from orderdp.coresets.registry import build
from orderdp.datasets import ImageData
from orderdp.errors import ConfigError, DatasetError, RecordError, StateError
from orderdp.experiments.config import (
    CONTROLS,
    VARIED,
    MethodSpec,
    RunOptions,
    Settings,
    check_parameters,
    takes_ratio,
)
from orderdp.experiments.loggers import check_loggers
from orderdp.experiments.records import Run, RunLog, RunRecords, read_run
from orderdp.experiments.static import check_plan, check_task, choose, is_recorded, is_static, plan_for
from orderdp.experiments.statistics import Row, compare
from orderdp.experiments.tasks import Task, drops_last, load_task
from orderdp.experiments.trainer import MODEL_FILE, Training, check_full_batch, evaluate, policy_of
from orderdp.policy import count_kept
from orderdp.pruner import Pruner

__all__ = [
    "FurtherTest",
    "Runner",
    "Trial",
    "check",
    "check_runs",
    "check_tests",
    "choose_device",
    "compare_all",
    "evaluate_all",
    "find_lossless",
    "follow",
    "not_evaluated",
    "possible_ratios",
    "remember_settings",
    "saving_at_the_end",
]


_TERMINATED = 128 + signal.SIGTERM


class _Worker:
    """State of a worker process: whether it trains, and whether it must end."""

    def __init__(self) -> None:
        self.training = False
        self.told_to_end = False

    def watch(self, done: float, epochs: int, metric: float | None) -> None:
        """Called after every step, when the state of the run is consistent and can be saved."""
        self.training = True
        if self.told_to_end:
            raise KeyboardInterrupt

    def end(self, number: int, frame: Any) -> None:
        """End the process: at once, or after the current step."""
        self.told_to_end = True
        if not self.training:
            os._exit(_TERMINATED)


_worker = _Worker()


def follow(line: Connection) -> None:
    """Make a new process end when the other end of the pipe closes: on request, or because its process is killed.

    Args:
        line: Reading end of the pipe. No data is ever sent.
    """
    signal.signal(signal.SIGTERM, _worker.end)
    threading.Thread(target=_listen, args=(line,), daemon=True).start()


def _listen(line: Connection) -> None:
    try:
        line.poll(None)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def saving_at_the_end() -> Iterator[Callable[[float, int, float | None], None]]:
    """Context of a run in a worker process; yields the function that the run must call after every step."""
    try:
        yield _worker.watch
    finally:
        _worker.training = False
        if _worker.told_to_end:
            os._exit(_TERMINATED)  # or the process would wait for more work, and the parent process is gone


_DATA_KEPT = 2  # the training data, and a further test set


def check(settings: Settings) -> None:
    """Raise for settings that would fail later, before any time is spent on training."""
    check_parameters(settings.policy, settings.policy_parameters)
    checked_name(settings.optimizer, OPTIMIZERS, "optimizer")
    checked_name(settings.schedule, SCHEDULES, "learning-rate schedule")
    if is_static(settings.policy):
        _check_static(settings)
    elif is_recorded(settings.policy):
        check_plan(settings)
    else:
        _check_policy(settings)
        _check_ratio(settings)


def _check_policy(settings: Settings) -> None:
    """Raise if the policy cannot be built, with what is missing if that is a prune ratio."""
    try:
        policy_of(settings)
    except ConfigError:
        if settings.prune_ratio is not None:
            raise
        policy_of(replace(settings, prune_ratio=0.999))  # raises where something else is wrong
        raise ConfigError(
            f"policy {settings.policy!r} needs a prune ratio, got none. Give --prune-ratio; 0.4 trains on 60 % of the "
            "data."
        ) from None


def _check_ratio(settings: Settings) -> None:
    """Raise if tables would show a ratio that the policy does not use."""
    parameters = settings.policy_parameters
    if settings.prune_ratio is None or settings.policy in CONTROLS:
        return
    if {"exploration", "exploitation"} <= set(parameters):
        check_dials(settings.prune_ratio, parameters["exploration"], parameters["exploitation"])
    elif not takes_ratio(MethodSpec(settings.policy, dict(parameters))):
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
            f"{settings.policy!r} needs precomputed scores, and a run has none. Select with `orderdp coreset "
            "--from-features FILE`, and train on its output."
        )
    if needs.epoch is not None and needs.epoch > settings.proxy_epochs:
        raise ConfigError(
            f"{settings.policy!r} needs the proxy after {needs.epoch} epochs, and it is trained for "
            f"{settings.proxy_epochs}. Give --proxy-epochs {needs.epoch}."
        )


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device


class Runner:
    """Runs settings one after the other, and keeps the last data sets in memory.

    Args:
        options: Run options. Their number of threads is set for the process.
    """

    def __init__(self, options: RunOptions) -> None:
        check_loggers(options)
        self.options = options
        self.device = choose_device(options.device)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self._data: dict[str, Any] = {}

    def run(
        self, settings: Settings, watch: Callable[[float, int, float | None], None] | None = None
    ) -> dict[str, Any]:
        """Train a run, or resume it; return the summary."""
        folder = self.options.folder(settings)
        make_folder(folder)
        with try_lock(folder):
            return self._train(settings, folder, watch)

    def _train(
        self, settings: Settings, folder: Path, watch: Callable[[float, int, float | None], None] | None
    ) -> dict[str, Any]:
        task = self.task(settings)
        own: dict[str, Any] = {} if watch is None else {"watch": watch}
        if is_static(settings.policy):
            own["static"] = choose(settings, task, folder, self.options.out / "proxies", self.device)
        elif is_recorded(settings.policy):
            own["static"] = plan_for(settings, task, folder, self.device, **own)
        return Training(settings, task, folder, self.options, device=self.device, **own).run()

    def task(self, settings: Settings) -> Task:
        """Build the task of the settings: data, model, loss and metric."""
        if settings.task is not None:
            return load_task(settings.task)
        return self.task_of(self.load(settings.data), settings)

    def task_of(self, data: Any, settings: Settings) -> Task:
        """Build the task of the settings for data that is already loaded."""
        from orderdp.datasets import FolderData
        from orderdp.experiments.tasks import FolderTask, ImageTask

        if isinstance(data, FolderData):
            return FolderTask(data, settings, self.device)
        return ImageTask(data, settings, self.device)

    def load(self, name: str) -> Any:
        """Load the data set of this name; the last two data sets are kept."""
        from orderdp.datasets import load

        if name not in self._data:
            if len(self._data) == _DATA_KEPT:
                self._data.pop(next(iter(self._data)))
            self._data[name] = load(name, self.options.data_dir)
        return self._data[name]


def make_folder(folder: Path) -> None:
    """Create the folder, or raise with the reason why it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{str(folder)!r} cannot be written to: {error.strerror or error}. Choose another --out."
        ) from None


_SETTINGS_FILE = "settings.json"


def remember_settings(base: Settings, out: Path) -> None:
    """Write the settings that all runs of the folder share; raise if the folder has others.

    Policies, ratios and seeds may be added to a comparison; with any other difference the runs are not comparable.
    """
    make_folder(out)
    path = out / _SETTINGS_FILE
    common = {name: value for name, value in base.as_dict().items() if name not in VARIED}
    if path.exists() and any(out.glob("runs/*/records.jsonl")):  # without a run there is nothing to compare with
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise RecordError(f"{str(path)!r} is damaged. Remove it if the settings have not changed.") from None
        free = {name: value for name, value in base.as_dict().items() if name in VARIED}
        changed = base.differences({**before, **free})
        if changed:
            raise ConfigError(
                f"{str(out)!r} holds runs with other settings: {'; '.join(changed)}. "
                "Resume with the settings they had, or use another --out."
            )
        return
    write_text(path, json.dumps(common, indent=2) + "\n")


def check_runs(runs: Sequence[Settings], options: RunOptions) -> None:
    """Raise if the data set does not allow one of the runs, before any run is trained.

    A user-defined task is not built for this check, because building it may be expensive.
    """
    if runs[0].task is not None:
        return
    task = Runner(options).task(runs[0])
    labels = getattr(task, "labels", None)
    pruners: list[tuple[Settings, Pruner]] = []
    for run in {replace(run, seed=0).run_id: run for run in runs}.values():
        if is_static(run.policy):
            count_kept(len(task.train_set), run.prune_ratio or 0.0)
        elif is_recorded(run.policy):
            check_task(run, task)
        else:
            pruners.append((run, Pruner(policy_of(run), task.train_set, epochs=run.epochs, labels=labels)))
    for run, pruner in pruners:
        batch_size = pruner.same_steps(run.batch_size).batch_size if run.steps == "same" else run.batch_size
        if drops_last(task, run.drop_last):
            check_full_batch(pruner, batch_size, run.label)


def compare_all(
    runs: Sequence[Settings],
    options: RunOptions,
    *,
    records: RunRecords | None = None,
    watch: Callable[[Settings, float, int, float | None], None] = lambda run, done, epochs, metric: None,
) -> Iterator[tuple[Settings, dict[str, Any]]]:
    """Run all unfinished runs; yield settings and summary of each run as it ends.

    A failed run is a result like any other, and the other runs continue.

    Args:
        runs: Settings of the runs.
        options: Run options.
        records: Records of the folder, if they have been read.
        watch: Called with the progress of a run.
    """
    records = RunRecords(options.out) if records is None else records
    waiting = [run for run in runs if records.finished(run.run_id) is None]
    run_them = _one_by_one if options.jobs == 1 else _several
    for run, summary in run_them(waiting, options, watch):
        records.changed(run.run_id)
        yield run, summary


def _one_by_one(
    waiting: list[Settings], options: RunOptions, watch: Callable[[Settings, float, int, float | None], None]
) -> Iterator[tuple[Settings, dict[str, Any]]]:
    runner = Runner(options)
    for run in waiting:
        yield run, runner.run(run, partial(watch, run))


def _several(
    waiting: list[Settings], options: RunOptions, watch: Callable[[Settings, float, int, float | None], None]
) -> Iterator[tuple[Settings, dict[str, Any]]]:
    options = replace(options, threads=options.threads or max(1, (os.cpu_count() or 1) // options.jobs))
    context = get_context("spawn")
    listening, line = context.Pipe(duplex=False)
    with (
        listening,
        line,
        ProcessPoolExecutor(options.jobs, mp_context=context, initializer=follow, initargs=(listening,)) as pool,
    ):
        pending: dict[Future[dict[str, Any]], Settings] = {}
        queue = iter(waiting)
        try:
            while True:
                while len(pending) < options.jobs and (run := next(queue, None)) is not None:
                    with _interrupts_kept_from_children():
                        pending[pool.submit(_run_here, run, options)] = run
                if not pending:
                    return
                done, _ = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
                for run in pending.values():
                    _tell(run, options, watch)
                for future in done:
                    yield pending.pop(future), future.result()
        except BrokenProcessPool:
            raise StateError(
                "a training process was killed, perhaps because memory ran out. The progress of the other runs is "
                "saved. Resume with the same command; fewer --jobs need less memory."
            ) from None
        except BaseException:
            line.close()  # ends the worker processes, as soon as they have saved
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _interrupts_kept_from_children() -> Iterator[None]:
    """Block SIGINT, also in processes that start inside, from their first instruction.

    A terminal sends Ctrl-C to all processes, and one that is still importing would show a traceback. They end when this
    process closes its pipe. Here an interrupt that comes inside is raised at the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_here(settings: Settings, options: RunOptions) -> dict[str, Any]:
    with saving_at_the_end() as watch:
        return Runner(options).run(settings, watch)


def _tell(run: Settings, options: RunOptions, watch: Callable[[Settings, float, int, float | None], None]) -> None:
    """Report the progress of a run in another process, read from its records."""
    folder = options.folder(run)
    if (folder / "records.jsonl").exists():
        epochs = read_run(folder).epochs
        if epochs:
            done = epochs[-1].get("progress", epochs[-1]["epoch"] / run.epochs_run)
            watch(run, done * run.epochs_run, run.epochs_run, epochs[-1].get("metric"))


class FurtherTest(NamedTuple):
    """Result of a run's model on a further test set."""

    settings: Settings
    data: str
    metric: float


def check_tests(settings: Settings, options: RunOptions) -> None:
    """Raise for test sets that would fail after training, before any time is spent on training."""
    runner = Runner(options)
    for data in options.tests:
        _task(runner, settings, data)


def not_evaluated(runs: Sequence[Settings], records: RunRecords, data: str) -> list[Settings]:
    """Return the runs that are done and not yet tested on this test set."""
    ended = ((settings, records.finished(settings.run_id)) for settings in runs)
    return [settings for settings, run in ended if run is not None and run.done and data not in run.tests]


def evaluate_all(
    runs: Sequence[Settings], options: RunOptions, *, records: RunRecords | None = None
) -> Iterator[FurtherTest]:
    """Test the models of finished runs on the further test sets; record each new result, then yield it.

    Args:
        runs: Settings of the runs. Failed and unfinished runs are skipped.
        options: Run options.
        records: Records of the folder, if they have been read.
    """
    runner = Runner(options)
    records = RunRecords(options.out) if records is None else records
    for data in options.tests:
        for settings in not_evaluated(runs, records, data):
            metric = _evaluate(runner, settings, data)
            records.changed(settings.run_id)
            yield FurtherTest(settings, data, metric)


def _evaluate(runner: Runner, settings: Settings, data: str) -> float:
    folder = runner.options.folder(settings)
    task = _task(runner, settings, data)
    model = task.build_model(settings.seed).to(runner.device)
    with try_lock(folder):
        if not (folder / MODEL_FILE).exists():
            raise StateError(
                f"the trained weights {str(folder / MODEL_FILE)!r} are missing, so they cannot be tested on {data}. "
                "Restore them, or remove the run's folder to train it again."
            )
        model.load_state_dict(load_checkpoint(folder / MODEL_FILE)["model"])
        found = evaluate(model, task, settings, runner.device)
        RunLog(folder).test(data=data, metric=found.metric, samples=found.samples)
    return found.metric


def _task(runner: Runner, settings: Settings, data: str) -> Task:
    """Build the run's task with another test set; its images are prepared like the training images."""
    if settings.task is not None:
        raise ConfigError("--also-test needs --data: a custom task has its own test set.")
    own, other = runner.load(settings.data), runner.load(data)
    mine, theirs = (_form(entry) for entry in (own, other))
    if mine != theirs:
        raise DatasetError(
            f"a further test set must have the classes and the shape of {settings.data}, {_said(*mine)}; "
            f"{data} has {_said(*theirs)}."
        )
    return runner.task_of(replace(own, test=other.test), settings)


def _form(data: Any) -> tuple[int, tuple[int, ...]]:
    """Return the number of classes and the shape of an image."""
    image = data.test.images[0] if isinstance(data, ImageData) else data.test[0][0]
    return data.classes, tuple(image.shape)


def _said(classes: int, shape: tuple[int, ...]) -> str:
    return f"{classes} classes of {' x '.join(map(str, shape))}"


class Trial(NamedTuple):
    """Result of one tried prune ratio.

    Attributes:
        prune_ratio: The ratio.
        lossless: Whether no run failed and the row is within the margin of full data, or better.
        row: Statistics of the runs.
    """

    prune_ratio: float
    lossless: bool
    row: Row

    @property
    def said(self) -> str:
        """The verdict in words, and the number of failed runs."""
        failed = len(self.row.failed)
        return f"{self.row.verdict}; {failed} of its runs failed" if failed and self.row.runs else self.row.verdict


def find_lossless(
    base: Settings,
    method: MethodSpec,
    seeds: Sequence[int],
    train: Callable[[list[Settings]], list[Run]],
    *,
    high: float = 0.9,
    resolution: float = 0.05,
    margin: float | None = None,
) -> Iterator[Trial]:
    """Find the largest prune ratio within the margin of full data by bisection: that of the last lossless trial.

    The rule is that of a comparison: the interval of the difference to full data leaves out a loss of more than the
    margin. The variance is pooled over full data and all ratios tried so far, and the intervals hold for all ratios
    that the search can try at once: at most 1 search in 40 names a ratio that loses more than the margin. A ratio that
    is not settled counts as one with a loss, and so does a ratio at which a run failed.

    Args:
        base: Settings that all runs share.
        method: The method.
        seeds: At least two seeds.
        train: Runs all unfinished runs and returns the records of all runs.
        high: Largest ratio to try.
        resolution: Step between ratios; every tried ratio is a multiple of it.
        margin: Differences to full data up to this size count as none; see `compare`.
    """
    seeds = list(dict.fromkeys(seeds))  # a repeated seed would train the same run twice at the same time
    if len(seeds) < 2:
        raise ConfigError(f"a loss can only be measured with at least two seeds, got {seeds}.")
    full = [replace(base, policy="full", policy_parameters={}, prune_ratio=None, seed=seed) for seed in seeds]
    own = replace(base, policy=method.policy, policy_parameters=method.parameters)
    ratios = possible_ratios(base, method, high=high, resolution=resolution)
    good, bad = -1, len(ratios)
    most = len(ratios).bit_length()  # trials of a bisection
    tried: dict[str, Run] = {}
    while bad - good > 1:
        middle = (good + bad) // 2
        runs = [replace(own, prune_ratio=ratios[middle], seed=seed) for seed in seeds]
        tried.update({run.id: run for run in train(full + runs)})
        rows = compare(tried.values(), margin, comparisons=most)
        row = next(row for row in rows if row.policy == method.policy and row.prune_ratio == ratios[middle])
        lossless = row.holds and not row.failed
        yield Trial(ratios[middle], lossless, row)
        good, bad = (middle, bad) if lossless else (good, middle)


def possible_ratios(base: Settings, method: MethodSpec, *, high: float = 0.9, resolution: float = 0.05) -> list[float]:
    """Return the ratios that can be tried, in ascending order: those at which the method can be built.

    Args:
        base: Settings that all runs share.
        method: The method.
        high: Largest ratio to try.
        resolution: Step between ratios; every tried ratio is a multiple of it.
    """
    if not 0 < resolution <= high:
        raise ConfigError(f"resolution must be above 0 and at most {high}, the largest ratio tried, got {resolution}.")
    if not takes_ratio(method):
        raise ConfigError(f"{method.policy!r} decides by itself how much it leaves out: there is no ratio to find.")
    own = replace(base, policy=method.policy, policy_parameters=method.parameters)
    found, reason = [], None
    for step in range(1, math.floor(high / resolution + 1e-9) + 1):
        ratio = round(step * resolution, 6)
        try:
            check(replace(own, prune_ratio=ratio))
            found.append(ratio)
        except ConfigError as error:
            reason = error
    if reason is not None and not found:
        raise reason
    return found
