"""Per-sample losses from the outputs and labels of a Hugging Face model.

The models themselves return one number for the whole batch. These are the same losses, unreduced.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F

from orderdp.errors import ConfigError, FeedbackError
from orderdp.losses import per_sample, predictions
from orderdp.policy import describe

__all__ = ["HINT", "IGNORED", "entry", "label_counts", "label_losses", "needs_labels", "output_losses", "told"]

#: Label that Hugging Face's collators write where there is nothing to predict.
IGNORED = -100

#: What to do if the sample's loss cannot be computed from logits and labels.
HINT = "Give PruningTrainer(..., sample_losses=...), a function of (outputs, inputs) that returns one loss a sample."

# Keys of `predictions`.
_PREDICTIONS = ("correct", "confidence", "probability")


def label_losses(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    shift: bool = False,
    problem_type: str | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Loss of each sample, for one class per sample, one class per token, regression, or several classes per sample.

    Tokens are averaged within their sequence, without those labeled -100.

    >>> logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]]])
    >>> round(label_losses(logits, torch.tensor([[0, -100, 1]])).item(), 4)  # (0.0001 + 0.6931) / 2
    0.3466
    >>> round(label_losses(logits, torch.tensor([[0, 1, 1]]), shift=True).item(), 4)  # (9.0001 + 0.0001) / 2
    4.5001

    Args:
        logits: (batch, classes) or (batch, tokens, classes).
        labels: (batch,) or (batch, tokens); a number or a row of numbers per sample for regression or several classes.
        shift: Whether a token's logits predict the next token.
        problem_type: As in a model's config; inferred from the shapes if None.
        label_smoothing: Fraction of the target that is spread over all classes.
    """
    logits, labels = logits.float(), labels.to(logits.device)
    if logits.ndim == 2:
        kind = problem_type or _problem_type(logits, labels)
        if kind == "regression":
            return per_sample((logits - _like(logits, labels)).square())
        if kind == "multi_label_classification":
            return per_sample(F.binary_cross_entropy_with_logits(logits, _like(logits, labels), reduction="none"))
    if labels.shape != logits.shape[:-1] or labels.is_floating_point():
        raise FeedbackError(
            f"labels must be one class for each row of the logits {tuple(logits.shape)}, got {labels.dtype} of "
            f"{tuple(labels.shape)}. {HINT}"
        )
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    losses = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return per_sample(losses.view(labels.shape), mask=labels != IGNORED)


def output_losses(model: Any, outputs: Any, inputs: Mapping[str, Any], *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Loss of each sample of a batch, for models with logits and labels.

    Args:
        model: A Hugging Face model, without a wrapper that hides its class and config.
        outputs: Its outputs.
        inputs: Its batch, including the labels.
        label_smoothing: Fraction of the target that is spread over all classes.
    """
    logits, labels, shift, kind = _read(model, outputs, inputs)
    return label_losses(logits, labels, shift=shift, problem_type=kind, label_smoothing=label_smoothing)


def label_counts(model: Any, outputs: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Number of labels that each value of `output_losses` averages; the models weight a batch by these numbers.

    Args:
        model: A Hugging Face model, without a wrapper that hides its class and config.
        outputs: Its outputs.
        inputs: Its batch, including the labels.
    """
    logits, labels, shift, kind = _read(model, outputs, inputs)
    if logits.ndim == 2 and (kind or _problem_type(logits, labels)) != "single_label_classification":
        return torch.ones(len(labels), dtype=torch.int64, device=labels.device)
    return (labels[:, 1:] if shift else labels).ne(IGNORED).reshape(len(labels), -1).sum(1)


def told(outputs: Any, inputs: Mapping[str, Any], names: tuple[str, ...], policy: Any) -> dict[str, torch.Tensor]:
    """Extra values that a policy requires besides the losses, computed from logits and one class per sample.

    Args:
        outputs: Outputs of the model.
        inputs: Its batch, including the labels.
        names: Names of the values that the policy requires.
        policy: The policy, for the message if a value is not available.
    """
    wanted = [name for name in names if name in _PREDICTIONS]
    if not wanted:
        return {}
    logits, labels = entry(outputs, "logits"), inputs.get("labels")
    if labels is None or not _are_classes(logits, labels):
        raise ConfigError(
            f"{describe(policy)} wants to know {', '.join(wanted)} of each sample, which takes logits (batch, classes) "
            f"and a whole number a sample for its class, got logits {_form(logits)} and labels {_form(labels)}. Use a "
            "policy that needs losses only, such as OrderDP, or a training loop of your own that gives them to "
            "pruner.update."
        )
    known = predictions(logits, labels)
    return {name: known[name] for name in wanted}


def needs_labels(model: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether the model must get the labels; otherwise they are left out, because its own loss is not used."""
    parameter = inspect.signature(model.forward).parameters.get("labels")
    if parameter is not None and parameter.default is inspect.Parameter.empty:
        return True
    # Some models build the decoder's input from the labels.
    makes_input = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return bool(makes_input) and "decoder_input_ids" not in inputs


def _read(model: Any, outputs: Any, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, bool, str | None]:
    """Logits, labels, whether a token's logits predict the next token, and the config's problem type."""
    logits = entry(outputs, "logits")
    if not isinstance(logits, torch.Tensor):
        has = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise FeedbackError(f"the model's output must have logits, for each sample's loss, it has {has}. {HINT}")
    if entry(outputs, "aux_loss") is not None:
        raise ConfigError(
            "the model adds a loss of its own to that of the labels (aux_loss), which would be left out. Set "
            f"output_router_logits=False in its config. Or: {HINT}"
        )
    labels = inputs.get("shift_labels", inputs.get("labels"))
    if not isinstance(labels, torch.Tensor):
        raise FeedbackError(f"the batch must have labels, for each sample's loss, it has {sorted(inputs)}. {HINT}")
    shift = logits.ndim > 2 and "shift_labels" not in inputs and _predicts_next(model)
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    return logits, labels, shift, kind


def entry(outputs: Any, name: str) -> Any:
    """Entry `name` of a model's outputs, or None."""
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _are_classes(logits: Any, labels: Any) -> bool:
    """Whether the labels are one class per sample."""
    if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return False
    whole = not labels.is_floating_point() and not labels.is_complex()
    return logits.ndim == 2 and logits.shape[1] > 1 and labels.shape == logits.shape[:1] and whole


def _form(value: Any) -> str:
    return f"{value.dtype} of {tuple(value.shape)}" if isinstance(value, torch.Tensor) else str(value)


def _problem_type(logits: torch.Tensor, labels: torch.Tensor) -> str:
    """Infer the problem type by the rule of Hugging Face's own losses."""
    if logits.shape[1] == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def _like(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Labels with one number per logit."""
    if labels.numel() != logits.numel():
        raise FeedbackError(
            f"labels must have a number for each of the logits {tuple(logits.shape)}, got {tuple(labels.shape)}. {HINT}"
        )
    return labels.view_as(logits).to(logits.dtype)


def _predicts_next(model: Any) -> bool:
    """Whether the model predicts the next token; raise if that is unknown."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    if type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return True
    loss = LOSS_MAPPING.get(getattr(model, "loss_type", None))
    if loss is None:
        raise ConfigError(
            f"{type(model).__name__} has a label for each token, and it is not known whether its logits predict that "
            f"token or the next. {HINT}"
        )
    return bool(loss is ForCausalLMLoss)
