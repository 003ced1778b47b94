"""Coresets by a score per sample: EL2N, forgetting, GraNd and MoSo; entropy, confidence, margin, DeepFool and CAL."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from orderdp._validation import is_count
from orderdp.coresets.base import (
    Gradients,
    ScoreMethod,
    inits_of,
    log_softmax,
    prediction_errors,
    sklearn,
    softmax,
    symmetric_kl,
)
from orderdp.coresets.sources import FeatureSource, Requirements
from orderdp.errors import ConfigError, DatasetError

__all__ = [
    "EL2N",
    "Cal",
    "DeepFool",
    "Entropy",
    "Forgetting",
    "GraNd",
    "LeastConfidence",
    "Margin",
    "MoSo",
    "PrecomputedScores",
    "agreement_with_the_rest",
    "check_moment",
    "contrast",
    "error_norms",
    "forgetting_events",
    "gradient_norms",
    "lack_of_confidence",
    "lack_of_margin",
    "perturbation_norms",
    "prediction_entropy",
]


# -- training dynamics -------------------------------------------------------------------------------------------------


def error_norms(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Euclidean norm of softmax minus one-hot label, per row.

    >>> norms = error_norms(np.zeros((1, 2)), np.array([0]))  # of (-0.5, 0.5)
    >>> round(float(norms[0]), 4)
    0.7071
    """
    return np.asarray(np.linalg.norm(prediction_errors(logits, labels), axis=1))


@dataclass(frozen=True, kw_only=True)
class EL2N(ScoreMethod):
    """Keep the largest norms of softmax minus label, averaged over models.

    Args:
        epoch: Number of trained epochs of the proxy.
        repeats: Number of models to average over; None for all models of the proxy.
    """

    epoch: int = 2
    repeats: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moment(self.epoch, self.repeats)

    @property
    def needs(self) -> Requirements:
        """Logits of one epoch, from several models."""
        return Requirements(logits=True, labels=True, epoch=self.epoch, inits=self.repeats)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Mean norm."""
        assert source.labels is not None
        norms = [error_norms(source.logits(self.epoch, init), source.labels) for init in inits_of(self.needs, source)]
        return np.asarray(np.mean(norms, axis=0))


def check_moment(epoch: object, repeats: object) -> None:
    """Raise unless these are a valid epoch and number of models."""
    if not is_count(epoch, least=0):
        raise ConfigError(f"epoch must be a whole number, at least 0, got {epoch!r}.")
    if repeats is not None and not is_count(repeats):
        raise ConfigError(f"repeats must be a whole number, at least 1, or None, got {repeats!r}.")


def forgetting_events(correct: np.ndarray) -> np.ndarray:
    """How often each sample went from correct to wrong; infinite if it was never correct.

    >>> forgetting_events(np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 0, 1]], dtype=bool)).tolist()
    [2.0, inf, 0.0]

    Args:
        correct: (epochs, n), whether each sample was predicted correctly when it was trained on.
    """
    events = (correct[:-1] & ~correct[1:]).sum(0).astype(np.float32)
    return np.asarray(np.where(correct.any(0), events, np.float32(np.inf)))


@dataclass(frozen=True, kw_only=True)
class Forgetting(ScoreMethod):
    """Keep the samples with the most forgetting events; samples that were never correct come first."""

    @property
    def needs(self) -> Requirements:
        """Which samples were correct, per epoch."""
        return Requirements(correct=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Number of forgetting events."""
        return forgetting_events(source.correct())


def gradient_norms(model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Norm of each sample's cross-entropy gradient with respect to all parameters.

    The gradient is per sample: it depends neither on the other samples of the batch nor on the batch size.
    """
    # One name per tensor, as in `named_parameters`: a state dict lists tied tensors under all their names.
    parameters = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    everything = chain(model.named_parameters(), model.named_buffers())
    rest = {name: value.detach() for name, value in everything if name not in parameters}

    def loss(weights: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model, {**weights, **rest}, (one.unsqueeze(0),))
        return torch.nn.functional.cross_entropy(logits, label.unsqueeze(0))

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, labels)
    squares = [value.flatten(1).double().square().sum(1) for value in gradients.values()]
    return torch.stack(squares).sum(0).sqrt()


@dataclass(frozen=True, kw_only=True)
class GraNd(ScoreMethod):
    """Keep the largest per-sample gradient norms, averaged over models.

    Args:
        epoch: Number of trained epochs of the proxy.
        repeats: Number of models to average over; None for all models of the proxy.
        layer: "last" for the gradient of the last linear layer, in closed form; "all" for that of all parameters.
        chunk: With "all", the number of gradients held at once: each is as large as the model.
    """

    epoch: int = 4
    repeats: int | None = None
    layer: Literal["last", "all"] = "last"
    chunk: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moment(self.epoch, self.repeats)
        if self.layer not in ("last", "all"):
            raise ConfigError(f'layer must be "last" or "all", got {self.layer!r}.')
        if not is_count(self.chunk):
            raise ConfigError(f"chunk must be a whole number, at least 1, got {self.chunk!r}.")

    @property
    def needs(self) -> Requirements:
        """Features and logits of one epoch, or the model of that epoch."""
        last = self.layer == "last"
        return Requirements(
            features=last, logits=last, model=not last, labels=True, epoch=self.epoch, inits=self.repeats
        )

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Mean norm."""
        norm = self._last if self.layer == "last" else self._all
        return np.asarray(np.mean([norm(source, init) for init in inits_of(self.needs, source)], axis=0))

    def _last(self, source: FeatureSource, init: int) -> np.ndarray:
        assert source.labels is not None
        features, logits = source.features(self.epoch, init), source.logits(self.epoch, init)
        return np.asarray(np.sqrt(Gradients.of(features, logits, source.labels).squared_norms()))

    def _all(self, source: FeatureSource, init: int) -> np.ndarray:
        model, norms = source.model(self.epoch, init), np.empty(source.n)
        for indices, inputs, labels in source.batches():
            parts = [slice(start, start + self.chunk) for start in range(0, len(inputs), self.chunk)]
            found = [gradient_norms(model, inputs[part], labels[part]) for part in parts]
            norms[indices] = torch.cat(found).cpu().numpy()
        return norms


def agreement_with_the_rest(gradients: Gradients) -> np.ndarray:
    """Inner product of each sample's gradient with the mean gradient of all others.

    In one pass: the mean of the others is (n * mean - own) / (n - 1).
    """
    n = len(gradients)
    return np.asarray((n * gradients.along(gradients.mean()) - gradients.squared_norms()) / max(1, n - 1))


@dataclass(frozen=True, kw_only=True)
class MoSo(ScoreMethod):
    """Keep the largest sums, over checkpoints, of learning rate times agreement with the rest.

    Args:
        lr: Learning rate at every checkpoint; constant in the shared protocol. It scales all scores equally.
        repeats: Number of models to average over; None for all models of the proxy.
    """

    lr: float = 0.1
    repeats: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.lr, int | float) and 0 < self.lr < float("inf")):
            raise ConfigError(f"lr must be a number above 0, got {self.lr!r}.")
        check_moment(0, self.repeats)

    @property
    def needs(self) -> Requirements:
        """Features and logits after each epoch."""
        return Requirements(features=True, logits=True, labels=True, every_epoch=True, inits=self.repeats)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Sum over checkpoints; one checkpoint is in memory at a time."""
        assert source.labels is not None
        total, inits = np.zeros(source.n), list(inits_of(self.needs, source))
        for init in inits:
            for epoch in source.checkpoints():
                gradients = Gradients.of(source.features(epoch, init), source.logits(epoch, init), source.labels)
                total += self.lr * agreement_with_the_rest(gradients)
        return total / len(inits)


@dataclass(frozen=True, kw_only=True)
class PrecomputedScores(ScoreMethod):
    """Keep the largest, or smallest, of the scores in `Arrays`.

    Args:
        keep: "largest" or "smallest".
    """

    keep: Literal["largest", "smallest"] = "largest"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep not in ("largest", "smallest"):
            raise ConfigError(f'keep must be "largest" or "smallest", got {self.keep!r}.')

    @property
    def needs(self) -> Requirements:
        """Scores."""
        return Requirements(scores=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Scores, negated if the smallest are kept."""
        return source.scores() if self.keep == "largest" else -source.scores()


# -- uncertainty of predictions ----------------------------------------------------------------------------------------


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
