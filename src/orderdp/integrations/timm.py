"""timm: losses for its blended targets, one for each sample, and a score that is still the sample's own."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from orderdp.errors import FeedbackError

__all__ = ["blended_losses"]


def blended_losses(
    logits: torch.Tensor, targets: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss to train on and the score to remember, for ``pruner.update(index, losses, scores)``.

    `timm.data.Mixup` blends a batch's images and makes soft targets of its labels; `timm.loss` has only a mean over the
    batch. The loss here is that of the soft targets, sample by sample. The score is the loss by the sample's own
    label: the partner it happened to be blended with says nothing about it.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> losses, scores = blended_losses(logits, torch.tensor([[0.7, 0.3], [0.0, 1.0]]), torch.tensor([0, 1]))
    >>> [round(loss, 3) for loss in losses.tolist()], [round(score, 3) for score in scores.tolist()]
    ([0.727, 0.693], [0.127, 0.693])

    Args:
        logits: (batch, classes).
        targets: Probabilities (batch, classes), as `Mixup` returns them; or classes (batch,) where nothing was blended.
        labels: The samples' own classes (batch,), as they were before blending.
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
