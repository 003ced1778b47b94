"""Policies that wrap another policy: budgets, uniform tails, class balance, samples that are left out for good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from orderdp._draw import key64
from orderdp._validation import check_ratio, stored_count
from orderdp.errors import ConfigError, StateError
from orderdp.policies.learned import Probability, SkipLearned
from orderdp.policy import (
    Column,
    Context,
    Policy,
    Selection,
    StepwisePolicy,
    Table,
    TableRows,
    Threshold,
    describe,
    nominal_ratio,
    proportional,
    shuffled,
    size_bounds,
    uniform,
)

__all__ = [
    "ActiveIndices",
    "ActivePerBatchPolicy",
    "ActivePolicy",
    "Balanced",
    "Budget",
    "PolicyWrapper",
    "UniformTail",
    "refuse_budget",
]


class PolicyWrapper(Policy):
    """Base of policies that wrap another policy, their attribute ``policy``: every member forwards to it."""

    policy: Policy

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that the policy needs."""
        return self.policy.columns

    @property
    def compute_columns(self) -> Callable[..., Mapping[str, Any]] | None:
        """The policy's ``compute_columns``; None if it has none."""
        return self.policy.compute_columns

    @property
    def needs_feedback(self) -> bool:
        """Whether the policy needs feedback."""
        return self.policy.needs_feedback

    @property
    def by_index(self) -> bool:
        """Whether the policy refers to samples by their index."""
        return self.policy.by_index

    @property
    def learned(self) -> Threshold | None:
        """The policy's threshold; None if it has none."""
        return self.policy.learned

    @property
    def has_ratio(self) -> bool:
        """Whether the policy has a prune ratio that can be changed."""
        return self.policy.has_ratio

    def size(self, n: int, context: Context) -> int | None:
        """Return the size of the policy."""
        return self.policy.size(n, context)

    def select(self, table: Table, context: Context) -> Selection:
        """Select as the policy does."""
        return self.policy.select(table, context)

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the bounds of the policy."""
        return size_bounds(self.policy, n, context)

    def nominal_ratio(self, context: Context) -> float | None:
        """Return the nominal ratio of the policy."""
        return nominal_ratio(self.policy, context.n, context)

    def total(self, n: int, epochs: int | None) -> int | None:
        """Return the policy's total; None if it has none."""
        return self.policy.total(n, epochs)

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int] | None:
        """Return the policy's epoch sizes; None if they are not known in advance."""
        return self.policy.epoch_sizes(n, epochs)

    def offered(self, n: int) -> int:
        """Return the number of samples that the policy selects from."""
        return self.policy.offered(n)

    def with_ratio(self, prune_ratio: float) -> Policy:
        """Return the same wrapper with the policy at another ratio."""
        changed = copy(self)
        object.__setattr__(changed, "policy", self.policy.with_ratio(prune_ratio))  # a wrapper may be frozen
        return changed

    def lr_scale(self, n: int, kept: int) -> float:
        """Return the policy's factor on the learning rate."""
        return self.policy.lr_scale(n, kept)

    def on_epoch_start(self, epoch: int) -> None:
        """Do what is due for the policy."""
        self.policy.on_epoch_start(epoch)


@dataclass(frozen=True, init=False, repr=False)
class Budget(PolicyWrapper):
    """Ends training when a fraction of the samples of full training is spent, however many epochs that takes.

    ::

        pruner = orderdp.Pruner(orderdp.Budget(0.5), train_set, epochs=10)  # as much as five epochs of all data
        loader = pruner.loader(train_set, batch_size=128, drop_last=True)
        for epoch in pruner.remaining_epochs():
            for index, (x, y) in loader:
                ...

    By default each epoch trains on all samples that are not learned and on a tenth of the rest: fewer epochs of all
    data if nothing is learned, more and shorter epochs if much is.

    >>> Budget(0.5, learned=0.95)
    Budget(0.5, learned=0.95)
    >>> Budget(0.5).total(n=50_000, epochs=10)
    250000

    Args:
        share: Fraction of ``epochs`` epochs of all data that is spent, in (0, 1].
        learned: When a sample is learned, as in `SkipLearned`.
        refresh: Fraction of the learned samples that an epoch trains on, as in `SkipLearned`.
        policy: Another policy that selects what an epoch trains on. With `FullData` the budget means fewer epochs,
            exact to the sample.
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
                f"{' and '.join(given)} configure the default policy of a budget, but another policy was given: "
                f"{describe(policy)}. Leave one of them out."
            )
        if policy.every == "batch":
            raise ConfigError('a budget needs a policy that selects once per epoch, got every="batch".')
        if isinstance(policy, Budget):
            raise ConfigError(f"budgets cannot be nested, got {describe(policy)}. Use one of them.")
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "policy", policy)

    @property
    def parameters(self) -> dict[str, Any]:
        """The constructor arguments of an equal policy, without those that have their default value."""
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
        learned = shown.get("learned")
        if type(learned) is Probability and learned.floor == 0:
            shown["learned"] = learned.value
        return f"Budget({', '.join([f'{self.share!r}', *(f'{name}={value!r}' for name, value in shown.items())])})"

    @classmethod
    def parameters_at(cls, prune_ratio: float) -> dict[str, Any]:
        """Return the parameters that leave out this fraction of full training."""
        check_ratio("prune_ratio", prune_ratio)
        return {"share": round(1 - prune_ratio, 12)}

    def total(self, n: int, epochs: int | None) -> int:
        """Return the number of samples in the whole training, repeats included.

        Args:
            n: Number of samples.
            epochs: Number of planned epochs of full training.
        """
        if epochs is None:
            raise ConfigError(
                "a budget is a fraction of full training and needs to know how many epochs that has. Use Pruner(..., "
                "epochs=...)."
            )
        total = round(self.share * epochs * n)
        if total < 1:
            raise ConfigError(f"{self} of {epochs} epochs of {n} samples is less than one sample. Use a larger budget.")
        return total

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int] | None:
        """Return the size of every epoch, if known in advance and if batching drops no sample; otherwise None.

        Args:
            n: Number of samples.
            epochs: Number of planned epochs of full training.
        """
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
        """Return None: the size depends on the rest of the budget."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the bounds of the policy, limited to the rest of the budget."""
        fewest, most = size_bounds(self.policy, n, context)
        left = self.left(context)
        return min(fewest, left), min(most, left)

    @property
    def has_ratio(self) -> bool:
        """False: a budget is spent over all epochs, and has no ratio per epoch."""
        return False

    def with_ratio(self, prune_ratio: float) -> Policy:
        """Raise: see `has_ratio`."""
        raise ConfigError(f"{describe(self)} has no prune ratio that could be changed.")

    def nominal_ratio(self, context: Context) -> float:
        """Return the fraction of full training that is left out."""
        return 1 - self.share

    def select(self, table: Table, context: Context) -> Selection:
        """Select as the policy does; in the last epoch no more than the rest of the budget."""
        selection = self.policy.select(table, context)
        left = self.left(context)
        if len(selection) <= left:
            return selection
        # By index and not by position in the order: so that ranks that each hold a shard draw the same samples.
        kept = np.zeros(context.n, dtype=np.bool_)
        kept[uniform(np.sort(selection.indices), left, context, "budget")] = True
        places = kept[selection.indices]
        weights = selection.weights
        return Selection(selection.indices[places], None if weights is None else weights[places])

    def left(self, context: Context) -> int:
        """Return the rest of the budget in samples; at least one, so that an epoch is never empty.

        Args:
            context: The epoch's context.
        """
        # A sampler may hand out more or fewer samples than there are; the budget is a fraction of the data set's.
        total = self.total(context.n, context.epochs) if context.total is None else context.total
        return max(1, total - context.trained)


def refuse_budget(policy: Policy, reason: str) -> None:
    """Raise if the policy, or one inside it, is a budget."""
    if isinstance(policy, Budget):
        raise ConfigError(
            f"a budget is a fraction of full training, but {reason}, got {describe(policy)}. Use its policy without "
            "the budget, for example orderdp.policies.SkipLearned()."
        )
    if isinstance(policy, PolicyWrapper):
        refuse_budget(policy.policy, reason)


@dataclass(frozen=True)
class UniformTail(PolicyWrapper):
    """A policy; and in the last fraction of training, as many samples as it would keep, drawn uniformly from all.

    Keeping the hardest samples harms most at the end, when the learning rate is small and the last samples have the
    most lasting effect on the model.

    >>> from orderdp.policies.orderdp import OrderDP
    >>> policy = UniformTail(OrderDP(0.5), 0.3)
    >>> [policy.in_tail(Context(n=100, epoch=epoch, epochs=10)) for epoch in (0, 6, 7, 9)]
    [False, False, True, True]

    Args:
        policy: Selects the samples before the tail.
        tail: Fraction of training that is the tail, in [0, 1]: of the epochs, or of the samples under a `Budget`.
    """

    policy: Policy
    tail: float = 0.3

    def __post_init__(self) -> None:
        check_ratio("tail", self.tail, one_allowed=True)
        if self.policy.every == "batch":
            raise ConfigError('a uniform tail needs a policy that selects once per epoch, got every="batch".')

    def in_tail(self, context: Context) -> bool:
        """Return True if the epoch is in the tail, whose length is rounded to whole epochs.

        Args:
            context: The epoch's context.
        """
        if context.total is not None:
            return context.trained >= (1 - self.tail) * context.total
        if context.epochs is None:
            raise ConfigError("a uniform tail needs to know how many epochs are planned. Use Pruner(..., epochs=...).")
        return context.epoch >= context.epochs - round(self.tail * context.epochs)

    def size(self, n: int, context: Context) -> int | None:
        """Return the size of the policy."""
        self.in_tail(context)  # raises now, and not at some selection, if the number of epochs is missing
        return self.policy.size(n, context)

    def select(self, table: Table, context: Context) -> Selection:
        """Select as the policy does, or uniformly in the tail."""
        if not self.in_tail(context):
            return self.policy.select(table, context)
        size = self.policy.size(context.n, context)
        size = len(self.policy.select(table, context)) if size is None else size
        return Selection(shuffled(uniform(np.arange(context.n), size, context, "tail"), context))


@dataclass(frozen=True)
class Balanced(PolicyWrapper):
    """Applies a policy to each class separately, so that every class keeps its fraction of the data.

    The numbers kept are proportional to the class sizes and add up to exactly what the policy keeps without classes.

    >>> from orderdp.policies.orderdp import OrderDP
    >>> labels = np.repeat([0, 1], [90, 10])
    >>> Balanced(OrderDP(0.5)).size(100, Context(n=100, epoch=0, labels=labels))
    50

    Args:
        policy: Any policy that keeps exactly its prune ratio. ``Pruner(..., labels=...)`` gives the classes.
    """

    policy: Policy

    def __post_init__(self) -> None:
        if isinstance(self.policy, PolicyWrapper):
            raise ConfigError(
                "class balance must be inside the schedule: Scheduled(Balanced(policy), schedule), got Balanced of "
                f"{self.policy!r}."
            )
        if not self.policy.has_ratio:
            raise ConfigError(f"class balance needs a policy with a prune ratio, got {describe(self.policy)}.")
        if self.policy.every == "batch":
            raise ConfigError('class balance needs a policy that selects once per epoch, got every="batch".')

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples the policy keeps without classes."""
        if context.labels is None:
            raise ConfigError("class balance needs the class of every sample. Use Pruner(..., labels=...).")
        size = self.policy.size(n, context)
        if size is None:
            raise ConfigError(
                f"class balance splits a number of samples that is known in advance; {describe(self.policy)} decides "
                "by the losses how much it keeps. Use a policy with an exact ratio, for example OrderDP."
            )
        if self.policy.with_ratio(1 - size / n).size(n, context) != size:
            raise ConfigError(
                f"class balance needs a policy that leaves out exactly its prune ratio; {describe(self.policy)} keeps "
                f"{size} of {n} samples in epoch {context.epoch}. Use OrderDP, for example."
            )
        return size

    def select(self, table: Table, context: Context) -> Selection:
        """Select what the policy keeps of each class, in one random order."""
        total = self.size(context.n, context)
        assert context.labels is not None
        groups = _members(context.labels)
        sizes = np.array([len(members) for members in groups])
        budgets = proportional(sizes, total)
        at_ratio = lru_cache(self.policy.with_ratio)  # classes of one size share a policy
        columns = lru_cache(table.__getitem__)
        kept, dense, weighted = [], np.ones(context.n, dtype=np.float32), False
        for number, (members, budget) in enumerate(zip(groups, budgets.tolist(), strict=True)):
            if budget == 0:
                continue
            seed = key64(context.seed, "class", number)
            earlier = None if context.earlier is None else partial(_budget_then, context.earlier, sizes, number)
            inside = Context(len(members), context.epoch, seed, context.epochs, earlier=earlier)
            try:
                part = at_ratio(1 - budget / len(members)).select(TableRows(columns, members), inside)
            except ConfigError as error:
                raise ConfigError(
                    f"class {context.labels[members[0]]} has {len(members)} samples, of which {budget} are to be kept, "
                    f"and the policy cannot do that: {error} Or merge small classes under one label."
                ) from error
            kept.append(members[part.indices])
            weighted = weighted or part.weights is not None
            # Inside its class the weight of a sample is budget / (size * pi); among all kept, total / (n * pi). A class
            # that is kept whole or drawn uniformly has no weights: inside it they are 1.
            inside_class = 1.0 if part.weights is None else part.weights
            dense[kept[-1]] = inside_class * (total * len(members) / (context.n * budget))
        indices = shuffled(np.concatenate(kept), context)
        return Selection(indices, dense[indices] if weighted else None)


def _budget_then(kept: Callable[[int], int], sizes: np.ndarray, number: int, epoch: int) -> int:
    """Return the number of samples that a class kept in an earlier epoch."""
    return int(proportional(sizes, kept(epoch))[number])


def _members(labels: np.ndarray) -> list[np.ndarray]:
    """Return the samples of each class, in the order of the classes."""
    codes = labels.astype(np.int64) - int(labels.min())
    if codes.max() >= 1 << 16:
        codes = np.unique(labels, return_inverse=True)[1]
    sizes = np.bincount(codes)
    if len(sizes) <= 1 << 16:
        codes = codes.astype(np.uint16)  # numbers this short are sorted several times faster
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(sizes[sizes > 0])[:-1])


class ActiveIndices:
    """Indices of the samples that have not been removed.

    Args:
        n: Samples in the data set, removed ones included.

    Attributes:
        removed: One flag per sample.
        live: Number of active samples.
    """

    def __init__(self, n: int) -> None:
        self._flags = np.zeros(n, np.bool_)
        self.n = self.live = n
        self._history: list[list[int]] = []  # pairs: first epoch, number of active samples from then on

    @property
    def removed(self) -> np.ndarray:
        """One flag per sample."""
        return self._flags[: self.n]

    def grow(self, n: int) -> None:
        """Grow to `n` samples."""
        if n > len(self._flags):
            larger = np.zeros(max(n, len(self._flags) * 3 // 2), np.bool_)
            larger[: self.n] = self.removed
            self._flags = larger
        self.live += n - self.n
        self.n = n

    def remove(self, gone: np.ndarray) -> None:
        """Mark samples as removed."""
        self.removed[gone] = True
        self.live = self.n - int(np.count_nonzero(self.removed))

    def put_back(self, removed: np.ndarray) -> None:
        """Replace the set of removed samples."""
        self.removed[:] = removed
        self.live = self.n - int(np.count_nonzero(removed))

    def places(self) -> np.ndarray | None:
        """Indices of the active samples; None for all."""
        return None if self.live == self.n else np.flatnonzero(~self.removed)

    # -- history -----------------------------------------------------------------------------------------------

    def note(self, epoch: int) -> None:
        """Store that `epoch` is drawn from the currently active samples."""
        self._history = [entry for entry in self._history if entry[0] < epoch]
        if not self._history or self._history[-1][1] != self.live:
            self._history.append([epoch, self.live])

    def offered(self, epochs: float) -> float:
        """Number of samples that this many epochs would have trained on without pruning."""
        total, last = 0.0, epochs
        for start, live in reversed(self._history):
            total += max(0.0, last - start) * live
            last = min(last, start)
        return total

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a tensor and plain numbers."""
        import torch

        gone = torch.from_numpy(np.flatnonzero(self.removed))
        return {"n": self.n, "removed": gone, "history": [list(entry) for entry in self._history]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> ActiveIndices:
        """Build from `state`, for a data set that may have grown to `n` since."""
        gone = state["removed"].cpu().numpy()
        if gone.dtype != np.int64 or gone.ndim != 1:
            raise ValueError(f"removed samples are {gone.dtype} of shape {gone.shape}")
        if len(gone) and not (gone.min() >= 0 and gone.max() < n):
            raise StateError(
                f"the checkpoint lists removed samples beyond the {n} of the data set. Use another checkpoint."
            )
        roster = cls(n)
        roster.remove(gone)
        pairs = [{"epoch": epoch, "live": live} for epoch, live in state["history"]]
        roster._history = [[stored_count(pair, "epoch"), stored_count(pair, "live", most=n)] for pair in pairs]
        return roster

    def become(self, other: ActiveIndices) -> None:
        """Become equal to `other`."""
        self._flags, self.n, self.live, self._history = other._flags, other.n, other.live, other._history


class ActivePolicy(PolicyWrapper):
    """Policy that sees the active samples only, and otherwise behaves as the inner policy.

    Args:
        inner: The policy.
        roster: The active indices.
    """

    def __init__(self, inner: Policy, roster: ActiveIndices) -> None:
        self.policy, self._roster = inner, roster

    def __repr__(self) -> str:
        return describe(self.policy)

    def __getattr__(self, name: str) -> Any:
        if name == "policy" or name.startswith("_"):  # copy and pickle ask before `policy` is set
            raise AttributeError(name)
        return getattr(self.policy, name)

    def size(self, n: int, context: Context) -> int | None:
        """Number of active samples that are kept."""
        return self.policy.size(self._roster.live, self._here(context))

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Bounds of `size`, if it depends on the losses."""
        return size_bounds(self.policy, self._roster.live, self._here(context))

    def nominal_ratio(self, context: Context) -> float | None:
        """Nominal prune ratio of the inner policy."""
        return nominal_ratio(self.policy, self._roster.live, self._here(context))

    def lr_scale(self, n: int, kept: int) -> float:
        """Learning-rate factor of the inner policy."""
        return self.policy.lr_scale(self._roster.live, kept)

    def offered(self, n: int) -> int:
        """Number of samples to draw from."""
        return self._roster.live

    def on_epoch_start(self, epoch: int) -> None:
        """Store the number of active samples for the epoch that is drawn next."""
        self._roster.note(epoch)
        self.policy.on_epoch_start(epoch)

    def select(self, table: Table, context: Context) -> Selection:
        """Select among the active samples."""
        places = self._roster.places()
        shown = table if places is None else TableRows(table.__getitem__, places)
        selection = self.policy.select(shown, self._here(context))
        return selection if places is None else Selection(places[selection.indices], selection.weights)

    def select_among(self, table: Table, handed_out: np.ndarray, context: Context) -> Selection:
        """Select among those samples of a sampler that are active."""
        there = np.flatnonzero(~self._roster.removed[handed_out])
        selection = self.policy.select_among(table, handed_out[there], context)
        return Selection(there[selection.indices], selection.weights)

    def bounds_among(self, count: int, context: Context) -> tuple[int, int]:
        """Bounds of the number of samples that are kept of `count`, some of which may have been removed."""
        fewest, most = self.policy.bounds_among(count, context)
        return fewest if self._roster.live == self._roster.n else 1, most

    def total(self, n: int, epochs: int | None) -> int | None:
        """Samples in the whole training, as for a data set of the active samples."""
        return self.policy.total(self._roster.live, epochs)

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int] | None:
        """Sizes of all epochs, as for a data set of the active samples."""
        return self.policy.epoch_sizes(self._roster.live, epochs)

    def _here(self, context: Context) -> Context:
        labels = context.labels
        if labels is not None:
            labels = labels[~self._roster.removed]
        return replace(context, n=self._roster.live, labels=labels)


class ActivePerBatchPolicy(ActivePolicy, StepwisePolicy):
    """`ActivePolicy` for a policy that selects at every step."""

    every = "batch"
    policy: StepwisePolicy

    def candidates(self, context: Context) -> np.ndarray:
        """Candidates among the active samples."""
        places, drawn = self._roster.places(), self.policy.candidates(self._here(context))
        candidates: np.ndarray = drawn if places is None else places[drawn]
        return candidates

    def select_from(self, part: np.ndarray, scores: np.ndarray, count: int, context: Context) -> np.ndarray:
        """Selection of the inner policy."""
        picked: np.ndarray = self.policy.select_from(part, scores, count, self._here(context))
        return picked
