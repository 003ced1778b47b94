"""Checks that a Hugging Face model's own loss is the loss that is trained on.

Each sample's loss is computed from the logits. The loss of a model may contain more: class weights, label smoothing, an
extra term. Training would silently leave them out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from orderdp.errors import ConfigError
from orderdp.integrations.huggingface_losses import HINT, IGNORED, entry, label_counts, needs_labels

__all__ = ["OwnLoss"]

# Class weights cancel in a batch of one class, so batches are compared until one has several; at most this many.
_MOST_BATCHES = 32

_HALF = (torch.float16, torch.bfloat16)


class OwnLoss:
    """Call the model; on the first batches that can tell them apart, compare its own loss with the samples' losses.

    For this the model gets the labels in the regular call, so its logits do not change, and dropout draws nothing more.

    Args:
        compare: Whether the two losses are expected to be equal.
        rough: Whether the model may compute in half precision without visible half-precision tensors.
    """

    def __init__(self, *, compare: bool, rough: bool = False) -> None:
        self._left = _MOST_BATCHES if compare else 0
        self._rough = rough
        self._own: torch.Tensor | None = None

    def outputs(self, model: Any, bare: Any, batch: Mapping[str, Any]) -> Any:
        """Return the outputs of the model, without a loss unless the model requires labels.

        Args:
            model: The model to call.
            bare: The Hugging Face model inside it.
            batch: The inputs, including the labels.
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
            # With labels, some models return no logits, or those of labeled tokens only.
            return outputs if fits or insists else model(**hidden)
        self._own = own.detach()
        return outputs if insists else _without_loss(outputs)

    def check(self, bare: Any, outputs: Any, batch: Mapping[str, Any], losses: torch.Tensor) -> None:
        """Raise if the model's own loss of the batch is not the mean of `losses`.

        Args:
            bare: The Hugging Face model.
            outputs: Its outputs.
            batch: Its inputs, including the labels.
            losses: One loss per sample, computed from labels and logits.
        """
        if self._own is None:
            return
        rough = self._rough or any(tensor.dtype in _HALF for tensor in (self._own, entry(outputs, "logits")))
        own, self._own, self._left = self._own.flatten().float().cpu(), None, self._left - 1
        ours = _means(losses.detach().float().cpu(), label_counts(bare, outputs, batch).cpu(), len(own))
        if len(ours) != len(own) or not bool((ours.isfinite() & own.isfinite()).all()):
            return  # the model's loss is NaN for a batch without labels
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
    """Drop the loss, so that it and its graph are freed before the samples' losses are computed."""
    rest = {name: value for name, value in outputs.items() if name != "loss"} if isinstance(outputs, dict) else {}
    if type(outputs) is dict:
        return rest
    return type(outputs)(**rest) if hasattr(outputs, "to_tuple") else outputs  # its entries cannot be deleted


def _means(losses: torch.Tensor, counts: torch.Tensor, parts: int) -> torch.Tensor:
    """Mean over all labels, per part if several devices have split the batch (DataParallel)."""
    shares = zip(losses.chunk(parts), counts.chunk(parts), strict=True)
    return torch.stack([(part * count).sum() / count.sum() for part, count in shares])
