"""Field: candidates of a draw, of which ranks together take those with the largest scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from orderdp.draw import fair_hash
from orderdp.sharded.bits import Bits
from orderdp.sharded.keys import KEY_BITS, OUTSIDE, UNSEEN, keys_of, turned
from orderdp.sharded.radix import Limit, digit_counts, smallest
from orderdp.sharded.wires import Wires

__all__ = ["Cut", "Field", "Scores"]

#: Reads the scores from one sample to another, float32.
Scores = Callable[[int, int], np.ndarray]

_HASH_BITS = 64


@dataclass(frozen=True)
class Cut:
    """Who is taken: keys below a limit, and of those equal to it the ones with the smallest hashes.

    Attributes:
        below: Keys smaller than this are taken.
        hashes_below: Where the key is equal, hashes smaller than this are.
    """

    below: int
    hashes_below: int


class Field:
    """The candidates that this rank holds, and how to choose among all.

    Args:
        candidates: Which they are; what is taken leaves it.
        scores: Reads their scores.
        tie_key: Key of the hash that orders equal scores.
        wires: The way to the other ranks.
        smallest_first: Whether small scores count as large ones.
    """

    def __init__(
        self, candidates: Bits, scores: Scores, tie_key: int, wires: Wires, *, smallest_first: bool = False
    ) -> None:
        self.candidates = candidates
        self.wires = wires
        self._scores = scores
        self._tie_key = tie_key
        self._turned = smallest_first

    def take(self, count: int, *, seen_only: bool = False) -> Bits:
        """Takes the `count` largest out of the candidates of all ranks; gives this rank's part of them."""
        cut = self._cut(count, seen_only)
        candidates = self.candidates
        taken = Bits(candidates.start, candidates.stop)
        for start, keys in self._pieces(seen_only):
            mask = keys < np.uint32(min(cut.below, OUTSIDE))
            if cut.hashes_below:
                places = np.flatnonzero(keys == np.uint32(cut.below))
                limit = cut.hashes_below
                mask[places] = limit >> _HASH_BITS or fair_hash(places + start, self._tie_key) < np.uint64(limit)
            taken.put(start, mask)
        candidates.words &= ~taken.words
        return taken

    def count_seen(self) -> int:
        """How many candidates of all ranks somebody has seen."""
        counted = sum(int(np.count_nonzero(keys < np.uint32(OUTSIDE))) for _, keys in self._pieces(seen_only=True))
        return int(self.wires.sum(np.array([counted]))[0])

    def _cut(self, count: int, seen_only: bool) -> Cut:
        limit: Limit = smallest(count, KEY_BITS, lambda *digit: self._key_counts(seen_only, *digit), self.wires.sum)
        if not limit.missing:
            return Cut(limit.below, 0)
        tied = limit.below
        hashes = smallest(limit.missing, _HASH_BITS, lambda *digit: self._hash_counts(tied, *digit), self.wires.sum)
        return Cut(tied, hashes.below)

    def _key_counts(self, seen_only: bool, prefix: int, shift: int, width: int) -> np.ndarray:
        counts = np.zeros(1 << width, dtype=np.int64)
        outside = 0
        for _, keys in self._pieces(seen_only):
            counts += digit_counts(keys, prefix, shift, width)
            outside += int(np.count_nonzero(keys == np.uint32(OUTSIDE)))
        if prefix == OUTSIDE >> shift + width:
            counts[-1] -= outside
        return counts

    def _hash_counts(self, tied: int, prefix: int, shift: int, width: int) -> np.ndarray:
        counts = np.zeros(1 << width, dtype=np.int64)
        for start, keys in self._pieces(seen_only=False):
            places = np.flatnonzero(keys == np.uint32(tied))
            if len(places):
                counts += digit_counts(fair_hash(places + start, self._tie_key), prefix, shift, width)
        return counts

    def _pieces(self, seen_only: bool) -> Iterator[tuple[int, np.ndarray]]:
        """Piece by piece, where it starts and the key of each sample; `OUTSIDE` for those that are no candidates."""
        for start, stop in self.candidates.pieces():
            mask = self.candidates.mask(start, stop)
            scores = self._scores(start, stop)
            keys = keys_of(turned(scores) if self._turned else scores)
            if seen_only:
                mask &= keys != np.uint32(UNSEEN)
            # All ones where the mask is not set: several times faster than choosing between two values.
            outside = (mask.view(np.int8) - np.int8(1)).astype(np.int32).view(np.uint32)
            outside |= keys
            yield start, outside
