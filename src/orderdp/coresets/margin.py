"""Margin: the samples whose two most likely classes are closest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.last_layer import softmax
from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError

__all__ = ["Margin", "lack_of_margin"]


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
    """Keeps the samples whose two largest class probabilities are closest."""

    @property
    def needs(self) -> Needs:
        """The logits of the trained proxy."""
        return Needs(logits=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """How uncertain the proxy is of each sample."""
        return lack_of_margin(source.logits())
