"""Optimisers by name. SGD and AdamW are torch's; LARS and LAMB come from the library pytorch_optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from orderdp.errors import ConfigError
from orderdp.naming import checked_name

__all__ = ["OPTIMISERS", "build_optimiser"]


def build_optimiser(
    name: str, model: nn.Module, *, lr: float, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """The optimiser called `name` over the model's parameters.

    Args:
        name: One of `OPTIMISERS`.
        model: Whose parameters.
        lr: Learning rate.
        momentum: Of SGD and LARS.
        nesterov: Whether SGD looks ahead.
        weight_decay: Weight decay.
    """
    checked_name(name, OPTIMISERS, "optimiser")
    if nesterov and name != "sgd":
        raise ConfigError(f"nesterov is an option of sgd, got optimiser {name!r}.")
    return OPTIMISERS[name](model.parameters(), lr, momentum, nesterov, weight_decay)


def _sgd(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, foreach=True
    )


def _adamw(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)


def _lars(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    optimiser: torch.optim.Optimizer = _library().LARS(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return optimiser


def _lamb(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    optimiser: torch.optim.Optimizer = _library().Lamb(parameters, lr=lr, weight_decay=weight_decay)
    return optimiser


def _library() -> Any:
    try:
        import pytorch_optimizer
    except ImportError:
        raise ConfigError("LARS and LAMB need a library: pip install 'orderdp[workbench]'.") from None
    return pytorch_optimizer


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adamw": _adamw,
    "lars": _lars,
    "lamb": _lamb,
}
