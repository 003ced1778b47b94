"""Trained models judged on further test sets, such as corrupted images, when the training is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from orderdp import load_checkpoint
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.workbench.comparing import Place, finished
from orderdp.workbench.data import ImageData
from orderdp.workbench.evaluating import evaluate
from orderdp.workbench.locking import alone_in
from orderdp.workbench.records import RunLog
from orderdp.workbench.running import Runner
from orderdp.workbench.settings import Settings
from orderdp.workbench.task import Task
from orderdp.workbench.training import MODEL_FILE

__all__ = ["Judged", "check_tests", "judge_all", "not_judged"]


class Judged(NamedTuple):
    """What a further test set says of a run's model."""

    settings: Settings
    data: str
    metric: float


def check_tests(settings: Settings, place: Place, tests: Sequence[str]) -> None:
    """Raises what would go wrong after the training, before anything is spent on it."""
    runner = place.runner()
    for data in tests:
        _task(runner, settings, data)


def not_judged(runs: Sequence[Settings], place: Place, data: str) -> list[Settings]:
    """The runs that are done and whose models this test set has not seen yet."""
    ended = ((settings, finished(place.out, settings)) for settings in runs)
    return [settings for settings, run in ended if run is not None and run.done and data not in run.tests]


def judge_all(runs: Sequence[Settings], place: Place, tests: Sequence[str]) -> Iterator[Judged]:
    """Judges the models of finished runs on test sets that have not seen them; each is recorded, then yielded.

    Args:
        runs: What was run. Runs that have failed or are not finished are passed over.
        place: Where and how.
        tests: Data sets, by name or path, with modifiers. Their test splits are used, and nothing else of them.
    """
    runner = place.runner()
    for data in tests:
        for settings in not_judged(runs, place, data):
            yield Judged(settings, data, _judge(runner, settings, data))


def _judge(runner: Runner, settings: Settings, data: str) -> float:
    folder = runner.folder(settings)
    task = _task(runner, settings, data)
    model = task.build_model(settings.seed).to(runner.device)
    with alone_in(folder):
        if not (folder / MODEL_FILE).exists():
            raise StateError(
                f"the trained weights {str(folder / MODEL_FILE)!r} are not there, so they cannot be judged on {data}. "
                "Bring them back, or remove the run's folder to train it again."
            )
        model.load_state_dict(load_checkpoint(folder / MODEL_FILE)["model"])
        found = evaluate(model, task, settings, runner.device)
        RunLog(folder).test(data=data, metric=found.metric, samples=found.samples)
    return found.metric


def _task(runner: Runner, settings: Settings, data: str) -> Task:
    """The run's own task with another test set; images are prepared as those that were trained on."""
    if settings.task is not None:
        raise ConfigError("--also-test needs --data: a task of your own brings its own test set.")
    own, other = runner.load(settings.data), runner.load(data)
    mine, theirs = (_form(entry) for entry in (own, other))
    if mine != theirs:
        raise DatasetError(
            f"a further test set must have the classes and the shape of {settings.data}, {_said(*mine)}; "
            f"{data} has {_said(*theirs)}."
        )
    return runner.task_of(replace(own, test=other.test), settings)


def _form(data: Any) -> tuple[int, tuple[int, ...]]:
    """How many classes, and the shape of an image."""
    image = data.test.images[0] if isinstance(data, ImageData) else data.test[0][0]
    return data.classes, tuple(image.shape)


def _said(classes: int, shape: tuple[int, ...]) -> str:
    return f"{classes} classes of {' x '.join(map(str, shape))}"
