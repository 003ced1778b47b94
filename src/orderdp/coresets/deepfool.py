"""DeepFool: the samples that the smallest change of the input turns into another class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError, DatasetError
from orderdp.planning import is_count

__all__ = ["DeepFool", "perturbation_norms"]

# Squared slopes up to here are rounding: single precision ends soon after.
_FLAT = 1e-30


def perturbation_norms(
    model: torch.nn.Module, inputs: torch.Tensor, *, iterations: int = 50, classes: int = 10, overshoot: float = 0.02
) -> torch.Tensor:
    """Euclidean norm of the change that DeepFool needs to change each prediction.

    Each iteration takes the nearest boundary of the linearised model and steps onto it. Where the model is flat there
    is none, so a sample that stands there, or gets there, is infinitely far.

    Args:
        model: In evaluation mode.
        inputs: A batch.
        iterations: At most so many steps; a sample that has not flipped by then counts with the way gone so far.
        classes: Only the so many most likely classes are candidates.
        overshoot: Each prediction is tried a little beyond the boundary, relative to the change.
    """
    with torch.no_grad():
        ranked = model(inputs).argsort(1, descending=True)[:, :classes]
    if ranked.shape[1] < 2:
        raise ConfigError(f"DeepFool needs at least 2 classes, the model has {ranked.shape[1]}.")
    change = torch.zeros_like(inputs)
    active = torch.arange(len(inputs), device=inputs.device)
    lost = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
    for _ in range(iterations):
        here = (inputs[active] + (1 + overshoot) * change[active]).requires_grad_()
        logits = model(here).gather(1, ranked[active])
        standing = logits.argmax(1) == 0
        if not standing.any():
            break
        step, leads = _step_to_boundary(logits, here)
        lost[active[standing & ~leads]] = True
        change[active[standing & leads]] += step[standing & leads]
        active = active[standing & leads]
    norms: torch.Tensor = torch.linalg.vector_norm(change.flatten(1), dim=1)
    return norms.masked_fill(lost, torch.inf)


def _step_to_boundary(logits: torch.Tensor, here: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The shortest step onto a boundary between the first class and another, of the model as it is linear here.

    And whether there is such a step: not where no class has a slope.
    """
    slopes = torch.stack(
        [torch.autograd.grad(logits[:, c].sum(), here, retain_graph=True)[0] for c in range(logits.shape[1])]
    )
    normals = (slopes[1:] - slopes[:1]).flatten(2)
    gaps = (logits[:, :1] - logits[:, 1:]).detach().T
    squares = normals.square().sum(2)
    distances = torch.where(squares > _FLAT, gaps / squares.sqrt(), torch.inf)
    nearest = distances.argmin(0)
    samples = torch.arange(len(here), device=here.device)
    # A little is added, as in the paper's code, or a sample that stands on a boundary would not move.
    size = (gaps[nearest, samples] + 1e-4) / squares[nearest, samples]
    step = (size[:, None] * normals[nearest, samples]).reshape(here.shape)
    return step, distances[nearest, samples].isfinite()


@dataclass(frozen=True, kw_only=True)
class DeepFool(ScoreMethod):
    """Keeps the samples with the smallest perturbations.

    Args:
        iterations: At most so many linearisations for each sample.
        classes: Only so many of the most likely classes are tried.
    """

    iterations: int = 50
    classes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_count(self.iterations):
            raise ConfigError(f"iterations must be a whole number, at least 1, got {self.iterations!r}.")
        if not is_count(self.classes, least=2):
            raise ConfigError(f"classes must be a whole number, at least 2, got {self.classes!r}.")

    @property
    def needs(self) -> Needs:
        """The trained model, and the samples."""
        return Needs(model=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """Less the norm of the perturbation, so that the nearest to a boundary come first."""
        _, inputs, _ = next(iter(source.batches()))
        if not inputs.is_floating_point():  # or the proxy would be trained first
            raise DatasetError(
                f"DeepFool changes the inputs, so they must be floats, got {inputs.dtype}. Give the proxy a data set "
                "that converts them, and a model that takes them so."
            )
        model, norms = source.model(), np.empty(source.n, dtype=np.float32)
        for indices, inputs, _ in source.batches():
            found = perturbation_norms(model, inputs, iterations=self.iterations, classes=self.classes)
            norms[indices] = found.cpu().numpy()
        return -norms
