"""A grid of runs, gone through one by one or several at a time, killed and started again at will."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from orderdp.errors import ConfigError, RecordError, StateError
from orderdp.policies.kit import count_kept
from orderdp.pruner import Pruner
from orderdp.replacing import write_text
from orderdp.workbench.diagnosing import Closeness
from orderdp.workbench.proxy_plan import check_task, is_recorded
from orderdp.workbench.records import Run, read_run
from orderdp.workbench.running import Runner, make_folder
from orderdp.workbench.settings import VARIED, Settings
from orderdp.workbench.static import is_static
from orderdp.workbench.task import drops_last
from orderdp.workbench.training import check_full_batch, policy_of
from orderdp.workbench.workers import follow, saving_at_the_end

__all__ = ["Place", "check_runs", "compare_all", "finished", "remember_settings"]

_SETTINGS_FILE = "settings.json"


class Place(NamedTuple):
    """Where and how the runs of a grid are run."""

    out: Path
    data_dir: Path | None = None
    device: str = "auto"
    checkpoint_seconds: float = 30.0
    command: str | None = None
    threads: int | None = None
    tensorboard: bool = False
    diagnose: Closeness = False

    def runner(self) -> Runner:
        """Who runs them."""
        if not self.checkpoint_seconds >= 0:  # nor NaN, which would mean never
            raise ConfigError(f"--checkpoint-seconds must be a number, at least 0, got {self.checkpoint_seconds}.")
        if self.threads is not None:
            if self.threads < 1:
                raise ConfigError(f"--threads must be at least 1, got {self.threads}.")
            import torch

            torch.set_num_threads(self.threads)
        return Runner(
            self.out,
            data_dir=self.data_dir,
            device=self.device,
            checkpoint_seconds=self.checkpoint_seconds,
            command=self.command,
            tensorboard=self.tensorboard,
            diagnose=self.diagnose,
        )


def remember_settings(base: Settings, out: Path) -> None:
    """Writes down what all runs of the folder have in common, or refuses where it was something else.

    Policies, ratios and seeds may be added to a comparison; anything else would set runs against each other that
    are not alike.
    """
    make_folder(out)
    path = out / _SETTINGS_FILE
    common = {name: value for name, value in base.as_dict().items() if name not in VARIED}
    if path.exists() and any(out.glob("runs/*/records.jsonl")):  # without a run there is nothing to differ from
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise RecordError(f"{str(path)!r} is damaged. Remove it if the settings have not changed.") from None
        free = {name: value for name, value in base.as_dict().items() if name in VARIED}
        changed = base.differences({**before, **free})
        if changed:
            raise ConfigError(
                f"{str(out)!r} holds runs with other settings: {'; '.join(changed)}. "
                "Go on with the settings they had, or use another --out."
            )
        return
    write_text(path, json.dumps(common, indent=2) + "\n")


def check_runs(runs: Sequence[Settings], place: Place) -> None:
    """Raises what the data set has against one of the runs, before any of them is trained.

    A task of the user's own is not made for that: who knows what it costs.
    """
    if runs[0].task is not None:
        return
    task = place.runner().task(runs[0])
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


def finished(out: Path, settings: Settings) -> Run | None:
    """The records of a run that has come to its end, well or not; None for any other."""
    folder = out / "runs" / settings.run_id
    if not (folder / "records.jsonl").exists():
        return None
    run = read_run(folder)
    return run if run.summary is not None else None


def compare_all(
    runs: Sequence[Settings],
    place: Place,
    *,
    jobs: int = 1,
    watch: Callable[[Settings, float, int, float | None], None] = lambda run, done, epochs, metric: None,
) -> Iterator[tuple[Settings, dict[str, Any]]]:
    """Runs what is not finished yet; yields settings and summary of each as it ends.

    A run that fails is a result like any other, and the others go on.

    Args:
        runs: What to run.
        place: Where and how.
        jobs: How many at a time, in processes of their own.
        watch: Told of progress.
    """
    waiting = [run for run in runs if finished(place.out, run) is None]
    if jobs <= 1:
        runner = place.runner()
        for run in waiting:
            yield run, runner.run(run, partial(watch, run))
        return
    threads = place.threads or max(1, (os.cpu_count() or 1) // jobs)
    yield from _several(waiting, place._replace(threads=threads), jobs, watch)


def _several(
    waiting: list[Settings], place: Place, jobs: int, watch: Callable[[Settings, float, int, float | None], None]
) -> Iterator[tuple[Settings, dict[str, Any]]]:
    context = get_context("spawn")
    listening, line = context.Pipe(duplex=False)
    with (
        listening,
        line,
        ProcessPoolExecutor(jobs, mp_context=context, initializer=follow, initargs=(listening,)) as pool,
    ):
        pending: dict[Future[dict[str, Any]], Settings] = {}
        queue = iter(waiting)
        try:
            while True:
                while len(pending) < jobs and (run := next(queue, None)) is not None:
                    pending[pool.submit(_run_here, run, place)] = run
                if not pending:
                    return
                done, _ = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
                for run in pending.values():
                    _tell(run, place, watch)
                for future in done:
                    yield pending.pop(future), future.result()
        except BrokenProcessPool:
            raise StateError(
                "a process that was training has been ended from outside, perhaps because memory was short. What the "
                "others had is saved. Go on with the same command; fewer --jobs need less memory."
            ) from None
        except BaseException:
            line.close()  # which ends the others, as soon as they have saved
            pool.shutdown(cancel_futures=True)
            raise


def _run_here(settings: Settings, place: Place) -> dict[str, Any]:
    with saving_at_the_end() as watch:
        return place.runner().run(settings, watch)


def _tell(run: Settings, place: Place, watch: Callable[[Settings, float, int, float | None], None]) -> None:
    """What the records of a run in another process say of its progress."""
    folder = place.out / "runs" / run.run_id
    if (folder / "records.jsonl").exists():
        epochs = read_run(folder).epochs
        if epochs:
            done = epochs[-1].get("progress", epochs[-1]["epoch"] / run.epochs_run)
            watch(run, done * run.epochs_run, run.epochs_run, epochs[-1].get("metric"))
