"""The effect of a setting, computed before training: what is seen when, steps, savings.

Coverage is the fraction of the samples seen after a number of epochs, and how often each sample is used. It depends on
the ranking, for which there are three models:

- "unseen-first", as in this library: an unseen sample outranks all seen ones. The number of unseen samples is a
  Markov chain: of u unseen samples, H ~ Hypergeometric(n, u, s) are in the pool, and min(H, q) of them are kept.
- "uniform": ranks are drawn again in each epoch, so each sample is kept with probability q/n.
- "seen-first", a finite start value below every loss, as in the published code: unseen samples are kept only if the
  pool has fewer than q seen ones. Many are never seen at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from orderdp._draw import pool_sizes
from orderdp._validation import check_batch_size, check_dials, is_count
from orderdp.errors import ConfigError
from orderdp.theory.rank_rules import Top, check_design, checked_positive, hypergeometric
from orderdp.theory.weights import deviation, sampling_rate, weights_at

__all__ = ["Coverage", "Plan", "Ranks", "Split", "coverage", "plan", "steps_within"]


# -- steps -------------------------------------------------------------------------------------------------------------


Split = Literal["samples", "batches"]


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

    def parts(whole: int, size: int) -> int:
        return whole // size if drop_last else -(-whole // size)

    def steps(samples: int) -> int:
        if split == "samples":
            batches = parts(-(-samples // world_size) if pad else samples // world_size, batch_size)
        else:
            batches = parts(parts(samples, batch_size), world_size)
        return -(-batches // accumulate)

    fewest = most = 0
    for low, high in sizes:
        fewest, most = fewest + steps(low), most + steps(high)
    return fewest, most


# -- coverage ----------------------------------------------------------------------------------------------------------


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

    Usage assumes that the ranks of seen samples are drawn again in each epoch. For n up to 400 the Markov chain is
    computed exactly; above, along its mean.

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


# -- plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The effect of a setting.

    Attributes:
        n: Number of samples.
        s: Size of the pool.
        q: Samples trained on per epoch.
        epochs: Number of epochs.
        batch_size: Samples per batch.
        steps_an_epoch: Optimizer steps per epoch.
        steps: Optimizer steps in total.
        steps_saved: Optimizer steps saved compared with full data.
        samples: Samples trained on in total.
        samples_saved: Samples saved compared with full data.
        saved: Fraction of the samples that is saved, 1 - q/n.
        largest_inclusion: Probability that the hardest sample is kept in an epoch.
        smallest_inclusion: Probability that the easiest sample is kept in an epoch, given its rank.
        effective_sample_size: Number of equally weighted samples that the surrogate risk is worth.
        deviation: C_s of Theorem 3.
        sampling: Theorem 3's sampling term for losses of at most 1.
        coverage: Expected fraction of the samples seen after all epochs.
        all_seen_epoch: Epochs until every sample has been seen, with probability 0.999; None for never.
        hours: Hours of the pruned run, if the hours of the full run were given.
        hours_saved: Hours saved compared with the full run.
        money_saved: Hours saved times the price, if a price was given.
    """

    n: int
    s: int
    q: int
    epochs: int
    batch_size: int
    steps_an_epoch: int
    steps: int
    steps_saved: int
    samples: int
    samples_saved: int
    saved: float
    largest_inclusion: float
    smallest_inclusion: float
    effective_sample_size: float
    deviation: float
    sampling: float
    coverage: float
    all_seen_epoch: int | None
    hours: float | None
    hours_saved: float | None
    money_saved: float | None

    @property
    def exploration(self) -> float:
        """s/n."""
        return self.s / self.n

    @property
    def exploitation(self) -> float:
        """q/s."""
        return self.q / self.s

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers for JSON, exploration and exploitation included."""
        return {**asdict(self), "exploration": self.exploration, "exploitation": self.exploitation}


def plan(
    n: int,
    prune_ratio: float | None = None,
    epochs: int = 1,
    batch_size: int = 1,
    *,
    exploration: float | None = None,
    exploitation: float | None = None,
    drop_last: bool = False,
    world_size: int = 1,
    hours: float | None = None,
    price: float | None = None,
) -> Plan:
    """Compute the effect of a setting.

    >>> p = plan(50_000, prune_ratio=0.4, epochs=200, batch_size=128, hours=2.0)
    >>> p.s, p.q, p.steps, p.steps_saved, p.samples_saved, round(p.hours_saved, 6), p.all_seen_epoch
    (44006, 30000, 47000, 31200, 4000000, 0.8, 9)

    Args:
        n: Number of samples.
        prune_ratio: Fraction of the samples left out per epoch.
        epochs: Number of epochs.
        batch_size: Samples per batch and rank.
        exploration: Size of the pool, s/n.
        exploitation: Fraction of the pool that is kept, q/s.
        drop_last: Whether a last, smaller batch is dropped.
        world_size: Number of ranks that share the work.
        hours: Hours of the full run. Time is assumed proportional to the number of samples.
        price: Price per hour.
    """
    s, q = _sizes(n, prune_ratio, exploration, exploitation)
    if not is_count(epochs):
        raise ConfigError(f"epochs must be a whole number, at least 1, got {epochs!r}.")
    if price is not None and hours is None:
        raise ConfigError("price is per hour and needs hours, the duration of the full run. Give both.")
    hours = None if hours is None else checked_positive("hours", hours)
    price = None if price is None else checked_positive("price", price, zero_allowed=True)
    steps, _ = steps_within([(q, q)], batch_size, drop_last=drop_last, world_size=world_size)
    full_steps, _ = steps_within([(n, n)], batch_size, drop_last=drop_last, world_size=world_size)
    if steps == 0:
        raise ConfigError(
            f"an epoch must have at least one step; the {q} samples it keeps make none, in batches of {batch_size} for "
            f"each of {world_size} processes{' without incomplete batches' if drop_last else ''}. Choose smaller "
            "batches or fewer processes, or prune less."
        )
    seen = coverage(n, s, q, epochs)
    hours_saved = None if hours is None else hours * (1 - q / n)
    return Plan(
        n=int(n),
        s=s,
        q=q,
        epochs=int(epochs),
        batch_size=int(batch_size),
        steps_an_epoch=steps,
        steps=steps * epochs,
        steps_saved=(full_steps - steps) * epochs,
        samples=q * epochs,
        samples_saved=(n - q) * epochs,
        saved=1 - q / n,
        largest_inclusion=float(weights_at(1, n, s, q)),
        smallest_inclusion=float(weights_at(n, n, s, q)),
        effective_sample_size=_effective_sample_size(n, s, q),
        deviation=deviation(n, s, q),
        sampling=deviation(n, s, q) * sampling_rate(n, s),
        coverage=float(seen.share[-1]),
        all_seen_epoch=seen.all_seen_epoch,
        hours=None if hours is None or hours_saved is None else hours - hours_saved,
        hours_saved=hours_saved,
        money_saved=None if price is None or hours_saved is None else price * hours_saved,
    )


def _effective_sample_size(n: int, s: int, q: int) -> float:
    """Return q^2 / sum gamma_j^2, without an array of n numbers."""
    flat, falling = Top(q).cliff(n, s)
    return float(q**2 / (flat * (s / n) ** 2 + falling @ falling))


def _sizes(n: Any, prune_ratio: Any, exploration: Any, exploitation: Any) -> tuple[int, int]:
    if not is_count(n):
        raise ConfigError(f"n must be a whole number of samples, at least 1, got {n!r}.")
    check_dials(prune_ratio, exploration, exploitation)
    s, q = pool_sizes(int(n), prune_ratio, exploration, exploitation)
    if q < 1:
        given = {"prune_ratio": prune_ratio, "exploration": exploration, "exploitation": exploitation}
        said = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        raise ConfigError(f"{said} keeps {q} of {n} samples; at least one must be kept. Prune less.")
    check_design(int(n), s, q)
    return s, q
