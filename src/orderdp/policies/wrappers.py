"""Policies around another policy: budgets, uniform tails, class balance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from orderdp._draw import key64
from orderdp._validation import check_ratio
from orderdp.errors import ConfigError
from orderdp.policies._selection import has_ratio, proportional, shuffled, uniform, with_ratio
from orderdp.policies.learned import SkipLearned, threshold_config
from orderdp.policy import (
    Column,
    Context,
    Policy,
    Selection,
    Table,
    describe,
    epoch_sizes,
    nominal_ratio,
    size_bounds,
    total_samples,
)

__all__ = ["Balanced", "Budget", "PolicyWrapper", "UniformTail", "refuse_budget"]


class PolicyWrapper:
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
    def compute_columns(self) -> Callable[..., Mapping[str, Any]] | None:
        """As the policy does."""
        own: Callable[..., Mapping[str, Any]] | None = getattr(self.policy, "compute_columns", None)
        return own

    def total(self, n: int, epochs: int | None) -> int | None:
        """As the policy does."""
        return total_samples(self.policy, n, epochs)

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int] | None:
        """As the policy does."""
        return epoch_sizes(self.policy, n, epochs)

    @property
    def lr_scale(self) -> Callable[[int, int], float] | None:
        """As the policy does."""
        own: Callable[[int, int], float] | None = getattr(self.policy, "lr_scale", None)
        return own


@dataclass(frozen=True, init=False, repr=False)
class Budget(PolicyWrapper):
    """Training ends when a share of the samples of full training is spent, however many epochs that takes.

    ::

        pruner = orderdp.Pruner(orderdp.Budget(0.5), train_set, epochs=10)  # as much as five epochs of all data
        loader = pruner.loader(train_set, batch_size=128, drop_last=True)
        for epoch in pruner.remaining_epochs():
            for index, (x, y) in loader:
                ...

    By default each epoch takes everything that is not learned and a tenth of the rest: fewer epochs of all data where
    nothing is learned, more and shorter epochs where much is.

    >>> Budget(0.5, learned=0.95)
    Budget(0.5, learned=0.95)
    >>> Budget(0.5).total(n=50_000, epochs=10)
    250000

    Args:
        share: Share of ``epochs`` epochs of all data that is spent, in (0, 1].
        learned: When a sample is learned, as in `SkipLearned`.
        refresh: Share of the learned samples that an epoch trains on, as in `SkipLearned`.
        policy: Another policy that says what an epoch trains on. With `FullData` the budget is fewer epochs, to the
            sample.
    """

    share: float
    policy: Policy

    def __init__(
        self, share: float, *, learned: Any = None, refresh: float | None = None, policy: Policy | None = None
    ) -> None:
        check_ratio("share", share, zero_allowed=False, one_allowed=True)
        given: dict[str, Any] = {
            name: value for name, value in (("learned", learned), ("refresh", refresh)) if value is not None
        }
        if policy is None:
            policy = SkipLearned(**given)
        elif given:
            raise ConfigError(
                f"{' and '.join(given)} belong to the policy that a budget has by default, and another one was given: "
                f"{describe(policy)}. Leave one out."
            )
        if getattr(policy, "every", "epoch") == "batch":
            raise ConfigError('a budget needs a policy that draws once per epoch, got every="batch".')
        if isinstance(policy, Budget):
            raise ConfigError(f"a budget within a budget has no meaning, got {describe(policy)}. Leave one out.")
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "policy", policy)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the constructor needs to make an equal policy, without what it would take by itself."""
        chosen: dict[str, Any] = {"share": self.share}
        default = SkipLearned()
        if type(self.policy) is not SkipLearned or self.policy.unbiased:
            return {**chosen, "policy": self.policy}
        for name in ("learned", "refresh"):
            if getattr(self.policy, name) != getattr(default, name):
                chosen[name] = getattr(self.policy, name)
        return chosen

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.parameters.items() if name != "share"}
        if "learned" in shown and threshold_config(shown["learned"]) == getattr(shown["learned"], "value", None):
            shown["learned"] = shown["learned"].value
        return f"Budget({', '.join([f'{self.share!r}', *(f'{name}={value!r}' for name, value in shown.items())])})"

    @staticmethod
    def parameters_at(prune_ratio: float) -> dict[str, Any]:
        """With which this share of full training is left out."""
        check_ratio("prune_ratio", prune_ratio)
        return {"share": round(1 - prune_ratio, 12)}

    def total(self, n: int, epochs: int | None) -> int:
        """How many samples the whole training is trained on, repeats included."""
        if epochs is None:
            raise ConfigError(
                "a budget is a share of full training and needs to know how many epochs that has. Give Pruner(..., "
                "epochs=...)."
            )
        total = round(self.share * epochs * n)
        if total < 1:
            raise ConfigError(f"{self} of {epochs} epochs of {n} samples is nothing. Spend more.")
        return total

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int] | None:
        """The size of every epoch, where that is known in advance and no sample is left out by batching; else None."""
        left = self.total(n, epochs)
        sizes: list[int] = []
        while left > 0:
            size = self.policy.size(n, Context(n=n, epoch=len(sizes), epochs=epochs))
            if size is None:
                return None
            sizes.append(min(size, left))
            left -= sizes[-1]
        return sizes

    def size(self, n: int, context: Context) -> None:
        """It depends on what is left."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """What the policy may take, and no more than is left."""
        fewest, most = size_bounds(self.policy, n, context)
        left = self.left(context)
        return min(fewest, left), min(most, left)

    def nominal_ratio(self, context: Context) -> float:
        """The share of full training that is left out."""
        return 1 - self.share

    def select(self, table: Table, context: Context) -> Selection:
        """As the policy does; in the last epoch as many as are left."""
        selection = self.policy.select(table, context)
        left = self.left(context)
        if len(selection) <= left:
            return selection
        # By index and not by place in the order: so ranks that each hold a part of the samples draw the same.
        kept = np.zeros(context.n, dtype=np.bool_)
        kept[uniform(np.sort(selection.indices), left, context, "budget")] = True
        places = kept[selection.indices]
        weights = selection.weights
        return Selection(selection.indices[places], None if weights is None else weights[places])

    def left(self, context: Context) -> int:
        """Samples that may still be trained on; one at least, so that an epoch is never empty."""
        return max(1, self.total(context.n, context.epochs) - context.trained)


def refuse_budget(policy: object, reason: str) -> None:
    """Raises where the policy, or one inside it, is a budget."""
    inside = policy
    while inside is not None:
        if isinstance(inside, Budget):
            raise ConfigError(
                f"a budget is a share of full training, and {reason}, got {describe(inside)}. Use its policy without "
                "the budget, for example orderdp.policies.SkipLearned()."
            )
        inside = getattr(inside, "policy", None)


@dataclass(frozen=True)
class UniformTail(PolicyWrapper):
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


@dataclass(frozen=True)
class Balanced(PolicyWrapper):
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
        if isinstance(self.policy, PolicyWrapper):
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
