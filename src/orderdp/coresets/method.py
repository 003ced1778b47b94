"""What all static methods share: the checks before the work, the budgets, keeping the largest scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from orderdp import draw
from orderdp.checks import checked_seed
from orderdp.coresets.budgets import Balance, budgets, check_balance, class_members
from orderdp.coresets.given import first_few
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import DatasetError
from orderdp.planning import check_ratio
from orderdp.policies.kit import count_kept
from orderdp.policy import Selection
from orderdp.randomness import generator, key64

__all__ = ["Group", "Method", "ScoreMethod", "Task", "Weighted", "checked_scores", "inits_of"]


@dataclass(frozen=True, eq=False)
class Group:
    """Samples that share a budget: a class, or all of them.

    Attributes:
        name: The class, or "all".
        members: Which samples, ascending.
        count: How many of them are kept.
    """

    name: int | str
    members: np.ndarray
    count: int


@dataclass(frozen=True, eq=False)
class Weighted:
    """Places within a group in the order in which they were picked, and the weight of each."""

    places: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Task:
    """One selection to be made: where the arrays come from, how many are kept, under which seed."""

    source: Source
    k: int
    seed: int
    balanced: Balance
    who: str

    @cached_property
    def labels(self) -> np.ndarray:
        """One class for each sample."""
        if self.source.labels is None:
            raise DatasetError(f"{self.who} needs the label of each sample.")
        return self.source.labels

    @cached_property
    def groups(self) -> list[Group]:
        """Who shares a budget. Groups that keep nothing are left out."""
        if self.balanced is False:
            return [Group("all", np.arange(self.source.n), self.k)]
        shared = budgets(self.labels, self.k, self.balanced)
        members = class_members(self.labels)
        return [Group(name, members[name], count) for name, count in shared.items() if count]

    def rng(self, *tags: int | str) -> np.random.Generator:
        """A generator of this method, seed and purpose."""
        return generator(self.seed, "coreset", self.who, *tags)

    def largest(self, scores: np.ndarray) -> Selection:
        """The largest scores of each group, in the order of the samples; equal ones are chosen among fairly."""
        scores, kept = checked_scores(scores, self.source.n, self.who), []
        for group in self.groups:
            key = key64(self.seed, "coreset", self.who, "ties", group.name)
            kept.append(group.members[draw.top_of_pool(scores[group.members], group.count, key)])
        return Selection(np.sort(np.concatenate(kept)))

    def pick(self, picks: Callable[[Group], np.ndarray]) -> Selection:
        """What `picks` says for each group, as places among its members in the order in which they were picked."""
        return Selection(np.concatenate([group.members[picks(group)] for group in self.groups]))

    def pick_weighted(self, picks: Callable[[Group], Weighted]) -> Selection:
        """The same with weights.

        They are scaled so that each group counts as much as it has members, and the mean of all weights is 1: the
        loss of a step is the mean of weight times loss, so its scale stays that of training on all data.
        """
        indices, weights = [], []
        covered = sum(len(group.members) for group in self.groups)
        for group in self.groups:
            picked = picks(group)
            indices.append(group.members[picked.places])
            share = self.k * len(group.members) / covered
            weights.append(picked.weights * (share / picked.weights.sum()))
        return Selection(np.concatenate(indices), np.concatenate(weights).astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class Method:
    """A static method: it chooses once, before training.

    Args:
        balanced: True: each class keeps its share, and at least one sample where there is one for each class.
            "equal": each class keeps as many; what a small class cannot fill goes to the others. False: classes do
            not matter.
    """

    balanced: Balance = True

    def __post_init__(self) -> None:
        check_balance(self.balanced)

    @property
    def needs(self) -> Needs:
        """What it asks of the proxy."""
        return Needs()

    def select(self, proxy: Source, prune_ratio: float, *, seed: int) -> Selection:
        """What is kept of the proxy's samples: round((1 - prune_ratio) * n) of them.

        Args:
            proxy: A `Proxy`, or `Arrays`.
            prune_ratio: Share left out, in [0, 1).
            seed: Of all random choices, those among equal samples included.
        """
        return self.choose(self.task(proxy, prune_ratio, seed))

    def task(self, proxy: Source, prune_ratio: float, seed: int) -> Task:
        """The selection to be made, everything about it checked before the work."""
        check_ratio("prune_ratio", prune_ratio)
        who = type(self).__name__
        k, needs = count_kept(proxy.n, prune_ratio), self.needs
        if proxy.labels is None and (needs.labels or self.balanced is not False):
            raise DatasetError(
                f"{who} needs the label of each sample"
                + ("." if needs.labels else " for class-balanced budgets.")
                + (" Give the proxy labels=..." + ("." if needs.labels else ", or the method balanced=False."))
            )
        proxy.check(needs, who)
        return Task(proxy, k, checked_seed(seed), self.balanced, who)

    def choose(self, task: Task) -> Selection:
        """The rule of the method."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ScoreMethod(Method):
    """A method that gives each sample a score of its own and keeps the largest."""

    def scores(self, proxy: Source, *, seed: int = 0) -> np.ndarray:
        """One number for each sample; the largest are kept."""
        proxy.check(self.needs, type(self).__name__)
        return self.rate(proxy, seed)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The scores, without checks."""
        raise NotImplementedError

    def choose(self, task: Task) -> Selection:
        """The largest scores of each group."""
        return task.largest(self.rate(task.source, task.seed))


def inits_of(needs: Needs, source: Source) -> Iterator[int]:
    """Which models a method averages over."""
    return iter(range(source.inits if needs.inits is None else needs.inits))


def checked_scores(scores: np.ndarray, n: int, who: str) -> np.ndarray:
    """One number for each of `n` samples, infinite ones included, in double precision; or an error.

    Args:
        scores: Of a method, which may be one that a user has written.
        n: How many there must be.
        who: Whose they are.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.shape != (n,):
        raise DatasetError(f"the scores of {who} must be {n} numbers, one for each sample, got shape {scores.shape}.")
    bad = np.flatnonzero(np.isnan(scores))
    if len(bad):
        raise DatasetError(
            f"the scores of {who} must be numbers; {len(bad)} of {n} are NaN: {first_few(bad.tolist())}. "
            "Give such samples inf to keep them first, or -inf to keep them last."
        )
    return scores
