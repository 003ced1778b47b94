"""What policies that wrap another have in common: they hand on what it remembers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orderdp.policy import Column, Policy, epoch_sizes, total_samples

__all__ = ["Wrapping"]


class Wrapping:
    """A policy round another one, which it calls ``policy``."""

    policy: Policy

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the policy needs remembered."""
        return tuple(getattr(self.policy, "columns", ()))

    @property
    def needs_feedback(self) -> bool:
        """As the policy does."""
        return bool(getattr(self.policy, "needs_feedback", True))

    @property
    def remember(self) -> Callable[..., Mapping[str, Any]] | None:
        """As the policy does."""
        own: Callable[..., Mapping[str, Any]] | None = getattr(self.policy, "remember", None)
        return own

    def total(self, n: int, epochs: int | None) -> int | None:
        """As the policy does."""
        return total_samples(self.policy, n, epochs)

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int] | None:
        """As the policy does."""
        return epoch_sizes(self.policy, n, epochs)

    def lr_scale(self, n: int, kept: int) -> float:
        """As the policy does."""
        own: Callable[[int, int], float] | None = getattr(self.policy, "lr_scale", None)
        return 1.0 if own is None else own(n, kept)
