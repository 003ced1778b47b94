"""Cal: the samples that the proxy predicts unlike their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.extra import sklearn
from orderdp.coresets.farthest_first import symmetric_kl
from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError
from orderdp.planning import is_count

__all__ = ["Cal", "contrast"]


def contrast(features: np.ndarray, logits: np.ndarray, neighbours: int) -> np.ndarray:
    """Mean symmetric KL divergence between each sample's prediction and those of its nearest neighbours.

    Neighbours are exact, by scikit-learn, which goes over blocks. A sample is not its own neighbour.
    """
    finder = sklearn("neighbors").NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(features)
    nearest = finder.kneighbors(return_distance=False)
    kl = symmetric_kl(logits)
    total = np.zeros(len(features))
    for column in nearest.T:
        total += kl.own + kl.own[column] - np.einsum("nd,nd->n", kl.left, kl.right[column])
    return np.asarray(np.maximum(total / neighbours, 0))


@dataclass(frozen=True, kw_only=True)
class Cal(ScoreMethod):
    """Keeps the largest mean divergences from the nearest neighbours in feature space.

    Args:
        neighbours: How many.
    """

    neighbours: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_count(self.neighbours):
            raise ConfigError(f"neighbours must be a whole number, at least 1, got {self.neighbours!r}.")

    @property
    def needs(self) -> Needs:
        """Features and logits."""
        return Needs(features=True, logits=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The divergences."""
        sklearn("neighbors")  # or the proxy would be trained first
        if self.neighbours >= source.n:
            raise ConfigError(f"neighbours must be fewer than the {source.n} samples, got {self.neighbours}.")
        return contrast(source.features(), source.logits(), self.neighbours)
