"""RS2: repeated random sampling without replacement across epochs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from orderdp.planning import check_ratio
from orderdp.policies.kit import count_kept
from orderdp.policy import Context, Selection, Table

__all__ = ["RS2"]


@dataclass(frozen=True)
class RS2:
    """Goes through a shuffled data set in consecutive chunks, and shuffles again when it is used up.

    So every sample is shown once before any is shown twice. A chunk that is short at the end of a pass is completed
    from the next one, skipping what it has already; what was skipped stays in the next pass. Schedules change the size
    of the chunks and nothing else. Where the data set itself changes, that holds between changes only.

    Args:
        prune_ratio: Share left out each epoch, in [0, 1).
    """

    prune_ratio: float

    needs_feedback = False

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)

    def size(self, n: int, context: Context) -> int:
        """The nearest whole number to the share kept."""
        return count_kept(n, self.prune_ratio)

    def select(self, table: Table, context: Context) -> Selection:
        """The epoch's chunk."""
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
        early: What the last chunk of the pass before has taken of it.
        first: How large that chunk is: what it has taken stands among the first so many of the pass.
        rest: What is left at its end, too little for a chunk.
    """

    early: int
    first: int
    rest: int


def _earlier(context: Context, k: int) -> Iterable[int]:
    """How many samples the epochs before had."""
    return repeat(k, context.epoch) if context.earlier is None else map(context.earlier, range(context.epoch))


def _passes(n: int, sizes: Iterable[int]) -> tuple[list[_Pass], int | None]:
    """All passes up to that of the last chunk, and where in it that starts; None if it starts in the one before.

    Sizes only: it takes no longer for a large data set.
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
    """The last samples of a pass, too few for a chunk of their own."""
    known = number
    # What was taken early stands among the first of a pass. Where its rest does not reach there, it is known at once.
    while passes[known].rest and passes[known].first + passes[known].rest > context.n:
        known -= 1
    rest = _permutation(known, context)[context.n - passes[known].rest :]
    for later in range(known + 1, number + 1):
        order = _order(later, passes, rest, context)
        rest = order[len(order) - passes[later].rest :]
    return rest


def _order(number: int, passes: list[_Pass], rest: np.ndarray, context: Context) -> np.ndarray:
    """A pass in its order, without what has been taken early; `rest` is that of the pass before."""
    return _without(_permutation(number, context), _taken_early(number, passes, rest, context))


def _taken_early(number: int, passes: list[_Pass], rest: np.ndarray, context: Context) -> np.ndarray:
    """What the last chunk of the pass before has taken from the front of this one."""
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
