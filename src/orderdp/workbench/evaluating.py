"""A model judged on a task's test set."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from orderdp.errors import ConfigError, DatasetError
from orderdp.workbench.settings import Settings
from orderdp.workbench.task import Task

__all__ = ["Judgement", "evaluate", "precision"]


class Judgement(NamedTuple):
    """What a test set says of a model.

    Attributes:
        metric: Mean over the samples, in percent.
        samples: How many there are.
    """

    metric: float
    samples: int


def evaluate(model: nn.Module, task: Task, settings: Settings, device: torch.device) -> Judgement:
    """Tests the model, which is in evaluation mode afterwards."""
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad(), precision(settings, device):
        for batch in _test_batches(task, settings):
            values = _checked(task.metric(model, batch))
            total += values.double().sum().item()
            count += len(values)
    if count == 0:
        raise DatasetError("the test set must have samples, got none: there is nothing to test the model on.")
    return Judgement(100 * total / count, count)


def _checked(values: Any) -> torch.Tensor:
    """A number for each sample, or an error: the mean over batches of unequal size would be another number."""
    if not isinstance(values, torch.Tensor) or values.ndim == 0 or values.numel() != len(values):
        got = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else f"{type(values).__name__}"
        raise ConfigError(
            f"a task's metric must return a tensor with a number for each sample of the batch, got {got}. Leave the "
            "mean to the workbench."
        )
    return values


def precision(settings: Settings, device: torch.device) -> AbstractContextManager[Any]:
    """Mixed precision, where the settings ask for it."""
    if not settings.amp:
        return nullcontext()
    kind = torch.float16 if device.type == "cuda" else torch.bfloat16
    return torch.autocast(device.type, dtype=kind)


def _test_batches(task: Task, settings: Settings) -> Any:
    own = getattr(task, "test_batches", None)
    if own is not None:
        return own()
    options = getattr(task, "loader_options", {})
    return torch.utils.data.DataLoader(task.test_set, batch_size=settings.batch_size, **options)
