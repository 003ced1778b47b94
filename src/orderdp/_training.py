"""Training of a model: the step that proxies, plans and experiments share, optimizers, schedules, generators."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from orderdp._validation import checked_name
from orderdp.errors import ConfigError, install_command

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "GlobalGenerators",
    "IterateAverage",
    "TrainState",
    "build_optimizer",
    "constant",
    "cosine",
    "mixed_precision",
    "onecycle",
    "outside_graphs",
    "step",
]


Index = TypeVar("Index")


Batch = TypeVar("Batch")


Output = TypeVar("Output")


class TrainState(Generic[Index, Batch, Output]):
    """A model in training: its optimizer, learning rate, precision and average.

    Args:
        model: The model, on its device.
        optimizer: The optimizer; its learning rate is set at every step.
        forward: Forward pass: a function of the model and a batch.
        lr: Largest learning rate.
        schedule: Factor of the learning rate, as a function of the fraction of training done.
        amp: Whether to use mixed precision.
        compile: Whether to compile the model.
        average: Whether to average the iterates.

    Attributes:
        model: The model, not compiled.
        optimizer: The optimizer.
        scaler: Gradient scaler of mixed precision; it does nothing in single precision.
        steps: Number of steps made.
        seconds: Time spent on batches, forward and backward passes and steps; not on the feedback.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        forward: Callable[[nn.Module, Batch], Output],
        *,
        lr: float,
        schedule: Callable[[float], float] | None = None,
        amp: bool = False,
        compile: bool = False,
        average: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(self._device.type, enabled=amp and self._device.type == "cuda")
        self.steps = 0
        self.seconds = 0.0
        self.called: nn.Module = torch.compile(model) if compile else model  # type: ignore[assignment]
        self.average = IterateAverage(model) if average else None
        self._forward = forward
        self._lr = lr
        self._schedule = constant if schedule is None else schedule
        self._amp = amp

    @property
    def lr(self) -> float:
        """Learning rate of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def result(self) -> nn.Module:
        """The trained model: the last iterate, or the average."""
        return self.model if self.average is None else self.average.model.module

    def train(self) -> None:
        """Set the model to training mode, before an epoch."""
        self.called.train()

    def train_step(
        self,
        batches: Iterator[tuple[Index, Batch]],
        feedback: Callable[[Index, Output], torch.Tensor | None],
        *,
        accumulate: int = 1,
        done: Callable[[], float] = lambda: 0.0,
        scale: float = 1.0,
        before_step: Callable[[], None] = lambda: None,
    ) -> bool:
        """Train on the next `accumulate` batches and make one optimizer step; return False if no batch is left.

        Args:
            batches: Pairs of an index and a batch.
            feedback: Receives the index and the output of the forward pass, and returns the loss of the batch; None
                for a batch without a backward pass.
            accumulate: Number of batches whose gradients make the step.
            done: Returns the fraction of training done, for the schedule; called after the feedback.
            scale: Factor of the learning rate.
            before_step: Called when the gradients are complete; its time counts as part of the step.
        """
        for part in range(accumulate):
            begun = time.perf_counter()
            found = next(batches, None)
            if found is None:
                return False
            index, batch = found
            with mixed_precision(self._amp, self._device):
                output = self._forward(self.called, batch)
            self.seconds += time.perf_counter() - begun
            loss = feedback(index, output)
            if loss is None:
                continue
            begun = time.perf_counter()
            self.scaler.scale(loss / accumulate if accumulate > 1 else loss).backward()  # type: ignore[no-untyped-call]
            if part == accumulate - 1:
                before_step()
                self.step(done(), scale)
            self.seconds += time.perf_counter() - begun
        return True

    def step(self, done: float, scale: float) -> None:
        """Make an optimizer step at the fraction `done` of training; `scale` is a factor of the learning rate."""
        lr = self._lr * self._schedule(done) * scale
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = lr
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        if self.average is not None:
            self.average.add(self.model, lr)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, except the number of steps."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`; other entries are ignored."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer" if "optimizer" in state else "optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])


def mixed_precision(on: bool, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of mixed precision: half precision on a GPU, bfloat16 elsewhere; none if `on` is False."""
    if not on:
        return nullcontext()
    kind = torch.float16 if device.type == "cuda" else torch.bfloat16
    return torch.autocast(device.type, dtype=kind)


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
        raise ConfigError(f"LARS and LAMB need a library: {install_command('workbench')}.") from None
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


# -- torch's graphs and generators -------------------------------------------------------------------------------------


_Method = TypeVar("_Method", bound=Callable[..., Any])


def outside_graphs(method: _Method) -> _Method:
    """Keep a method out of `torch.compile`, which would trace the bookkeeping and guard on its counters.

    `torch.compiler.disable` is called only while tracing: importing the compiler takes as long as importing torch, and
    most loops do not need it.
    """

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **kwargs)  # type: ignore[no-untyped-call]
        return method(*args, **kwargs)

    return cast("_Method", guarded)


class GlobalGenerators(NamedTuple):
    """The states of the global random generators.

    Attributes:
        host: State of the CPU generator.
        device: State of the device generator; None if the device is the CPU, or if it is unknown.
    """

    host: torch.Tensor
    device: torch.Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> GlobalGenerators:
        """Return the current states."""
        own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        return cls(torch.get_rng_state(), own)

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> GlobalGenerators:
        """Return the states for a seed; the same draws as after ``torch.manual_seed``."""
        own = None if device.type == "cpu" else torch.Generator(device).manual_seed(seed).get_state()
        return cls(torch.Generator().manual_seed(seed).get_state(), own)

    def from_checkpoint(self, host: torch.Tensor, device: torch.Tensor | None) -> GlobalGenerators:
        """Return the states of a checkpoint; with this device state if it has none (older, or made on the CPU)."""
        return GlobalGenerators(host, self.device if device is None else device)

    @contextmanager
    def used(self, device: torch.device) -> Iterator[None]:
        """Use these states inside the context; restore the generators afterwards."""
        before = GlobalGenerators.now(device)
        self._put_in(device)
        try:
            yield
        finally:
            before._put_in(device)

    def _put_in(self, device: torch.device) -> None:
        torch.set_rng_state(self.host)
        if device.type != "cpu" and self.device is not None:
            torch.get_device_module(device).set_rng_state(self.device, device)
