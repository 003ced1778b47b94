"""MoSo: the samples whose gradients agree with everybody else's, all through training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.el2n import check_moment
from orderdp.coresets.last_layer import Gradients
from orderdp.coresets.method import ScoreMethod, inits_of
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError

__all__ = ["MoSo", "agreement_with_the_rest"]


def agreement_with_the_rest(gradients: Gradients) -> np.ndarray:
    """Inner product of each sample's gradient with the mean gradient of all others.

    In one pass: the mean of the others is (n * mean - own) / (n - 1).
    """
    n = len(gradients)
    return np.asarray((n * gradients.along(gradients.mean()) - gradients.squared_norms()) / max(1, n - 1))


@dataclass(frozen=True, kw_only=True)
class MoSo(ScoreMethod):
    """Keeps the largest sums, over checkpoints, of learning rate times agreement with the rest.

    Args:
        lr: The learning rate at every checkpoint; the shared protocol has one. It scales all scores alike.
        repeats: How many models are averaged over; None for as many as the proxy has.
    """

    lr: float = 0.1
    repeats: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.lr, int | float) and 0 < self.lr < float("inf")):
            raise ConfigError(f"lr must be a number above 0, got {self.lr!r}.")
        check_moment(0, self.repeats)

    @property
    def needs(self) -> Needs:
        """Features and logits after each epoch."""
        return Needs(features=True, logits=True, labels=True, every_epoch=True, inits=self.repeats)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The sum over checkpoints; one checkpoint is in memory at a time."""
        assert source.labels is not None
        total, inits = np.zeros(source.n), list(inits_of(self.needs, source))
        for init in inits:
            for epoch in source.checkpoints():
                gradients = Gradients.of(source.features(epoch, init), source.logits(epoch, init), source.labels)
                total += self.lr * agreement_with_the_rest(gradients)
        return total / len(inits)
