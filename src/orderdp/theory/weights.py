"""gamma_j: the probability that the sample of loss rank j is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from orderdp._validation import is_count
from orderdp.errors import ConfigError
from orderdp.theory._checks import check_design, checked_losses
from orderdp.theory.rank_rules import RankRule, Top, as_rule
from orderdp.theory.risk import surrogate_weights

__all__ = ["limit_weights", "stratified_weights", "stratum_sizes", "weights", "weights_at"]


def weights(n: int, s: int, q: int | RankRule) -> np.ndarray:
    """Return the probability that the sample of loss rank j is kept, for j = 1..n.

    Four samples, pools of three, keep two: the two hardest are kept whenever drawn, the easiest never.

    >>> weights(4, 3, 2).round(4).tolist()
    [0.75, 0.75, 0.5, 0.0]

    They sum to the number kept.

    >>> round(float(weights(1000, 800, 600).sum()), 9)
    600.0

    Args:
        n: Number of samples.
        s: Size of the uniform pool.
        q: Number of samples kept of the pool, the largest losses first; or another `RankRule`.
    """
    return as_rule(q, n, s).inclusion(n, s)


def weights_at(ranks: Any, n: int, s: int, q: int | RankRule) -> np.ndarray:
    """Return the same for some ranks only, without an array of n numbers.

    >>> weights_at([1, 300_000_000, 10**9], 10**9, 500_000_000, 300_000_000).round(6).tolist()
    [0.5, 0.5, 0.0]

    Args:
        ranks: Ranks from 1 to n.
        n: Number of samples.
        s: Size of the uniform pool.
        q: Number of samples kept, or a `RankRule`.
    """
    rule = as_rule(q, n, s)
    array = np.asarray(ranks)
    if not np.issubdtype(array.dtype, np.integer) or (array.size and not (array.min() >= 1 and array.max() <= n)):
        raise ConfigError(f"ranks must be whole numbers from 1 to n = {n}, got {ranks!r}.")
    values = [rule.inclusion_at(int(rank), n, s) for rank in array.reshape(-1)]
    return np.array(values, dtype=np.float64).reshape(array.shape)


def limit_weights(z: Any, s: int, q: int) -> np.ndarray:
    """Return the limit of n * gamma_j as n grows with j/n = z and (s, q) fixed: s * P[Binomial(s - 1, z) <= q - 1].

    So 1 - limit_weights(z, s, q) / s is the distribution function of Beta(q, s - q), for q < s.

    >>> limit_weights([0.0, 0.5, 1.0], 3, 2).tolist()
    [3.0, 2.25, 0.0]

    Args:
        z: Positions in [0, 1].
        s: Size of the pool.
        q: Number of samples kept of it.
    """
    from orderdp.theory.rank_rules import binomial

    check_design(s, s, q)
    array = np.asarray(z, dtype=np.float64)
    if not ((array >= 0) & (array <= 1)).all():
        raise ConfigError(f"z must be in [0, 1], got {z!r}.")
    values = np.empty(array.size)
    for place, position in enumerate(array.reshape(-1)):
        first, chances = binomial(s - 1, float(position))
        values[place] = s * min(1.0, float(chances[: max(0, q - first)].sum()))
    return values.reshape(array.shape)


def stratum_sizes(total: int, world: int) -> np.ndarray:
    """Divide `total` among `world` ranks equally; the first ranks get one more.

    >>> stratum_sizes(8, 3).tolist()
    [3, 3, 2]

    Args:
        total: Number to divide.
        world: Number of ranks.
    """
    if not (is_count(total, least=0) and is_count(world)):
        raise ConfigError(
            f"total must be a whole number, at least 0, and world at least 1, got total={total!r}, world={world!r}."
        )
    return np.array([total // world + (part < total % world) for part in range(world)], dtype=np.int64)


def stratified_weights(losses: Any, s: int, q: int, world: int) -> np.ndarray:
    """Return the probability that each sample is kept if `world` ranks select from their own shard of the samples.

    Rank r holds n_r consecutive samples, draws s_r of them and keeps the q_r largest, with n, s and q divided by
    `stratum_sizes`. Within its shard, the sample of loss rank j has the weight gamma_j(n_r, s_r, q_r) of `weights`;
    equal losses share the mean. The probabilities sum to q.

    Two shards of two. In the first, both losses are larger than all others; one of the two is kept all the same:

    >>> stratified_weights([9.0, 8.0, 1.0, 2.0], s=4, q=2, world=2).tolist()
    [1.0, 0.0, 0.0, 1.0]

    Args:
        losses: One loss for each of n samples, in the order in which ranks hold them.
        s: Size of the pool, over all ranks.
        q: Number of samples kept, over all ranks.
        world: Number of ranks.
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
