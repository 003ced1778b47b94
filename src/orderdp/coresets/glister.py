"""Glister: the samples whose gradient steps help a validation set most, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.last_layer import Gradients, prediction_errors
from orderdp.coresets.method import Method, Task
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Labelled
from orderdp.errors import ConfigError
from orderdp.planning import is_count
from orderdp.policy import Selection

__all__ = ["Glister", "follow_validation"]


def follow_validation(
    gradients: Gradients, validation: Labelled, groups: np.ndarray, counts: np.ndarray, eta: float
) -> np.ndarray:
    """Places in the order in which they are picked, ``counts[g]`` of each group g.

    Each step picks the largest inner product with the gradient of the validation loss, among the groups that are
    not full, and moves the last layer by -eta times the gradient picked; the validation gradient is then that of
    the moved layer. Only validation logits move, so a step needs no model.

    Few samples are looked at in a step. An inner product has changed, since it was last computed, by no more than
    the norm of the sample's gradient times how far the validation gradient has moved: the others cannot be best.
    """
    logits, left = validation.logits.astype(np.float32).copy(), counts.copy()
    norms = np.sqrt(gradients.squared_norms())
    fixed = Gradients.of(validation.features, logits, validation.labels)
    known_at = now = fixed.mean()
    known, looked_at = gradients.along(known_at), 0
    open_places = left[groups] > 0
    picks = np.empty(int(counts.sum()), dtype=np.int64)
    for step in range(len(picks)):
        slack = norms * np.float32(np.linalg.norm(now - known_at))
        upper = np.where(open_places, known + slack, -np.inf)
        candidates = np.flatnonzero(upper >= np.where(open_places, known - slack, -np.inf).max())
        looked_at += len(candidates)
        if looked_at > len(norms) // 4:  # by now, looking at all of them once would have been cheaper
            known_at, known, looked_at = now, gradients.along(now), 0
            candidates = np.array([np.where(open_places, known, -np.inf).argmax()])
        best = int(candidates[gradients[candidates].along(now).argmax()])
        picks[step] = best
        open_places[best] = False
        left[groups[best]] -= 1
        if left[groups[best]] == 0:
            open_places[groups == groups[best]] = False
        logits -= eta * np.outer(fixed.inputs @ gradients.inputs[best], gradients.errors[best])
        now = Gradients(prediction_errors(logits, validation.labels), fixed.inputs).mean()
    return picks


@dataclass(frozen=True, kw_only=True)
class Glister(Method):
    """Greedy on alignment with the validation gradient, which is updated after each pick.

    Args:
        eta: How far a pick moves the last layer. The default is what one sample moves it by in a step of the shared
            protocol: 0.1 / 256.
        validation_size: Where the proxy has no validation set, so many of its samples, drawn at random, are taken.
    """

    eta: float = 0.1 / 256
    validation_size: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.eta, int | float) and 0 <= self.eta < float("inf")):
            raise ConfigError(f"eta must be a number, at least 0, got {self.eta!r}.")
        if not is_count(self.validation_size):
            raise ConfigError(f"validation_size must be a whole number, at least 1, got {self.validation_size!r}.")

    @property
    def needs(self) -> Needs:
        """Features and logits, of the validation set too."""
        return Needs(features=True, logits=True, labels=True, validation=True)

    def choose(self, task: Task) -> Selection:
        """One greedy run over all groups, each within its budget, in that order."""
        source, labels = task.source, task.labels
        features, logits = source.features(), source.logits()
        validation = source.validation()
        if validation is None:
            size = min(self.validation_size, source.n)
            drawn = np.sort(task.rng("validation").choice(source.n, size, replace=False))
            validation = Labelled(features[drawn], logits[drawn], labels[drawn])
        groups = np.full(source.n, len(task.groups))
        for place, group in enumerate(task.groups):
            groups[group.members] = place
        counts = np.array([group.count for group in task.groups] + [0])
        gradients = Gradients.of(features, logits, labels)
        return Selection(follow_validation(gradients, validation, groups, counts, self.eta))
