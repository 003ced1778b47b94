"""Base of coreset methods: budgets per class, the task of a method, and methods that rate every sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import ceil, log
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from orderdp import _draw as draw
from orderdp._draw import generator, key64
from orderdp._validation import check_ratio, checked_seed
from orderdp.coresets.sources import FeatureSource, Requirements, first_few
from orderdp.errors import ConfigError, DatasetError, install_command
from orderdp.policy import Selection, count_kept, proportional

__all__ = [
    "Balance",
    "CosineKernel",
    "Divergence",
    "Gradients",
    "Group",
    "Kernel",
    "Method",
    "Objective",
    "ScoreMethod",
    "Task",
    "Weighted",
    "budgets",
    "centered",
    "check_balance",
    "checked_scores",
    "class_members",
    "dense_kernel",
    "even_budgets",
    "inits_of",
    "lazy_greedy",
    "log_softmax",
    "prediction_errors",
    "proportional_budgets",
    "row_blocks",
    "sklearn",
    "softmax",
    "squared_euclidean",
    "stochastic_greedy",
    "symmetric_kl",
    "unit_rows",
]


if TYPE_CHECKING:
    pass


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
    """Budgets in proportion to `sizes`, `k` in all, by the rule of `orderdp.policy.proportional`.

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


# -- mathematics that methods share: kernels in blocks, last-layer gradients, greedy maximization ----------------------


def sklearn(module: str) -> Any:
    """Import a module of scikit-learn; if it is missing, raise with the pip line."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise ConfigError(
            f"this method needs scikit-learn, which is not installed: {install_command('coresets')}"
        ) from None


#: Numbers per block: 64 MB of float32.
_BLOCK = 1 << 24


class Kernel(Protocol):
    """Similarities of n samples, non-negative."""

    @property
    def n(self) -> int:
        """Number of samples."""
        ...

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all, (positions, n)."""
        ...


def row_blocks(n: int, rows: int | None = None) -> Iterator[slice]:
    """Slices that cover `rows` rows (default n); each has as many rows of n numbers as fit in a block."""
    height, rows = max(1, _BLOCK // max(1, n)), n if rows is None else rows
    return (slice(start, min(start + height, rows)) for start in range(0, rows, height))


class CosineKernel:
    """0.5 + 0.5 cos, in [0, 1]. A row of zeros has similarity 0.5 to everything."""

    def __init__(self, features: np.ndarray) -> None:
        self._directions = unit_rows(features)

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self._directions)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all."""
        found = self._directions[positions] @ self._directions.T
        found *= 0.5
        found += 0.5
        # Rounding must not make values negative: gains would no longer be monotone.
        return np.asarray(np.maximum(found, 0.0, out=found))


def dense_kernel(kernel: Kernel) -> np.ndarray:
    """Compute the whole kernel, block by block. Only for small groups."""
    whole = np.empty((kernel.n, kernel.n), dtype=np.float32)
    for part in row_blocks(kernel.n):
        whole[part] = kernel.rows(np.arange(part.start, part.stop))
    return whole


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows normalized to length 1; a zero row stays zero."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def centered(features: np.ndarray) -> np.ndarray:
    """Rows minus their mean. Distances stay the same, but their squares round less."""
    return np.asarray(features - features.mean(0, dtype=np.float64), dtype=np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities, without overflow."""
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Divergence:
    """Divergence of the form own_i + own_j - <left_i, right_j>: a block of values is one matrix product."""

    own: np.ndarray
    left: np.ndarray
    right: np.ndarray

    def between(self, rows: np.ndarray | slice, columns: np.ndarray | slice) -> np.ndarray:
        """Block of these rows and columns, never negative."""
        block = self.left[rows] @ self.right[columns].T
        np.subtract(self.own[rows][:, None] + self.own[columns], block, out=block)
        return np.asarray(np.maximum(block, 0, out=block))


def squared_euclidean(features: np.ndarray) -> Divergence:
    """Squared distances between rows."""
    rows = centered(features)
    return Divergence(np.einsum("nd,nd->n", rows, rows), rows, 2 * rows)


def symmetric_kl(logits: np.ndarray) -> Divergence:
    """KL(p, q) + KL(q, p) between the softmax of rows: the sum of (p - q)(ln p - ln q)."""
    logarithms = log_softmax(logits)
    p = np.exp(logarithms)
    return Divergence((p * logarithms).sum(1), np.hstack((p, logarithms)), np.hstack((logarithms, p)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities."""
    return np.asarray(np.exp(log_softmax(logits)))


def prediction_errors(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Softmax minus one-hot label: the gradient of the cross-entropy with respect to the logits."""
    errors = softmax(logits)
    errors[np.arange(len(labels)), labels] -= 1
    return errors


@dataclass(frozen=True, eq=False)
class Gradients:
    """Last-layer gradients of n samples, factorized.

    Attributes:
        errors: p - y, (n, classes).
        inputs: [h, 1], (n, width + 1).
    """

    errors: np.ndarray
    inputs: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> Gradients:
        """Build from recordings of the proxy."""
        inputs = np.empty((len(features), features.shape[1] + 1), dtype=np.float32)
        inputs[:, :-1] = features
        inputs[:, -1] = 1
        return cls(prediction_errors(logits, labels), inputs)

    def __len__(self) -> int:
        return len(self.errors)

    def __getitem__(self, positions: np.ndarray) -> Gradients:
        return Gradients(self.errors[positions], self.inputs[positions])

    def squared_norms(self) -> np.ndarray:
        """Squared norm of each sample's gradient."""
        return np.asarray(_squares(self.errors) * _squares(self.inputs))

    def mean(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Mean gradient or, with weights, the weighted sum: (classes, width + 1)."""
        if weights is None:
            return np.asarray(self.errors.T @ self.inputs / np.float32(len(self)))
        return np.asarray((self.errors * weights[:, None]).T @ self.inputs)

    def along(self, direction: np.ndarray) -> np.ndarray:
        """Inner product of each sample's gradient with a direction of shape (classes, width + 1)."""
        return np.asarray(np.einsum("nc,nc->n", self.inputs @ direction.T, self.errors))

    def inner(self, others: Gradients) -> np.ndarray:
        """Inner products of these gradients with `others`, (len(self), len(others))."""
        product = self.inputs @ others.inputs.T
        product *= self.errors @ others.errors.T
        return np.asarray(product)


def _squares(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("nd,nd->n", rows, rows))


_FIRST_CHUNK = 8


class Objective(Protocol):
    """Function to maximize.

    Attributes:
        bounds: Upper bound of each sample's gain; the objective may lower it at any time.
    """

    bounds: np.ndarray

    def gains(self, positions: np.ndarray) -> np.ndarray:
        """Current gain of each of these samples."""
        ...

    def take(self, position: int) -> None:
        """Add a selected sample."""
        ...


def lazy_greedy(objective: Objective, count: int) -> np.ndarray:
    """Selection of `count` samples by plain greedy, in its order; on a tie the lowest position.

    A gain that was computed earlier is an upper bound now. So only the samples with the largest bounds are evaluated
    again, in chunks that double, until the largest bound of all is a gain of this step.
    """
    bounds = objective.bounds
    picks = np.empty(count, dtype=np.int64)
    step_of_gain = np.full(len(bounds), -1, dtype=np.int64)
    for step in range(count):
        chunk = _FIRST_CHUNK
        while step_of_gain[best := int(bounds.argmax())] != step:
            stale = _largest(bounds, chunk)
            stale = stale[step_of_gain[stale] != step]
            bounds[stale] = objective.gains(stale)
            step_of_gain[stale] = step
            chunk *= 2
        picks[step] = best
        bounds[best] = -np.inf
        objective.take(best)
    return picks


def stochastic_greedy(objective: Objective, count: int, rng: np.random.Generator, eps: float = 0.01) -> np.ndarray:
    """Select `count` samples, each the best of a random subset of the remaining ones.

    The subset has (n / count) ln(1 / eps) samples, so that all steps together evaluate n ln(1 / eps) of them, for any
    `count`.
    """
    left = rng.permutation(len(objective.bounds))
    size = ceil(len(left) / count * log(1 / eps))
    picks = np.empty(count, dtype=np.int64)
    for step in range(count):
        positions = rng.integers(0, len(left), min(size, len(left))) if size < len(left) else np.arange(len(left))
        part = np.unique(positions)
        best = part[objective.gains(left[part]).argmax()]
        picks[step] = left[best]
        left[best] = left[-1]
        left = left[:-1]
        objective.take(int(picks[step]))
    return picks


def _largest(bounds: np.ndarray, chunk: int) -> np.ndarray:
    if chunk >= len(bounds):
        return np.flatnonzero(bounds > -np.inf)
    largest = np.argpartition(bounds, len(bounds) - chunk)[len(bounds) - chunk :]
    kept: np.ndarray = largest[bounds[largest] > -np.inf]
    return kept
