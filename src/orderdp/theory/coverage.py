"""The fraction of the samples seen after a number of epochs, and how often each sample is used.

It depends on the ranking, for which there are three models:

- "unseen-first", as in this library: an unseen sample outranks all seen ones. The number of unseen samples is a
  Markov chain: of u unseen samples, H ~ Hypergeometric(n, u, s) are in the pool, and min(H, q) of them are kept.
- "uniform": ranks are drawn anew each epoch, so each sample is kept with probability q/n.
- "seen-first", a finite start value below every loss, as in the published code: unseen samples are kept only if the
  pool has fewer than q seen ones. Many are never seen at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from orderdp._validation import is_count
from orderdp.errors import ConfigError
from orderdp.theory._checks import check_design
from orderdp.theory.rank_rules import hypergeometric

__all__ = ["Coverage", "Ranks", "coverage"]


Ranks = Literal["unseen-first", "uniform", "seen-first"]


# Up to this n the full distribution of the chain is computed; above, its mean path, from which it hardly deviates.
_EXACT_UP_TO = 400


# The search stops here: some samples may never be seen.
_LAST_EPOCH = 10_000


@dataclass(frozen=True, eq=False)
class Coverage:
    """Expected coverage and usage.

    Attributes:
        share: Expected fraction of the samples seen after 0, 1, ... epochs.
        all_seen_epoch: Number of epochs after which every sample has been seen with the given probability; None if that
            is not within 10,000.
        usage: Expected fraction of the samples that are used 0, 1, 2, ... times in all epochs.
    """

    share: np.ndarray = field(repr=False)
    all_seen_epoch: int | None
    usage: np.ndarray = field(repr=False)


def coverage(
    n: int, s: int, q: int, epochs: int, *, ranks: Ranks = "unseen-first", probability: float = 0.999
) -> Coverage:
    """Return the expected coverage of `epochs` epochs.

    Pools of 3 of 4, keep 2: after one epoch half is seen; the pool of the second has one or two of the others.

    >>> coverage(4, 3, 2, epochs=2).share.tolist()
    [0.0, 0.5, 0.875]

    Usage assumes that the ranks of seen samples are drawn anew each epoch. For n up to 400 the Markov chain is computed
    exactly; above, along its mean.

    Args:
        n: Number of samples.
        s: Size of the pool.
        q: Number of samples kept of it.
        epochs: Number of epochs.
        ranks: The model of the ranking.
        probability: Probability of `all_seen_epoch`.
    """
    check_design(n, s, q)
    if not is_count(epochs, least=0):
        raise ConfigError(f"epochs must be a whole number, at least 0, got {epochs!r}.")
    if not (isinstance(probability, float) and 0 < probability < 1):
        raise ConfigError(f"probability must be in (0, 1), got {probability!r}.")
    if ranks not in ("unseen-first", "uniform", "seen-first"):
        raise ConfigError(f'ranks must be "unseen-first", "uniform" or "seen-first", got {ranks!r}.')
    chain = _chain(n, s, q, ranks)
    unseen, all_seen = [float(n)], None
    for epoch in range(1, max(epochs, _LAST_EPOCH) + 1):
        if epoch > epochs and (all_seen is not None or chain.stuck):
            break
        left, chance = chain.step()
        if epoch <= epochs:
            unseen.append(left)
        if all_seen is None and chance >= probability:
            all_seen = epoch
    path = np.array(unseen)
    return Coverage(1 - path / n, all_seen, _usage(path, n, q))


class _Mean:
    """The expected number of unseen samples, epoch by epoch, along the mean path."""

    def __init__(self, n: int, s: int, q: int, ranks: Ranks) -> None:
        self.n, self.s, self.q, self.ranks = n, s, q, ranks
        self.unseen = float(n)
        self.stuck = False

    def step(self) -> tuple[float, float]:
        """Return the number of unseen samples after one more epoch, and the probability that it is 0."""
        gained = self._gain()
        # An unseen-first or uniform chain always advances; a seen-first one is too slow to finish in time.
        self.stuck = gained * _LAST_EPOCH < self.unseen
        self.unseen = max(0.0, self.unseen - gained)
        # Late, each of many samples is unseen with a small probability, nearly independently: their number is Poisson.
        return self.unseen, math.exp(-self.unseen)

    def _gain(self) -> float:
        n, s, q, unseen = self.n, self.s, self.q, self.unseen
        if self.ranks == "uniform":
            return unseen * q / n
        first = unseen if self.ranks == "unseen-first" else n - unseen  # those that are kept before the others
        drawn = first * s / n
        reach = 40 * math.sqrt(drawn + 1)  # no pool is further from the mean, so q limits none of them, or all
        if not drawn - reach <= q <= drawn + reach:
            kept_first = min(drawn, float(q))
            return kept_first if self.ranks == "unseen-first" else min(unseen, q - kept_first)
        # Linear between whole numbers: the last sample is found, though less than half a sample is expected.
        whole = math.floor(unseen)
        part = unseen - whole
        gained = (1 - part) * self._gain_of(whole) + (part and part * self._gain_of(whole + 1))
        return min(unseen, gained)

    def _gain_of(self, unseen: int) -> float:
        """Return how many of a whole number of unseen samples are kept, on average."""
        n, s, q = self.n, self.s, self.q
        if self.ranks == "seen-first":
            first, chances = hypergeometric(n, n - unseen, s)
            return float(np.maximum(q - (first + np.arange(len(chances))), 0) @ chances)
        first, chances = hypergeometric(n, unseen, s)
        return float(np.minimum(first + np.arange(len(chances)), q) @ chances)


class _Exact:
    """The distribution of the number of unseen samples, epoch by epoch."""

    def __init__(self, n: int, s: int, q: int, ranks: Ranks) -> None:
        self.chances = np.zeros(n + 1)
        self.chances[n] = 1.0
        self.stuck = False
        self._moves = np.zeros((n + 1, n + 1))
        for unseen in range(n + 1):
            self._fill(unseen, n, s, q, ranks)

    def _fill(self, unseen: int, n: int, s: int, q: int, ranks: Ranks) -> None:
        if ranks == "uniform":
            first, chances = hypergeometric(n, unseen, q)
            gained = first + np.arange(len(chances))
        elif ranks == "unseen-first":
            first, chances = hypergeometric(n, unseen, s)
            gained = np.minimum(first + np.arange(len(chances)), q)
        else:
            first, chances = hypergeometric(n, n - unseen, s)
            gained = np.maximum(q - (first + np.arange(len(chances))), 0)
        np.add.at(self._moves[unseen], unseen - gained, chances)

    def step(self) -> tuple[float, float]:
        """Return the mean number of unseen samples after one more epoch, and the probability that it is 0."""
        after = self.chances @ self._moves
        self.stuck = bool(np.abs(after - self.chances).max() < 1e-15)
        self.chances = after
        return float(after @ np.arange(len(after))), float(after[0])


def _chain(n: int, s: int, q: int, ranks: Ranks) -> _Mean | _Exact:
    return _Exact(n, s, q, ranks) if n <= _EXACT_UP_TO else _Mean(n, s, q, ranks)


def _usage(unseen: np.ndarray, n: int, q: int) -> np.ndarray:
    """Return the expected fraction of samples used 0, 1, 2, ... times, from the path of the unseen."""
    usage = np.zeros(len(unseen))
    usage[0] = 1.0
    for before, after in pairwise(unseen):
        new, seen = before - after, n - before
        again = min(1.0, max(0.0, (q - new) / seen)) if seen > 0 else 0.0
        moved = usage.copy()
        moved[0] = 0.0
        moved *= again  # of those seen before, this fraction is used once more
        usage[1:] += moved[:-1] - moved[1:]
        usage[0] -= new / n
        usage[1] += new / n
    return np.maximum(usage, 0.0)
