"""Decisions: what of a stream is kept in one epoch, for whoever reads the stream.

For keys that were known when the epoch was drawn the answer is looked up. About others a keyed hash decides, so that
any process comes to the same answer without asking.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from orderdp.streaming.fingerprints import is_drawn

__all__ = ["NOBODY_ASKS", "Decisions"]

#: The opening of decisions that were made before the first epoch: what is looked at by them is not reported.
NOBODY_ASKS = 0

_MASK = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Decisions:
    """What is kept.

    Attributes:
        opening: A number for each time that somebody goes through the stream.
        hash_key: Key of the hash that decides about unknown keys.
        threshold: Those with smaller hashes are kept.
        known: Fingerprints, sorted.
        kept: 1 for those of them that are kept, 0 for those that are not.
    """

    opening: int
    hash_key: int
    threshold: int
    known: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64), repr=False)
    kept: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8), repr=False)

    def keeps(self, mark: int) -> bool:
        """Whether the sample with this fingerprint is kept."""
        place = int(self.known.searchsorted(np.uint64(mark)))
        if place < len(self.known) and int(self.known[place]) == mark:
            return bool(self.kept[place])
        return _hash(mark, self.hash_key) < self.threshold

    def keep_all_of(self, marks: np.ndarray) -> np.ndarray:
        """The same for many at once."""
        answer = is_drawn(marks, self.hash_key, self.threshold)
        if len(self.known):
            places = np.minimum(self.known.searchsorted(marks), len(self.known) - 1)
            answer = np.where(self.known[places] == marks, self.kept[places] == 1, answer)
        return answer


def _hash(mark: int, key: int) -> int:
    """`orderdp.draw.fair_hash` of one number; for one, numpy takes ten times as long."""
    h = (mark * 0x9E3779B97F4A7C15 + key) & _MASK
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK
    return h ^ (h >> 31)
