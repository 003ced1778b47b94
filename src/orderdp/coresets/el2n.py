"""EL2N: the samples whose predicted probabilities are farthest from their label early in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.last_layer import prediction_errors
from orderdp.coresets.method import ScoreMethod, inits_of
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError
from orderdp.planning import is_count

__all__ = ["EL2N", "check_moment", "error_norms"]


def error_norms(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Euclidean norm of softmax minus one-hot label, for each row.

    >>> norms = error_norms(np.zeros((1, 2)), np.array([0]))  # of (-0.5, 0.5)
    >>> round(float(norms[0]), 4)
    0.7071
    """
    return np.asarray(np.linalg.norm(prediction_errors(logits, labels), axis=1))


@dataclass(frozen=True, kw_only=True)
class EL2N(ScoreMethod):
    """Keeps the largest norms of softmax minus label, averaged over models.

    Args:
        epoch: After how many epochs of the proxy's training.
        repeats: How many models are averaged over; None for as many as the proxy has.
    """

    epoch: int = 2
    repeats: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moment(self.epoch, self.repeats)

    @property
    def needs(self) -> Needs:
        """Logits of one epoch, from several models."""
        return Needs(logits=True, labels=True, epoch=self.epoch, inits=self.repeats)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The mean norm."""
        assert source.labels is not None
        norms = [error_norms(source.logits(self.epoch, init), source.labels) for init in inits_of(self.needs, source)]
        return np.asarray(np.mean(norms, axis=0))


def check_moment(epoch: object, repeats: object) -> None:
    """Raises unless these are an epoch and a number of models."""
    if not is_count(epoch, least=0):
        raise ConfigError(f"epoch must be a whole number, at least 0, got {epoch!r}.")
    if repeats is not None and not is_count(repeats):
        raise ConfigError(f"repeats must be a whole number, at least 1, or None, got {repeats!r}.")
