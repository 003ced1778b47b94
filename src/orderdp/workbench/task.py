"""What is trained: data, a model, a loss for each sample and a metric."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from orderdp import Pruner
from orderdp.errors import ConfigError
from orderdp.workbench.plugins import from_outside

__all__ = ["Losses", "Task", "drops_last", "load_task", "task_batches"]


class Losses(NamedTuple):
    """What a training batch says.

    Attributes:
        losses: One for each sample, to go backward from.
        scores: What to remember instead of the losses, where the two differ.
        told: What else policies may want to know, one value for each sample: correct, confidence, probability.
    """

    losses: torch.Tensor
    scores: torch.Tensor | None = None
    told: Mapping[str, torch.Tensor] = {}


@runtime_checkable
class Task(Protocol):
    """What ``--task module:factory`` must return.

    A task may also have

    - ``labels``: one class for each training sample, for class balance;
    - ``metric_name``: what the metric is called (default "accuracy");
    - ``batches(pruner, batch_size, seed)``: an iterator of (index, batch) over the current epoch, where it has a faster
      way than a DataLoader over ``train_set``; with a parameter ``drop_last`` where it can leave out an incomplete one;
    - ``build_proxy(seed, width)``: a smaller model, for the policy proxy-plan; `width` is None where none was asked
      for. There ``batches`` is given a recorder, which has ``epoch``, ``batch_sampler`` and ``loader`` as a pruner has;
    - ``test_batches()``: the same for testing, without indices;
    - ``loader_options``: arguments of the DataLoader, such as ``num_workers``.

    Attributes:
        train_set: A data set with a length and items by index.
        test_set: Another.
    """

    train_set: Any
    test_set: Any

    def build_model(self, seed: int) -> nn.Module:
        """The model, with weights that depend on the seed alone."""
        ...

    def losses(self, model: nn.Module, batch: Any) -> torch.Tensor | Losses:
        """The loss of each sample of a training batch, with gradients."""
        ...

    def metric(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """A number for each sample of a test batch; 100 times their mean is reported."""
        ...


def load_task(place: str) -> Task:
    """The task that the user's function makes."""
    task = from_outside(place, "task")()
    missing = [name for name in ("train_set", "test_set", "build_model", "losses", "metric") if not hasattr(task, name)]
    if missing:
        raise ConfigError(f"the task {place!r} must have {', '.join(missing)}. See orderdp.workbench.task.Task.")
    found: Task = task
    return found


def task_batches(
    task: Task, pruner: Pruner, batch_size: int, seed: int, *, drop_last: bool = False
) -> Iterator[tuple[torch.Tensor, Any]]:
    """Index and batch, through what is left of the current epoch."""
    own = getattr(task, "batches", None)
    if own is not None:
        options = {"drop_last": True} if drop_last else {}
        return iter(own(pruner, batch_size, seed, **options))
    options = {"drop_last": drop_last, **getattr(task, "loader_options", {})}
    return iter(pruner.loader(task.train_set, batch_size=batch_size, **options))


def drops_last(task: Task, wanted: bool) -> bool:
    """Whether incomplete batches are left out: as wanted, unless the task has batches or options of its own."""
    own = getattr(task, "batches", None)
    if own is not None:
        return wanted and "drop_last" in inspect.signature(own).parameters
    return bool(getattr(task, "loader_options", {}).get("drop_last", wanted))
