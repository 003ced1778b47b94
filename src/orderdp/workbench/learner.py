"""Learner: a run's model and whatever turns losses into its next weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from orderdp.workbench.averaging import IterateAverage
from orderdp.workbench.evaluating import evaluate, precision
from orderdp.workbench.learning_rates import SCHEDULES
from orderdp.workbench.optimisers import build_optimiser
from orderdp.workbench.settings import Settings
from orderdp.workbench.task import Losses, Task

__all__ = ["Learner"]


class Learner:
    """A model with its optimiser, learning rate, precision and average.

    Args:
        settings: The run's.
        task: Model, loss, metric.
        device: Where the model is.

    Attributes:
        model: Not compiled.
        optimiser: Its learning rate is set at every step.
        scaler: Of mixed precision; it does nothing where there is none.
        steps: How many have been made.
    """

    def __init__(self, settings: Settings, task: Task, device: torch.device) -> None:
        self.model = task.build_model(settings.seed).to(device)
        self.optimiser = build_optimiser(
            settings.optimiser,
            self.model,
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.amp and device.type == "cuda")
        self.steps = 0
        self._called: nn.Module = torch.compile(self.model) if settings.compile else self.model  # type: ignore[assignment]
        self._average = IterateAverage(self.model) if settings.average else None
        self._settings = settings
        self._task = task
        self._device = device

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        return float(self.optimiser.param_groups[0]["lr"])

    @property
    def result(self) -> nn.Module:
        """The model that training is for: the last one, or the average."""
        return self.model if self._average is None else self._average.model.module

    def train(self) -> None:
        """Before an epoch."""
        self._called.train()

    def losses(self, batch: Any) -> Losses:
        """What the model makes of a batch."""
        with precision(self._settings, self._device):
            found = self._task.losses(self._called, batch)
        return found if isinstance(found, Losses) else Losses(found)

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the loss's gradients to those of the step."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, done: float, scale: float) -> None:
        """A step of the optimiser, when this share of all steps is done; `scale` is the policy's for its rate."""
        lr = self._settings.lr * SCHEDULES[self._settings.schedule](done) * scale
        for parameters in self.optimiser.param_groups:
            parameters["lr"] = lr
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        if self._average is not None:
            self._average.add(self.model, lr)

    def judge(self, last: bool) -> float:
        """The metric on the test set; that of the average only when training is over, since it is of no use before."""
        averaged = last and self._average is not None
        return evaluate(self.result if averaged else self._called, self._task, self._settings, self._device).metric

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, but for the number of steps."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self._average is None else self._average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave; other entries are left alone."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])
