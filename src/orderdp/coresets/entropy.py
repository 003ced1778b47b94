"""Entropy: the samples whose predicted probabilities have the largest entropy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.last_layer import log_softmax
from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source

__all__ = ["Entropy", "prediction_entropy"]


def prediction_entropy(logits: np.ndarray) -> np.ndarray:
    """Entropy of the probabilities of each row, in nats.

    >>> round(float(prediction_entropy(np.zeros((1, 4)))[0]), 4)  # ln 4
    1.3863
    """
    logarithms = log_softmax(logits)
    return np.asarray(-(np.exp(logarithms) * logarithms).sum(1))


@dataclass(frozen=True, kw_only=True)
class Entropy(ScoreMethod):
    """Keeps the samples whose predicted probabilities have the largest entropy."""

    @property
    def needs(self) -> Needs:
        """The logits of the trained proxy."""
        return Needs(logits=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """How uncertain the proxy is of each sample."""
        return prediction_entropy(source.logits())
