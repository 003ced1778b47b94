"""Base of coreset methods: budgets per class, requirements, input checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from orderdp import _draw as draw
from orderdp._draw import generator, key64
from orderdp._validation import check_ratio, checked_seed
from orderdp.errors import ConfigError, DatasetError
from orderdp.policies._selection import count_kept, proportional
from orderdp.policy import Selection
from orderdp.pruner import checked_labels

if TYPE_CHECKING:
    import torch

__all__ = [
    "Balance",
    "FeatureSource",
    "Group",
    "Labelled",
    "Method",
    "Progress",
    "Requirements",
    "ScoreMethod",
    "Task",
    "Weighted",
    "budgets",
    "check_balance",
    "check_finite",
    "check_label_range",
    "check_progress",
    "checked_held_out",
    "checked_marks",
    "checked_numbers",
    "checked_scores",
    "class_members",
    "common_length",
    "even_budgets",
    "first_few",
    "inits_of",
    "proportional_budgets",
    "told",
]


#: True: each class keeps the same fraction. "equal": each class keeps the same number. False: classes do not matter.
Balance: TypeAlias = bool | Literal["equal"]


def check_balance(balanced: Any) -> None:
    """Raise unless `balanced` is True, False or "equal"."""
    if not (isinstance(balanced, bool) or balanced == "equal"):
        raise ConfigError(
            f'balanced must be True (each class keeps its share), "equal" (each class keeps as many) or False, '
            f"got {balanced!r}."
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
    for place, group in enumerate(open_groups):
        given[group] = min(int(sizes[group]), left // (len(sizes) - place))
        left -= int(given[group])
    return given


def _checked(sizes: np.ndarray, k: int) -> np.ndarray:
    sizes = np.asarray(sizes, dtype=np.int64)
    if not 0 <= k <= sizes.sum():
        raise ConfigError(f"a budget must be between 0 and the {int(sizes.sum())} samples there are, got {k}.")
    return sizes


#: None for no output, True for a progress bar, or a function of (what, done, total).
Progress: TypeAlias = Callable[[str, int, int], None] | bool | None


def check_progress(progress: Any) -> None:
    """Raise unless `progress` is valid and can be used in this environment."""
    if progress is True:
        try:
            import rich.progress  # noqa: F401
        except ImportError:
            raise ConfigError("a progress bar needs rich, which is not installed: pip install 'orderdp[cli]'") from None
    elif progress not in (None, False) and not callable(progress):
        raise ConfigError(f"progress must be True, None or a function of (what, done, total), got {progress!r}.")


@contextmanager
def told(progress: Progress, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each of `total` steps."""
    if progress is True:
        with _bar(what, total) as step:
            yield step
        return
    done = 0

    def step_on() -> None:
        nonlocal done
        done += 1
        if callable(progress):
            progress(what, done, total)

    yield step_on


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    from rich.progress import Progress as Bars

    with Bars(transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Recordings that a method requires.

    Attributes:
        features: Inputs of the last linear layer.
        logits: Outputs of the last linear layer.
        labels: The class of each sample.
        correct: Whether each sample was predicted correctly when it was trained on, per epoch.
        model: The trained model itself, and the samples.
        scores: One precomputed number per sample.
        validation: Features and logits of the validation set, if there is one.
        epoch: Number of trained epochs, or None for all.
        inits: Number of models, each with its own initial weights; None for all there are.
        every_epoch: Whether features and logits are required after each epoch instead of after one.
    """

    features: bool = False
    logits: bool = False
    labels: bool = False
    correct: bool = False
    model: bool = False
    scores: bool = False
    validation: bool = False
    epoch: int | None = None
    inits: int | None = 1
    every_epoch: bool = False

    @property
    def nothing(self) -> bool:
        """Whether no model has to be trained."""
        return not (self.features or self.logits or self.correct or self.model)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Features, logits and labels of a data set, for example of a validation set."""

    features: np.ndarray
    logits: np.ndarray
    labels: np.ndarray


class FeatureSource(Protocol):
    """What methods read. Epochs count trained epochs: 0 is the initial model, None the end of training."""

    @property
    def n(self) -> int:
        """Number of samples."""
        ...

    @property
    def labels(self) -> np.ndarray | None:
        """One class per sample; None if unknown."""
        ...

    @property
    def inits(self) -> int:
        """Number of models."""
        ...

    def check(self, needs: Requirements, who: str) -> None:
        """Raise if some of `needs` are not available; `who` is the method's name for messages."""
        ...

    def features(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Inputs of the last linear layer, (n, width)."""
        ...

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Outputs of the last linear layer, (n, classes)."""
        ...

    def correct(self, init: int = 0) -> np.ndarray:
        """Whether each sample was predicted correctly when it was trained on, (epochs, n)."""
        ...

    def scores(self) -> np.ndarray:
        """One precomputed number per sample."""
        ...

    def checkpoints(self) -> Sequence[int | None]:
        """Epochs after which features and logits are available."""
        ...

    def validation(self) -> Labelled | None:
        """Features, logits and labels of a validation set; None without one."""
        ...

    def model(self, epoch: int | None = None, init: int = 0) -> torch.nn.Module:
        """The model, in evaluation mode."""
        ...

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """Yield all samples in order: indices, inputs, labels."""
        ...

    def seconds_for(self, needs: Requirements) -> float:
        """Cost of recording `needs`, training included."""
        ...


_ROWS_AT_ONCE = 4096


_SAMPLES_AXIS = {"features": -2, "logits": -2, "correct": 1, "scores": 0, "labels": 0}


def first_few(rows: Sequence[int]) -> str:
    """The first few rows, for a message.

    >>> first_few([4, 8, 9]), first_few(range(9))
    ('4, 8, 9', '0, 1, 2, 3, 4, ...')
    """
    return ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")


def check_finite(name: str, values: np.ndarray) -> None:
    """Raise with the rows that hold NaN or infinity. Reads few rows at once."""
    bad: list[int] = []
    for start in range(0, len(values), _ROWS_AT_ONCE):
        block = values[start : start + _ROWS_AT_ONCE]
        bad += (np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(1)) + start).tolist()
    if bad:
        raise DatasetError(
            f"{name} must be finite; {len(bad)} of {len(values)} rows hold NaN or infinity: {first_few(bad)}. "
            "Leave these samples out, or find out why the model gives such numbers."
        )


def checked_numbers(name: str, values: Any, dimensions: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray | None:
    """Return finite numbers as an array of `dtype`, or None if `values` is None; raise otherwise."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim not in dimensions or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        wanted = " or ".join(map(str, dimensions))
        raise DatasetError(
            f"{name} must be numbers in {wanted} dimension(s), got {array.dtype} of shape {array.shape}."
        )
    with np.errstate(over="ignore"):  # checked just below
        cast = np.ascontiguousarray(array, dtype=dtype)
    for before, after in zip(array, cast, strict=True) if array.ndim == 3 else [(array, cast)]:
        check_finite(name, before)
        if not np.can_cast(array.dtype, dtype):
            check_finite(f"{name} in single precision", after)
    return cast


def checked_marks(name: str, values: Any) -> np.ndarray | None:
    """Return booleans (or 1 and 0) by epoch and sample, or None; raise otherwise, for example on predicted classes."""
    if values is None:
        return None
    array = np.atleast_2d(np.asarray(values))
    if array.ndim != 2 or not ((array == 0) | (array == 1)).all():
        raise DatasetError(
            f"{name} must be True or False for each epoch and sample, (epochs, n), got {array.dtype} of shape "
            f"{array.shape}{' with other values' if array.ndim == 2 else ''}. Give predictions == labels."
        )
    return array.astype(np.bool_)


def common_length(given: Mapping[str, np.ndarray | None], labels: Any = None, prefix: str = "") -> int:
    """Return the common number of samples of all arrays; raise if they differ."""
    lengths = {name: array.shape[_SAMPLES_AXIS[name]] for name, array in given.items() if array is not None}
    if labels is not None:
        lengths["labels"] = np.asarray(labels).size
    if not lengths or 0 in lengths.values():
        raise DatasetError("at least one array must be given, and none may be empty.")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{length} {prefix}{name}" for name, length in lengths.items())
        raise DatasetError(f"all arrays must be of the same samples, there are {shown}.")
    return int(next(iter(lengths.values())))


def check_label_range(labels: np.ndarray | None, logits: np.ndarray | None, prefix: str = "") -> None:
    """Raise if a label has no logit."""
    if labels is None or logits is None:
        return
    if labels.min() < 0 or labels.max() >= logits.shape[-1]:
        raise DatasetError(
            f"{prefix}labels must be in [0, {logits.shape[-1]}), the number of logits; they go from {labels.min()} to "
            f"{labels.max()}."
        )


def checked_held_out(held_out: Any, own: Mapping[str, np.ndarray | None]) -> Labelled | None:
    """Return a validation set that fits these features and logits, or None; raise otherwise."""
    if held_out is None:
        return None
    if not isinstance(held_out, Labelled):
        raise DatasetError(
            f"held_out must be coresets.Labelled(features, logits, labels), got {type(held_out).__name__}."
        )
    found = {
        name: checked_numbers(f"held_out.{name}", np.asarray(getattr(held_out, name)), (2,))
        for name in ("features", "logits")
    }
    n = common_length(found, prefix="held_out.")
    features, logits = found["features"], found["logits"]
    assert features is not None
    assert logits is not None
    for name, array in (("features", features), ("logits", logits)):
        mine = own[name]
        if mine is not None and array.shape[1] != mine.shape[-1]:
            raise DatasetError(
                f"held_out.{name} must be {mine.shape[-1]} wide, as the {name} are; they are {array.shape[1]}."
            )
    try:
        labels = checked_labels(np.asarray(held_out.labels), n)
    except DatasetError as error:
        raise DatasetError(f"held_out.{error}") from None
    assert labels is not None
    check_label_range(labels, logits, "held_out.")
    return Labelled(features, logits, labels)


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

    places: np.ndarray
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
            indices.append(group.members[picked.places])
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
        """Build the task; check everything before any work is done."""
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
        """Rule of the method."""
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
        """Compute the scores, without checks."""
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
