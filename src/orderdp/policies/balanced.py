"""Class balance for any policy that keeps a number known in advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

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
        if with_ratio(self.policy, 1 - size / n).size(n, context) != size:
            raise ConfigError(
                f"class balance needs a policy that leaves out exactly its prune ratio; {describe(self.policy)} keeps "
                f"{size} of {n} samples in epoch {context.epoch}. Use OrderDP, for example."
            )
        return size

    def select(self, table: Table, context: Context) -> Selection:
        """What the policy keeps of each class, in one random order."""
        total = self.size(context.n, context)
        assert context.labels is not None
        groups = _members(context.labels)
        sizes = np.array([len(members) for members in groups])
        budgets = proportional(sizes, total)
        at_ratio = lru_cache(partial(with_ratio, self.policy))  # classes of one size share a policy
        columns = lru_cache(table.__getitem__)
        kept, dense, weighted = [], np.ones(context.n, dtype=np.float32), False
        for number, (members, budget) in enumerate(zip(groups, budgets.tolist(), strict=True)):
            if budget == 0:
                continue
            seed = key64(context.seed, "class", number)
            earlier = None if context.earlier is None else partial(_budget_then, context.earlier, sizes, number)
            inside = Context(len(members), context.epoch, seed, context.epochs, earlier=earlier)
            try:
                part = at_ratio(1 - budget / len(members)).select(_Part(columns, members), inside)
            except ConfigError as error:
                raise ConfigError(
                    f"class {context.labels[members[0]]} has {len(members)} samples, of which {budget} are to be kept, "
                    f"and the policy cannot do that: {error} Or give small classes one label in common."
                ) from error
            kept.append(members[part.indices])
            weighted = weighted or part.weights is not None
            # Inside its class a sample weighs budget / (size * pi); of all kept, total / (n * pi). A class that is kept
            # whole or by chance alone comes without weights: inside it they are 1.
            inside_class = 1.0 if part.weights is None else part.weights
            dense[kept[-1]] = inside_class * (total * len(members) / (context.n * budget))
        indices = shuffled(np.concatenate(kept), context)
        return Selection(indices, dense[indices] if weighted else None)


def _budget_then(kept: Callable[[int], int], sizes: np.ndarray, number: int, epoch: int) -> int:
    """What a class was allowed in an earlier epoch."""
    return int(proportional(sizes, kept(epoch))[number])


class _Part:
    """Some rows of a table."""

    def __init__(self, columns: Callable[[str], np.ndarray], rows: np.ndarray) -> None:
        self.n = len(rows)
        self._columns = columns
        self._rows = rows

    def __getitem__(self, name: str) -> np.ndarray:
        part: np.ndarray = self._columns(name)[self._rows]
        return part


def _members(labels: np.ndarray) -> list[np.ndarray]:
    """The samples of each class, in the order of the classes."""
    codes = labels.astype(np.int64) - int(labels.min())
    if codes.max() >= 1 << 16:
        codes = np.unique(labels, return_inverse=True)[1]
    sizes = np.bincount(codes)
    if len(sizes) <= 1 << 16:
        codes = codes.astype(np.uint16)  # numbers this short are sorted several times faster
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(sizes[sizes > 0])[:-1])
