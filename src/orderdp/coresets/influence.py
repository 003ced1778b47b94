"""Influence: the samples whose removal would move the last layer's parameters most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.hessian import Hessian, influence_vectors
from orderdp.coresets.last_layer import Gradients, softmax
from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError
from orderdp.planning import is_count
from orderdp.randomness import generator

__all__ = ["Influence", "check_influence", "parameter_influence"]


def parameter_influence(source: Source, damping: float, probes: int, rng: np.random.Generator) -> np.ndarray:
    """For each sample a vector that stands for H^-1 times its last-layer gradient; see `influence_vectors`."""
    assert source.labels is not None
    logits = source.logits()
    gradients = Gradients.of(source.features(), logits, source.labels)
    return influence_vectors(gradients, Hessian(softmax(logits), gradients.inputs, damping), probes, rng)


@dataclass(frozen=True, kw_only=True)
class Influence(ScoreMethod):
    """Keeps the largest norms of the inverse Hessian times the last-layer gradient.

    Args:
        damping: What is added to the diagonal of the Hessian.
        probes: Up to so many numbers in a gradient the norms are exact; above, they are estimated from so many
            random projections.
    """

    damping: float = 0.01
    probes: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_influence(self.damping, self.probes)

    @property
    def needs(self) -> Needs:
        """Features and logits."""
        return Needs(features=True, logits=True, labels=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The norms."""
        rng = generator(seed, "coreset", "Influence", "probes")
        return np.asarray(np.linalg.norm(parameter_influence(source, self.damping, self.probes, rng), axis=1))


def check_influence(damping: object, probes: object) -> None:
    """Raises unless these are a damping and a number of probes."""
    if not (isinstance(damping, int | float) and 0 < damping < float("inf")):
        raise ConfigError(f"damping must be a number above 0, got {damping!r}. Without it the Hessian is singular.")
    if not is_count(probes):
        raise ConfigError(f"probes must be a whole number, at least 1, got {probes!r}.")
