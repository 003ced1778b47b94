"""Per-sample losses: reducing a task's loss to one number per sample, functions of these losses, and their checks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from orderdp._validation import suggestion
from orderdp.errors import ConfigError, FeedbackError
from orderdp.policy import Policy, Rows, describe

if TYPE_CHECKING:
    from orderdp.score_table import ComputeColumns

__all__ = ["SelectiveMean", "last_layer_gradient_norm", "per_sample", "predictions", "smallest_loss", "top_mean"]


def per_sample(
    losses: torch.Tensor,
    mask: torch.Tensor | None = None,
    segments: torch.Tensor | None = None,
    count: int | None = None,
) -> torch.Tensor:
    """Return the mean loss of each sample, for losses of shape (batch, ...).

    Averages all dimensions after the first (detection boxes, pixels, tokens), only where `mask` is set. A sample
    without any counted element has loss 0. Gradients flow.

    >>> per_sample(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), mask=torch.tensor([[1, 1], [1, 0]])).tolist()
    [2.0, 5.0]

    With `segments`, several samples are packed in a row: each element holds the number of its sample in the batch;
    a negative number means no sample.

    >>> per_sample(torch.tensor([[1.0, 3.0, 5.0]]), segments=torch.tensor([[0, 0, 1]])).tolist()
    [2.0, 5.0]

    Args:
        losses: Losses of shape (batch, ...).
        mask: True or 1 for elements that count, of a shape that broadcasts to that of `losses`.
        segments: Integers of the shape of `losses`.
        count: Number of samples in `segments`. Without it their maximum is computed, which makes the host wait for the
            device; pass ``len(index)`` to avoid that.
    """
    if losses.ndim == 0:
        raise FeedbackError(
            "losses must have a batch dimension, got a single number. "
            'Compute the loss with reduction="none" and pass it here unreduced.'
        )
    counted = torch.ones_like(losses, dtype=torch.bool) if mask is None else _broadcast(mask, losses)
    if segments is not None:
        return _per_segment(losses, counted, segments, count)
    if mask is None and losses.shape[1:].numel():  # the mean of nothing would be NaN
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)
    kept, counted = (values.unsqueeze(-1).flatten(1) for values in (torch.where(counted, losses, 0.0), counted))
    return (kept.sum(1, dtype=_wide(losses)) / counted.sum(1).clamp(min=1)).to(losses.dtype)


def smallest_loss(label_smoothing: float, classes: int) -> float:
    """Return the smallest possible cross-entropy: 0 without label smoothing, the target's entropy with it.

    >>> round(smallest_loss(0.1, classes=10), 4)
    0.5003

    Args:
        label_smoothing: Fraction of the target that is spread over all classes, in [0, 1].
        classes: Number of classes.
    """
    if not 0 <= label_smoothing <= 1:
        raise ConfigError(f"label_smoothing must be in [0, 1], got {label_smoothing!r}.")
    if classes < 1:
        raise ConfigError(f"classes must be a whole number, at least 1, got {classes!r}.")
    other = label_smoothing / classes
    target = 1 - label_smoothing + other
    return sum(-count * share * math.log(share) for count, share in ((1, target), (classes - 1, other)) if share)


def top_mean(losses: torch.Tensor, q: int | None = None, *, exploitation: float | None = None) -> torch.Tensor:
    """Return the mean of the `q` largest losses of a batch; gradients flow through those only.

    The form of OrderDP for loops that can run more forward passes than they train on: draw s candidates, forward all of
    them, call this on their fresh losses, call backward. A NaN is never among the largest.

    >>> top_mean(torch.tensor([1.0, 4.0, 2.0, 6.0]), q=2).item()
    5.0

    Args:
        losses: One loss per candidate.
        q: Number of samples to train on; or
        exploitation: their fraction of the candidates, in (0, 1].
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
            raise ConfigError(f"exploitation must be in (0, 1], got {exploitation}. It is the fraction q/s to keep.")
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
    """Return the norm of each sample's cross-entropy gradient in the last linear layer, in closed form.

    An alternative score to the loss, without an extra pass: ``pruner.update(index, losses, scores=...)``. The gradient
    is the outer product of (softmax - target) and (features, 1), so its norm is the product of their norms.

    Args:
        logits: Outputs of the last linear layer, (batch, classes).
        targets: Classes (batch,), or probabilities (batch, classes) as from MixUp.
        features: Inputs of the last linear layer, (batch, width). Without them, the norm of the gradient with
            respect to the logits.
        label_smoothing: The label smoothing of the loss.
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


def predictions(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return values that some policies need besides the loss; `Pruner.update_arguments` names the needed ones.

    ::

        told = predictions(logits, targets)
        loss = pruner.update(index, losses, **{name: told[name] for name in pruner.update_arguments})

    >>> told = predictions(torch.tensor([[0.0, 2.0], [0.0, 0.0]]), torch.tensor([1, 0]))
    >>> told["correct"].tolist(), [round(c, 3) for c in told["confidence"].tolist()]
    ([True, True], [0.881, 0.5])

    Args:
        logits: (batch, classes).
        targets: Classes (batch,), or probabilities (batch, classes) as from MixUp: then the likeliest class counts.

    Returns:
        correct: whether the largest logit is that of the sample's class. confidence: the largest predicted
        probability. probability: the predicted probability of the sample's class.
    """
    if logits.ndim != 2 or len(logits) != len(targets):
        raise FeedbackError(
            f"logits must be (batch, classes) and targets as long as the batch, got {tuple(logits.shape)} "
            f"and {tuple(targets.shape)}."
        )
    with torch.no_grad():
        classes = targets if targets.ndim == 1 else targets.argmax(1)
        predicted = logits.float().softmax(1)
        confidence, guess = predicted.max(1)
        own = predicted.gather(1, classes.unsqueeze(1)).squeeze(1)
        return {"correct": guess == classes, "confidence": confidence, "probability": own}


class SelectiveMean:
    """Selective backpropagation as a loss function: the mean over samples selected by their fresh losses.

    A sample is selected with probability (fraction of the recent losses that are no larger than its own) ** beta, and
    gradients flow through the selected ones. To save their backward pass as well, compute the losses of the batch
    without gradients, call `choose`, and train on the selected samples.

    >>> mean = SelectiveMean(beta=1.0, history=4, seed=0)
    >>> round(mean(torch.tensor([1.0, 2.0, 3.0, 4.0])).item(), 1)
    3.5

    Args:
        beta: How strongly hard samples are preferred; about beta / (1 + beta) are left out.
        history: Number of recent losses that a loss is compared with.
        seed: Seed of its own random generator.
    """

    def __init__(self, beta: float = 1.0, history: int = 1024, seed: int = 0) -> None:
        if not beta >= 0:
            raise ConfigError(f"beta must be a number, at least 0, got {beta!r}.")
        if history < 1:
            raise ConfigError(f"history must be a whole number, at least 1, got {history!r}.")
        self.beta = beta
        self._recent = torch.full((history,), torch.nan)
        self._next = 0
        self._luck = torch.Generator().manual_seed(seed)

    def choose(self, losses: torch.Tensor) -> torch.Tensor:
        """Return which samples of the batch are selected, as a boolean mask; adds their losses to the recent ones.

        Args:
            losses: One loss per sample.
        """
        if losses.ndim != 1:
            raise FeedbackError(f"losses must be one number for each sample, got shape {tuple(losses.shape)}.")
        fresh = losses.detach().float()
        self._recent = self._recent.to(fresh.device)
        slots = (self._next + torch.arange(len(fresh), device=fresh.device)) % len(self._recent)
        self._recent[slots] = fresh
        self._next = (self._next + len(fresh)) % len(self._recent)
        known = ~self._recent.isnan()
        smaller = (self._recent <= fresh.unsqueeze(1)) & known
        percentile = smaller.sum(1) / known.sum()
        luck = torch.rand(len(fresh), generator=self._luck).to(fresh.device, non_blocking=True)
        return luck < percentile**self.beta

    def __call__(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the mean of the selected losses; 0 if none is selected.

        Args:
            losses: One loss per sample.
        """
        chosen = self.choose(losses)
        return torch.where(chosen, losses, 0.0).sum() / chosen.sum().clamp(min=1)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for resuming."""
        return {"recent": self._recent.cpu().clone(), "next": self._next, "luck": self._luck.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`, which `state_dict` returned."""
        self._recent, self._next = state["recent"].clone(), int(state["next"])
        self._luck.set_state(state["luck"])


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
    segments = segments.to(losses.device, torch.int64)
    if count is None:
        count = int(segments.max()) + 1 if segments.numel() else 0
    elif segments.is_cpu and segments.numel() and int(segments.max()) >= count:
        raise FeedbackError(
            f"segments must be below count={count}, the number of samples in the batch, got {int(segments.max())}. "
            "Each says to which sample of the batch its element belongs."
        )
    counted = counted & (segments >= 0)
    # Elements of no sample are added to a last row that is then cut off.
    where = torch.where(counted, segments, count).flatten()
    wide = _wide(losses)
    addends = torch.where(counted, losses, 0.0).flatten().to(wide)
    sums = losses.new_zeros(count + 1, dtype=wide).index_add(0, where, addends)
    sizes = losses.new_zeros(count + 1, dtype=torch.int64).index_add(0, where, counted.flatten().long())
    return (sums[:count] / sizes[:count].clamp(min=1)).to(losses.dtype)


def _wide(losses: torch.Tensor) -> torch.dtype:
    """Return the dtype of sums: sums in half precision stop growing at a few hundred, or overflow."""
    return torch.promote_types(losses.dtype, torch.float32)


# -- checks of what a training step gives back -------------------------------------------------------------------------


def checked_index(index: Any) -> torch.Tensor:
    """Return the indices of a batch as a flat int64 tensor, or raise an error."""
    if isinstance(index, torch.Tensor) and index.dtype is torch.int64 and index.ndim == 1:
        return index
    if isinstance(index, np.ndarray) and index.dtype.kind in "iu":
        # Torch accepts no array with negative strides or swapped bytes.
        index = index.astype(np.int64, order="C")
    try:
        index = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError):
        raise FeedbackError(
            f"index must hold whole numbers, got {type(index).__name__}. Pass the index that came with the batch."
        ) from None
    countable = not (index.dtype == torch.bool or index.is_floating_point() or index.is_complex())
    if index.numel() and not countable:
        raise FeedbackError(
            f"index must hold whole numbers, got {index.dtype}. Pass the index that came with the batch; stored as "
            "floats, indices above 16,777,216 would be wrong."
        )
    if index.ndim > 1:
        raise FeedbackError(
            f"index must be one number for each sample of the batch, got shape {tuple(index.shape)}. "
            "Flatten it if the batch has more than one sample dimension."
        )
    flat: torch.Tensor = index.to(torch.int64).reshape(-1)
    return flat


def checked_losses(losses: Any, index: torch.Tensor, reduced: bool) -> torch.Tensor:
    """Return the losses of a batch, or its one loss, in the shape that `update` needs, or raise an error."""
    if not isinstance(losses, torch.Tensor):
        raise FeedbackError(f"losses must be a tensor, got {type(losses).__name__}.")
    if not losses.is_floating_point():
        raise FeedbackError(f"losses must be of a floating-point type, got {losses.dtype}. Pass losses.float().")
    if reduced:
        if losses.numel() != 1:
            raise FeedbackError(
                f"with reduced=True losses must be a single number, got shape {tuple(losses.shape)}. "
                "Leave reduced out where there is a loss for each sample."
            )
        return losses.reshape(())
    if losses.shape == index.shape:
        return losses
    if losses.ndim == 0 and len(index) == 1:
        return losses.reshape(1)
    if losses.ndim == 0:
        raise FeedbackError(
            f"losses must be one number for each of the {len(index)} samples, got a single one. "
            'Give the criterion reduction="none"; or, if it has only a loss for the whole batch, call '
            "update(index, loss, reduced=True)."
        )
    if losses.ndim > 1 and len(losses) == len(index):
        raise FeedbackError(
            f"losses must be one number for each of the {len(index)} samples, got shape {tuple(losses.shape)}. "
            "Reduce them with orderdp.per_sample(losses, mask=...)."
        )
    raise FeedbackError(
        f"losses must be one number for each of the {len(index)} indices, got shape {tuple(losses.shape)}. "
        "Pass index and losses of the same batch."
    )


def checked_scores(scores: Any, index: torch.Tensor) -> torch.Tensor:
    """Return one score per sample of a batch, or raise an error."""
    if not isinstance(scores, torch.Tensor) or scores.shape != index.shape:
        came = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise FeedbackError(
            f"scores must be a tensor with one number for each of the {len(index)} indices, got {came}."
        )
    return scores.detach()


class FeedbackArguments(NamedTuple):
    """The keyword arguments of a policy's `compute_columns`.

    Attributes:
        required: The required ones.
        accepted: All of them; None for any name.
    """

    required: tuple[str, ...] = ()
    accepted: tuple[str, ...] | None = ()


def feedback_arguments(compute_columns: Callable[..., Any] | None) -> FeedbackArguments:
    """Read from its signature what `compute_columns` takes besides the rows and the losses."""
    if compute_columns is None:
        return FeedbackArguments()
    parameters = list(inspect.signature(compute_columns).parameters.values())[2:]
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = tuple(parameter.name for parameter in named if parameter.default is parameter.empty)
    return FeedbackArguments(required, None if anything else tuple(parameter.name for parameter in named))


def checked_extra(
    extra: Mapping[str, Any], arguments: FeedbackArguments, index: torch.Tensor, policy: Policy
) -> dict[str, Any]:
    """Return the keyword arguments of `update`, detached, or raise an error that names the expected ones."""
    missing = [name for name in arguments.required if name not in extra]
    if missing:
        call = ", ".join(f"{name}=..." for name in arguments.required)
        raise FeedbackError(
            f"{describe(policy)} needs {' and '.join(missing)} with every step, one value for each sample: "
            f"update(index, losses, {call}). orderdp.losses.predictions(logits, targets) computes those that follow "
            "from logits."
        )
    for name in extra:
        if arguments.accepted is not None and name not in arguments.accepted:
            hint = suggestion(name, arguments.accepted) if arguments.accepted else " Leave the argument out."
            takes = "does not take it" if arguments.accepted else "takes no extra values"
            raise FeedbackError(f"unexpected keyword {name!r}: {describe(policy)} {takes}.{hint}")
    for name, value in extra.items():
        if isinstance(value, list | tuple | np.ndarray):
            raise FeedbackError(
                f"{name} must be a tensor with one value for each of the {len(index)} indices, got "
                f"{type(value).__name__}. Pass torch.as_tensor({name})."
            )
        if isinstance(value, torch.Tensor) and value.shape[:1] != index.shape:
            raise FeedbackError(
                f"{name} must have one value for each of the {len(index)} indices, got shape {tuple(value.shape)}."
            )
    return {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in extra.items()}


# Weight of the old score when a batch loss comes in (reduced=True): the noise from the other samples of the batch
# falls to a third, and an old score fades in about five visits.
_BATCH_LOSS_MEMORY = 0.8


def of_a_batch_loss(compute_columns: ComputeColumns | None) -> ComputeColumns:
    """Return a `compute_columns` that moves each sample's score toward the loss of its batch by a moving average."""

    def averaged(rows: Rows, losses: torch.Tensor, **extra: Any) -> Mapping[str, torch.Tensor]:
        old = rows["score"]
        mixed = _BATCH_LOSS_MEMORY * old + (1 - _BATCH_LOSS_MEMORY) * losses
        score = torch.where(torch.isinf(old), losses, mixed)
        if compute_columns is None:
            return {"score": score}
        new = compute_columns(rows, score, **extra)
        # A policy with its own average gets the loss itself, or the loss would be averaged twice.
        return {"score": score, **new} if new.get("score", score) is score else compute_columns(rows, losses, **extra)

    return averaged
