"""The part of an epoch that a rank trains on, and rebalancing of samples between ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from orderdp._draw import Streams
from orderdp.distributed.bit_set import WORD, BitSet, ones_in
from orderdp.distributed.collectives import Collectives
from orderdp.distributed.rank_shard import RankShard
from orderdp.distributed.sharded_topk import chosen_among
from orderdp.errors import StateError

if TYPE_CHECKING:
    from orderdp._epochs import Order

__all__ = [
    "WINDOW",
    "OwnShard",
    "PendingEpoch",
    "RemoteSamples",
    "ShardedOrder",
    "TwoLevelOrder",
    "pack",
    "rebalance",
    "transfer_plan",
    "unpack",
]


#: Words per window. Changing it changes the order in which a seed visits samples.
WINDOW = 1 << 12


_PLACES = np.arange(WORD, dtype=np.int64)


class TwoLevelOrder:
    """Random order of `own` and `guests`, of which any range can be read.

    Args:
        own: Selected samples of this rank's shard.
        guests: Remote samples: held by other ranks and trained on here, ascending.
        rng: Random streams of the order.
    """

    def __init__(self, own: BitSet, guests: np.ndarray, rng: Streams) -> None:
        self.own = own
        self.guests = guests
        self._rng = rng
        self._words = np.arange(len(own.words), dtype=np.uint32 if len(own.words) < 1 << 32 else np.int64)
        rng("words").shuffle(self._words)
        mixed = guests.copy()
        rng("guests").shuffle(mixed)
        n_windows = max(1, -(-len(self._words) // WINDOW))
        # Remote samples are spread over all windows.
        self._guests = np.array_split(mixed, n_windows)
        counts = [self._n_own(window) + len(part) for window, part in enumerate(self._guests)]
        self._ends = np.cumsum(counts)
        self._opened: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Samples between two positions."""
        stop = min(stop, len(self))
        if start >= stop:
            return np.empty(0, dtype=np.int64)
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        parts = []
        for window in range(first, last + 1):
            first = int(self._ends[window - 1]) if window else 0
            parts.append(self._window(window)[max(0, start - first) : stop - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def after(self, position: int) -> tuple[BitSet, np.ndarray]:
        """Samples not visited at `position`: those of this rank's shard, and the remote ones, ascending."""
        own = self.own.copy()
        whole = int(np.searchsorted(self._ends, position, side="right"))  # windows visited to their end
        own.words[self._words[: whole * WINDOW]] = 0
        last = self.samples(int(self._ends[whole - 1]) if whole else 0, position)
        is_guest = np.isin(last, self.guests)
        own.remove(last[~is_guest])
        return own, np.setdiff1d(self.guests, np.concatenate((*self._guests[:whole], last[is_guest])))

    def _n_own(self, window: int) -> int:
        return int(ones_in(self.own.words[self._words_of(window)]).sum())

    def _words_of(self, window: int) -> np.ndarray:
        return self._words[window * WINDOW : (window + 1) * WINDOW]

    def _window(self, window: int) -> np.ndarray:
        """Samples of a window in visiting order; the last window is cached."""
        if self._opened is None or self._opened[0] != window:
            words = self._words_of(window)
            packed = self.own.words[words].view(np.uint8).reshape(len(words), WORD // 8)
            mask = np.unpackbits(packed, axis=1, bitorder="little").view(np.bool_)
            starts = (words.astype(np.int64) + self.own.first_word) * WORD
            samples = np.concatenate(((starts[:, None] + _PLACES)[mask], self._guests[window]))
            self._rng("window", window).shuffle(samples)
            self._opened = window, samples
        return self._opened[1]


class ShardedOrder:
    """Epoch in which every rank visits its own order, all with the same number of samples.

    Position ``base + k * world + r`` is the k-th sample of rank r. So the visited part is always a prefix, and one step
    of all ranks advances the position by the number of samples that all ranks have visited.

    Args:
        order: The order of this rank.
        each: Samples that each rank visits; a rank with fewer repeats its first ones.
        total: Samples of all ranks without repeats; some of them may not be visited.
        base: Start position: the number of samples visited before the rebalancing.
        world: Number of ranks.
        arrangement: The sampler that ordered the epoch; None for an epoch from a checkpoint.
    """

    def __init__(
        self,
        order: TwoLevelOrder,
        each: int,
        total: int,
        base: int = 0,
        world: int = 1,
        arrangement: Hashable | None = None,
    ) -> None:
        self.order = order
        self.each = each
        self.total = total
        self.base = base
        self.world = world
        self.arrangement = arrangement

    def __len__(self) -> int:
        """Samples of the whole epoch, over all ranks."""
        return self.base + self.total

    def mine(self, position: int, count: int) -> np.ndarray:
        """Next `count` samples of this rank from a position on."""
        if position < self.base:
            raise StateError(
                f"this epoch was dealt out anew to {self.world} processes after {self.base} of its samples, so it "
                "cannot be served from its start. Leave out rewind()."
            )
        start = (position - self.base) // self.world
        stop = min(start + count, self.each)
        there = self.order.samples(start, stop)
        missing = stop - start - len(there)
        return np.concatenate((there, self.order.samples(0, missing))) if missing > 0 else there

    def batch(self, position: int, batch_size: int) -> list[int]:
        """Return the batch that starts at `position`."""
        indices: list[int] = self.mine(position, batch_size).tolist()
        return indices

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Samples that this rank visits between two positions."""
        return self.mine(start, -(-(stop - start) // self.world))

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """Position at which batches from `start` on end."""
        last = self.base + self.each * self.world
        return start + (last - start) // batch_size * batch_size if drop_last else last

    def visited(self, position: int) -> int:
        """Number of samples that this rank has visited at a position."""
        return (position - self.base) // self.world

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers; the caller, which knows the position, adds the remaining samples."""
        return {
            "kind": "shard",
            "selected": torch.from_numpy(self.order.own.words.view(np.int64)),
            "guests": torch.from_numpy(self.order.guests),
            "each": self.each,
            "total": self.total,
            "base": self.base,
        }


class PendingEpoch:
    """Rest of an epoch that another number of ranks has begun; it must be rebalanced before it is served.

    Args:
        own: Remaining samples of this rank's shard.
        left: Remaining samples of all ranks.
        base: Samples that have been visited.
    """

    arrangement: Hashable | None = "not dealt out"

    def __init__(self, own: BitSet, left: int, base: int) -> None:
        self.own = own
        self.left = left
        self.base = base

    def __len__(self) -> int:
        return self.base + self.left

    def batch(self, position: int, batch_size: int) -> list[int]:
        """Empty until the epoch is rebalanced."""
        return []

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Empty until the epoch is rebalanced."""
        return np.empty(0, dtype=np.int64)

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """Position at which batches from `start` on would end."""
        return start + self.left // batch_size * batch_size if drop_last else len(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the remaining samples as tensors and numbers."""
        return {
            "kind": "undealt",
            "selected": torch.from_numpy(self.own.words.view(np.int64)),
            "guests": torch.empty(0, dtype=torch.int64),
            "left": self.left,
            "base": self.base,
        }


@dataclass(frozen=True)
class OwnShard(RankShard):
    """Shard of a rank that has its own order."""

    def batch(self, epoch: Order, position: int, batch_size: int) -> list[int]:
        """Return this rank's part of the step that starts at `position`."""
        return epoch.batch(position, batch_size)


class RemoteSamples(NamedTuple):
    """Samples that another rank holds.

    Attributes:
        samples: Their indices, int64, ascending.
        scores: Their scores, float32.
    """

    samples: np.ndarray
    scores: np.ndarray


def transfer_plan(counts: np.ndarray, targets: np.ndarray, turn: int = 0) -> np.ndarray:
    """Number of selected samples that each rank (row) sends to each other rank (column) to reach its target.

    >>> transfer_plan(np.array([5, 1, 3]), np.array([3, 3, 3])).tolist()
    [[0, 2, 0], [0, 0, 0], [0, 0, 0]]

    Args:
        counts: Selected samples per rank.
        targets: Minimum number per rank; in sum at most the sum of `counts`.
        turn: The first rank that gives surplus; the last rank keeps the rest.
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


def rebalance(
    picks: BitSet, scores_of: Callable[[np.ndarray], np.ndarray], table: np.ndarray, rng: Streams, wires: Collectives
) -> tuple[BitSet, RemoteSamples]:
    """Return the selected samples that stay on this rank, and the remote samples it gets. A collective if any move.

    Args:
        picks: Selected samples of this rank's shard. Modified in place.
        scores_of: Returns the scores of given samples.
        table: Number of samples per sender and receiver, from `transfer_plan`.
        rng: Random streams that select the samples to send.
        wires: Collectives between the ranks.
    """
    if not table.any():
        return picks, RemoteSamples(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
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
    return picks, RemoteSamples(index[order], values.view(np.float32)[order])


def pack(index: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """Rows as consecutive bytes: the index, then each column."""
    parts = [index, *columns]
    rows = [np.ascontiguousarray(part).view(np.uint8).reshape(len(index), part.dtype.itemsize) for part in parts]
    return np.concatenate(rows, axis=1).reshape(-1)


def unpack(data: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of packed rows, and the bytes of their columns, `width` per row."""
    rows = data.reshape(-1, 8 + width)
    index = np.ascontiguousarray(rows[:, :8]).view(np.int64).reshape(-1)
    return index, np.ascontiguousarray(rows[:, 8:]).reshape(-1)
