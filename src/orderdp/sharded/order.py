"""A visiting order in two levels: words of 64 samples in random order, then shuffled inside windows of many words.

What is held is the selection as bits and a number for each word, a fifth of a byte a sample together. A window mixes
4,096 words from all over the range, so data that lie sorted on the disk do not come sorted.
"""

from __future__ import annotations

import numpy as np

from orderdp.draw import Streams
from orderdp.sharded.bits import WORD, Bits, ones_in

__all__ = ["WINDOW", "TwoLevelOrder"]

#: Words in a window. Changing it changes the order in which a seed visits samples.
WINDOW = 1 << 12

_PLACES = np.arange(WORD, dtype=np.int64)


class TwoLevelOrder:
    """The samples of `own` and `guests` in a random order, any stretch of which can be asked for.

    Args:
        own: This rank's samples.
        guests: Samples that other ranks hold and this one visits too, ascending.
        rng: The order's streams.
    """

    def __init__(self, own: Bits, guests: np.ndarray, rng: Streams) -> None:
        self.own = own
        self.guests = guests
        self._rng = rng
        self._words = np.arange(len(own.words), dtype=np.uint32 if len(own.words) < 1 << 32 else np.int64)
        rng("words").shuffle(self._words)
        mixed = guests.copy()
        rng("guests").shuffle(mixed)
        n_windows = max(1, -(-len(self._words) // WINDOW))
        # Guests are spread over all windows.
        self._guests = np.array_split(mixed, n_windows)
        counts = [self._n_own(window) + len(part) for window, part in enumerate(self._guests)]
        self._ends = np.cumsum(counts)
        self._opened: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    def samples(self, start: int, stop: int) -> np.ndarray:
        """What lies between two positions."""
        stop = min(stop, len(self))
        if start >= stop:
            return np.empty(0, dtype=np.int64)
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        parts = []
        for window in range(first, last + 1):
            begins = int(self._ends[window - 1]) if window else 0
            parts.append(self._window(window)[max(0, start - begins) : stop - begins])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def after(self, position: int) -> tuple[Bits, np.ndarray]:
        """What has not been visited at `position`: of this rank's samples, and of the guests, ascending."""
        own = self.own.copy()
        whole = int(np.searchsorted(self._ends, position, side="right"))  # windows that have been visited to their end
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
        """The samples of a window in the order in which they are visited; that of the last one asked for is kept."""
        if self._opened is None or self._opened[0] != window:
            words = self._words_of(window)
            packed = self.own.words[words].view(np.uint8).reshape(len(words), WORD // 8)
            mask = np.unpackbits(packed, axis=1, bitorder="little").view(np.bool_)
            starts = (words.astype(np.int64) + self.own.first_word) * WORD
            samples = np.concatenate(((starts[:, None] + _PLACES)[mask], self._guests[window]))
            self._rng("window", window).shuffle(samples)
            self._opened = window, samples
        return self._opened[1]
