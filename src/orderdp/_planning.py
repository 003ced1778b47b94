"""Numbers of batches and steps: arithmetic that needs no tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from orderdp._validation import check_batch_size, is_count
from orderdp.errors import ConfigError

__all__ = ["Split", "batches_in", "steps_within"]


Split = Literal["samples", "batches"]


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
