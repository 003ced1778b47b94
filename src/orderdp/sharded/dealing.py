"""Dealing out: ranks train on their own picks, and those with too many give some to those with too few.

Steps need equally many samples on every rank. Only the difference travels: a pick goes with its score to the rank that
trains on it, and the loss comes back to the rank that holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from orderdp.draw import Streams
from orderdp.sharded.bits import Bits
from orderdp.sharded.pools import chosen_among
from orderdp.sharded.wires import Wires

__all__ = ["Guests", "dealt", "moves", "pack", "unpack"]


class Guests(NamedTuple):
    """Samples that another rank holds.

    Attributes:
        samples: Which, int64, ascending.
        scores: Their scores, float32.
    """

    samples: np.ndarray
    scores: np.ndarray


def moves(counts: np.ndarray, targets: np.ndarray, turn: int = 0) -> np.ndarray:
    """How many picks each rank (row) gives to each other (column), so that all have as many as they should.

    >>> moves(np.array([5, 1, 3]), np.array([3, 3, 3])).tolist()
    [[0, 2, 0], [0, 0, 0], [0, 0, 0]]

    Args:
        counts: Picks of each rank.
        targets: How many each should have at least; together no more than there are.
        turn: From which rank on it is looked for surplus; what does not go round stays with the last.
    """
    table = np.zeros((len(counts), len(counts)), dtype=np.int64)
    surplus, wanted = np.maximum(counts - targets, 0), np.maximum(targets - counts, 0)
    takers = [int(rank) for rank in np.flatnonzero(wanted)]
    for step in range(len(counts)):
        giver = (turn + step) % len(counts)
        while surplus[giver] and takers:
            moved = min(surplus[giver], wanted[takers[0]])
            table[giver, takers[0]] += moved
            surplus[giver] -= moved
            wanted[takers[0]] -= moved
            if not wanted[takers[0]]:
                takers.pop(0)
    return table


def dealt(
    picks: Bits, scores_of: Callable[[np.ndarray], np.ndarray], table: np.ndarray, rng: Streams, wires: Wires
) -> tuple[Bits, Guests]:
    """What this rank keeps of its picks, and the guests it gets. A collective where anything moves.

    Args:
        picks: What is selected of this rank's samples. Its memory is used.
        scores_of: Gives the scores of some of them.
        table: Who gives how many to whom, as from `moves`.
        rng: Streams for choosing who goes.
        wires: The way to the other ranks.
    """
    if not table.any():
        return picks, Guests(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
    to = table[wires.rank]
    leaving = np.empty(0, dtype=np.int64)
    if to.any():
        gone = chosen_among(picks, 0, len(picks), int(to.sum()), rng)
        leaving = np.concatenate([gone.samples(*piece) for piece in gone.pieces()])
        picks.words &= ~gone.words
        rng("to whom").shuffle(leaving)
    cuts = np.cumsum(to)[:-1]
    parts = [pack(part, scores_of(part)) for part in np.split(leaving, cuts)]
    received = wires.swap(parts, [12 * int(count) for count in table[:, wires.rank]])
    index, values = unpack(np.concatenate(received), 4)
    order = np.argsort(index)
    return picks, Guests(index[order], values.view(np.float32)[order])


def pack(index: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """Rows as bytes, one after the other: the index and then each column."""
    parts = [index, *columns]
    rows = [np.ascontiguousarray(part).view(np.uint8).reshape(len(index), part.dtype.itemsize) for part in parts]
    return np.concatenate(rows, axis=1).reshape(-1)


def unpack(data: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices of packed rows, and the bytes of their columns, `width` a row."""
    rows = data.reshape(-1, 8 + width)
    index = np.ascontiguousarray(rows[:, :8]).view(np.int64).reshape(-1)
    return index, np.ascontiguousarray(rows[:, 8:]).reshape(-1)
