"""Policies that use no losses: full data, random draws, RS2, fixed selections, functions, replayed plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from hashlib import blake2b
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orderdp import _draw as draw
from orderdp._validation import check_ratio
from orderdp.errors import ConfigError
from orderdp.policy import Context, Policy, Selection, Table, count_kept, shuffled, streams

if TYPE_CHECKING:
    from orderdp.plans import Plan

__all__ = ["RS2", "DynamicRandom", "Fixed", "FullData", "FunctionPolicy", "Replay"]


@dataclass(frozen=True)
class FullData(Policy):
    """All samples, shuffled: the baseline for every other policy.

    >>> FullData().size(10, Context(n=10, epoch=0))
    10
    """

    needs_feedback = False

    def size(self, n: int, context: Context) -> int:
        """Return `n`."""
        return n

    def select(self, table: Table, context: Context) -> Selection:
        """Select all samples in a random order."""
        return Selection(shuffled(np.arange(context.n), context))


@dataclass(frozen=True)
class DynamicRandom(Policy):
    """A uniform draw without replacement per epoch: the control for policies that use losses.

    The same selection as OrderDP with exploitation 1.

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1).
    """

    prune_ratio: float

    needs_feedback = False

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        return count_kept(n, self.prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """Draw uniformly, in a random order."""
        kept = draw.pool_mask(context.n, self.size(context.n, context), streams(context))
        return Selection(shuffled(np.flatnonzero(kept), context))


@dataclass(frozen=True)
class RS2(Policy):
    """Goes through a shuffled data set in consecutive chunks, and shuffles again at its end.

    Every sample is shown once before any is shown twice. A chunk that is short at the end of a pass is completed from
    the next pass, skipping the samples it already has; the skipped samples stay in the next pass. Schedules change only
    the size of the chunks. If the data set itself changes, this holds between changes only.

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1).
    """

    prune_ratio: float

    needs_feedback = False

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)

    def size(self, n: int, context: Context) -> int:
        """Return the number of samples that the prune ratio keeps, rounded to the nearest."""
        return count_kept(n, self.prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """Select the epoch's chunk."""
        k = self.size(context.n, context)
        passes, start = _passes(context.n, chain(_earlier(context, k), [k]))
        number = len(passes) - 1
        rest = _rest_of(number - 1, passes, context) if passes[number].early else np.empty(0, dtype=np.int64)
        if start is None:
            return Selection(np.concatenate((rest, _taken_early(number, passes, rest, context))))
        return Selection(_order(number, passes, rest, context)[start : start + k].copy())


class _Pass(NamedTuple):
    """The sizes of one pass over the data.

    Attributes:
        early: Number of samples of this pass in the last chunk of the previous pass.
        first: Size of that chunk: the early samples are among the first `first` of this pass.
        rest: Number of samples left at the end of the pass, too few for a chunk.
    """

    early: int
    first: int
    rest: int


def _earlier(context: Context, k: int) -> Iterable[int]:
    """Return the sizes of the earlier epochs."""
    return repeat(k, context.epoch) if context.earlier is None else map(context.earlier, range(context.epoch))


def _passes(n: int, sizes: Iterable[int]) -> tuple[list[_Pass], int | None]:
    """Return all passes up to that of the last chunk, and where in it the chunk starts; None if in the pass before.

    Works on sizes only: its time does not depend on the size of the data set.
    """
    passes, used, start = [_Pass(0, 0, 0)], 0, None
    for k in sizes:
        here = passes[-1]
        left = n - here.early - used
        if k <= left:
            start, used = used, used + k
            continue
        passes[-1] = here._replace(rest=left)
        passes.append(_Pass(k - left, k, 0))
        start, used = None, 0
    return passes, start


def _rest_of(number: int, passes: list[_Pass], context: Context) -> np.ndarray:
    """Return the last samples of a pass, too few for a chunk of their own."""
    known = number
    # The early samples are among the first of a pass. If the rest does not reach them, it needs no earlier pass.
    while passes[known].rest and passes[known].first + passes[known].rest > context.n:
        known -= 1
    rest = _permutation(known, context)[context.n - passes[known].rest :]
    for later in range(known + 1, number + 1):
        order = _order(later, passes, rest, context)
        rest = order[len(order) - passes[later].rest :]
    return rest


def _order(number: int, passes: list[_Pass], rest: np.ndarray, context: Context) -> np.ndarray:
    """Return a pass in its order, without its early samples; `rest` is the rest of the previous pass."""
    return _without(_permutation(number, context), _taken_early(number, passes, rest, context))


def _taken_early(number: int, passes: list[_Pass], rest: np.ndarray, context: Context) -> np.ndarray:
    """Return the samples of this pass that are in the last chunk of the previous pass."""
    return _without(_permutation(number, context), rest)[: passes[number].early]


def _permutation(number: int, context: Context) -> np.ndarray:
    return context.rng("pass", number).permutation(context.n)


def _without(order: np.ndarray, taken: np.ndarray) -> np.ndarray:
    if len(taken) == 0:
        return order
    is_taken = np.zeros(len(order), dtype=np.bool_)
    is_taken[taken] = True
    left: np.ndarray = order[~is_taken[order]]
    return left


@dataclass(frozen=True)
class FunctionPolicy(Policy):
    """A policy made of one function that selects the samples to keep.

    >>> import numpy as np
    >>> hard_half = FunctionPolicy(lambda scores, context: np.argsort(-scores)[: len(scores) // 2])
    >>> hard_half.select({"score": np.array([1.0, 4.0, 2.0, 3.0])}, Context(n=4, epoch=0)).indices.size
    2

    Args:
        choose: Takes the scores (+inf for unseen) and the context; returns indices, or a boolean mask.
        name: The name in checkpoints: change it when the function changes.
    """

    choose: Callable[[np.ndarray, Context], Any] = field(repr=False)
    _: KW_ONLY
    name: str = "function"

    def __post_init__(self) -> None:
        if not callable(self.choose):
            raise ConfigError(f"choose must be a function of scores and context, got {type(self.choose).__name__}.")

    def size(self, n: int, context: Context) -> None:
        """Return None: the size is not known before the call."""
        return

    def select(self, table: Table, context: Context) -> Selection:
        """Select what the function returns, in a random order."""
        chosen = np.asarray(self.choose(table["score"], context))
        if chosen.dtype == np.bool_:
            if chosen.shape != (context.n,):
                raise ConfigError(
                    f"a mask must have a True or False for each of the {context.n} samples, got shape {chosen.shape}."
                )
            chosen = np.flatnonzero(chosen)
        return Selection(shuffled(_checked(chosen, context.n, "the function").copy(), context))


@dataclass(frozen=True, eq=False)
class Fixed(Policy):
    """The same selection in every epoch, in a new order each time.

    Args:
        selection: A `Selection` or a list of indices.
    """

    selection: Selection | Any = field(repr=False)

    needs_feedback = False
    by_index = True

    def __post_init__(self) -> None:
        if not isinstance(self.selection, Selection):
            given = np.asarray(self.selection)
            if given.size and given.dtype.kind not in "iu":
                raise ConfigError(
                    f"a fixed selection must be a list of indices, got {given.dtype}. "
                    "For a mask of True and False pass np.flatnonzero(mask)."
                )
            object.__setattr__(self, "selection", Selection(given.astype(np.int64)))
        if len(self.selection) == 0:
            raise ConfigError("a fixed selection must hold at least one index, got none.")

    def __repr__(self) -> str:
        # A digest, so that a checkpoint can tell two selections of the same size apart.
        order, weights = np.argsort(self.selection.indices), self.selection.weights
        digest = blake2b(self.selection.indices[order].astype("<i8").tobytes(), digest_size=8)
        if weights is not None:
            digest.update(weights[order].astype("<f4").tobytes())
        return f"Fixed({len(self.selection)} samples, {digest.hexdigest()})"

    def size(self, n: int, context: Context) -> int:
        """Return the size of the selection."""
        _checked(self.selection.indices, n, "a fixed selection")
        return len(self.selection)

    def select(self, table: Table, context: Context) -> Selection:
        """Return the selection and its weights in a random order."""
        places = shuffled(np.arange(len(self.selection)), context)
        weights = self.selection.weights
        return Selection(self.selection.indices[places], None if weights is None else weights[places])


def _checked(indices: np.ndarray, n: int, who: str) -> np.ndarray:
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ConfigError(f"{who} must give a flat list of indices, got {indices.dtype} of shape {indices.shape}.")
    if indices.size == 0 or indices.min() < 0 or indices.max() >= n or len(np.unique(indices)) != indices.size:
        raise ConfigError(f"{who} must give at least one index, each in [0, {n}) and none twice.")
    return indices.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Replay(Policy):
    """Trains on the marked samples of a plan, in the order of the plan.

    With batches of ``plan.kept`` samples, every batch is the marked part of one recorded batch. The order is that of
    the plan, whatever the seed of the pruner: one plan serves many trainings.

    Args:
        plan: A plan of this data set, with at least as many epochs as are trained.
    """

    plan: Plan = field(repr=False)

    needs_feedback = False
    by_index = True

    def __post_init__(self) -> None:
        from orderdp.plans import Plan

        if not isinstance(self.plan, Plan):
            raise ConfigError(
                f"plan must be an orderdp.plans.Plan, got {type(self.plan).__name__}. Use recorder.plan or "
                "Plan.load(path)."
            )

    def __repr__(self) -> str:
        # By its fingerprint, so that a checkpoint can tell two plans of the same shape apart.
        return f"Replay({self.plan.epochs} epochs of {self.plan.size} samples, {self.plan.fingerprint})"

    def size(self, n: int, context: Context) -> int:
        """Return the number of marked samples per epoch, the same in every epoch."""
        if n != self.plan.n:
            raise ConfigError(
                f"the plan was recorded for a data set of {self.plan.n} samples, this one has {n}. Record a plan for "
                "this one."
            )
        # After the last epoch, the pruner asks about the epoch after it.
        if (context.epochs or 0) > self.plan.epochs or context.epoch > self.plan.epochs:
            planned = context.epoch + 1 if context.epochs is None else context.epochs
            raise ConfigError(
                f"the plan has {self.plan.epochs} epochs, but training is planned for {planned}. Record a plan of "
                "that many epochs."
            )
        return self.plan.size

    def select(self, table: Table, context: Context) -> Selection:
        """Select the marked samples of the epoch, in the order of the recording."""
        self.size(context.n, context)
        return self.plan.selection(context.epoch)
