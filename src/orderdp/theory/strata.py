"""A data set in parts, each with a pool of its own: how likely each sample is to be kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import is_count
from orderdp.theory.checks import check_design, checked_losses
from orderdp.theory.risk import surrogate_weights
from orderdp.theory.rules import Top

__all__ = ["stratified_weights", "stratum_sizes"]


def stratum_sizes(total: int, world: int) -> np.ndarray:
    """How `total` is shared out among `world` parts: equally, the first ones get one more.

    >>> stratum_sizes(8, 3).tolist()
    [3, 3, 2]
    """
    if not (is_count(total, least=0) and is_count(world)):
        raise ConfigError(
            f"total must be a whole number, at least 0, and world at least 1, got total={total!r}, world={world!r}."
        )
    return np.array([total // world + (part < total % world) for part in range(world)], dtype=np.int64)


def stratified_weights(losses: Any, s: int, q: int, world: int) -> np.ndarray:
    """Probability that each sample is kept where `world` ranks draw from their own part of the samples.

    Rank r holds n_r consecutive samples, draws s_r of them and keeps the q_r largest, with n, s and q shared out by
    `stratum_sizes`. Within its part, the sample of rank j has the weight gamma_j(n_r, s_r, q_r) of `weights`; equal
    losses share the mean. The probabilities sum to q.

    Two parts of two. In the first, both losses are large among all; one of the two is kept all the same:

    >>> stratified_weights([9.0, 8.0, 1.0, 2.0], s=4, q=2, world=2).tolist()
    [1.0, 0.0, 0.0, 1.0]

    Args:
        losses: One loss for each of n samples, in the order in which ranks hold them.
        s: Size of the pool, of all ranks together.
        q: How many are kept, by all ranks together.
        world: How many ranks there are.
    """
    values = checked_losses(losses)
    check_design(len(values), s, q)
    if not (is_count(world) and world <= q):
        raise ConfigError(f"world must be a whole number from 1 to q = {q}, got {world!r}: every rank keeps a sample.")
    sizes = zip(*(stratum_sizes(total, world).tolist() for total in (len(values), s, q)), strict=True)
    parts, start = [], 0
    for n_r, s_r, q_r in sizes:
        parts.append(surrogate_weights(values[start : start + n_r], s_r, Top(q_r)) * q_r)
        start += n_r
    return np.concatenate(parts)
