"""Coresets by uncertainty of predictions: entropy, confidence, margin, DeepFool, CAL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from orderdp._validation import is_count
from orderdp.coresets.base import ScoreMethod, log_softmax, sklearn, softmax
from orderdp.coresets.geometry import symmetric_kl
from orderdp.coresets.sources import FeatureSource, Requirements
from orderdp.errors import ConfigError, DatasetError

__all__ = [
    "Cal",
    "DeepFool",
    "Entropy",
    "LeastConfidence",
    "Margin",
    "contrast",
    "lack_of_confidence",
    "lack_of_margin",
    "perturbation_norms",
    "prediction_entropy",
]


def prediction_entropy(logits: np.ndarray) -> np.ndarray:
    """Entropy of the probabilities of each row, in nats.

    >>> round(float(prediction_entropy(np.zeros((1, 4)))[0]), 4)  # ln 4
    1.3863
    """
    logarithms = log_softmax(logits)
    return np.asarray(-(np.exp(logarithms) * logarithms).sum(1))


@dataclass(frozen=True, kw_only=True)
class Entropy(ScoreMethod):
    """Keep the samples whose predicted probabilities have the largest entropy."""

    @property
    def needs(self) -> Requirements:
        """The logits of the trained proxy."""
        return Requirements(logits=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Entropy of the proxy's prediction for each sample."""
        return prediction_entropy(source.logits())


def lack_of_confidence(logits: np.ndarray) -> np.ndarray:
    """One minus the largest probability of each row.

    >>> lack_of_confidence(np.log(np.array([[0.5, 0.25, 0.25]]))).tolist()
    [0.5]
    """
    return np.asarray(1 - softmax(logits).max(1))


@dataclass(frozen=True, kw_only=True)
class LeastConfidence(ScoreMethod):
    """Keep the samples whose largest class probability is smallest."""

    @property
    def needs(self) -> Requirements:
        """The logits of the trained proxy."""
        return Requirements(logits=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """One minus the proxy's largest probability for each sample."""
        return lack_of_confidence(source.logits())


def lack_of_margin(logits: np.ndarray) -> np.ndarray:
    """One minus the difference of the two largest probabilities of each row.

    >>> lack_of_margin(np.log(np.array([[0.5, 0.25, 0.25]]))).tolist()
    [0.75]
    """
    if logits.shape[1] < 2:
        raise ConfigError(f"Margin needs at least 2 classes, there is {logits.shape[1]}.")
    second, first = np.partition(softmax(logits), -2, axis=1)[:, -2:].T
    return np.asarray(1 - (first - second))


@dataclass(frozen=True, kw_only=True)
class Margin(ScoreMethod):
    """Keep the samples whose two largest class probabilities are closest."""

    @property
    def needs(self) -> Requirements:
        """The logits of the trained proxy."""
        return Requirements(logits=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """One minus the difference of the proxy's two largest probabilities for each sample."""
        return lack_of_margin(source.logits())


# Smaller squared slopes are rounding: single precision ends soon after.
_FLAT = 1e-30


def perturbation_norms(
    model: torch.nn.Module, inputs: torch.Tensor, *, iterations: int = 50, classes: int = 10, overshoot: float = 0.02
) -> torch.Tensor:
    """Euclidean norm of the perturbation with which DeepFool changes each prediction.

    Each iteration steps onto the nearest decision boundary of the linearized model. A forward pass, much cheaper than
    one gradient per class, finds the samples that have flipped, so that they are not differentiated again. Where the
    model is flat there is no boundary, so a sample that is there, or gets there, has infinite distance.

    Args:
        model: A model in evaluation mode.
        inputs: A batch.
        iterations: Maximum number of steps; a sample that has not flipped by then counts with its perturbation so far.
        classes: Number of most likely classes that are candidates.
        overshoot: Predictions are tested slightly beyond the boundary, relative to the perturbation.
    """
    with torch.no_grad():
        logits = model(inputs)
        ranked = logits.argsort(1, descending=True)[:, :classes]
    if ranked.shape[1] < 2:
        raise ConfigError(f"DeepFool needs at least 2 classes, the model has {ranked.shape[1]}.")
    change = torch.zeros_like(inputs)
    active = torch.arange(len(inputs), device=inputs.device)
    lost = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
    for iteration in range(iterations):
        if iteration:
            with torch.no_grad():
                logits = model(inputs[active] + (1 + overshoot) * change[active])
        active = active[logits.gather(1, ranked[active]).argmax(1) == 0]
        if not len(active):
            break
        here = (inputs[active] + (1 + overshoot) * change[active]).requires_grad_()
        step, leads = _step_to_boundary(model(here).gather(1, ranked[active]), here)
        lost[active[~leads]] = True
        active = active[leads]
        change[active] += step[leads]
    norms: torch.Tensor = torch.linalg.vector_norm(change.flatten(1), dim=1)
    return norms.masked_fill(lost, torch.inf)


def _step_to_boundary(logits: torch.Tensor, here: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shortest step to a boundary between the first class and another, of the model linearized at `here`.

    Also returns whether there is such a step: there is none if no class has a slope.
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
    # A small constant is added, as in the paper's code: otherwise a sample on a boundary would not move.
    size = (gaps[nearest, samples] + 1e-4) / squares[nearest, samples]
    step = (size[:, None] * normals[nearest, samples]).reshape(here.shape)
    return step, distances[nearest, samples].isfinite()


@dataclass(frozen=True, kw_only=True)
class DeepFool(ScoreMethod):
    """Keep the samples with the smallest perturbations.

    Args:
        iterations: Maximum number of linearizations per sample.
        classes: Number of most likely classes that are tried.
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
    def needs(self) -> Requirements:
        """The trained model, and the samples."""
        return Requirements(model=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Negative norm of the perturbation, so that the samples nearest to a boundary come first."""
        _, inputs, _ = next(iter(source.batches()))
        if not inputs.is_floating_point():  # fail before the proxy is trained
            raise DatasetError(
                f"DeepFool changes the inputs, so they must be floats, got {inputs.dtype}. Give the proxy a data set "
                "that converts them, and a model that takes floats."
            )
        model, norms = source.model(), np.empty(source.n, dtype=np.float32)
        for indices, inputs, _ in source.batches():
            found = perturbation_norms(model, inputs, iterations=self.iterations, classes=self.classes)
            norms[indices] = found.cpu().numpy()
        return -norms


def contrast(features: np.ndarray, logits: np.ndarray, neighbors: int) -> np.ndarray:
    """Mean symmetric KL divergence between each sample's prediction and those of its nearest neighbors.

    Neighbors are exact, computed by scikit-learn in blocks. A sample is not its own neighbor.
    """
    finder = sklearn("neighbors").NearestNeighbors(n_neighbors=neighbors, algorithm="brute").fit(features)
    nearest = finder.kneighbors(return_distance=False)
    kl = symmetric_kl(logits)
    total = np.zeros(len(features))
    for column in nearest.T:
        total += kl.own + kl.own[column] - np.einsum("nd,nd->n", kl.left, kl.right[column])
    return np.asarray(np.maximum(total / neighbors, 0))


@dataclass(frozen=True, kw_only=True)
class Cal(ScoreMethod):
    """Keep the largest mean divergences from the nearest neighbors in feature space.

    Args:
        neighbors: Number of neighbors.
    """

    neighbors: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_count(self.neighbors):
            raise ConfigError(f"neighbors must be a whole number, at least 1, got {self.neighbors!r}.")

    @property
    def needs(self) -> Requirements:
        """Features and logits."""
        return Requirements(features=True, logits=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Mean divergences."""
        sklearn("neighbors")  # fail before the proxy is trained
        if self.neighbors >= source.n:
            raise ConfigError(f"neighbors must be fewer than the {source.n} samples, got {self.neighbors}.")
        return contrast(source.features(), source.logits(), self.neighbors)
