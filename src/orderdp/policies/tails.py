"""A uniform tail: the last part of training draws at random, at the ratio it had."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.kit import shuffled, uniform
from orderdp.policies.ratios import has_ratio, with_ratio
from orderdp.policies.wrapping import Wrapping
from orderdp.policy import Context, Policy, Selection, Table, nominal_ratio, size_bounds

__all__ = ["UniformTail"]


@dataclass(frozen=True)
class UniformTail(Wrapping):
    """A policy; and in the last share of training, as many samples as it would keep, drawn uniformly from all.

    Keeping the hardest samples harms most at the end, when the learning rate is small and what is trained on last is
    remembered best.

    >>> from orderdp.policies.orderdp import OrderDP
    >>> policy = UniformTail(OrderDP(0.5), 0.3)
    >>> [policy.in_tail(Context(n=100, epoch=epoch, epochs=10)) for epoch in (0, 6, 7, 9)]
    [False, False, True, True]

    Args:
        policy: What decides before the tail.
        tail: The share of training that is tail, in [0, 1]: of the epochs, or of the samples under a `Budget`.
    """

    policy: Policy
    tail: float = 0.3

    def __post_init__(self) -> None:
        check_ratio("tail", self.tail, one_allowed=True)
        if getattr(self.policy, "every", "epoch") == "batch":
            raise ConfigError('a uniform tail needs a policy that draws once an epoch, got every="batch".')

    def in_tail(self, context: Context) -> bool:
        """Whether the epoch belongs to the tail; its start is counted in whole epochs."""
        if context.total is not None:
            return context.trained >= (1 - self.tail) * context.total
        if context.epochs is None:
            raise ConfigError("a tail needs to know how long training is. Give Pruner(..., epochs=...).")
        return context.epoch >= context.epochs - round(self.tail * context.epochs)

    def with_ratio(self, prune_ratio: float) -> UniformTail:
        """The same with the policy at another ratio."""
        if not has_ratio(self.policy):
            raise ConfigError(f"{self.policy} has no prune ratio that could be changed.")
        return replace(self, policy=with_ratio(self.policy, prune_ratio))

    def size(self, n: int, context: Context) -> int | None:
        """That of the policy."""
        self.in_tail(context)  # says now, and not at some draw, that it needs to know the epochs
        return self.policy.size(n, context)

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Those of the policy."""
        return size_bounds(self.policy, n, context)

    def nominal_ratio(self, context: Context) -> float | None:
        """That of the policy."""
        return nominal_ratio(self.policy, context.n, context)

    def select(self, table: Table, context: Context) -> Selection:
        """As the policy does, or uniformly."""
        if not self.in_tail(context):
            return self.policy.select(table, context)
        size = self.policy.size(context.n, context)
        size = len(self.policy.select(table, context)) if size is None else size
        return Selection(shuffled(uniform(np.arange(context.n), size, context, "tail"), context))
