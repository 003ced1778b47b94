"""timm: per-sample losses for its blended targets, and a score by the sample's own label."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from orderdp.errors import FeedbackError

__all__ = ["blended_losses"]


def blended_losses(
    logits: torch.Tensor, targets: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses to train on and the scores to store, for ``pruner.update(index, losses, scores)``.

    `timm.data.Mixup` blends the images of a batch and turns its labels into soft targets; `timm.loss` has only a mean
    over the batch. The loss here is that of the soft targets, per sample. The score is the loss by the sample's own
    label, because it must not depend on the partner with which the sample was blended.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> losses, scores = blended_losses(logits, torch.tensor([[0.7, 0.3], [0.0, 1.0]]), torch.tensor([0, 1]))
    >>> [round(loss, 3) for loss in losses.tolist()], [round(score, 3) for score in scores.tolist()]
    ([0.727, 0.693], [0.127, 0.693])

    Args:
        logits: (batch, classes).
        targets: Probabilities (batch, classes) as `Mixup` returns them, or classes (batch,) without blending.
        labels: The samples' own classes (batch,), from before blending.
    """
    if labels.shape != logits.shape[:1]:
        raise FeedbackError(
            f"labels must be the {len(logits)} classes of the batch before it was blended, got shape "
            f"{tuple(labels.shape)}. Keep them: Mixup returns new targets."
        )
    scores = F.cross_entropy(logits.detach().float(), labels, reduction="none")
    if targets.ndim == 1:
        return F.cross_entropy(logits, targets, reduction="none"), scores
    return -(targets * F.log_softmax(logits, dim=1)).sum(1), scores
