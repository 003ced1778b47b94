"""What a policy is: it reads what is stored per sample and selects what the next epoch trains on; and its draws."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from orderdp import _draw as draw
from orderdp._draw import generator, key64
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Column",
    "Context",
    "Policy",
    "Rows",
    "Selection",
    "StepwisePolicy",
    "Table",
    "TableRows",
    "Threshold",
    "at_least_one",
    "count_kept",
    "describe",
    "epoch_sizes",
    "hardest_first",
    "is_annealed",
    "nominal_ratio",
    "proportional",
    "shuffled",
    "size_bounds",
    "streams",
    "tie_key",
    "top",
    "total_samples",
    "uniform",
    "weighted",
]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What one epoch trains on: unique indices in visiting order, and one weight per index.

    Attributes:
        indices: int64, unique, in the order in which the epoch visits them.
        weights: float32, one per index; None if all are 1.
    """

    indices: np.ndarray
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.indices.ndim != 1 or self.indices.dtype != np.int64:
            raise ConfigError(
                f"Selection.indices must be a flat int64 array, got shape {self.indices.shape} of "
                f"{self.indices.dtype}. Convert it with np.asarray(indices, dtype=np.int64)."
            )
        if self.weights is not None and self.weights.shape != self.indices.shape:
            raise ConfigError(
                f"Selection.weights must have one weight for each of the {len(self.indices)} indices, "
                f"got shape {self.weights.shape}. Use None where all weights are 1."
            )

    def __len__(self) -> int:
        return len(self.indices)

    def dense_weights(self, n: int) -> torch.Tensor | None:
        """Return one weight per sample, 1 for samples that are not selected; None if all weights are 1.

        Args:
            n: Number of samples.
        """
        if self.weights is None:
            return None
        import torch

        dense = torch.ones(n)
        dense[torch.from_numpy(self.indices)] = torch.from_numpy(self.weights).float()
        return dense


@dataclass(frozen=True, slots=True)
class Column:
    """One number stored per sample.

    Attributes:
        name: The name under which policies read it.
        initial: The value of an unseen sample.
        dtype: A numpy dtype name that torch has too.
        merge: How a write changes the stored value, and how writes of several ranks or of repeated samples combine:
            "last" replaces it (of several writes, one wins), "sum" adds to it.
    """

    name: str
    initial: float
    dtype: str = "float32"
    merge: Literal["last", "sum"] = "last"

    def __post_init__(self) -> None:
        if self.initial != self.initial:
            raise ConfigError(f"the initial value of column {self.name!r} must be a number, got NaN. Use inf or -1.")


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a policy may read besides the table.

    Attributes:
        n: Number of samples.
        epoch: The epoch to select, from 0.
        seed: The pruner's seed.
        epochs: Number of planned epochs; None if not given.
        labels: One class per sample, or None.
        earlier: Under a schedule, how many samples an earlier epoch kept, for policies with exact sizes; None
            otherwise.
        trained: Samples trained on in all epochs before this one.
        total: Samples in the whole training, if the policy fixes the total; None if the number of epochs counts.
    """

    n: int
    epoch: int
    seed: int = 0
    epochs: int | None = None
    labels: np.ndarray | None = field(default=None, repr=False)
    earlier: Callable[[int], int] | None = field(default=None, repr=False)
    trained: int = 0
    total: int | None = None

    def among(self, indices: np.ndarray) -> Context:
        """Return the context of a selection among these samples, which may be missing or repeated.

        Args:
            indices: The samples.
        """
        return replace(self, n=len(indices), labels=None if self.labels is None else self.labels[indices])

    def rng(self, *tags: int | str) -> np.random.Generator:
        """Return a generator that depends only on the seed and `tags`.

        The epoch matters only if it is among the tags, so a policy that spans epochs can call ``rng("pass", 2)`` again
        instead of storing arrays.

        Args:
            *tags: Name of the random stream.
        """
        return generator(self.seed, *tags)


class Table(Protocol):
    """What a policy may read: each column as a read-only array of n values."""

    @property
    def n(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the column called `name`."""
        ...


class TableRows:
    """A table of some rows of another; rows may repeat.

    Args:
        columns: Returns a column of the other table by its name.
        indices: Which rows.
    """

    def __init__(self, columns: Callable[[str], np.ndarray], indices: np.ndarray) -> None:
        self.n = len(indices)
        self._columns, self._indices = columns, indices

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the column `name`, read-only."""
        values: np.ndarray = self._columns(name)[self._indices]
        values.flags.writeable = False
        return values


class Rows(Protocol):
    """The stored rows of one batch before its update: ``rows["score"]`` is a tensor as long as the batch."""

    @property
    def epoch(self) -> int:
        """The current epoch."""
        ...

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the column called `name`, for the samples of the batch."""
        ...


class Threshold(ABC):
    """Defines at or below which loss a sample is learned.

    Attributes:
        columns: The columns that it reads besides score. "first", the first loss of a sample, is the only one that is
            filled in.
        floor: The smallest possible loss.
    """

    columns: ClassVar[tuple[Column, ...]] = ()
    floor: float = 0.0

    @abstractmethod
    def at(self, table: Table) -> float:
        """Return the largest loss of a learned sample, given the current table.

        Args:
            table: What is stored per sample.
        """


class Policy(ABC):
    """Selects what the next epoch trains on. A policy is a value: it has parameters and stores no arrays.

    A subclass defines `size` and `select`. All other members are optional: each has a default here.

    Attributes:
        every: "epoch" to select once per epoch, "batch" to select at every step (`StepwisePolicy`).
        ratio_name: The dataclass field that holds the prune ratio.
    """

    every: Literal["epoch", "batch"] = "epoch"
    ratio_name: ClassVar[str] = "prune_ratio"

    @abstractmethod
    def size(self, n: int, context: Context) -> int | None:
        """Return how many of `n` samples ``select`` keeps, or None if that depends on the losses.

        Args:
            n: Number of samples.
            context: The epoch's context.
        """

    @abstractmethod
    def select(self, table: Table, context: Context) -> Selection:
        """Select what epoch ``context.epoch`` trains on. Must not write to the table.

        Args:
            table: What is stored per sample.
            context: The epoch's context.
        """

    # -- samplers that leave samples out or repeat them --------------------------------------------------------

    @property
    def by_index(self) -> bool:
        """Whether the policy refers to samples by their index, not by what is stored about them. Default: False."""
        return False

    def select_among(self, table: Table, handed_out: np.ndarray, context: Context) -> Selection:
        """Select among what a sampler yields in an epoch. Default: as if each position were a sample.

        Args:
            table: What is stored per sample.
            handed_out: Indices of samples; some may be missing, others repeated.
            context: The epoch's context.

        Returns:
            Positions in `handed_out`, and their weights.
        """
        if not self.by_index:
            return self.select(TableRows(table.__getitem__, handed_out), context.among(handed_out))
        selection = self.select(table, context)
        places = np.full(context.n, -1, dtype=np.int64)
        places[selection.indices] = np.arange(len(selection))
        kept = np.flatnonzero(places[handed_out] >= 0)
        weights = selection.weights
        return Selection(kept, None if weights is None else weights[places[handed_out[kept]]])

    def bounds_among(self, count: int, context: Context) -> tuple[int, int]:
        """Return the fewest and the most samples that `select_among` keeps of `count`.

        Args:
            count: How many indices a sampler yields.
            context: The epoch's context.
        """
        return (1, count) if self.by_index else size_bounds(self, count, replace(context, n=count))

    # -- what is stored per sample ---------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that the policy needs besides score, usage and seen. Default: none."""
        return ()

    @property
    def compute_columns(self) -> Callable[..., Mapping[str, Any]] | None:
        """A method ``compute_columns(rows, losses, *, ...) -> {column: tensor}``: how feedback becomes columns.

        The training loop passes its keyword arguments to ``update``, one value per sample. Default: None; the score of
        a sample is its last loss.
        """
        return None

    @property
    def needs_feedback(self) -> bool:
        """Whether a selection depends on losses. Default: True."""
        return True

    @property
    def learned(self) -> Threshold | None:
        """When a sample is learned, for reports. Default: None; they use a probability of 0.9 of the right class."""
        return None

    # -- sizes -----------------------------------------------------------------------------------------------

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the fewest and the most samples that ``select`` keeps; called if `size` is None. Default: 1 and n.

        Args:
            n: Number of samples.
            context: The epoch's context.
        """
        return 1, n

    def nominal_ratio(self, context: Context) -> float | None:
        """Return the nominal prune ratio; called if `size` is None. Default: None, for none.

        Args:
            context: The epoch's context.
        """
        return None

    def total(self, n: int, epochs: int | None) -> int | None:
        """Return the number of samples in the whole training, if it decides when training ends. Default: None.

        See `orderdp.policies.Budget`. By default the number of epochs decides.

        Args:
            n: Number of samples.
            epochs: Number of planned epochs; None if not given.
        """
        return None

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int] | None:
        """Return the sizes of all epochs, for a policy with a `total`. Default: None, if they depend on losses.

        Args:
            n: Number of samples.
            epochs: Number of planned epochs; None if not given.
        """
        return None

    def offered(self, n: int) -> int:
        """Return the number of samples to select from. Default: all; fewer if some have been removed.

        Args:
            n: Number of samples.
        """
        return n

    # -- the prune ratio, for schedules and class balance ----------------------------------------------------

    @property
    def has_ratio(self) -> bool:
        """Whether `with_ratio` works. Default: True for a dataclass with the field `ratio_name`."""
        return type(self).with_ratio is not Policy.with_ratio or (hasattr(self, self.ratio_name) and is_dataclass(self))

    def with_ratio(self, prune_ratio: float) -> Policy:
        """Return the same policy at another prune ratio. Default: replaces the field `ratio_name`.

        Args:
            prune_ratio: The new ratio.
        """
        if not self.has_ratio:
            raise ConfigError(f"{describe(self)} has no prune ratio that could be changed.")
        changed: Policy = replace(self, **{self.ratio_name: prune_ratio})  # type: ignore[type-var]
        return changed

    @classmethod
    def parameters_at(cls, prune_ratio: float) -> dict[str, Any]:
        """Return the constructor arguments that set a nominal prune ratio. Default: `ratio_name`, if it is one.

        Args:
            prune_ratio: The ratio.
        """
        return {cls.ratio_name: prune_ratio} if cls.ratio_name in signature(cls).parameters else {}

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The constructor arguments of an equal policy. Default: the fields of a dataclass."""
        # Not asdict, which would also convert nested values.
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.init}  # type: ignore[arg-type]

    # -- training --------------------------------------------------------------------------------------------

    def lr_scale(self, n: int, kept: int) -> float:
        """Return a factor on the learning rate while `kept` of `n` samples are trained on. Default: 1.

        Args:
            n: Number of samples.
            kept: Number of samples that the epoch trains on.
        """
        return 1.0

    def on_epoch_start(self, epoch: int) -> None:
        """Do what is due once per epoch, before its selection. Default: nothing.

        Args:
            epoch: The epoch, from 0.
        """
        return


class StepwisePolicy(Policy):
    """A policy that can select once per step, from that step's part of the epoch's candidates.

    It does so if its ``every`` is "batch".
    """

    @abstractmethod
    def candidates(self, context: Context) -> np.ndarray:
        """Return the epoch's candidates, in the order in which they are divided among the steps.

        Args:
            context: The epoch's context.
        """

    @abstractmethod
    def select_from(self, part: np.ndarray, scores: np.ndarray, count: int, context: Context) -> np.ndarray:
        """Select the samples that one step trains on.

        Args:
            part: The step's candidates.
            scores: One score per candidate.
            count: Number of samples to select.
            context: The epoch's context.
        """


def describe(policy: object) -> str:
    """Describe a policy in one line, the same in every process. A checkpoint stores this line."""
    text = repr(policy)
    if " at 0x" not in text:
        return text
    parameters: Mapping[str, Any] = getattr(policy, "__dict__", {})
    shown = ", ".join(f"{k}={v!r}" for k, v in parameters.items() if " at 0x" not in repr(v))
    return f"{type(policy).__qualname__}({shown})"


def size_bounds(policy: Policy, n: int, context: Context) -> tuple[int, int]:
    """Return the fewest and the most of `n` samples that the policy can keep in this epoch."""
    size = policy.size(n, context)
    return policy.size_bounds(n, context) if size is None else (size, size)


def nominal_ratio(policy: Policy, n: int, context: Context) -> float | None:
    """Return the nominal prune ratio of the policy in this epoch; None if it has none."""
    size = policy.size(n, context)
    return policy.nominal_ratio(context) if size is None else 1 - size / n


def total_samples(policy: Policy, n: int, epochs: int | None) -> int | None:
    """Return the number of samples in the whole training; None if the number of epochs decides when training ends."""
    return policy.total(n, epochs)


def epoch_sizes(policy: Policy, n: int, epochs: int | None) -> list[int] | None:
    """Return the sizes of all epochs under a policy with a total; None if they are not known in advance."""
    return policy.epoch_sizes(n, epochs)


# -- draws: functions of the context -----------------------------------------------------------------------------------


def count_kept(n: int, prune_ratio: float) -> int:
    """Return how many of `n` samples `prune_ratio` keeps: the nearest whole number, or an error if that is 0."""
    kept = round((1 - prune_ratio) * n)
    if kept < 1:
        raise ConfigError(f"prune_ratio={prune_ratio} keeps {kept} of {n} samples; at least one must be kept.")
    return kept


def streams(context: Context) -> draw.Streams:
    """Return the random streams of this epoch's selection."""
    return partial(context.rng, "epoch", context.epoch)


def tie_key(context: Context) -> int:
    """Return the key that orders equal scores in this epoch."""
    return key64(context.seed, "ties", context.epoch)


def shuffled(indices: np.ndarray, context: Context) -> np.ndarray:
    """Return `indices` in the random order of the epoch of `context`. Reuses their memory."""
    return draw.visiting_order(indices, context.n, context.rng("epoch", context.epoch, "order"))


def top(scores: np.ndarray, count: int, context: Context) -> np.ndarray:
    """Return the indices of the `count` largest `scores`, ascending; `context` breaks ties fairly."""
    return draw.top_of_pool(scores.astype(np.float32), count, tie_key(context)) if count else np.empty(0, np.int64)


def uniform(candidates: np.ndarray, count: int, context: Context, tag: str) -> np.ndarray:
    """Draw `count` of the candidates uniformly; keep their order. `tag` names the random stream."""
    if count >= len(candidates):
        return candidates
    chosen = draw.pool_mask(len(candidates), count, partial(context.rng, "epoch", context.epoch, tag))
    drawn: np.ndarray = candidates[chosen]
    return drawn


def hardest_first(candidates: np.ndarray, scores: np.ndarray, context: Context) -> np.ndarray:
    """Return the candidates from the largest score to the smallest, equal ones in random order."""
    ranked: np.ndarray = candidates[draw.ranking(scores[candidates], context.rng("epoch", context.epoch, "ranks"))]
    return ranked


def weighted(logarithms: np.ndarray, count: int, context: Context) -> np.ndarray:
    """Draw `count` positions one by one without replacement, each in proportion to the remaining weights.

    Args:
        logarithms: Logarithms of the weights, because the weights may underflow.
        count: Number of positions to draw.
        context: Gives the random stream.
    """
    if count == 0:
        return np.empty(0, np.int64)
    # The smallest exponential variates divided by the weights are such a draw.
    exponentials = context.rng("epoch", context.epoch, "weighted").standard_exponential(len(logarithms))
    with np.errstate(divide="ignore"):
        keys = np.log(exponentials) - logarithms
    return np.argpartition(keys, count - 1)[:count]


def is_annealed(share: float | None, context: Context, policy: str) -> bool:
    """Return True if the epoch comes after this fraction of all epochs; None for never."""
    if share is None:
        return False
    if context.epochs is None:
        raise ConfigError(
            "annealing needs to know how many epochs are planned. Use Pruner(..., epochs=...), or switch it off with "
            f"{policy}(..., annealing=None)."
        )
    # In whole epochs: a comparison of floats would miss the start at some numbers of epochs.
    return context.epoch >= math.ceil(round(share * context.epochs, 9))


def at_least_one(kept: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the mask; if it is empty, with the largest score added."""
    if not kept.any():
        kept[int(np.argmax(scores))] = True
    return kept


def proportional(members: np.ndarray, total: int) -> np.ndarray:
    """Divide `total` among groups in proportion to their sizes; the sum is exact and no group exceeds its size.

    Uses largest remainders; if there are enough, every group gets at least one.

    >>> proportional(np.array([70, 25, 5]), 10).tolist()
    [7, 2, 1]
    >>> proportional(np.array([97, 2, 1]), 10).tolist()
    [8, 1, 1]
    """
    everything = int(members.sum())
    budgets = np.array([int(size) * total // everything for size in members], dtype=np.int64)
    remainders = np.array([int(size) * total % everything for size in members], dtype=np.float64)
    if total >= int((members > 0).sum()):
        without = (budgets == 0) & (members > 0)
        budgets[without], remainders[without] = 1, -1.0
    left = total - int(budgets.sum())
    budgets[np.argsort(-remainders, kind="stable")[: max(0, left)]] += 1
    for _ in range(-left):
        budgets[int(np.argmax(budgets))] -= 1
    return budgets
