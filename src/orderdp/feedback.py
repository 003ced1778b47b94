"""Feedback: what came back from a batch is remembered, and becomes the scalar to train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from orderdp.checks import checked_extra, checked_index, checked_losses, checked_scores, feedback_arguments
from orderdp.policy import Policy, Rows
from orderdp.scores import Remember, ScoreTable
from orderdp.timeline import Timeline

__all__ = ["Feedback"]

# How much of the old score a batch loss leaves (reduced=True): the noise of who else was in the batch falls to a
# third, and a score is forgotten in about five visits.
_BATCH_LOSS_MEMORY = 0.8


class Feedback:
    """The way of a batch's losses into the table and onto the clock. Its methods are those of `Pruner`.

    Args:
        policy: Who says how losses become columns.
        table: Where they are written to.
        timeline: What they move.

    Attributes:
        arguments: What the policy wants to know besides losses.
    """

    def __init__(self, policy: Policy, table: ScoreTable, timeline: Timeline) -> None:
        self._policy = policy
        self._table = table
        self._timeline = timeline
        self._selector = timeline.selector
        self._remember = getattr(policy, "remember", None)
        self.arguments = feedback_arguments(self._remember)
        self._table_is_home = False  # whether it has moved to the device of the losses

    def update(
        self, index: Any, losses: torch.Tensor, scores: torch.Tensor | None, reduced: bool, extra: dict[str, Any]
    ) -> torch.Tensor:
        """Remembers a batch's losses and returns their weighted mean."""
        index = checked_index(index)
        losses = checked_losses(losses, index, reduced)
        remember = self._remember
        result = self._weighted_mean(index, losses)
        mean = None
        if scores is not None:
            scores = checked_scores(scores, index)
        elif reduced:
            scores, remember = losses.detach().expand(len(index)), _of_a_batch_loss(remember)
        else:
            scores = losses.detach()
            mean = result if self._selector.weights is None else None
        if extra or self.arguments.required:
            extra = checked_extra(extra, self.arguments, index, self._policy)
        if not self._table_is_home:
            self._table.move(losses.device)
            self._table_is_home = True
        self._table.write(index, scores, epoch=self._timeline.epoch, mean=mean, remember=remember, extra=extra)
        self._timeline.trained_on(index.numel())
        return result

    def observe(self, index: Any, scores: torch.Tensor, extra: dict[str, Any]) -> None:
        """Writes scores without counting as training."""
        index = checked_index(index)
        remember = None
        if extra:
            extra, remember = checked_extra(extra, self.arguments, index, self._policy), self._remember
        scores = checked_scores(scores, index)
        self._table.write(index, scores, epoch=self._timeline.epoch, trained=False, remember=remember, extra=extra)

    def reduce(self, index: Any, losses: torch.Tensor) -> torch.Tensor:
        """The weighted mean alone."""
        index = checked_index(index)
        return self._weighted_mean(index, checked_losses(losses, index, reduced=False))

    def table_was_loaded(self) -> None:
        """It may have to move to the losses again."""
        self._table_is_home = False

    def _weighted_mean(self, index: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        dense = self._selector.weights
        if dense is not None:
            if dense.device != losses.device:
                dense = self._selector.weights = dense.to(losses.device, non_blocking=not losses.is_cpu)
            self._table.check_range(index)
            # One that came on a device is only counted where it points at no sample, so it may not fail here.
            rows = index.to(losses.device, non_blocking=not losses.is_cpu)
            weights = dense.index_select(0, rows.clamp(0, len(dense) - 1)).to(losses.dtype)
            if len(dense) < self._table.n:  # the selection does not know samples that came after it
                weights = torch.where(rows < len(dense), weights, 1.0)
            losses = losses * (weights if losses.ndim else weights.mean())
        return losses.mean() if losses.numel() else losses.sum()  # the mean of nothing would be NaN


def _of_a_batch_loss(remember: Remember | None) -> Remember:
    """How a batch's loss becomes the columns of each of its samples: by a moving average, as if that were its loss."""

    def averaged(rows: Rows, losses: torch.Tensor, **extra: Any) -> Mapping[str, torch.Tensor]:
        old = rows["score"]
        mixed = _BATCH_LOSS_MEMORY * old + (1 - _BATCH_LOSS_MEMORY) * losses
        score = torch.where(torch.isinf(old), losses, mixed)
        if remember is None:
            return {"score": score}
        new = remember(rows, score, **extra)
        # A policy with an average of its own is told the loss itself, or it would be averaged twice.
        return {"score": score, **new} if new.get("score", score) is score else remember(rows, losses, **extra)

    return averaged
