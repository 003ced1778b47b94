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
from orderdp.pruner import Preview

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
    """Run the model as in a training step inside the context; restore its state afterwards.

    Restores the modes of all modules, their buffers (the running statistics of BatchNorm) and the global generators
    (dropout, augmentation). The code inside the context must not change parameters or their gradients.

    Args:
        model: The model, which is put in training mode.
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
    """Euclidean norm of all gradients together, on their device, without synchronization.

    Args:
        parameters: Parameters whose ``.grad`` is measured; those without a gradient are skipped.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        raise FeedbackError("there is no gradient to measure. Measure after backward() and before zero_grad().")
    dense = (each.coalesce().values() if each.is_sparse else each for each in gradients)
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in dense]
    home = norms[0].device
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(home, non_blocking=True) for norm in norms]))
    return whole


class GradientNorms:
    """Gradient norms of many steps. They stay on their device until they are read."""

    def __init__(self) -> None:
        self._restored = torch.empty(0)  # norms from a checkpoint, on the host
        self._chunks: list[torch.Tensor] = []
        self._count = 0  # norms in the chunks

    def __len__(self) -> int:
        return len(self._restored) + self._count

    @torch.no_grad()
    def add(self, norm: torch.Tensor) -> None:
        """Store `norm`, the gradient norm of one step."""
        position = self._count % _CHUNK
        if position == 0:
            self._chunks.append(torch.empty(_CHUNK, dtype=torch.float32, device=norm.device))
        self._chunks[-1].select(0, position).copy_(norm)
        self._count += 1

    def read(self) -> np.ndarray:
        """Return all norms, in order. Waits for the device."""
        return self._all().double().numpy()

    def _all(self) -> torch.Tensor:
        chunks = [chunk.cpu() for chunk in self._chunks]
        return torch.cat([self._restored, *chunks])[: len(self)]

    def summary(self) -> tuple[float | None, float | None]:
        """Mean and standard deviation over the steps, without steps that mixed precision made infinite."""
        norms = self.read()
        norms = norms[np.isfinite(norms)]
        mean = float(norms.mean()) if len(norms) else None
        return mean, float(norms.std(ddof=1)) if len(norms) > 1 else None

    def clear(self) -> None:
        """Delete all norms."""
        self._restored, self._chunks, self._count = torch.empty(0), [], 0

    def state_dict(self) -> dict[str, Any]:
        """Return a tensor, for a checkpoint."""
        return {"norms": self._all().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`, a result of `state_dict`."""
        self.clear()
        self._restored = state["norms"].float().cpu().clone()


def rolling_spread(values: Any, window: int = 50) -> np.ndarray:
    """Standard deviation within each `window` of consecutive values: how unsteady a series is, and when.

    >>> rolling_spread([1.0, 1.0, 3.0, 3.0], window=2).round(3).tolist()
    [0.0, 1.414, 0.0]

    Args:
        values: Norms of steps, or means of epochs.
        window: Number of values per window, at least 2.

    Returns:
        One number per position of the window; empty if there are fewer than `window` values.
    """
    if not is_count(window, least=2):
        raise ConfigError(f"window must be a whole number, at least 2, got {window!r}.")
    series = np.asarray(values, dtype=np.float64)
    if len(series) < window:
        return np.empty(0)
    spread: np.ndarray = np.lib.stride_tricks.sliding_window_view(series, window).std(axis=1, ddof=1)
    return spread


#: Returns the loss of each sample of a batch, with gradients.
LossFunction = Callable[[nn.Module, Any], torch.Tensor]


#: Yields (index, batch) over the given samples, in that order.
BatchMaker = Callable[[np.ndarray], Iterable[tuple[torch.Tensor, Any]]]


class GradientCosine(NamedTuple):
    """Result and cost of `gradient_cosine`.

    Attributes:
        cosine: Cosine between the two gradients; None if one of them is zero or not finite.
        pruned_norm: Norm of the gradient of the pruned epoch's mean loss, with the policy's weights.
        full_norm: Norm of the gradient of the mean loss of all samples.
        samples: Number of samples in the forward and backward passes.
        seconds: Time taken.
    """

    cosine: float | None
    pruned_norm: float
    full_norm: float
    samples: int
    seconds: float


def gradient_cosine(
    model: nn.Module,
    selection: Selection | Preview,
    n: int,
    losses: LossFunction,
    batches: BatchMaker,
    *,
    seed: int = 0,
) -> GradientCosine:
    """Cosine between the gradient of the selection and that of all data, at the model's current weights.

    Costs one forward and backward pass over all `n` samples and one over the selection. Gradients, weights, running
    statistics and generators stay unchanged. Both passes visit the samples in the same random order, so that batches
    are mixed as in training, and are equal if everything is selected.

    Args:
        model: The model. It runs as in training: BatchNorm with batch statistics, dropout on.
        selection: The selection of a pruned epoch, with its weights: ``pruner.preview()``.
        n: Number of samples.
        losses: Called with the model and a batch; returns one loss per sample.
        batches: Called with indices; yields (index, batch) in that order.
        seed: Seed of the order.
    """
    begun = time.perf_counter()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "the model must have parameters with requires_grad=True, it has none. Unfreeze some, or pass the part of "
            "the model that is trained."
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
    """Drop the last index if it would be a batch by itself, because BatchNorm cannot normalize one sample.

    >>> without_lone_last(np.arange(9), 4).tolist(), len(without_lone_last(np.arange(10), 4))
    ([0, 1, 2, 3, 4, 5, 6, 7], 10)
    """
    return indices[:-1] if len(indices) > 1 < batch_size and len(indices) % batch_size == 1 else indices


def _mean_gradient(
    model: nn.Module, losses: LossFunction, batches: Iterable[tuple[torch.Tensor, Any]], weights: torch.Tensor | None
) -> tuple[list[torch.Tensor], int]:
    """Gradient of the mean of the weighted losses, without writing ``.grad``, and the number of samples."""
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
