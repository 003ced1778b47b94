"""LeastConfidence: the samples whose most likely class is least likely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.last_layer import softmax
from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source

__all__ = ["LeastConfidence", "lack_of_confidence"]


def lack_of_confidence(logits: np.ndarray) -> np.ndarray:
    """One minus the largest probability of each row.

    >>> lack_of_confidence(np.log(np.array([[0.5, 0.25, 0.25]]))).tolist()
    [0.5]
    """
    return np.asarray(1 - softmax(logits).max(1))


@dataclass(frozen=True, kw_only=True)
class LeastConfidence(ScoreMethod):
    """Keeps the samples whose largest class probability is smallest."""

    @property
    def needs(self) -> Needs:
        """The logits of the trained proxy."""
        return Needs(logits=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """How uncertain the proxy is of each sample."""
        return lack_of_confidence(source.logits())
