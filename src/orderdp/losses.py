"""From the loss a task has to one number a sample, and other things to do with per-sample losses."""

from __future__ import annotations

import torch

from orderdp.errors import ConfigError, FeedbackError

__all__ = ["last_layer_gradient_norm", "per_sample", "top_mean"]


def per_sample(
    losses: torch.Tensor,
    mask: torch.Tensor | None = None,
    segments: torch.Tensor | None = None,
    count: int | None = None,
) -> torch.Tensor:
    """The mean loss of each sample, for losses of shape (batch, ...).

    Detection boxes, pixels, tokens: whatever follows the batch dimension is averaged, only where `mask` says so.
    A sample of which nothing is left has loss 0. Gradients flow.

    >>> per_sample(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), mask=torch.tensor([[1, 1], [1, 0]])).tolist()
    [2.0, 5.0]

    With `segments`, several samples are packed in a row: each element says to which sample of the batch it
    belongs, and a negative number means to none.

    >>> per_sample(torch.tensor([[1.0, 3.0, 5.0]]), segments=torch.tensor([[0, 0, 1]])).tolist()
    [2.0, 5.0]

    Args:
        losses: Losses of shape (batch, ...).
        mask: What counts, True or 1, of a shape that broadcasts to that of `losses`.
        segments: Integers of the shape of `losses`.
        count: How many samples there are in `segments`. Without it their maximum is looked up, which makes the
            host wait for the device; ``len(index)`` is at hand and does not.
    """
    if losses.ndim == 0:
        raise FeedbackError(
            "losses must have a batch dimension, got a single number. "
            'Compute the loss with reduction="none" and pass it here unreduced.'
        )
    counted = torch.ones_like(losses, dtype=torch.bool) if mask is None else _broadcast(mask, losses)
    if segments is not None:
        return _per_segment(losses, counted, segments, count)
    if mask is None:
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)
    kept = torch.where(counted, losses, 0.0).reshape(len(losses), -1)
    return kept.sum(1) / counted.reshape(len(losses), -1).sum(1).clamp(min=1)


def top_mean(losses: torch.Tensor, q: int | None = None, *, exploitation: float | None = None) -> torch.Tensor:
    """The mean of the `q` largest of a batch's losses; gradients flow through those only.

    The form of OrderDP for loops that can afford to forward more than they train on: draw s candidates, forward
    all of them, call this on their fresh losses, go backward. A NaN is never among the largest.

    >>> top_mean(torch.tensor([1.0, 4.0, 2.0, 6.0]), q=2).item()
    5.0

    Args:
        losses: One loss for each candidate.
        q: How many to train on; or
        exploitation: which share of them, in (0, 1].
    """
    s = len(losses) if losses.ndim == 1 else -1
    if s < 1:
        raise FeedbackError(
            f"losses must be one number for each candidate, got shape {tuple(losses.shape)}. "
            'Compute them with reduction="none"; `per_sample` reduces what has more dimensions.'
        )
    if (q is None) == (exploitation is None):
        raise ConfigError(f"give either q or exploitation, got q={q} and exploitation={exploitation}.")
    if exploitation is not None:
        if not 0 < exploitation <= 1:
            raise ConfigError(f"exploitation must be in (0, 1], got {exploitation}. It is the share q/s to keep.")
        q = max(1, round(exploitation * s))
    assert q is not None
    if not 1 <= q <= s:
        raise ConfigError(f"q must be between 1 and the {s} candidates, got {q}.")
    ranking = losses.detach()
    ranking = torch.where(ranking.isnan(), -torch.inf, ranking)
    return losses.index_select(0, ranking.topk(q).indices).mean()


def last_layer_gradient_norm(
    logits: torch.Tensor,
    targets: torch.Tensor,
    features: torch.Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Norm of each sample's cross-entropy gradient with respect to the last linear layer, in closed form.

    Another score than the loss, at no extra pass: ``pruner.update(index, losses, scores=...)``. The gradient is
    the outer product of (softmax - target) and (features, 1), so its norm is the product of their norms.

    Args:
        logits: Outputs of the last linear layer, (batch, classes).
        targets: Classes (batch,), or probabilities (batch, classes) as MixUp makes them.
        features: Inputs of the last linear layer, (batch, width). Without them, the norm of the gradient with
            respect to the logits.
        label_smoothing: As given to the loss.
    """
    if logits.ndim != 2 or len(logits) != len(targets):
        raise FeedbackError(
            f"logits must be (batch, classes) and targets as long as the batch, got {tuple(logits.shape)} "
            f"and {tuple(targets.shape)}."
        )
    with torch.no_grad():
        classes = logits.shape[1]
        if targets.ndim == 1:
            targets = torch.nn.functional.one_hot(targets, classes)
        wanted = targets.float() * (1 - label_smoothing) + label_smoothing / classes
        norm: torch.Tensor = torch.linalg.vector_norm(logits.float().softmax(1) - wanted, dim=1)
        return norm if features is None else norm * (features.flatten(1).float().square().sum(1) + 1).sqrt()


def _broadcast(mask: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
    try:
        return mask.to(losses.device).bool().broadcast_to(losses.shape)
    except RuntimeError:
        raise FeedbackError(
            f"mask must broadcast to the losses' shape {tuple(losses.shape)}, got {tuple(mask.shape)}."
        ) from None


def _per_segment(
    losses: torch.Tensor, counted: torch.Tensor, segments: torch.Tensor, count: int | None
) -> torch.Tensor:
    if segments.shape != losses.shape or segments.is_floating_point():
        raise FeedbackError(
            f"segments must be integers of the losses' shape {tuple(losses.shape)}, got {segments.dtype} of "
            f"{tuple(segments.shape)}. Each says to which sample of the batch its element belongs."
        )
    segments = segments.to(losses.device)
    if count is None:
        count = int(segments.max()) + 1 if segments.numel() else 0
    counted = counted & (segments >= 0)
    # What belongs to no sample is added to a last row that is then cut off.
    where = torch.where(counted, segments, count).flatten()
    sums = losses.new_zeros(count + 1).index_add(0, where, torch.where(counted, losses, 0.0).flatten())
    sizes = losses.new_zeros(count + 1).index_add(0, where, counted.flatten().to(losses.dtype))
    return sums[:count] / sizes[:count].clamp(min=1)
