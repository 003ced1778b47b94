"""Whether a Hugging Face model's own loss is the one it is trained on here.

Each sample's loss is computed from the logits. A model may do more: weight classes, smooth labels, add a term. Training
would go on without it, and nobody would know.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from orderdp.errors import ConfigError
from orderdp.integrations.huggingface_losses import HINT, IGNORED, entry, label_counts, needs_labels

__all__ = ["OwnLoss"]

# Weights of classes cancel out in a batch of one class, so batches are compared until one has several; or so many.
_MOST_BATCHES = 32

_HALF = (torch.float16, torch.bfloat16)


class OwnLoss:
    """Calls the model, and compares its own loss with the samples' on the first batches that can tell them apart.

    For that the model is shown the labels, in the one call that there is. So its logits are what they would have been,
    and dropout draws nothing more.

    Args:
        compare: Whether the two are meant to be the same.
        rough: Whether the model may compute in half precision and not show it.
    """

    def __init__(self, *, compare: bool, rough: bool = False) -> None:
        self._left = _MOST_BATCHES if compare else 0
        self._rough = rough
        self._own: torch.Tensor | None = None

    def outputs(self, model: Any, bare: Any, batch: Mapping[str, Any]) -> Any:
        """What the model returns, without a loss where it does not insist on labels.

        Args:
            model: What to call.
            bare: Hugging Face's model in it.
            batch: What to call it with, and the labels.
        """
        self._own = None
        insists = needs_labels(bare, batch)
        compares = self._left > 0 and isinstance(batch.get("labels"), torch.Tensor) and _takes_labels(bare)
        hidden = {name: value for name, value in batch.items() if name != "labels"}
        if not insists and not compares:
            return model(**hidden)
        outputs = model(**batch)
        if not compares:
            return outputs
        logits, own = entry(outputs, "logits"), entry(outputs, "loss")
        fits = isinstance(logits, torch.Tensor) and logits.shape[:1] == batch["labels"].shape[:1]
        if not fits or not isinstance(own, torch.Tensor):
            self._left = 0
            # Some, shown the labels, give no logits, or those of labelled tokens only.
            return outputs if fits or insists else model(**hidden)
        self._own = own.detach()
        return outputs if insists else _without_loss(outputs)

    def check(self, bare: Any, outputs: Any, batch: Mapping[str, Any], losses: torch.Tensor) -> None:
        """Raises where the model's own loss of the batch is not the mean of these.

        Args:
            bare: Hugging Face's model.
            outputs: What it returned.
            batch: What it was called with, and the labels.
            losses: One for each sample, as the labels and the logits give them.
        """
        if self._own is None:
            return
        rough = self._rough or any(tensor.dtype in _HALF for tensor in (self._own, entry(outputs, "logits")))
        own, self._own, self._left = self._own.flatten().float().cpu(), None, self._left - 1
        ours = _means(losses.detach().float().cpu(), label_counts(bare, outputs, batch).cpu(), len(own))
        if len(ours) != len(own) or not bool((ours.isfinite() & own.isfinite()).all()):
            return  # of nothing the model's loss is NaN
        tolerance = 1e-2 if rough else 1e-4
        if not torch.allclose(own, ours, rtol=tolerance, atol=tolerance / 10):
            raise ConfigError(
                "the model's own loss must be the mean of its samples' losses by logits and labels, got "
                f"{own.mean().item():.6g} from the model, and {ours.mean().item():.6g} is that mean. Class "
                f"weights, smoothed labels or further terms in its forward would be left out. {HINT}"
            )
        if len(batch["labels"][batch["labels"] != IGNORED].unique()) > 1:
            self._left = 0


def _takes_labels(model: Any) -> bool:
    return "labels" in inspect.signature(model.forward).parameters


def _without_loss(outputs: Any) -> Any:
    """So that the loss, and all that its gradient would need, leaves the memory before ours is computed."""
    rest = {name: value for name, value in outputs.items() if name != "loss"} if isinstance(outputs, dict) else {}
    if type(outputs) is dict:
        return rest
    return type(outputs)(**rest) if hasattr(outputs, "to_tuple") else outputs  # a ModelOutput gives nothing away


def _means(losses: torch.Tensor, counts: torch.Tensor, parts: int) -> torch.Tensor:
    """The mean over all labels, of each part where several devices have shared the batch (DataParallel)."""
    shares = zip(losses.chunk(parts), counts.chunk(parts), strict=True)
    return torch.stack([(part * count).sum() / count.sum() for part, count in shares])
