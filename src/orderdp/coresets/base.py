"""What a coreset method is: its budgets per class, its requirements, its input checks."""

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


#: True: each class keeps its share. "equal": each class keeps as many. False: classes do not matter.
Balance: TypeAlias = bool | Literal["equal"]


def check_balance(balanced: Any) -> None:
    """Raises unless `balanced` is one of the three ways to share a budget."""
    if not (isinstance(balanced, bool) or balanced == "equal"):
        raise ConfigError(
            f'balanced must be True (each class keeps its share), "equal" (each class keeps as many) or False, '
            f"got {balanced!r}."
        )


def budgets(labels: np.ndarray, k: int, balanced: Literal[True, "equal"] = True) -> dict[int, int]:
    """How many of each class are kept, `k` in all.

    >>> budgets(np.array([0, 0, 0, 0, 0, 0, 1, 1, 2]), 4)
    {0: 2, 1: 1, 2: 1}
    >>> budgets(np.array([0, 0, 0, 0, 0, 0, 1, 1, 2]), 6, "equal")
    {0: 3, 1: 2, 2: 1}

    Args:
        labels: One class for each sample.
        k: How many are kept in all.
        balanced: True for shares, "equal" for equal numbers; see `proportional_budgets` and `even_budgets`.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    shared = even_budgets(sizes, k) if balanced == "equal" else proportional_budgets(sizes, k)
    return dict(zip(classes.tolist(), shared.tolist(), strict=True))


def class_members(labels: np.ndarray) -> dict[int, np.ndarray]:
    """The samples of each class, ascending. One sort, however many classes there are.

    >>> {label: members.tolist() for label, members in class_members(np.array([2, 0, 2])).items()}
    {0: [1], 2: [0, 2]}
    """
    classes, sizes = np.unique(labels, return_counts=True)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    return dict(zip(classes.tolist(), members, strict=True))


def proportional_budgets(sizes: np.ndarray, k: int) -> np.ndarray:
    """Budgets in proportion to `sizes`, `k` in all, by the rule of `orderdp.policies._selection.proportional`.

    Whole parts first, then the largest remainders; as long as there is one for each, no group goes without. Equal
    remainders go to the larger group, then to the earlier one. A group never gets more than it has.
    """
    sizes = _checked(sizes, k)
    given = np.zeros_like(sizes)
    if k:
        largest_first = np.argsort(-sizes, kind="stable")
        given[largest_first] = proportional(sizes[largest_first], k)
    return given


def even_budgets(sizes: np.ndarray, k: int) -> np.ndarray:
    """Equal budgets, `k` in all; what a small group cannot fill is shared equally among the others.

    Where it does not divide, the larger groups get one more, then the later ones.
    """
    sizes = _checked(sizes, k)
    given = np.zeros_like(sizes)
    open_groups, left = np.lexsort((np.arange(len(sizes)), sizes)), k
    # From the smallest group up: once one can take its equal share, so can all that follow.
    for place, group in enumerate(open_groups):
        given[group] = min(int(sizes[group]), left // (len(sizes) - place))
        left -= int(given[group])
    return given


def _checked(sizes: np.ndarray, k: int) -> np.ndarray:
    sizes = np.asarray(sizes, dtype=np.int64)
    if not 0 <= k <= sizes.sum():
        raise ConfigError(f"a budget must be between 0 and the {int(sizes.sum())} samples there are, got {k}.")
    return sizes


#: None for silence, True for a bar, or a function of (what, done, total).
Progress: TypeAlias = Callable[[str, int, int], None] | bool | None


def check_progress(progress: Any) -> None:
    """Raises unless `progress` can be used here and now."""
    if progress is True:
        try:
            import rich.progress  # noqa: F401
        except ImportError:
            raise ConfigError("a progress bar needs rich, which is not installed: pip install 'orderdp[cli]'") from None
    elif progress not in (None, False) and not callable(progress):
        raise ConfigError(f"progress must be True, None or a function of (what, done, total), got {progress!r}.")


@contextmanager
def told(progress: Progress, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Gives a function to be called after each of `total` steps."""
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
    """What must be recorded.

    Attributes:
        features: Inputs of the last linear layer.
        logits: Outputs of the last linear layer.
        labels: The class of each sample.
        correct: Whether each sample was predicted right when it was trained on, epoch by epoch.
        model: The trained model itself, and the samples.
        scores: One number for each sample, made elsewhere.
        validation: Features and logits of the validation set, where there is one.
        epoch: After how many epochs of training, or None for the end of it.
        inits: How many models, each from weights of its own; None for as many as there are.
        every_epoch: Whether features and logits are wanted after each epoch instead of after one.
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
        """Whether no model has to be trained for it."""
        return not (self.features or self.logits or self.correct or self.model)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Features, logits and labels of a data set, for example of a validation set."""

    features: np.ndarray
    logits: np.ndarray
    labels: np.ndarray


class FeatureSource(Protocol):
    """What a method may ask. Epochs count what has been trained: 0 is the initial model, None the end."""

    @property
    def n(self) -> int:
        """Number of samples."""
        ...

    @property
    def labels(self) -> np.ndarray | None:
        """One class for each sample, if anybody knows."""
        ...

    @property
    def inits(self) -> int:
        """How many models there are."""
        ...

    def check(self, needs: Requirements, who: str) -> None:
        """Raises where something of `needs` cannot be given."""
        ...

    def features(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Inputs of the last linear layer, (n, width)."""
        ...

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Outputs of the last linear layer, (n, classes)."""
        ...

    def correct(self, init: int = 0) -> np.ndarray:
        """Whether each sample was right when trained on, (epochs, n)."""
        ...

    def scores(self) -> np.ndarray:
        """One number for each sample, made elsewhere."""
        ...

    def checkpoints(self) -> Sequence[int | None]:
        """The epochs after which features and logits can be had."""
        ...

    def validation(self) -> Labelled | None:
        """The same of a validation set, where there is one."""
        ...

    def model(self, epoch: int | None = None, init: int = 0) -> torch.nn.Module:
        """The model, in evaluation mode."""
        ...

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """All samples in order: indices, inputs, labels."""
        ...

    def seconds_for(self, needs: Requirements) -> float:
        """What it costs to have `needs` recorded, training included."""
        ...


_ROWS_AT_ONCE = 4096


_SAMPLES_AXIS = {"features": -2, "logits": -2, "correct": 1, "scores": 0, "labels": 0}


def first_few(rows: Sequence[int]) -> str:
    """The first of them, for a message.

    >>> first_few([4, 8, 9]), first_few(range(9))
    ('4, 8, 9', '0, 1, 2, 3, 4, ...')
    """
    return ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")


def check_finite(name: str, values: np.ndarray) -> None:
    """Raises with the rows in which something is NaN or infinite. Looks at few rows at once."""
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
    """Finite numbers as an array of that type, None, or an error."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim not in dimensions or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        wanted = " or ".join(map(str, dimensions))
        raise DatasetError(
            f"{name} must be numbers in {wanted} dimension(s), got {array.dtype} of shape {array.shape}."
        )
    with np.errstate(over="ignore"):  # looked for just below
        cast = np.ascontiguousarray(array, dtype=dtype)
    for before, after in zip(array, cast, strict=True) if array.ndim == 3 else [(array, cast)]:
        check_finite(name, before)
        if not np.can_cast(array.dtype, dtype):
            check_finite(f"{name} in single precision", after)
    return cast


def checked_marks(name: str, values: Any) -> np.ndarray | None:
    """True and False, or 1 and 0, by epoch and sample, None, or an error: a predicted class is no mark."""
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
    """The number of samples that all arrays have, or an error."""
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
    """Raises where a label has no logit."""
    if labels is None or logits is None:
        return
    if labels.min() < 0 or labels.max() >= logits.shape[-1]:
        raise DatasetError(
            f"{prefix}labels must be in [0, {logits.shape[-1]}), the number of logits; they go from {labels.min()} to "
            f"{labels.max()}."
        )


def checked_held_out(held_out: Any, own: Mapping[str, np.ndarray | None]) -> Labelled | None:
    """A validation set that fits to these features and logits, None, or an error."""
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

    source: FeatureSource
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

    def select_from(self, picks: Callable[[Group], np.ndarray]) -> Selection:
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
    def needs(self) -> Requirements:
        """What it asks of the proxy."""
        return Requirements()

    def select(self, proxy: FeatureSource, prune_ratio: float, *, seed: int) -> Selection:
        """What is kept of the proxy's samples: round((1 - prune_ratio) * n) of them.

        Args:
            proxy: A `Proxy`, or `Arrays`.
            prune_ratio: Share left out, in [0, 1).
            seed: Of all random choices, those among equal samples included.
        """
        return self.choose(self.task(proxy, prune_ratio, seed))

    def task(self, proxy: FeatureSource, prune_ratio: float, seed: int) -> Task:
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

    def scores(self, proxy: FeatureSource, *, seed: int = 0) -> np.ndarray:
        """One number for each sample; the largest are kept."""
        proxy.check(self.needs, type(self).__name__)
        return self.rate(proxy, seed)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """The scores, without checks."""
        raise NotImplementedError

    def choose(self, task: Task) -> Selection:
        """The largest scores of each group."""
        return task.largest(self.rate(task.source, task.seed))


def inits_of(needs: Requirements, source: FeatureSource) -> Iterator[int]:
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
