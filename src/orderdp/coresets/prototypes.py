"""Prototypes: the samples farthest from the centre of their cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from orderdp.coresets.extra import sklearn
from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError
from orderdp.planning import is_count
from orderdp.randomness import generator

__all__ = ["Prototypes", "distances_to_prototypes"]


def distances_to_prototypes(features: np.ndarray, clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Distance of each sample to the centre of its own cluster, by k-means (scikit-learn's, one start)."""
    means = sklearn("cluster").KMeans(clusters, n_init=1, random_state=int(rng.integers(2**31)))
    own = means.fit_predict(features)
    distances = np.empty(len(features), dtype=np.float32)
    for cluster in range(clusters):
        members = np.flatnonzero(own == cluster)
        distances[members] = np.linalg.norm(features[members] - means.cluster_centers_[cluster], axis=1)
    return distances


@dataclass(frozen=True, kw_only=True)
class Prototypes(ScoreMethod):
    """Keeps the samples farthest from their prototype, or the nearest.

    Args:
        clusters: How many prototypes; None for as many as there are classes, or 10 without labels.
        keep: "hard" for the farthest; "easy" for the nearest, which is better where data is scarce.
    """

    clusters: int | None = None
    keep: Literal["hard", "easy"] = "hard"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters is not None and not is_count(self.clusters):
            raise ConfigError(f"clusters must be a whole number, at least 1, or None, got {self.clusters!r}.")
        if self.keep not in ("hard", "easy"):
            raise ConfigError(f'keep must be "hard" or "easy", got {self.keep!r}.')

    @property
    def needs(self) -> Needs:
        """Features."""
        return Needs(features=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The distances, turned round where the nearest are kept."""
        sklearn("cluster")  # or the proxy would be trained first
        clusters = self.clusters or (10 if source.labels is None else len(np.unique(source.labels)))
        if clusters > source.n:
            raise ConfigError(f"clusters must be at most the {source.n} samples there are, got {clusters}.")
        rng = generator(seed, "coreset", "Prototypes", "means")
        distances = distances_to_prototypes(source.features(), clusters, rng)
        return distances if self.keep == "hard" else -distances
