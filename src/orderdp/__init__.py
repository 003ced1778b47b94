"""OrderDP: train on fewer samples each epoch, at little or no loss of accuracy.

Names are loaded when they are first used, so that importing this package costs nothing by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderdp import coresets, diagnostics, errors, plans, policies, theory
    from orderdp.advice import Advice, advise
    from orderdp.augment import alternate_flip
    from orderdp.checkpoint import load_checkpoint, save_checkpoint
    from orderdp.dataset import Indexed
    from orderdp.losses import last_layer_gradient_norm, per_sample, top_mean
    from orderdp.policies import Budget, OrderDP, Unlearned
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
    "Unlearned",
    "__version__",
    "advise",
    "alternate_flip",
    "coresets",
    "diagnostics",
    "errors",
    "last_layer_gradient_norm",
    "load_checkpoint",
    "per_sample",
    "plans",
    "policies",
    "save_checkpoint",
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
    "Unlearned": "orderdp.policies",
    "advise": "orderdp.advice",
    "alternate_flip": "orderdp.augment",
    "last_layer_gradient_norm": "orderdp.losses",
    "load_checkpoint": "orderdp.checkpoint",
    "per_sample": "orderdp.losses",
    "save_checkpoint": "orderdp.checkpoint",
    "top_mean": "orderdp.losses",
}


_MODULES = ("coresets", "diagnostics", "errors", "losses", "plans", "policies", "theory")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"orderdp.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'orderdp' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
