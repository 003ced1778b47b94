"""Forgetting: the samples that training learns and loses most often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source

__all__ = ["Forgetting", "forgetting_events"]


def forgetting_events(correct: np.ndarray) -> np.ndarray:
    """How often each sample went from right to wrong; infinite where it was never right.

    >>> forgetting_events(np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 0, 1]], dtype=bool)).tolist()
    [2.0, inf, 0.0]

    Args:
        correct: (epochs, n), whether each sample was predicted right when it was trained on.
    """
    events = (correct[:-1] & ~correct[1:]).sum(0).astype(np.float32)
    return np.asarray(np.where(correct.any(0), events, np.float32(np.inf)))


@dataclass(frozen=True, kw_only=True)
class Forgetting(ScoreMethod):
    """Keeps the samples with the most forgetting events; those never learned come first."""

    @property
    def needs(self) -> Needs:
        """What was right, epoch by epoch."""
        return Needs(correct=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The number of forgetting events."""
        return forgetting_events(source.correct())
