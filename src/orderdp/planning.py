"""How many optimiser steps a run has, before it starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from orderdp.checks import is_count
from orderdp.errors import ConfigError
from orderdp.sampling import batches_in, check_batch_size

__all__ = ["Split", "steps_within"]

Split = Literal["samples", "batches"]


def steps_within(
    sizes: Iterable[tuple[int, int]],
    batch_size: int,
    *,
    drop_last: bool,
    world_size: int,
    accumulate: int,
    split: Split,
) -> tuple[int, int]:
    """The fewest and the most optimiser steps of epochs that keep between so many and so many samples."""
    check_batch_size(batch_size)
    for name, value in (("world_size", world_size), ("accumulate", accumulate)):
        if not is_count(value):
            raise ConfigError(f"{name} must be a whole number, at least 1, got {value!r}.")
    if split not in ("samples", "batches"):
        raise ConfigError(f'split must be "samples" or "batches", got {split!r}.')

    def steps(samples: int) -> int:
        if split == "samples":
            batches = batches_in(samples // world_size, batch_size, drop_last)
        else:
            batches = batches_in(batches_in(samples, batch_size, drop_last), world_size, drop_last)
        return -(-batches // accumulate)

    fewest = most = 0
    for low, high in sizes:
        fewest, most = fewest + steps(low), most + steps(high)
    return fewest, most
