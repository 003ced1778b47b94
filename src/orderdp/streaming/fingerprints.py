"""Fingerprints: 64 bits that represent a key of any length."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np

from orderdp._draw import fair_hash
from orderdp.errors import DatasetError

__all__ = ["collision_bound", "fingerprint", "fingerprints", "is_drawn", "listed", "share_threshold"]


_ALL = 1 << 64


def fingerprint(key: Any) -> int:
    """Return the fingerprint of one key. 1, "1" and b"1" are different keys.

    >>> fingerprint("shard-3/0017") == fingerprint("shard-3/0017"), fingerprint("1") == fingerprint(1)
    (True, False)
    """
    if isinstance(key, str):
        text = b"s" + key.encode("utf-8", "surrogatepass")
    elif isinstance(key, bytes):
        text = b"b" + key
    elif isinstance(key, int | np.integer) and not isinstance(key, bool):
        text = b"i%d" % int(key)
    else:
        number = _as_number(key)
        if number is None:
            raise DatasetError(
                f"the key of a sample must be bytes, a str or an int, got {type(key).__name__}: {str(key)[:60]!r}. "
                "Give every sample a name that is the same in every epoch."
            )
        text = b"i%d" % number
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def listed(keys: Any) -> list[Any]:
    """Keys of a batch as a list, from a list, a tensor, an array or a single key."""
    if hasattr(keys, "tolist"):
        flat: list[Any] = keys.reshape(-1).tolist()
        return flat
    return [keys] if isinstance(keys, str | bytes) or not isinstance(keys, Iterable) else list(keys)


def fingerprints(keys: Any) -> np.ndarray:
    """Fingerprints of a batch of keys, uint64."""
    return np.array([fingerprint(key) for key in listed(keys)], dtype=np.uint64)


def collision_bound(keys: int) -> float:
    """Upper bound on the probability that any two of `keys` keys have the same fingerprint: pairs over 2**64.

    >>> f"{collision_bound(10**6):.1e} {collision_bound(10**9):.1e}"
    '2.7e-08 2.7e-02'
    """
    return min(1.0, keys * (keys - 1) / 2 / _ALL)


def share_threshold(share: float) -> int:
    """Number below which a fraction `share` of all 64-bit hashes lie."""
    return min(_ALL, max(0, round(share * _ALL)))


def is_drawn(marks: np.ndarray, hash_key: int, threshold: int) -> np.ndarray:
    """Whether the keyed hash of each fingerprint is below the threshold: independent, with equal probability."""
    if threshold >= _ALL:
        return np.ones(len(marks), dtype=np.bool_)
    drawn: np.ndarray = fair_hash(marks, hash_key) < np.uint64(threshold)
    return drawn


def _as_number(key: Any) -> int | None:
    """Value of a tensor or array with one integer, as collating may leave; None for anything else."""
    if getattr(key, "ndim", None) == 0 and hasattr(key, "item"):
        number = key.item()
        return number if isinstance(number, int) and not isinstance(number, bool) else None
    return None
