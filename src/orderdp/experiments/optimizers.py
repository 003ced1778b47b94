"""Optimizers and learning-rate schedules by name, and the average of iterates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from orderdp._validation import checked_name
from orderdp.errors import ConfigError

__all__ = ["OPTIMIZERS", "SCHEDULES", "IterateAverage", "build_optimizer", "constant", "cosine", "onecycle", "step"]


def build_optimizer(
    name: str, model: nn.Module, *, lr: float, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Build the optimizer called `name` over the model's parameters.

    Args:
        name: One of `OPTIMIZERS`.
        model: Model whose parameters are optimized.
        lr: Learning rate.
        momentum: Momentum of SGD and LARS.
        nesterov: Whether SGD uses Nesterov momentum.
        weight_decay: Weight decay.
    """
    checked_name(name, OPTIMIZERS, "optimizer")
    if nesterov and name != "sgd":
        raise ConfigError(f"nesterov is an option of sgd, got optimizer {name!r}.")
    return OPTIMIZERS[name](model.parameters(), lr, momentum, nesterov, weight_decay)


def _sgd(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, foreach=True
    )


def _adamw(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)


def _lars(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = _library().LARS(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return optimizer


def _lamb(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = _library().Lamb(parameters, lr=lr, weight_decay=weight_decay)
    return optimizer


def _library() -> Any:
    try:
        import pytorch_optimizer
    except ImportError:
        raise ConfigError("LARS and LAMB need a library: pip install 'orderdp[workbench]'.") from None
    return pytorch_optimizer


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adamw": _adamw,
    "lars": _lars,
    "lamb": _lamb,
}


# The defaults of torch's OneCycleLR.
_RISE = 0.3


_FIRST = 25.0


_LAST = 1e4


_STEPS = (0.5, 0.75)


_STEP_FACTOR = 0.1


def onecycle(done: float) -> float:
    """Rise to 1 in the first 30 % of training, then fall to almost 0, both along half a cosine."""
    low = 1 / _FIRST
    if done <= _RISE:
        return _half_cosine(low, 1.0, done / _RISE)
    return _half_cosine(1.0, low / _LAST, (done - _RISE) / (1 - _RISE))


def cosine(done: float) -> float:
    """Fall from 1 to 0 along half a cosine."""
    return _half_cosine(1.0, 0.0, done)


def step(done: float) -> float:
    """Divide by ten after half of the training, and again after three quarters."""
    return _STEP_FACTOR ** sum(done >= place for place in _STEPS)


def constant(done: float) -> float:
    """Always 1."""
    return 1.0


SCHEDULES: dict[str, Callable[[float], float]] = {
    "onecycle": onecycle,
    "cosine": cosine,
    "step": step,
    "constant": constant,
}


def _half_cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, max(0.0, done)))) / 2


class IterateAverage:
    """Sum of lr_t * theta_t over the steps, divided by the sum of lr_t. Buffers are averaged in the same way.

    Args:
        model: Model whose parameters are averaged.
    """

    def __init__(self, model: nn.Module) -> None:
        self._total = 0.0
        self._share = 1.0
        self.model = AveragedModel(model, avg_fn=self._mixed, use_buffers=True)

    def add(self, model: nn.Module, lr: float) -> None:
        """Add the model as it is after a step with this learning rate."""
        self._total += lr
        self._share = lr / self._total if self._total else 1.0
        self.model.update_parameters(model)

    def _mixed(self, average: torch.Tensor, current: torch.Tensor, count: Any) -> torch.Tensor:
        return average + (current - average) * self._share

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {"total": self._total, "model": self.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._total = float(state["total"])
        self.model.load_state_dict(state["model"])
