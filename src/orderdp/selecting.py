"""Selector: lets the policy draw an epoch, and keeps the draw and its weights while they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from orderdp.complaints import Complaints
from orderdp.policy import Context, Policy, Selection, nominal_ratio, total_samples
from orderdp.randomness import key64
from orderdp.scores import ScoreTable

__all__ = ["Selector"]


class Selector:
    """The policy at work, and what it selected last.

    Args:
        policy: Who draws.
        table: What it draws by.
        epochs: How many epochs are planned, or None.
        labels: One class for each sample, or None.
        complaints: What is said at every draw.

    Attributes:
        current: The current epoch's selection, where it has been drawn.
        weights: A weight for each sample by the last selection; None where all are 1.
        weights_used: The smallest, the mean and the largest of the selected ones.
    """

    def __init__(
        self, policy: Policy, table: ScoreTable, epochs: int | None, labels: np.ndarray | None, complaints: Complaints
    ) -> None:
        self.current: Selection | None = None
        self.weights: torch.Tensor | None = None
        self.weights_used = _spread(None)
        self._policy = policy
        self._table = table
        self._epochs = epochs
        self._labels = labels
        self._complaints = complaints
        self._begins: Callable[[int], None] | None = getattr(policy, "begins", None)

    def context(self, epoch: int, seed: int, trained: int = 0) -> Context:
        """What the policy may know in that epoch, before which so many samples have been trained on."""
        return Context(
            n=self._table.n,
            epoch=epoch,
            seed=seed,
            epochs=self._epochs,
            labels=self._labels,
            trained=trained,
            total=self.total,
        )

    @property
    def total(self) -> int | None:
        """Samples that the whole training is trained on, where the policy fixes that."""
        return total_samples(self._policy, self._table.n, self._epochs)

    @property
    def offered(self) -> int:
        """How many samples there are to draw from: all, but where some have been removed."""
        return int(getattr(self._policy, "offered", self._table.n))

    def prepare(self, epoch: int) -> None:
        """Once an epoch, before it is drawn: makes room for its counts, and hears the complaints about the last."""
        if self._begins is not None:
            self._begins(epoch)
        self._table.make_room(epoch)
        self._complaints.hear()

    def select(self, context: Context) -> Selection:
        """The current epoch's selection; drawn the first time it is asked for."""
        selection = self.current
        if selection is None:
            self.prepare(context.epoch)
            selection = self._policy.select(self._table, context)
            self.keep(selection)
            # A budget is kept to by the whole training, not by an epoch.
            nominal = None if self.total is not None else nominal_ratio(self._policy, self.offered, context)
            self._complaints.say_what_is_real(context.epoch, 1 - len(selection) / self.offered, nominal)
        return selection

    def preview(self, context: Context) -> Selection:
        """The current epoch's selection, or what it would be if it were drawn now. Keeps nothing of it."""
        if self.current is not None:
            return self.current
        if self._epochs is not None and context.epoch >= self._epochs and self.total is None:
            # Policies and schedules need not know what comes after the end, and the last pool would be the same again.
            context = replace(context, epoch=self._epochs - 1, seed=key64(context.seed, "one more"))
        return self._policy.select(self._table, context)

    def keep(self, selection: Selection | None) -> None:
        """This is the current epoch's selection, drawn or out of a checkpoint; None where there is none yet."""
        self.current = selection
        self.weights = None if selection is None else selection.dense_weights(self._table.n)
        self.weights_used = _spread(None if selection is None else selection.weights)

    def forget(self) -> None:
        """The current epoch has not been drawn. The last weights stay, for losses that are still to come."""
        self.current = None


def _spread(weights: np.ndarray | None) -> dict[str, float]:
    """The smallest, the mean and the largest weight of a selection."""
    if weights is None or len(weights) == 0:
        return {"weight_min": 1.0, "weight_mean": 1.0, "weight_max": 1.0}
    smallest, mean, largest = weights.min(), weights.mean(dtype=np.float64), weights.max()
    return {"weight_min": float(smallest), "weight_mean": float(mean), "weight_max": float(largest)}
