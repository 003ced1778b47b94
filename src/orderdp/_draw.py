"""Random streams, and the draws made from them: uniform pools, top-k with fair ties, visiting orders. Numpy only.

A stream is a function of the seed and of its tags. Streams with different tags are independent, and the same stream
can be made again at any time, in any process, without storing a generator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Protocol

import numpy as np

__all__ = [
    "BLOCK",
    "Streams",
    "counts_by_block",
    "fair_hash",
    "generator",
    "key64",
    "pool_choices",
    "pool_mask",
    "pool_scores",
    "pool_sizes",
    "ranking",
    "top_of_part",
    "top_of_pool",
    "visiting_order",
]


def generator(seed: int, *tags: int | str) -> np.random.Generator:
    """Return a fresh generator for the stream called `tags` under `seed`.

    >>> generator(0, "pool", 3).permutation(5).tolist() == generator(0, "pool", 3).permutation(5).tolist()
    True
    """
    if not _PLAIN.issuperset(map(type, tags)):
        tags = _plain(tags)
    entropy = int.from_bytes(blake2b(repr((int(seed), *tags)).encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))


def key64(seed: int, *tags: int | str) -> int:
    """Return a 64-bit key for the stream called `tags` under `seed`, for hashing."""
    if not _PLAIN.issuperset(map(type, tags)):
        tags = _plain(tags)
    return int.from_bytes(blake2b(repr((int(seed), *tags)).encode(), digest_size=8).digest(), "little")


# A stream is a digest of its tags, because SeedSequence([1]) and SeedSequence([1, 0]) are the same stream: lists of
# numbers of different lengths or sizes are padded and joined before they are mixed.
_PLAIN = frozenset((int, str))


def _plain(tags: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return the tags with numbers of other kinds, such as numpy's, as Python's own."""
    return tuple(tag if isinstance(tag, str) else int(tag) for tag in tags)


#: With only a prune ratio given, the pool fraction is the kept fraction to this power.
POOL_EXPONENT = 0.25


def pool_sizes(
    n: int, prune_ratio: float | None, exploration: float | None, exploitation: float | None
) -> tuple[int, int]:
    """Return the pool size s and the number kept q, of `n`. Give the ratio, or two of the three fractions."""
    if prune_ratio is None:
        assert exploration is not None
        assert exploitation is not None
        s = round(exploration * n)
        return s, round(exploitation * s)
    keep = 1 - prune_ratio
    q = round(keep * n)
    if exploration is not None:
        return max(round(exploration * n), q), q  # 1 - 0.7 is slightly more than 0.3, and may round to one more
    if exploitation is not None:
        return min(n, round(q / exploitation)), q
    return max(round(keep**POOL_EXPONENT * n), q), q


# Numpy's own sampler rejects larger populations.
_MOST_FOR_NUMPY = 10**9 - 1


def counts_by_block(widths: np.ndarray, s: int, rng: np.random.Generator) -> np.ndarray:
    """Draw how many samples of a uniform pool of `s` fall into each block; multivariate hypergeometric.

    Args:
        widths: Samples in each block, int64.
        s: Size of the pool.
        rng: The random generator.
    """
    if int(widths.sum()) <= _MOST_FOR_NUMPY:
        return rng.multivariate_hypergeometric(widths, s, method="marginals")
    return _tossed(widths, s, rng)


def _tossed(widths: np.ndarray, s: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the same by binomial tosses and a correction of about the square root of the population."""
    counts: np.ndarray = rng.binomial(widths, s / int(widths.sum())).astype(np.int64)
    surplus = int(counts.sum()) - s
    if surplus > 0:
        counts -= _few(counts, surplus, rng)
    elif surplus < 0:
        counts += _few(widths - counts, -surplus, rng)
    return counts


def _few(widths: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` distinct members one by one; return how many fall into each block."""
    ends = np.cumsum(widths)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        # Drawn one by one and kept if new: the first `count` distinct ones are a uniform set.
        more = rng.integers(0, int(ends[-1]), count - len(drawn))
        together = np.concatenate((drawn, more))
        _, first = np.unique(together, return_index=True)
        drawn = together[np.sort(first)]
    return np.bincount(np.searchsorted(ends, drawn, side="right"), minlength=len(widths))


#: Samples in a block. Changing it changes which samples a seed draws.
BLOCK = 1 << 16


# Up to this many indices, which fit the processor's cache, a shuffle is faster than a sort.
_SHUFFLE = 1 << 20


# Up to this many words, threads cost more than they save.
_SORT_ALONE = 1 << 22


class Streams(Protocol):
    """Makes the generator of some tags."""

    def __call__(self, *tags: int | str) -> np.random.Generator:
        """Return the generator called `tags`."""
        ...


def pool_mask(n: int, s: int, rng: Streams) -> np.ndarray:
    """Draw a uniform pool as a mask: exactly `s` of `n` samples, every such set equally likely.

    >>> from functools import partial
    >>> from orderdp._draw import generator
    >>> int(pool_mask(10, 6, partial(generator, 0)).sum())
    6
    """
    mask = np.ones(n, dtype=np.bool_)
    for start, stop, chosen, are_in in pool_choices(n, s, rng):
        mask[start:stop] = not are_in
        mask[start:stop][chosen] = are_in
    return mask


def pool_scores(scores: np.ndarray, s: int, rng: Streams) -> np.ndarray:
    """Return the scores of a uniform pool of `s` samples, and -inf for the others.

    The pool is that of `pool_mask`.
    """
    pooled: np.ndarray = scores.copy()
    outside = np.float32(-np.inf)
    for start, stop, chosen, are_in in pool_choices(len(scores), s, rng):
        block = pooled[start:stop]
        if are_in:
            block[:] = outside
            block[chosen] = scores[start:stop][chosen]
        else:
            block[chosen] = outside
    return pooled


def top_of_pool(pooled: np.ndarray, q: int, tie_key: int) -> np.ndarray:
    """Return the indices of the `q` largest scores of a pool, ascending; ties are broken fairly.

    Args:
        pooled: Scores in any precision, as from `pool_scores`; +inf ranks first, -inf, for samples outside the pool,
            last. No NaN.
        q: Number of samples to keep; if the pool has fewer, samples outside it fill up the rest.
        tie_key: Key of the hash that orders equal scores.
    """
    ordered = pooled.copy()
    ordered.partition(len(pooled) - q)
    threshold = ordered[len(pooled) - q]
    del ordered
    kept = pooled >= threshold
    if int(np.count_nonzero(kept)) == q:
        return np.flatnonzero(kept)
    tied = pooled == threshold
    kept &= ~tied
    del pooled  # the hashes need the memory if all samples are tied
    missing = q - int(np.count_nonzero(kept))
    _keep_smallest_hashes(tied, missing, tie_key)
    kept |= tied
    return np.flatnonzero(kept)


def top_of_part(part: np.ndarray, scores: np.ndarray, count: int, tie_key: int) -> np.ndarray:
    """Return the `count` samples of `part` with the largest `scores`, in the order of `part`."""
    best_first = np.lexsort((fair_hash(part, tie_key), -scores))
    return part[np.sort(best_first[:count])]


def ranking(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the positions of all scores from the largest to the smallest, equal ones in random order.

    Sorts words that hold a score above a position, which is several times faster than a stable sort by score.

    >>> ranking(np.array([2.0, np.inf, -1.0, 3.0], dtype=np.float32), np.random.default_rng(0)).tolist()
    [1, 3, 0, 2]

    Args:
        scores: In single precision; no NaN.
        rng: Orders equal scores.
    """
    n = len(scores)
    assert n <= 1 << 32, "a place must fit into half a word"
    order = visiting_order(np.arange(n), n, rng)
    bits = (np.float32(0) - scores[order]).view(np.int32)  # not -scores: 0 and -0 are equal and must have equal bits
    # As integers in the same order: below 0 all bits are flipped, above it the sign bit.
    keys = np.where(bits < 0, ~bits, bits ^ np.int32(-(1 << 31))).view(np.uint32)
    words = keys.astype(np.uint64) << np.uint64(32)
    words |= np.arange(n, dtype=np.uint64)
    _sort(words)
    words &= np.uint64((1 << 32) - 1)
    ranked: np.ndarray = order[words.view(np.int64)]
    return ranked


def visiting_order(indices: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return the `indices`, each below `n` and unique, in a uniformly random order. Reuses their memory.

    Many indices are ordered by sorting random words that hold an index in their low bits, which is several times faster
    than a shuffle once they exceed the processor's cache. The few words with equal random parts would come out in the
    order of their indices; they are shuffled among themselves afterwards.
    """
    if len(indices) <= _SHUFFLE:
        rng.shuffle(indices)
        return indices
    bits = np.uint64(max(n - 1, 1).bit_length())
    low = np.uint64((1 << int(bits)) - 1)
    words = indices.view(np.uint64)
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        block |= rng.bit_generator.random_raw(len(block)) & ~low
    _sort(words)
    _shuffle_equal_prefixes(words, bits, rng)
    words &= low
    return words.view(np.int64)


def fair_hash(indices: np.ndarray, key: int) -> np.ndarray:
    """Return a 64-bit hash of each index under `key`. Different indices never collide: each step is invertible."""
    h = indices.astype(np.uint64)
    h *= np.uint64(0x9E3779B97F4A7C15)
    h += np.uint64(key)
    h ^= h >> np.uint64(30)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return h


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def pool_choices(
    n: int, s: int, rng: Streams, first: int = 0, last: int | None = None
) -> Iterator[tuple[int, int, np.ndarray, bool]]:
    """Yield for each block which of its samples are in the pool; or which are not, if those are fewer.

    Yields nothing if all samples are in the pool. A rank that holds a shard asks only for the blocks of its shard.

    Args:
        n: Number of samples.
        s: Size of the pool.
        rng: The streams of the draw.
        first: The first block.
        last: The block to stop before; None for all.

    Yields:
        start, stop: the samples of the block. chosen: positions in the block. are_in: whether those are in the pool.
    """
    if s == n:
        return
    counts = _counts(n, s, rng("pool")) if n > BLOCK else [s]
    last = len(counts) if last is None else last
    for block in range(first, last):
        start, stop = block * BLOCK, min((block + 1) * BLOCK, n)
        width, count = stop - start, int(counts[block])
        are_in = 2 * count <= width  # the cost of `choice` grows with the number selected
        size = count if are_in else width - count
        yield start, stop, rng("pool", block).choice(width, size, replace=False, shuffle=False), are_in


def _counts(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
    """Draw how many samples of each block are in the pool."""
    widths = np.full(-(-n // BLOCK), BLOCK, dtype=np.int64)
    widths[-1] = n - BLOCK * (len(widths) - 1)
    return counts_by_block(widths, s, rng)


def _keep_smallest_hashes(marked: np.ndarray, count: int, key: int) -> None:
    """Keep marked only the `count` marked samples with the smallest hashes.

    The hashes are computed twice, block by block, because storing the indices beside them would double the memory
    of the first selection, in which every sample is tied.
    """
    if count == 0:
        marked[:] = False
        return
    hashes = np.empty(int(np.count_nonzero(marked)), dtype=np.uint64)
    filled = 0
    for start, stop in _blocks(len(marked)):
        found = fair_hash(np.flatnonzero(marked[start:stop]) + start, key)
        hashes[filled : filled + len(found)] = found
        filled += len(found)
    hashes.partition(count - 1)
    threshold = hashes[count - 1]
    del hashes
    for start, stop in _blocks(len(marked)):
        places = np.flatnonzero(marked[start:stop])
        marked[start:stop][places] = fair_hash(places + start, key) <= threshold


def _sort(words: np.ndarray) -> None:
    """Sort in place, in as many threads as there are cores (numpy releases the interpreter lock meanwhile)."""
    halvings = min(os.cpu_count() or 1, 8).bit_length() - 1
    if halvings == 0 or len(words) <= _SORT_ALONE:
        words.sort()
        return
    parts = [words]
    with ThreadPoolExecutor(1 << halvings) as pool:
        for _ in range(halvings):
            parts = [half for halves in pool.map(_halve, parts) for half in halves]
        list(pool.map(np.ndarray.sort, parts))


def _halve(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two views of `words`, partitioned so that all of the first are smaller than all of the second."""
    middle = len(words) // 2
    words.partition(middle)  # one position at a time: with several, numpy uses no vector instructions
    return words[:middle], words[middle:]


def _shuffle_equal_prefixes(words: np.ndarray, bits: np.uint64, rng: np.random.Generator) -> None:
    """Shuffle sorted words that agree above their low `bits` among themselves."""
    repeated = []
    for start in range(0, len(words) - 1, BLOCK):
        prefixes = words[start : start + BLOCK + 1] >> bits
        repeated.append(np.flatnonzero(prefixes[1:] == prefixes[:-1]) + start)
    first = np.concatenate(repeated) if repeated else np.empty(0, dtype=np.int64)
    if len(first) == 0:
        return
    places = np.union1d(first, first + 1)
    group = words[places] >> bits
    words[places] = words[places][np.lexsort((rng.bit_generator.random_raw(len(places)), group))]
