"""What a policy is: it looks at what is remembered about the samples and decides what the next epoch trains on."""

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
    """What one epoch trains on: unique indices in visiting order, and a weight for each.

    Attributes:
        indices: int64, unique, in the order in which the epoch visits them.
        weights: float32, one for each index, or None for all ones.
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
        """A weight for each of `n` samples, 1 for what is not selected; None where all are 1."""
        if self.weights is None:
            return None
        import torch

        dense = torch.ones(n)
        dense[torch.from_numpy(self.indices)] = torch.from_numpy(self.weights).float()
        return dense


@dataclass(frozen=True, slots=True)
class Column:
    """One number remembered about every sample.

    Attributes:
        name: How policies ask for it.
        initial: The value of a sample nobody has seen.
        dtype: A numpy dtype name that torch knows too.
        merge: What a write does to the value that is there, and what happens when several writes meet:
            "last" replaces it (of several, one wins), "sum" adds to it.
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
    """What a policy may know besides the table.

    Attributes:
        n: Number of samples.
        epoch: Which epoch is drawn, from 0.
        seed: The pruner's seed.
        epochs: How many epochs are planned, or None where nobody said.
        labels: One class for each sample, or None.
        earlier: Under a schedule, how many samples an earlier epoch kept, for policies with exact sizes; None without.
        trained: Samples trained on in all epochs before this one.
        total: Samples that the whole training is trained on, where the policy fixes that; None where epochs count.
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
        """A generator that depends on the seed and `tags` alone.

        The epoch is part of it only where it is among the tags, so a policy that spans epochs can ask for
        ``rng("pass", 2)`` again instead of keeping arrays.
        """
        return generator(self.seed, *tags)


class Table(Protocol):
    """What a policy may read: each column as a read-only array of n values."""

    @property
    def n(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, name: str) -> np.ndarray:
        """The column called `name`."""
        ...


class Rows(Protocol):
    """The rows of one batch, as they were before it: ``rows["score"]`` is a tensor as long as the batch."""

    @property
    def epoch(self) -> int:
        """The current epoch."""
        ...

    def __getitem__(self, name: str) -> torch.Tensor:
        """The column called `name`, for the samples of the batch."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Decides what the next epoch trains on. A policy is a value: parameters in, no arrays kept.

    A policy may also have

    - ``columns``: the `Column` s it needs remembered besides score, usage and seen;
    - ``compute_columns(rows, losses, *, ...) -> {column: tensor}``: how feedback becomes columns. Without it the score
      of a sample is its last loss. What it takes by keyword the training loop has to pass to ``update``, one value for
      each sample;
    - ``needs_feedback`` (default True): False where a draw does not depend on losses;
    - ``size_bounds(n, context) -> (fewest, most)`` where ``size`` is None;
    - ``nominal_ratio(context) -> float`` where ``size`` is None: the share it is said to leave out;
    - ``ratio_name``: the dataclass field that is its ratio, where that is not ``prune_ratio``; or, where changing a
      field is not enough, ``with_ratio(prune_ratio) -> Policy``: for schedules and class balance;
    - ``total(n, epochs) -> int``: how many samples the whole training is trained on, where that decides when it is
      over (`orderdp.policies.Budget`) and not the number of epochs; with it ``epoch_sizes(n, epochs)``, a list of the
      sizes of the epochs that makes, None where they depend on losses;
    - ``lr_scale(n, kept) -> float``: a factor on the learning rate while `kept` of `n` samples are trained on.
    """

    def size(self, n: int, context: Context) -> int | None:
        """How many of `n` samples ``select`` will keep, or None where that depends on the losses."""
        ...

    def select(self, table: Table, context: Context) -> Selection:
        """What epoch ``context.epoch`` trains on. Must not write to the table."""
        ...


@runtime_checkable
class StepwisePolicy(Policy, Protocol):
    """A policy that can choose at every step, among that step's share of the epoch's candidates.

    It does so where its ``every`` is "batch".
    """

    every: str

    def candidates(self, context: Context) -> np.ndarray:
        """The epoch's candidates, in the order in which the steps take their shares of them."""
        ...

    def select_from(self, part: np.ndarray, scores: np.ndarray, count: int, context: Context) -> np.ndarray:
        """The `count` of the candidates `part`, with these `scores`, that one step trains on."""
        ...


def describe(policy: object) -> str:
    """A policy in one line, the same in every process: what a checkpoint is compared with."""
    text = repr(policy)
    if " at 0x" not in text:
        return text
    parameters: Mapping[str, Any] = getattr(policy, "__dict__", {})
    shown = ", ".join(f"{k}={v!r}" for k, v in parameters.items() if " at 0x" not in repr(v))
    return f"{type(policy).__qualname__}({shown})"


def size_bounds(policy: Policy, n: int, context: Context) -> tuple[int, int]:
    """The fewest and the most of `n` samples that the policy can keep in this epoch."""
    size = policy.size(n, context)
    if size is not None:
        return size, size
    bounds: Callable[..., tuple[int, int]] | None = getattr(policy, "size_bounds", None)
    return (1, n) if bounds is None else bounds(n, context)


def nominal_ratio(policy: Policy, n: int, context: Context) -> float | None:
    """The share of `n` samples that the policy says it leaves out in this epoch; None where it does not say."""
    size = policy.size(n, context)
    if size is not None:
        return 1 - size / n
    own: Callable[[Context], float | None] | None = getattr(policy, "nominal_ratio", None)
    return None if own is None else own(context)


def total_samples(policy: Policy, n: int, epochs: int | None) -> int | None:
    """How many samples the whole training is trained on; None where the number of epochs decides when it is over."""
    own: Callable[[int, int | None], int | None] | None = getattr(policy, "total", None)
    return None if own is None else own(n, epochs)


def epoch_sizes(policy: Policy, n: int, epochs: int | None) -> list[int] | None:
    """The sizes of all epochs under a policy with a total; None where they are not known in advance."""
    own: Callable[[int, int | None], list[int] | None] | None = getattr(policy, "epoch_sizes", None)
    return None if own is None else own(n, epochs)
