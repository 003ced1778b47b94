"""Random streams named by what they are for.

A stream is a function of (seed, tags) and of nothing else: no global state is read or written, and any process
that knows the tags can make the same numbers.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

__all__ = ["generator", "key64"]


def generator(seed: int, *tags: int | str) -> np.random.Generator:
    """A fresh generator for the stream called `tags` under `seed`.

    >>> generator(0, "pool", 3).permutation(5).tolist() == generator(0, "pool", 3).permutation(5).tolist()
    True
    """
    entropy = int.from_bytes(_digest(seed, tags, 16), "little")
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))


def key64(seed: int, *tags: int | str) -> int:
    """A 64-bit key for the stream called `tags` under `seed`, for hashing."""
    return int.from_bytes(_digest(seed, tags, 8), "little")


def _digest(seed: int, tags: tuple[int | str, ...], size: int) -> bytes:
    # A digest, because SeedSequence([1]) and SeedSequence([1, 0]) are the same stream: lists of numbers of
    # different lengths or sizes are padded and joined before they are mixed.
    text = repr((int(seed), *(tag if isinstance(tag, str) else int(tag) for tag in tags)))
    return blake2b(text.encode(), digest_size=size).digest()
