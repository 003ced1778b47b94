"""Coresets by training dynamics: EL2N, forgetting, GraNd, MoSo, precomputed scores."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from orderdp._validation import is_count
from orderdp.coresets.base import Gradients, ScoreMethod, inits_of, prediction_errors
from orderdp.coresets.sources import FeatureSource, Requirements
from orderdp.errors import ConfigError

__all__ = [
    "EL2N",
    "Forgetting",
    "GraNd",
    "MoSo",
    "PrecomputedScores",
    "agreement_with_the_rest",
    "check_moment",
    "error_norms",
    "forgetting_events",
    "gradient_norms",
]


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
