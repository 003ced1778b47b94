"""Whether the pruned epoch pulls in the direction of all data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from orderdp.diagnostics.untouched import as_in_training
from orderdp.errors import ConfigError
from orderdp.policy import Selection
from orderdp.randomness import generator

__all__ = ["BatchMaker", "GradientCosine", "LossFunction", "gradient_cosine", "without_lone_last"]

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
