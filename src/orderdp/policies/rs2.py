"""RS2: repeated random sampling without replacement across epochs."""

from __future__ import annotations

from dataclasses import dataclass
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
    from the next one, skipping what it has already; what was skipped stays in the next pass.

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
        passes, chunk = _passes(context.epoch, context.n, k)
        number = len(passes) - 2
        order = _without(_permutation(number, context), _taken_early(number, passes, context))
        if chunk < passes[number].whole_chunks:
            return Selection(order[chunk * k : (chunk + 1) * k].copy())
        rest = order[passes[number].whole_chunks * k :]
        return Selection(np.concatenate((rest, _taken_early(number + 1, passes, context))))


class _Pass(NamedTuple):
    """The sizes of one pass over the data: what the one before has taken of it, and what whole chunks leave."""

    early: int
    whole_chunks: int
    rest: int


def _passes(epoch: int, n: int, k: int) -> tuple[list[_Pass], int]:
    """All passes up to that of `epoch` and one more, and which chunk of its pass the epoch is. Sizes only."""
    passes, early, chunk = [], 0, epoch
    while True:
        here = _Pass(early, (n - early) // k, (n - early) % k)
        passes.append(here)
        early = k - here.rest if here.rest else 0
        chunks = here.whole_chunks + (here.rest > 0)
        if chunk < chunks:
            return [*passes, _Pass(early, (n - early) // k, (n - early) % k)], chunk
        chunk -= chunks


def _permutation(number: int, context: Context) -> np.ndarray:
    return context.rng("pass", number).permutation(context.n)


def _taken_early(number: int, passes: list[_Pass], context: Context) -> np.ndarray:
    """What the last chunk of the pass before has taken from the front of this one."""
    if passes[number].early == 0:
        return np.empty(0, dtype=np.int64)
    left = _without(_permutation(number, context), _rest_of(number - 1, passes, context))
    return left[: passes[number].early]


def _rest_of(number: int, passes: list[_Pass], context: Context) -> np.ndarray:
    """The last samples of a pass, too few for a chunk of their own."""
    order = _permutation(number, context)
    if passes[number].whole_chunks:
        # What was taken early stands among the first k, and k + rest are at most n: the end is untouched.
        return order[context.n - passes[number].rest :]
    return _without(order, _taken_early(number, passes, context))


def _without(order: np.ndarray, taken: np.ndarray) -> np.ndarray:
    if len(taken) == 0:
        return order
    is_taken = np.zeros(len(order), dtype=np.bool_)
    is_taken[taken] = True
    left: np.ndarray = order[~is_taken[order]]
    return left
