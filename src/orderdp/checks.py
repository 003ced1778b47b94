"""What users hand in, checked before anything is done with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from orderdp.errors import ConfigError, DatasetError, FeedbackError
from orderdp.naming import suggestion
from orderdp.planning import is_count
from orderdp.policy import Policy, StepwisePolicy, describe

__all__ = [
    "FeedbackArguments",
    "checked_epochs",
    "checked_extra",
    "checked_group",
    "checked_index",
    "checked_labels",
    "checked_losses",
    "checked_policy",
    "checked_scores",
    "checked_seed",
    "feedback_arguments",
]


def checked_policy(policy: Any) -> Policy:
    """A policy, or an error that says what one is."""
    if isinstance(policy, type):
        raise ConfigError(f"policy must be an instance, got the class {policy.__name__}. Write {policy.__name__}(...).")
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"policy must have the methods size and select, got {type(policy).__name__}. "
            "Use orderdp.OrderDP(prune_ratio=0.4), for example."
        )
    if getattr(policy, "every", "epoch") == "batch" and not isinstance(policy, StepwisePolicy):
        raise ConfigError(
            f'{type(policy).__name__} has every="batch", so it must have the methods candidates and pick.'
        )
    return policy


def checked_seed(seed: Any) -> int:
    """A seed, or an error."""
    if not is_count(seed, least=0):
        raise ConfigError(f"seed must be a whole number, at least 0, got {seed!r}.")
    return int(seed)


def checked_epochs(epochs: Any) -> int | None:
    """A number of epochs, None, or an error."""
    if epochs is not None and not is_count(epochs):
        raise ConfigError(f"epochs must be a whole number, at least 1, or None, got {epochs!r}.")
    return None if epochs is None else int(epochs)


def checked_group(process_group: Any) -> Any:
    """A process group, what takes its place, None, or an error."""
    distributed = torch.distributed
    is_group = distributed.is_available() and isinstance(process_group, distributed.ProcessGroup)
    if process_group is None or is_group or hasattr(process_group, "gather_all"):
        return process_group
    outsider = distributed.is_available() and process_group is distributed.GroupMember.NON_GROUP_MEMBER
    if outsider:
        raise ConfigError(
            "process_group must be a group that this process belongs to, and it does not. "
            "Give each process the data-parallel group it is in."
        )
    raise ConfigError(
        f"process_group must be a torch.distributed process group or None, got {type(process_group).__name__}. "
        "For a dimension of a device mesh pass mesh.get_group(name)."
    )


def checked_labels(labels: Any, n: int) -> np.ndarray | None:
    """One class for each of `n` samples, None, or an error."""
    if labels is None:
        return None
    classes = np.asarray(labels)
    if classes.shape != (n,) or not np.issubdtype(classes.dtype, np.integer):
        raise DatasetError(
            f"labels must be {n} whole numbers, one for each sample, got {classes.dtype} of shape {classes.shape}."
        )
    return classes


def checked_index(index: Any) -> torch.Tensor:
    """The indices of a batch as a flat int64 tensor, or an error."""
    if isinstance(index, torch.Tensor) and index.dtype == torch.int64 and index.ndim == 1:
        return index
    if isinstance(index, np.ndarray) and index.dtype.kind in "iu":
        # Torch takes no array that runs backwards or has its bytes swapped.
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
    """The losses of a batch, or its one loss, shaped as `update` goes on with them, or an error."""
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
    """One score for each sample of a batch, or an error."""
    if not isinstance(scores, torch.Tensor) or scores.shape != index.shape:
        came = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise FeedbackError(
            f"scores must be a tensor with one number for each of the {len(index)} indices, got {came}."
        )
    return scores.detach()


class FeedbackArguments(NamedTuple):
    """What a policy's `remember` takes by keyword.

    Attributes:
        required: What it cannot do without.
        accepted: All it takes; None for anything.
    """

    required: tuple[str, ...] = ()
    accepted: tuple[str, ...] | None = ()


def feedback_arguments(remember: Callable[..., Any] | None) -> FeedbackArguments:
    """What `remember` takes besides the rows and the losses, by its signature."""
    if remember is None:
        return FeedbackArguments()
    parameters = list(inspect.signature(remember).parameters.values())[2:]
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = tuple(parameter.name for parameter in named if parameter.default is parameter.empty)
    return FeedbackArguments(required, None if anything else tuple(parameter.name for parameter in named))


def checked_extra(
    extra: Mapping[str, Any], arguments: FeedbackArguments, index: torch.Tensor, policy: Policy
) -> dict[str, Any]:
    """What came with a step besides index and losses, detached, or an error that says what should have come."""
    missing = [name for name in arguments.required if name not in extra]
    if missing:
        call = ", ".join(f"{name}=..." for name in arguments.required)
        raise FeedbackError(
            f"{describe(policy)} needs {' and '.join(missing)} with every step, one value for each sample: "
            f"update(index, losses, {call}). orderdp.losses.predictions(logits, targets) has what can be told from "
            "logits."
        )
    for name in extra:
        if arguments.accepted is not None and name not in arguments.accepted:
            hint = suggestion(name, arguments.accepted) if arguments.accepted else " Leave the argument out."
            raise FeedbackError(f"{describe(policy)} has no use for {name!r}.{hint}")
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
