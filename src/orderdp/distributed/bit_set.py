"""BitSet: a set of samples with one bit per sample; Shard: which samples a rank holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["PIECE", "WORD", "BitSet", "Shard", "ones_in", "shard_size"]


#: Samples per word. Words are counted from sample 0, so ranks that share a word agree on its bits.
WORD = 64


#: Samples processed together: whole words, and few enough for the CPU cache.
PIECE = 1 << 16


_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def ones_in(words: np.ndarray) -> np.ndarray:
    """Number of set bits per word."""
    ones: np.ndarray = _ONES[words.view(np.uint8).reshape(len(words), WORD // 8)].sum(axis=1, dtype=np.int64)
    return ones


class BitSet:
    """Subset of the samples from `start` to `stop`, one bit per sample.

    >>> bits = BitSet(3, 70)
    >>> bits.add(np.array([5, 64, 69]))
    >>> bits.mask(60, 70).astype(int).tolist(), len(bits)
    ([0, 0, 0, 0, 1, 0, 0, 0, 0, 1], 3)

    Args:
        start: The first sample that the set can hold.
        stop: The first sample after it that the set cannot hold.
        words: Content, as in the `words` of another set; None for an empty set.
    """

    def __init__(self, start: int, stop: int, words: np.ndarray | None = None) -> None:
        self.start, self.stop = start, max(start, stop)
        self.first_word = start // WORD
        n_words = -(-self.stop // WORD) - self.first_word if self.stop > start else 0
        self.words: np.ndarray = np.zeros(n_words, dtype=np.uint64) if words is None else words
        self._bytes = self.words.view(np.uint8)

    def __len__(self) -> int:
        return sum(
            int(_ONES[self._bytes[at : at + PIECE]].sum(dtype=np.int64)) for at in range(0, self.words.nbytes, PIECE)
        )

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the range in pieces that share no word."""
        for start in range(self.start // PIECE * PIECE, self.stop, PIECE):
            yield max(start, self.start), min(start + PIECE, self.stop)

    def mask(self, start: int, stop: int) -> np.ndarray:
        """Boolean mask of the samples from `start` to `stop`."""
        first = start // WORD
        packed = self._bytes[(first - self.first_word) * 8 : (-(-stop // WORD) - self.first_word) * 8]
        offset = first * WORD
        return np.unpackbits(packed, bitorder="little").view(np.bool_)[start - offset : stop - offset]

    def put(self, start: int, mask: np.ndarray) -> None:
        """Replace the piece that starts at `start` and is as long as `mask`."""
        first, stop = start // WORD, start + len(mask)
        last = -(-stop // WORD)
        if start % WORD or stop % WORD:
            padded = np.zeros((last - first) * WORD, dtype=np.bool_)
            padded[start - first * WORD : stop - first * WORD] = mask
            mask = padded
        at = (first - self.first_word) * 8
        self._bytes[at : at + len(mask) // 8] = np.packbits(mask, bitorder="little")

    def add(self, samples: np.ndarray) -> None:
        """Add samples."""
        np.bitwise_or.at(self.words, samples // WORD - self.first_word, _bit_of(samples))

    def remove(self, samples: np.ndarray) -> None:
        """Remove samples."""
        np.bitwise_and.at(self.words, samples // WORD - self.first_word, ~_bit_of(samples))

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Members from `start` to `stop`, ascending."""
        return np.flatnonzero(self.mask(start, stop)) + start

    def __ior__(self, other: BitSet) -> BitSet:
        self.words |= other.words
        return self

    def copy(self) -> BitSet:
        """Return a copy."""
        return BitSet(self.start, self.stop, self.words.copy())


def _bit_of(samples: np.ndarray) -> np.ndarray:
    bit: np.ndarray = np.uint64(1) << (samples % WORD).astype(np.uint64)
    return bit


def shard_size(total: int, rank: int, world: int) -> int:
    """Number of samples of `total` that a rank gets: an equal part, and one more on the first ranks.

    Monotone in `total`, so on every rank the parts of q <= s <= n are in the same order.

    >>> [shard_size(8, rank, 3) for rank in range(3)]
    [3, 3, 2]
    """
    return total // world + (rank < total % world)


@dataclass(frozen=True)
class Shard:
    """The samples from `start` to `stop`, of `n` that `world` ranks hold together.

    >>> [(Shard(8, rank, 3).start, Shard(8, rank, 3).stop) for rank in range(3)]
    [(0, 3), (3, 6), (6, 8)]

    Attributes:
        n: Samples in the whole data set.
        rank: The rank that holds this shard.
        world: Number of shards.
    """

    n: int
    rank: int = 0
    world: int = 1

    @property
    def start(self) -> int:
        """First sample of the shard."""
        return self.rank * (self.n // self.world) + min(self.rank, self.n % self.world)

    @property
    def stop(self) -> int:
        """First sample after the shard."""
        return self.start + shard_size(self.n, self.rank, self.world)

    @property
    def size(self) -> int:
        """Number of samples."""
        return shard_size(self.n, self.rank, self.world)

    def starts(self) -> list[int]:
        """First sample of the shard of every rank."""
        return [Shard(self.n, rank, self.world).start for rank in range(self.world)]
