"""Gradients during training: their norms, and their cosine with the gradient of all data."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from orderdp._draw import generator
from orderdp._validation import is_count
from orderdp.errors import ConfigError, FeedbackError
from orderdp.policy import Selection

__all__ = [
    "BatchMaker",
    "GradientCosine",
    "GradientNorms",
    "LossFunction",
    "as_in_training",
    "gradient_cosine",
    "gradient_norm",
    "rolling_spread",
    "without_lone_last",
]


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as in a training step; afterwards all is as it was.

    Put back are the modes of all modules, their buffers (the running statistics of BatchNorm) and the global generators
    (dropout, augmentation). Parameters and their gradients are whoever's inside to leave alone.

    Args:
        model: Which is put in training mode.
    """
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = sorted({each.device for each in model.parameters() if each.device.type == "cuda"}, key=str)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=devices):
            model.train()
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer.copy_(value)
        for module, mode in modes.items():
            module.training = mode


_CHUNK = 1024


@torch.no_grad()
def gradient_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of all gradients together, on their device; nothing waits for it.

    Args:
        parameters: Whose ``.grad``; those without one are passed over.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        raise FeedbackError(
            "there is no gradient whose norm could be taken. Measure after backward() and before zero_grad()."
        )
    dense = (each.coalesce().values() if each.is_sparse else each for each in gradients)
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in dense]
    home = norms[0].device
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(home, non_blocking=True) for norm in norms]))
    return whole


class GradientNorms:
    """The norms of many steps. They stay on their device until they are read."""

    def __init__(self) -> None:
        self._restored = torch.empty(0)  # what came out of a checkpoint, on the host
        self._chunks: list[torch.Tensor] = []
        self._count = 0  # in the chunks

    def __len__(self) -> int:
        return len(self._restored) + self._count

    @torch.no_grad()
    def add(self, norm: torch.Tensor) -> None:
        """Notes the norm of one step."""
        place = self._count % _CHUNK
        if place == 0:
            self._chunks.append(torch.empty(_CHUNK, dtype=torch.float32, device=norm.device))
        self._chunks[-1].select(0, place).copy_(norm)
        self._count += 1

    def read(self) -> np.ndarray:
        """All norms, in order. Waits for the device."""
        return self._all().double().numpy()

    def _all(self) -> torch.Tensor:
        chunks = [chunk.cpu() for chunk in self._chunks]
        return torch.cat([self._restored, *chunks])[: len(self)]

    def summary(self) -> tuple[float | None, float | None]:
        """Mean and standard deviation over the steps; without the steps that mixed precision made infinite."""
        norms = self.read()
        norms = norms[np.isfinite(norms)]
        mean = float(norms.mean()) if len(norms) else None
        return mean, float(norms.std(ddof=1)) if len(norms) > 1 else None

    def clear(self) -> None:
        """Forgets them."""
        self._restored, self._chunks, self._count = torch.empty(0), [], 0

    def state_dict(self) -> dict[str, Any]:
        """A tensor, for a checkpoint."""
        return {"norms": self._all().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        self.clear()
        self._restored = state["norms"].float().cpu().clone()


def rolling_spread(values: Any, window: int = 50) -> np.ndarray:
    """The standard deviation within each `window` of consecutive values: how unsteady a series is, and when.

    >>> rolling_spread([1.0, 1.0, 3.0, 3.0], window=2).round(3).tolist()
    [0.0, 1.414, 0.0]

    Args:
        values: Norms of steps, or means of epochs.
        window: How many values are looked at together, at least 2.

    Returns:
        One number for each place of the window; none where there are fewer values than that.
    """
    if not is_count(window, least=2):
        raise ConfigError(f"window must be a whole number, at least 2, got {window!r}.")
    series = np.asarray(values, dtype=np.float64)
    if len(series) < window:
        return np.empty(0)
    spread: np.ndarray = np.lib.stride_tricks.sliding_window_view(series, window).std(axis=1, ddof=1)
    return spread


#: The loss of each sample of a batch, with gradients.
LossFunction = Callable[[nn.Module, Any], torch.Tensor]


#: Goes through the samples it is given, in that order, as (index, batch).
BatchMaker = Callable[[np.ndarray], Iterable[tuple[torch.Tensor, Any]]]


class GradientCosine(NamedTuple):
    """What was found, and what it took.

    Attributes:
        cosine: Between the two gradients; None where one of them is 0 or no number.
        pruned_norm: Norm of the gradient of the pruned epoch's mean loss, with the policy's weights.
        full_norm: Norm of the gradient of the mean loss of all samples.
        samples: How many were forwarded and back-propagated for it.
        seconds: How long it took.
    """

    cosine: float | None
    pruned_norm: float
    full_norm: float
    samples: int
    seconds: float


def gradient_cosine(
    model: nn.Module, selection: Selection, n: int, losses: LossFunction, batches: BatchMaker, *, seed: int = 0
) -> GradientCosine:
    """The cosine between the gradient of what is selected and that of all data, at the model's present weights.

    Costs a forward and a backward pass over all `n` samples and one over those selected. Nothing is left changed:
    neither gradients nor weights, running statistics or generators. Both passes go through the samples in the same
    random order, so that batches are mixed as in training, and equal where everything is selected.

    Args:
        model: Whose weights. It computes as in training: BatchNorm by the batch, dropout on.
        selection: What a pruned epoch trains on, with its weights: ``pruner.preview()``.
        n: How many samples there are.
        losses: Called with the model and a batch; one loss for each sample.
        batches: Called with indices; yields (index, batch) in that order.
        seed: Of the order.
    """
    begun = time.perf_counter()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "a gradient is that of parameters that are trained, and the model has none with requires_grad. Unfreeze "
            "some, or give the part of the model that is trained."
        )
    order = generator(seed, "gradient cosine").permutation(n)
    kept = np.zeros(n, dtype=np.bool_)
    kept[selection.indices] = True
    with as_in_training(model):
        full, n_full = _mean_gradient(model, losses, batches(order), None)
        pruned, n_pruned = _mean_gradient(model, losses, batches(order[kept[order]]), selection.dense_weights(n))
    pruned_norm, full_norm = math.sqrt(_dot(pruned, pruned)), math.sqrt(_dot(full, full))
    both = pruned_norm * full_norm
    cosine = max(-1.0, min(1.0, _dot(pruned, full) / both)) if both and math.isfinite(both) else None
    return GradientCosine(cosine, pruned_norm, full_norm, n_full + n_pruned, time.perf_counter() - begun)


def without_lone_last(indices: np.ndarray, batch_size: int) -> np.ndarray:
    """All but the last index, where that would be a batch by itself: BatchNorm cannot normalise one sample.

    >>> without_lone_last(np.arange(9), 4).tolist(), len(without_lone_last(np.arange(10), 4))
    ([0, 1, 2, 3, 4, 5, 6, 7], 10)
    """
    return indices[:-1] if len(indices) > 1 < batch_size and len(indices) % batch_size == 1 else indices


def _mean_gradient(
    model: nn.Module, losses: LossFunction, batches: Iterable[tuple[torch.Tensor, Any]], weights: torch.Tensor | None
) -> tuple[list[torch.Tensor], int]:
    """The gradient of the mean of the weighted losses, without a trace in ``.grad``; and of how many there are."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    samples = 0
    with torch.enable_grad():
        for index, batch in batches:
            found = losses(model, batch).float()
            if weights is not None:
                found = found * weights[index.cpu()].to(found.device)
            gradients = torch.autograd.grad(found.sum(), parameters, allow_unused=True)
            for so_far, gradient in zip(total, gradients, strict=True):
                if gradient is not None:
                    so_far.add_(gradient)
            samples += len(index)
    return [each.div_(max(1, samples)) for each in total], samples


def _dot(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    pairs = zip(first, second, strict=True)
    return sum(float(torch.dot(one.cpu().double().flatten(), two.cpu().double().flatten())) for one, two in pairs)
