"""How many samples, batches and steps: arithmetic that needs no tensors."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any, Literal

import numpy as np

from orderdp.errors import ConfigError

__all__ = [
    "Split",
    "batches_in",
    "check_batch_size",
    "check_dials",
    "check_ratio",
    "is_count",
    "is_number",
    "pool_sizes",
    "steps_within",
]

Split = Literal["samples", "batches"]

#: With a bare prune ratio, the pool is this power of the share kept.
POOL_EXPONENT = 0.25


def is_count(value: Any, least: int = 1) -> bool:
    """Whether `value` is a whole number, and no smaller than `least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def check_dials(prune_ratio: Any, exploration: Any, exploitation: Any) -> None:
    """Raises unless these are a prune ratio, both dials, or a ratio with dials that agree with it."""
    if prune_ratio is not None:
        check_ratio("prune_ratio", prune_ratio)
    _check_dial("exploration", exploration, "the size of the pool as a share of the data set, s/n")
    _check_dial("exploitation", exploitation, "the share of the pool that is kept, q/s")
    if prune_ratio is None:
        if exploration is None or exploitation is None:
            raise ConfigError(
                f"give prune_ratio, or both exploration and exploitation, got exploration={exploration} and "
                f"exploitation={exploitation}. OrderDP(prune_ratio=0.4) trains on 60 % of the data."
            )
        return
    keep = 1 - prune_ratio
    if exploration is not None and exploitation is not None and abs(exploration * exploitation - keep) > 1e-9:
        raise ConfigError(
            f"prune_ratio={prune_ratio} keeps a share of {keep:g}, but exploration={exploration} times exploitation="
            f"{exploitation} keeps {exploration * exploitation:g}. Leave one of the three out."
        )
    for name, dial in (("exploration", exploration), ("exploitation", exploitation)):
        if dial is not None and dial < keep - 1e-9:
            raise ConfigError(
                f"{name} must be at least the share that is kept, {keep:g} at prune_ratio={prune_ratio}, got {dial}. "
                "Choose it larger, or prune more."
            )


def check_ratio(name: str, value: Any, *, zero_allowed: bool = True, one_allowed: bool = False) -> None:
    """Raises unless `value` is a number in [0, 1), or in the interval with other ends."""
    fits = is_number(value) and 0 <= value <= 1
    if not fits or (value == 0 and not zero_allowed) or (value == 1 and not one_allowed):
        hint = " It is a fraction, not a percentage." if is_number(value) and 1 < value <= 100 else ""
        interval = f"{'[' if zero_allowed else '('}0, 1{']' if one_allowed else ')'}"
        raise ConfigError(f"{name} must be in {interval}, got {value!r}.{hint}")


def _check_dial(name: str, value: Any, meaning: str) -> None:
    if value is not None and (not is_number(value) or not 0 < value <= 1):
        raise ConfigError(f"{name} must be in (0, 1], got {value!r}. It is {meaning}.")


def is_number(value: object) -> bool:
    """Whether `value` is a number, and not True or False."""
    return isinstance(value, Real) and not isinstance(value, bool)


def pool_sizes(
    n: int, prune_ratio: float | None, exploration: float | None, exploitation: float | None
) -> tuple[int, int]:
    """The size s of the pool and the number q kept, out of `n`: by ratio, by both dials, or by ratio and one dial."""
    if prune_ratio is None:
        assert exploration is not None
        assert exploitation is not None
        s = round(exploration * n)
        return s, round(exploitation * s)
    keep = 1 - prune_ratio
    q = round(keep * n)
    if exploration is not None:
        return max(round(exploration * n), q), q  # 1 - 0.7 is a little more than 0.3, and may round to one more
    if exploitation is not None:
        return min(n, round(q / exploitation)), q
    return max(round(keep**POOL_EXPONENT * n), q), q


def batches_in(samples: int, batch_size: int, drop_last: bool) -> int:
    """How many batches `samples` make."""
    return samples // batch_size if drop_last else -(-samples // batch_size)


def check_batch_size(batch_size: Any) -> int:
    """A usable batch size, or an error."""
    if not is_count(batch_size):
        raise ConfigError(
            f"batch_size must be a whole number, at least 1, got {batch_size!r}. "
            "For samples one by one use DataLoader(Indexed(dataset), sampler=pruner.sampler, batch_size=None)."
        )
    return int(batch_size)


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
    """The fewest and the most optimiser steps of epochs that keep between so many and so many samples."""
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
