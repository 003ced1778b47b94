"""Rank rules: which positions of the pool are kept. Policies, shards and theory use the same rules.

Position 1 of a pool is its largest loss. A rule defines which positions are kept; how a pool is selected from, the
probability that a rank is kept, the surrogate risk, and whether unbiased weights exist follow from that alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from orderdp import _draw as draw
from orderdp._draw import Streams
from orderdp._validation import is_count
from orderdp.errors import ConfigError

__all__ = [
    "Bottom",
    "Mixed",
    "RankRule",
    "Steps",
    "Top",
    "Trimmed",
    "Window",
    "as_rule",
    "binomial",
    "check_design",
    "checked_losses",
    "checked_positive",
    "checked_steps",
    "hypergeometric",
    "one_peak",
]


# Probabilities below exp of this, 4e-44, relative to the largest, are treated as 0.
_NOTHING = -100.0


_FIRST_CHUNK = 1 << 10


LogRatio = Callable[[np.ndarray], np.ndarray]


def one_peak(low: int, high: int, peak: int, log_ratio: LogRatio) -> tuple[int, np.ndarray]:
    """Return probabilities p(k) for low <= k <= high that rise to `peak`, fall after it, and sum to 1.

    Args:
        low: Smallest k of positive probability.
        high: Largest k of positive probability.
        peak: The k of largest probability, or next to it.
        log_ratio: log(p(k+1) / p(k)) for an array of k in [low, high).

    Returns:
        The first k whose probability is not treated as 0, and the probabilities from there on.
    """
    peak = min(max(peak, low), high)
    above = _walk(lambda steps: log_ratio(peak + steps), high - peak)
    below = _walk(lambda steps: -log_ratio(peak - 1 - steps), peak - low)
    logs = np.concatenate((below[::-1], [0.0], above))
    probabilities = np.exp(logs - logs.max())
    probabilities /= probabilities.sum()
    return peak - len(below), probabilities


def hypergeometric(total: int, good: int, draws: int) -> tuple[int, np.ndarray]:
    """Return the distribution of good ones among `draws` of `total` without replacement: first k, probabilities."""

    def log_ratio(k: np.ndarray) -> np.ndarray:
        ratio: np.ndarray = np.log((good - k) / (k + 1) * (draws - k) / (k + (total - good - draws + 1)))
        return ratio

    peak = (draws + 1) * (good + 1) // (total + 2)
    return one_peak(max(0, draws - (total - good)), min(good, draws), peak, log_ratio)


def binomial(trials: int, chance: float) -> tuple[int, np.ndarray]:
    """Return the distribution of the number of successes in `trials`: first k, probabilities from there."""
    if chance <= 0 or chance >= 1 or trials == 0:
        return (trials if chance >= 1 else 0), np.ones(1)
    odds = np.log(chance) - np.log1p(-chance)
    return one_peak(0, trials, int((trials + 1) * chance), lambda k: np.log((trials - k) / (k + 1.0)) + odds)


def _walk(log_step: LogRatio, steps: int) -> np.ndarray:
    """Return the sums of the first 1, 2, ... steps, until they are too small to matter."""
    parts: list[np.ndarray] = []
    done, reached, chunk = 0, 0.0, _FIRST_CHUNK
    while done < steps and reached > _NOTHING:
        size = min(chunk, steps - done)
        sums = reached + np.cumsum(log_step(np.arange(done, done + size, dtype=np.float64)))
        parts.append(sums)
        done, reached, chunk = done + size, float(sums[-1]), min(2 * chunk, 1 << 22)
    return np.concatenate(parts) if parts else np.empty(0)


class Steps(NamedTuple):
    """How a rule goes through a pool, from its largest loss on: the same in one process and in shards.

    Attributes:
        skip: Number of positions left out first.
        top: Number of positions kept after them.
        uniform: Number of samples drawn uniformly from the rest.
        easiest_first: Whether positions count from the smallest loss.
    """

    skip: int
    top: int
    uniform: int = 0
    easiest_first: bool = False


class RankRule(ABC):
    """Defines which positions of a pool are kept. A subclass defines `steps`; the rest follows from them."""

    @property
    @abstractmethod
    def steps(self) -> Steps:
        """What is skipped, kept and drawn."""

    @property
    def kept(self) -> int:
        """Number of samples kept."""
        return self.steps.top + self.steps.uniform

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`.

        Args:
            n: Number of samples.
            s: Size of the pool.
        """
        check_design(n, s, s)
        skip, top, uniform, _ = self.steps
        if not (all(is_count(count, least=0) for count in (skip, top, uniform)) and 1 <= self.kept <= s - skip):
            raise ConfigError(
                f"a rule must keep at least one position, and skip and keep no more than the s={s} there are, got "
                f"{self!r}."
            )

    def inclusion(self, n: int, s: int) -> np.ndarray:
        """Return the probability that rank j is kept, for j = 1..n, in O(n).

        Args:
            n: Number of samples.
            s: Size of the pool.
        """
        skip, top, uniform, easiest_first = self.steps
        if skip and skip + top == s:
            chances = np.flip(_first_positions(top, n, s))  # counted from the other end: no cancellation
        else:
            upper = _first_positions(skip + top, n, s)
            chances = np.maximum(upper - _first_positions(skip, n, s), 0.0) if skip else upper
            if uniform:
                chances = chances + (s / n - upper) * (uniform / (s - skip - top))
        return np.flip(chances) if easiest_first else chances

    def inclusion_at(self, rank: int, n: int, s: int) -> float:
        """Return the probability that one rank is kept, in about the square root of s steps.

        Args:
            rank: The rank, from 1.
            n: Number of samples.
            s: Size of the pool.
        """
        skip, top, uniform, easiest_first = self.steps
        # The number of pool members above a sample of this rank that is in the pool.
        start, chances = hypergeometric(n - 1, (n + 1 - rank if easiest_first else rank) - 1, s - 1)
        first, stop = max(0, skip - start), max(0, skip + top - start)
        kept = s / n * min(1.0, float(chances[first:stop].sum()))
        if uniform:
            upper = s / n * min(1.0, float(chances[:stop].sum()))
            kept += (s / n - upper) * (uniform / (s - skip - top))
        return kept

    def never_kept(self, n: int, s: int) -> str | None:
        """Return in words which ranks can never be kept; None if every rank can.

        Args:
            n: Number of samples.
            s: Size of the pool.
        """
        skip, top, uniform, easiest_first = self.steps
        first, last = ("easiest", "hardest") if easiest_first else ("hardest", "easiest")
        if skip:
            return f"the {skip} {first} of all samples are always above position {skip + 1} of their pool"
        if uniform or top == s:
            return None
        return f"the {s - top} {last} of all samples are never among a pool's {top} {first}"

    def select(self, pooled: np.ndarray, tie_key: int, rng: Streams) -> np.ndarray:
        """Return the indices of the kept samples, ascending. Unseen samples come first and are never skipped.

        Args:
            pooled: One score per sample, overwritten: -inf outside the pool, +inf for unseen samples.
            tie_key: Key of the hash that orders equal scores.
            rng: Random streams of the uniform draw.
        """
        skip, top, uniform, easiest_first = self.steps
        if easiest_first:
            np.negative(pooled, out=pooled, where=np.isfinite(pooled))
        if skip:
            seen = np.where(np.isposinf(pooled), np.float32(-np.inf), pooled)
            skip = min(skip, int(np.count_nonzero(seen > -np.inf)))
        if skip:
            pooled[draw.top_of_pool(seen, skip, tie_key)] = -np.inf
        best = draw.top_of_pool(pooled, top, tie_key) if top else np.empty(0, dtype=np.int64)
        if not uniform:
            return best
        pooled[best] = -np.inf
        rest = np.flatnonzero(pooled > -np.inf)
        drawn = rest if uniform >= len(rest) else rest[draw.pool_mask(len(rest), uniform, rng)]
        return np.sort(np.concatenate((best, drawn)))


def _first_positions(q: int, n: int, s: int) -> np.ndarray:
    """Return gamma_j = (s/n) P[Hypergeometric(n-1, j-1, s-1) <= q-1], for j = 1..n, in O(n)."""
    if q == 0:
        return np.zeros(n)
    gamma = np.empty(n)
    first, values = Top(q).cliff(n, s)
    gamma[:first] = s / n
    gamma[first : first + len(values)] = values
    gamma[first + len(values) :] = 0.0
    return gamma


@dataclass(frozen=True)
class Top(RankRule):
    """Keeps the `q` largest losses: OrderDP.

    Args:
        q: Number of samples kept.
    """

    q: int

    @property
    def steps(self) -> Steps:
        """Keeps the first q positions."""
        return Steps(0, self.q)

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        check_design(n, s, self.q)

    def cliff(self, n: int, s: int) -> tuple[int, np.ndarray]:
        """Return all of gamma in short form: how many ranks have s/n, and the values after them, until they are 0.

        For `n` samples and pools of `s`.
        The steps gamma_j - gamma_{j+1} = C(j-1, q-1) C(n-j-1, s-q-1) / C(n, s) have one peak, and sum to s/n.
        """
        q = self.q
        if q == s:
            return n, np.empty(0)

        def log_ratio(j: np.ndarray) -> np.ndarray:
            ratio: np.ndarray = np.log(j / (j - (q - 1)) * ((n - s + q) - j) / ((n - 1) - j))
            return ratio

        peak = (q - 1) * (n - 1) // (s - 2) + 1 if s > 2 else q
        first, steps = one_peak(q, n - s + q, peak, log_ratio)
        return first, np.minimum(np.cumsum(steps[:0:-1])[::-1], 1.0) * (s / n)


@dataclass(frozen=True)
class Bottom(RankRule):
    """Keeps the `q` smallest losses of the pool.

    Args:
        q: Number of samples kept.
    """

    q: int

    @property
    def steps(self) -> Steps:
        """Keeps the last q positions."""
        return Steps(0, self.q, easiest_first=True)

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        check_design(n, s, self.q)


@dataclass(frozen=True)
class Window(RankRule):
    """Keeps the positions `first` to `last` of the pool, both included.

    Args:
        first: First position kept, from 1.
        last: Last position kept.
    """

    first: int
    last: int

    @property
    def steps(self) -> Steps:
        """Skips the positions before the first."""
        return Steps(self.first - 1, self.last - self.first + 1)

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        check_design(n, s, s)
        if not (is_count(self.first) and is_count(self.last) and self.first <= self.last <= s):
            raise ConfigError(
                f"a window must satisfy 1 <= first <= last <= s, got first={self.first!r}, last={self.last!r}, s={s}."
            )


@dataclass(frozen=True)
class Trimmed(RankRule):
    """Keeps the `q` largest losses after the `skip` largest: for labels that may be wrong.

    Args:
        skip: Number of positions skipped.
        q: Number of samples kept.
    """

    skip: int
    q: int

    @property
    def steps(self) -> Steps:
        """Keeps q positions after the skipped ones."""
        return Steps(self.skip, self.q)

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        if not (is_count(self.skip, least=0) and is_count(self.q) and self.skip + self.q <= s):
            raise ConfigError(
                f"a trimmed top must satisfy 0 <= skip, 1 <= q and skip + q <= s, got skip={self.skip!r}, "
                f"q={self.q!r}, s={s!r}."
            )
        check_design(n, s, s)


@dataclass(frozen=True)
class Mixed(RankRule):
    """Keeps the `top` largest losses of the pool, and `uniform` more drawn uniformly from the rest of it.

    Args:
        top: Number of samples kept by loss.
        uniform: Number of samples drawn uniformly.
    """

    top: int
    uniform: int

    @property
    def steps(self) -> Steps:
        """Keeps the first positions and some of the rest."""
        return Steps(0, self.top, self.uniform)

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        check_design(n, s, s)
        fits = is_count(self.top, least=0) and is_count(self.uniform, least=0)
        if not (fits and 1 <= self.top + self.uniform <= s):
            raise ConfigError(
                f"a mix must satisfy 0 <= top, 0 <= uniform and 1 <= top + uniform <= s, got top={self.top!r}, "
                f"uniform={self.uniform!r}, s={s}."
            )


def as_rule(q: int | RankRule, n: int, s: int) -> RankRule:
    """Return the rule itself, or the top q; checked."""
    rule = q if isinstance(q, RankRule) else Top(q)
    rule.check(n, s)
    return rule


# -- input checks of the theory functions ------------------------------------------------------------------------------


def check_design(n: Any, s: Any, q: Any) -> None:
    """Raise unless n, s, q are whole numbers with 1 <= q <= s <= n."""
    if not (is_count(n) and is_count(s) and is_count(q) and q <= s <= n):
        raise ConfigError(f"n, s, q must be whole numbers with 1 <= q <= s <= n, got n={n!r}, s={s!r}, q={q!r}.")


def checked_losses(losses: Any) -> np.ndarray:
    """Return losses as a flat float64 array; tensors are recognized by duck typing."""
    # Numpy has no bfloat16.
    values = losses.detach().cpu().double().numpy() if hasattr(losses, "detach") else losses
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ConfigError(f"losses must be one number for each sample, got shape {array.shape}.")
    wrong = int(np.count_nonzero(~np.isfinite(array)))
    if wrong:
        raise ConfigError(f"losses must be finite, got {wrong} of {array.size} that are NaN or infinite.")
    return array


def checked_positive(name: str, value: Any, *, zero_allowed: bool = False) -> float:
    """Return a finite number above 0 (or 0), or raise an error."""
    fits = isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < 0 or (value == 0 and not zero_allowed):
        raise ConfigError(f"{name} must be {'at least' if zero_allowed else 'above'} 0, got {value!r}.")
    return float(value)


def checked_steps(step_sizes: Any) -> np.ndarray:
    """Return step sizes as a flat array of positive numbers, or raise an error."""
    array = np.asarray(step_sizes, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ConfigError(f"step sizes must be a list of at least one number, got shape {array.shape}.")
    if not (np.isfinite(array).all() and (array > 0).all()):
        bad = array[~(np.isfinite(array) & (array > 0))]
        raise ConfigError(f"step sizes must be above 0 and finite, got {float(bad[0])} ({bad.size} of {array.size}).")
    return array
