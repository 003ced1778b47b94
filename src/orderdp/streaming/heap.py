"""TopHeap: the q hardest of candidates that come one at a time."""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

from orderdp.checks import checked_seed
from orderdp.errors import ConfigError
from orderdp.planning import is_count
from orderdp.randomness import key64

__all__ = ["TopHeap"]

_Item = TypeVar("_Item")


class TopHeap(Generic[_Item]):
    """Keeps the `q` candidates with the largest scores; memory for `q`, whatever their number.

    A candidate that is too easy costs one comparison; one that is kept O(log q), and one where q = 1. Equal scores are
    chosen among fairly, by a hash of the order in which they came. NaN is never among the largest.

    >>> heap = TopHeap(2)
    >>> for item, score in (("a", 0.3), ("b", 2.0), ("c", 0.9), ("d", 0.1)):
    ...     heap.push(item, score)
    >>> heap.drain()
    ['b', 'c']

    Args:
        q: How many to keep.
        seed: Of the choice among equal scores.
    """

    def __init__(self, q: int, seed: int = 0) -> None:
        if not is_count(q):
            raise ConfigError(f"q must be a whole number of samples, at least 1, got {q!r}.")
        self.q = int(q)
        self.seed = checked_seed(seed)
        self.pushed = 0  # since the heap was made
        self._entries: list[tuple[float, int, int, _Item]] = []  # the easiest first

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, item: _Item, score: float) -> None:
        """Offers a candidate."""
        self.pushed += 1
        if math.isnan(score):
            score = -math.inf
        if len(self._entries) == self.q and score < self._entries[0][0]:
            return
        # The order of arrival is unique, so that items themselves are never compared.
        entry = (score, key64(self.seed, "tie", self.pushed), self.pushed, item)
        if len(self._entries) < self.q:
            heapq.heappush(self._entries, entry)
        elif entry > self._entries[0]:
            heapq.heapreplace(self._entries, entry)

    def drain(self) -> list[_Item]:
        """What has been kept, hardest first; the heap is empty afterwards."""
        entries, self._entries = sorted(self._entries, reverse=True), []
        return [item for *_, item in entries]
