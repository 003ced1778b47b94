"""gamma_j: how likely the sample of loss rank j is to be kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from orderdp.errors import ConfigError
from orderdp.theory.checks import check_design
from orderdp.theory.rules import RankRule, as_rule

__all__ = ["limit_weights", "weights", "weights_at"]


def weights(n: int, s: int, q: int | RankRule) -> np.ndarray:
    """Probability that the sample of loss rank j is kept, for j = 1..n.

    Four samples, pools of three, keep two: the two hardest are kept whenever drawn, the easiest never.

    >>> weights(4, 3, 2).round(4).tolist()
    [0.75, 0.75, 0.5, 0.0]

    They sum to the number kept.

    >>> round(float(weights(1000, 800, 600).sum()), 9)
    600.0

    Args:
        n: Number of samples.
        s: Size of the uniform pool.
        q: How many of the pool are kept, the largest losses first; or another `RankRule`.
    """
    return as_rule(q, n, s).inclusion(n, s)


def weights_at(ranks: Any, n: int, s: int, q: int | RankRule) -> np.ndarray:
    """The same for some ranks only, without an array of n numbers.

    >>> weights_at([1, 300_000_000, 10**9], 10**9, 500_000_000, 300_000_000).round(6).tolist()
    [0.5, 0.5, 0.0]

    Args:
        ranks: Ranks from 1 to n.
        n: Number of samples.
        s: Size of the uniform pool.
        q: How many are kept, or a `RankRule`.
    """
    rule = as_rule(q, n, s)
    array = np.asarray(ranks)
    if not np.issubdtype(array.dtype, np.integer) or (array.size and not (array.min() >= 1 and array.max() <= n)):
        raise ConfigError(f"ranks must be whole numbers from 1 to n = {n}, got {ranks!r}.")
    values = [rule.inclusion_at(int(rank), n, s) for rank in array.reshape(-1)]
    return np.array(values, dtype=np.float64).reshape(array.shape)


def limit_weights(z: Any, s: int, q: int) -> np.ndarray:
    """The limit of n * gamma_j as n grows with j/n = z and (s, q) fixed: s * P[Binomial(s - 1, z) <= q - 1].

    So 1 - limit_weights(z, s, q) / s is the distribution function of Beta(q, s - q), for q < s.

    >>> limit_weights([0.0, 0.5, 1.0], 3, 2).tolist()
    [3.0, 2.25, 0.0]

    Args:
        z: Positions in [0, 1].
        s: Size of the pool.
        q: How many of it are kept.
    """
    from orderdp.theory.unimodal import binomial

    check_design(s, s, q)
    array = np.asarray(z, dtype=np.float64)
    if not ((array >= 0) & (array <= 1)).all():
        raise ConfigError(f"z must be in [0, 1], got {z!r}.")
    values = np.empty(array.size)
    for place, position in enumerate(array.reshape(-1)):
        first, chances = binomial(s - 1, float(position))
        values[place] = s * min(1.0, float(chances[: max(0, q - first)].sum()))
    return values.reshape(array.shape)
