"""Base of coreset methods: budgets per class, the task of a method, and methods that rate every sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from orderdp import _draw as draw
from orderdp._draw import generator, key64
from orderdp._validation import check_ratio, checked_seed
from orderdp.coresets.sources import FeatureSource, Requirements, first_few
from orderdp.errors import ConfigError, DatasetError
from orderdp.policies._selection import count_kept, proportional
from orderdp.policy import Selection

if TYPE_CHECKING:
    pass

__all__ = [
    "Balance",
    "Group",
    "Method",
    "ScoreMethod",
    "Task",
    "Weighted",
    "budgets",
    "check_balance",
    "checked_scores",
    "class_members",
    "even_budgets",
    "inits_of",
    "proportional_budgets",
]


#: True: each class keeps the same fraction. "equal": each class keeps the same number. False: classes do not matter.
Balance: TypeAlias = bool | Literal["equal"]


def check_balance(balanced: Any) -> None:
    """Raise unless `balanced` is True, False or "equal"."""
    if not (isinstance(balanced, bool) or balanced == "equal"):
        raise ConfigError(
            'balanced must be True (each class keeps the same fraction), "equal" (each class keeps the same number) or '
            f"False, got {balanced!r}."
        )


def budgets(labels: np.ndarray, k: int, balanced: Literal[True, "equal"] = True) -> dict[int, int]:
    """Number of samples kept per class, `k` in all.

    >>> budgets(np.array([0, 0, 0, 0, 0, 0, 1, 1, 2]), 4)
    {0: 2, 1: 1, 2: 1}
    >>> budgets(np.array([0, 0, 0, 0, 0, 0, 1, 1, 2]), 6, "equal")
    {0: 3, 1: 2, 2: 1}

    Args:
        labels: One class per sample.
        k: Number kept in all.
        balanced: True for proportional, "equal" for equal numbers; see `proportional_budgets` and `even_budgets`.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    shared = even_budgets(sizes, k) if balanced == "equal" else proportional_budgets(sizes, k)
    return dict(zip(classes.tolist(), shared.tolist(), strict=True))


def class_members(labels: np.ndarray) -> dict[int, np.ndarray]:
    """Samples of each class, ascending. One sort for any number of classes.

    >>> {label: members.tolist() for label, members in class_members(np.array([2, 0, 2])).items()}
    {0: [1], 2: [0, 2]}
    """
    classes, sizes = np.unique(labels, return_counts=True)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    return dict(zip(classes.tolist(), members, strict=True))


def proportional_budgets(sizes: np.ndarray, k: int) -> np.ndarray:
    """Budgets in proportion to `sizes`, `k` in all, by the rule of `orderdp.policies._selection.proportional`.

    Integer parts first, then the largest remainders; every group gets at least one if `k` allows it. Equal remainders
    go to the larger group, then to the earlier one. A group never gets more than its size.
    """
    sizes = _checked(sizes, k)
    given = np.zeros_like(sizes)
    if k:
        largest_first = np.argsort(-sizes, kind="stable")
        given[largest_first] = proportional(sizes[largest_first], k)
    return given


def even_budgets(sizes: np.ndarray, k: int) -> np.ndarray:
    """Equal budgets, `k` in all; what a small group cannot fill is split equally among the others.

    If `k` is not divisible, the larger groups get one more, then the later ones.
    """
    sizes = _checked(sizes, k)
    given = np.zeros_like(sizes)
    open_groups, left = np.lexsort((np.arange(len(sizes)), sizes)), k
    # From the smallest group up: once a group can fill its equal part, so can all that follow.
    for position, group in enumerate(open_groups):
        given[group] = min(int(sizes[group]), left // (len(sizes) - position))
        left -= int(given[group])
    return given


def _checked(sizes: np.ndarray, k: int) -> np.ndarray:
    sizes = np.asarray(sizes, dtype=np.int64)
    if not 0 <= k <= sizes.sum():
        raise ConfigError(f"a budget must be between 0 and the {int(sizes.sum())} samples there are, got {k}.")
    return sizes


@dataclass(frozen=True, eq=False)
class Group:
    """Samples with a common budget: a class, or all samples.

    Attributes:
        name: The class, or "all".
        members: Indices of the samples, ascending.
        count: How many of them are kept.
    """

    name: int | str
    members: np.ndarray
    count: int


@dataclass(frozen=True, eq=False)
class Weighted:
    """Positions within a group in the order of selection, and their weights."""

    positions: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Task:
    """One selection to make: the source of the arrays, the number kept, and the seed."""

    source: FeatureSource
    k: int
    seed: int
    balanced: Balance
    who: str

    @cached_property
    def labels(self) -> np.ndarray:
        """One class per sample."""
        if self.source.labels is None:
            raise DatasetError(f"{self.who} needs the label of each sample.")
        return self.source.labels

    @cached_property
    def groups(self) -> list[Group]:
        """Groups with a common budget. Groups that keep nothing are left out."""
        if self.balanced is False:
            return [Group("all", np.arange(self.source.n), self.k)]
        shared = budgets(self.labels, self.k, self.balanced)
        members = class_members(self.labels)
        return [Group(name, members[name], count) for name, count in shared.items() if count]

    def rng(self, *tags: int | str) -> np.random.Generator:
        """Return a generator for this method, seed and purpose."""
        return generator(self.seed, "coreset", self.who, *tags)

    def largest(self, scores: np.ndarray) -> Selection:
        """Select the largest scores of each group, in the order of the samples; ties are broken fairly."""
        scores, kept = checked_scores(scores, self.source.n, self.who), []
        for group in self.groups:
            key = key64(self.seed, "coreset", self.who, "ties", group.name)
            kept.append(group.members[draw.top_of_pool(scores[group.members], group.count, key)])
        return Selection(np.sort(np.concatenate(kept)))

    def select_from(self, picks: Callable[[Group], np.ndarray]) -> Selection:
        """Apply `picks` to each group; it returns positions among the members in the order of selection."""
        return Selection(np.concatenate([group.members[picks(group)] for group in self.groups]))

    def pick_weighted(self, picks: Callable[[Group], Weighted]) -> Selection:
        """Like `select_from`, with weights.

        Weights are scaled so that each group counts in proportion to its size and the mean of all weights is 1: the
        loss of a step is the mean of weight times loss, so its scale stays that of training on all data.
        """
        indices, weights = [], []
        covered = sum(len(group.members) for group in self.groups)
        for group in self.groups:
            picked = picks(group)
            indices.append(group.members[picked.positions])
            share = self.k * len(group.members) / covered
            weights.append(picked.weights * (share / picked.weights.sum()))
        return Selection(np.concatenate(indices), np.concatenate(weights).astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base class of coreset methods, which select once, before training.

    Args:
        balanced: True: each class keeps the same fraction, and at least one sample if the budget allows it. "equal":
            each class keeps the same number; what a small class cannot fill goes to the others. False: classes do not
            matter.
    """

    balanced: Balance = True

    def __post_init__(self) -> None:
        check_balance(self.balanced)

    @property
    def needs(self) -> Requirements:
        """Recordings that the method requires of the proxy."""
        return Requirements()

    def select(self, proxy: FeatureSource, prune_ratio: float, *, seed: int) -> Selection:
        """Select round((1 - prune_ratio) * n) of the proxy's samples.

        Args:
            proxy: A `Proxy`, or `Arrays`.
            prune_ratio: Fraction left out, in [0, 1).
            seed: Seed of all random draws, including ties.
        """
        return self.choose(self.task(proxy, prune_ratio, seed))

    def task(self, proxy: FeatureSource, prune_ratio: float, seed: int) -> Task:
        """Build the task of leaving out `prune_ratio` with `proxy` and `seed`; check everything before any work."""
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
        """Rule of the method: select what `task` asks for."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ScoreMethod(Method):
    """Base class of methods that compute one score per sample and keep the largest."""

    def scores(self, proxy: FeatureSource, *, seed: int = 0) -> np.ndarray:
        """One number per sample; the largest are kept.

        Args:
            proxy: A `Proxy`, or `Arrays`.
            seed: Seed of all random draws.
        """
        proxy.check(self.needs, type(self).__name__)
        return self.rate(proxy, seed)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Compute the scores from `source`, with draws by `seed`, without checks."""
        raise NotImplementedError

    def choose(self, task: Task) -> Selection:
        """Select the largest scores of each group."""
        return task.largest(self.rate(task.source, task.seed))


def inits_of(needs: Requirements, source: FeatureSource) -> Iterator[int]:
    """Numbers of the models that a method averages over."""
    return iter(range(source.inits if needs.inits is None else needs.inits))


def checked_scores(scores: np.ndarray, n: int, who: str) -> np.ndarray:
    """Return one number per sample in double precision, which may be infinite; raise otherwise.

    Args:
        scores: Scores of a method, which may be user-defined.
        n: Number of samples.
        who: Name of the method, for messages.
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
