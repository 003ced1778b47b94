"""The interface of a policy: it reads what is stored per sample and selects what the next epoch trains on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from orderdp._draw import generator
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
    "describe",
    "epoch_sizes",
    "nominal_ratio",
    "size_bounds",
    "total_samples",
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


class Rows(Protocol):
    """The stored rows of one batch before its update: ``rows["score"]`` is a tensor as long as the batch."""

    @property
    def epoch(self) -> int:
        """The current epoch."""
        ...

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the column called `name`, for the samples of the batch."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Selects what the next epoch trains on. A policy is a value: it has parameters and stores no arrays.

    A policy may also define

    - ``columns``: the `Column` s it needs besides score, usage and seen;
    - ``compute_columns(rows, losses, *, ...) -> {column: tensor}``: how feedback becomes columns. Without it the score
      of a sample is its last loss. The training loop passes its keyword arguments to ``update``, one value per sample;
    - ``needs_feedback`` (default True): False if a selection does not depend on losses;
    - ``size_bounds(n, context) -> (fewest, most)`` if ``size`` is None;
    - ``nominal_ratio(context) -> float`` if ``size`` is None: the nominal prune ratio;
    - ``ratio_name``: the dataclass field that holds its ratio, if that is not ``prune_ratio``; or, if changing a field
      is not enough, ``with_ratio(prune_ratio) -> Policy``: for schedules and class balance;
    - ``total(n, epochs) -> int``: the number of samples in the whole training, if that and not the number of epochs
      decides when training ends (`orderdp.policies.Budget`); with it ``epoch_sizes(n, epochs)``, a list of the sizes of
      the resulting epochs, None if they depend on losses;
    - ``lr_scale(n, kept) -> float``: a factor on the learning rate while `kept` of `n` samples are trained on.
    """

    def size(self, n: int, context: Context) -> int | None:
        """Return how many of `n` samples ``select`` keeps, or None if that depends on the losses.

        Args:
            n: Number of samples.
            context: The epoch's context.
        """
        ...

    def select(self, table: Table, context: Context) -> Selection:
        """Select what epoch ``context.epoch`` trains on. Must not write to the table.

        Args:
            table: What is stored per sample.
            context: The epoch's context.
        """
        ...


@runtime_checkable
class StepwisePolicy(Policy, Protocol):
    """A policy that can select once per step, from that step's part of the epoch's candidates.

    It does so if its ``every`` is "batch".
    """

    every: str

    def candidates(self, context: Context) -> np.ndarray:
        """Return the epoch's candidates, in the order in which they are divided among the steps.

        Args:
            context: The epoch's context.
        """
        ...

    def select_from(self, part: np.ndarray, scores: np.ndarray, count: int, context: Context) -> np.ndarray:
        """Select the samples that one step trains on.

        Args:
            part: The step's candidates.
            scores: One score per candidate.
            count: Number of samples to select.
            context: The epoch's context.
        """
        ...


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
    if size is not None:
        return size, size
    bounds: Callable[..., tuple[int, int]] | None = getattr(policy, "size_bounds", None)
    return (1, n) if bounds is None else bounds(n, context)


def nominal_ratio(policy: Policy, n: int, context: Context) -> float | None:
    """Return the nominal prune ratio of the policy in this epoch; None if it has none."""
    size = policy.size(n, context)
    if size is not None:
        return 1 - size / n
    own: Callable[[Context], float | None] | None = getattr(policy, "nominal_ratio", None)
    return None if own is None else own(context)


def total_samples(policy: Policy, n: int, epochs: int | None) -> int | None:
    """Return the number of samples in the whole training; None if the number of epochs decides when training ends."""
    own: Callable[[int, int | None], int | None] | None = getattr(policy, "total", None)
    return None if own is None else own(n, epochs)


def epoch_sizes(policy: Policy, n: int, epochs: int | None) -> list[int] | None:
    """Return the sizes of all epochs under a policy with a total; None if they are not known in advance."""
    own: Callable[[int, int | None], list[int] | None] | None = getattr(policy, "epoch_sizes", None)
    return None if own is None else own(n, epochs)
