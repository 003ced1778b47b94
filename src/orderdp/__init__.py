"""OrderDP: train on fewer samples per epoch, and measure what that costs.

Names and subpackages are loaded on first use, so that importing this package costs nothing by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderdp import (
        coresets,
        datasets,
        diagnostics,
        distributed,
        errors,
        experiments,
        integrations,
        losses,
        plans,
        policies,
        report,
        streaming,
        testing,
        theory,
    )
    from orderdp.advice import Advice, advise
    from orderdp.checkpoint import load_checkpoint, save_checkpoint
    from orderdp.dataset import Indexed, alternate_flip
    from orderdp.losses import last_layer_gradient_norm, per_sample, top_mean
    from orderdp.policies import Budget, OrderDP, SpacedRepetition, Unlearned, build
    from orderdp.policy import Column, Context, Policy, Selection
    from orderdp.pruner import Pruner

__all__ = [
    "Advice",
    "Budget",
    "Column",
    "Context",
    "Indexed",
    "OrderDP",
    "Policy",
    "Pruner",
    "Selection",
    "SpacedRepetition",
    "Unlearned",
    "__version__",
    "advise",
    "alternate_flip",
    "build",
    "coresets",
    "datasets",
    "diagnostics",
    "distributed",
    "errors",
    "experiments",
    "integrations",
    "last_layer_gradient_norm",
    "load_checkpoint",
    "losses",
    "per_sample",
    "plans",
    "policies",
    "report",
    "save_checkpoint",
    "streaming",
    "testing",
    "theory",
    "top_mean",
]

__version__ = "0.1.0"

_HOMES = {
    "Advice": "orderdp.advice",
    "Budget": "orderdp.policies",
    "Column": "orderdp.policy",
    "Context": "orderdp.policy",
    "Indexed": "orderdp.dataset",
    "OrderDP": "orderdp.policies",
    "Policy": "orderdp.policy",
    "Pruner": "orderdp.pruner",
    "Selection": "orderdp.policy",
    "SpacedRepetition": "orderdp.policies",
    "Unlearned": "orderdp.policies",
    "advise": "orderdp.advice",
    "alternate_flip": "orderdp.dataset",
    "build": "orderdp.policies",
    "last_layer_gradient_norm": "orderdp.losses",
    "load_checkpoint": "orderdp.checkpoint",
    "per_sample": "orderdp.losses",
    "save_checkpoint": "orderdp.checkpoint",
    "top_mean": "orderdp.losses",
}

if not TYPE_CHECKING:  # a type checker would accept any misspelled name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'orderdp' has no attribute {name!r}")
        if name not in _HOMES:
            return import_module(f"orderdp.{name}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
