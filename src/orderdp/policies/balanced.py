"""Class balance for any policy that keeps a number known in advance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.errors import ConfigError
from orderdp.policies.kit import proportional, shuffled
from orderdp.policies.ratios import has_ratio, with_ratio
from orderdp.policies.wrapping import Wrapping
from orderdp.policy import Context, Policy, Selection, Table, describe
from orderdp.randomness import key64

__all__ = ["Balanced"]


@dataclass(frozen=True)
class Balanced(Wrapping):
    """A policy applied to each class by itself, so that every class keeps its share of the data.

    Budgets are proportional to the classes' sizes and add up to exactly what the policy keeps without them.

    >>> from orderdp.policies.orderdp import OrderDP
    >>> labels = np.repeat([0, 1], [90, 10])
    >>> Balanced(OrderDP(0.5)).size(100, Context(n=100, epoch=0, labels=labels))
    50

    Args:
        policy: Any policy with a prune ratio that it keeps to exactly. ``Pruner(..., labels=...)`` brings the classes.
    """

    policy: Policy

    def __post_init__(self) -> None:
        if isinstance(self.policy, Wrapping):
            raise ConfigError(
                f"class balance goes inside: Scheduled(Balanced(policy), schedule), got Balanced of {self.policy!r}."
            )
        if not has_ratio(self.policy):
            raise ConfigError(f"class balance needs a policy with a prune ratio, got {describe(self.policy)}.")
        if getattr(self.policy, "every", "epoch") == "batch":
            raise ConfigError('class balance needs a policy that draws once an epoch, got every="batch".')

    def with_ratio(self, prune_ratio: float) -> Balanced:
        """The same with another ratio."""
        return Balanced(with_ratio(self.policy, prune_ratio))

    def size(self, n: int, context: Context) -> int:
        """As many as the policy keeps without classes."""
        if context.labels is None:
            raise ConfigError("class balance needs the class of every sample. Give Pruner(..., labels=...).")
        size = self.policy.size(n, context)
        if size is None:
            raise ConfigError(
                f"class balance shares out a number known in advance; {describe(self.policy)} decides by the losses "
                "how much it keeps. Use a policy with an exact ratio, for example OrderDP."
            )
        return size

    def select(self, table: Table, context: Context) -> Selection:
        """What the policy keeps of each class, in one random order."""
        total = self.size(context.n, context)
        assert context.labels is not None
        by_class = np.argsort(context.labels, kind="stable")
        _, sizes = np.unique(context.labels, return_counts=True)
        budgets = proportional(sizes, total)
        kept, dense, start = [], np.ones(context.n, dtype=np.float32), 0
        weighted = False
        for number, (size, budget) in enumerate(zip(sizes.tolist(), budgets.tolist(), strict=True)):
            members = by_class[start : start + size]
            start += size
            if budget == 0:
                continue
            part = self._part(table, members, budget, number, context)
            kept.append(members[part.indices])
            if part.weights is not None:
                weighted = True
                # Inside its class a sample weighs budget / (size * pi); of all kept, total / (n * pi).
                dense[kept[-1]] = part.weights * (total * size / (context.n * budget))
        indices = shuffled(np.concatenate(kept), context)
        return Selection(indices, dense[indices] if weighted else None)

    def _part(self, table: Table, members: np.ndarray, budget: int, number: int, context: Context) -> Selection:
        seed = key64(context.seed, "class", number)
        inside = Context(n=len(members), epoch=context.epoch, seed=seed, epochs=context.epochs)
        return with_ratio(self.policy, 1 - budget / len(members)).select(_Part(table, members), inside)


class _Part:
    """Some rows of a table."""

    def __init__(self, table: Table, rows: np.ndarray) -> None:
        self.n = len(rows)
        self._table = table
        self._rows = rows

    def __getitem__(self, name: str) -> np.ndarray:
        part: np.ndarray = self._table[name][self._rows]
        return part
