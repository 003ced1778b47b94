"""Numbers of samples, batches and steps: arithmetic that needs no tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from orderdp._validation import check_batch_size, is_count
from orderdp.errors import ConfigError

__all__ = ["Split", "batches_in", "pool_sizes", "steps_within"]


Split = Literal["samples", "batches"]


#: With only a prune ratio given, the pool fraction is the kept fraction to this power.
POOL_EXPONENT = 0.25


def pool_sizes(
    n: int, prune_ratio: float | None, exploration: float | None, exploitation: float | None
) -> tuple[int, int]:
    """Return the pool size s and the number kept q, of `n`: by ratio, by both dials, or by ratio and one dial."""
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


def batches_in(samples: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches of `samples` samples."""
    return samples // batch_size if drop_last else -(-samples // batch_size)


def steps_within(
    sizes: Iterable[tuple[int, int]],
    batch_size: int,
    *,
    drop_last: bool = False,
    world_size: int = 1,
    accumulate: int = 1,
    split: Split = "samples",
    pad: bool = False,
) -> tuple[int, int]:
    """Return the fewest and the most optimizer steps of epochs whose sizes lie between these bounds."""
    check_batch_size(batch_size)
    for name, value in (("world_size", world_size), ("accumulate", accumulate)):
        if not is_count(value):
            raise ConfigError(f"{name} must be a whole number, at least 1, got {value!r}.")
    if split not in ("samples", "batches"):
        raise ConfigError(f'split must be "samples" or "batches", got {split!r}.')

    def steps(samples: int) -> int:
        if split == "samples":
            share = -(-samples // world_size) if pad else samples // world_size
            batches = batches_in(share, batch_size, drop_last)
        else:
            batches = batches_in(batches_in(samples, batch_size, drop_last), world_size, drop_last)
        return -(-batches // accumulate)

    fewest = most = 0
    for low, high in sizes:
        fewest, most = fewest + steps(low), most + steps(high)
    return fewest, most
