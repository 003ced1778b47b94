"""The prune ratio of a policy, whatever it calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any

from orderdp.policy import Policy

__all__ = ["has_ratio", "ratio_name", "with_ratio"]


def ratio_name(policy: Any) -> str:
    """Which parameter of a policy, or of its class, is its ratio."""
    return str(getattr(policy, "ratio_name", "prune_ratio"))


def has_ratio(policy: Any) -> bool:
    """Whether there is a ratio that could be changed."""
    return hasattr(policy, "with_ratio") or (is_dataclass(policy) and hasattr(policy, ratio_name(policy)))


def with_ratio(policy: Policy, prune_ratio: float) -> Policy:
    """The same policy at another ratio."""
    own: Callable[[float], Policy] | None = getattr(policy, "with_ratio", None)
    if own is not None:
        return own(prune_ratio)
    changed: Policy = replace(policy, **{ratio_name(policy): prune_ratio})  # type: ignore[type-var]
    return changed
