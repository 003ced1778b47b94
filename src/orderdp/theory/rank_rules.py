"""Rank rules: which positions of the pool are kept, and the probability that a rank is kept.

Position 1 of a pool is its largest loss. A rule defines which positions are kept; the probability that a rank is kept,
the surrogate risk, and whether unbiased weights exist follow from that alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from orderdp._validation import is_count
from orderdp.errors import ConfigError
from orderdp.theory._checks import check_design

__all__ = [
    "Bottom",
    "Mixed",
    "RankRule",
    "Top",
    "Trimmed",
    "Window",
    "as_rule",
    "binomial",
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


@runtime_checkable
class RankRule(Protocol):
    """Defines which positions of a pool are kept."""

    @property
    def kept(self) -> int:
        """Number of samples kept."""
        ...

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        ...

    def inclusion(self, n: int, s: int) -> np.ndarray:
        """Return the probability that rank j is kept, for j = 1..n.

        Args:
            n: Number of samples.
            s: Size of the pool.
        """
        ...

    def inclusion_at(self, rank: int, n: int, s: int) -> float:
        """Return the probability that one rank is kept.

        Args:
            rank: The rank, from 1.
            n: Number of samples.
            s: Size of the pool.
        """
        ...

    def never_kept(self, n: int, s: int) -> str | None:
        """Return in words which ranks can never be kept; None if every rank can."""
        ...


@dataclass(frozen=True)
class Top:
    """Keeps the `q` largest losses: OrderDP.

    Args:
        q: Number of samples kept.
    """

    q: int

    @property
    def kept(self) -> int:
        """Number of samples kept."""
        return self.q

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        check_design(n, s, self.q)

    def inclusion(self, n: int, s: int) -> np.ndarray:
        """Return gamma_j = (s/n) P[Hypergeometric(n-1, j-1, s-1) <= q-1], in O(n)."""
        gamma = np.empty(n)
        first, values = self.cliff(n, s)
        gamma[:first] = s / n
        gamma[first : first + len(values)] = values
        gamma[first + len(values) :] = 0.0
        return gamma

    def cliff(self, n: int, s: int) -> tuple[int, np.ndarray]:
        """Return all of gamma in short form: how many ranks have s/n, and the values after them, until they are 0.

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

    def inclusion_at(self, rank: int, n: int, s: int) -> float:
        """Return gamma_j for one j, in about the square root of s steps."""
        first, chances = hypergeometric(n - 1, rank - 1, s - 1)
        return s / n * min(1.0, float(chances[: max(0, self.q - first)].sum()))

    def never_kept(self, n: int, s: int) -> str | None:
        """Return in words which ranks can never be kept; None if every rank can."""
        return (
            None
            if self.q == s
            else f"the {s - self.q} easiest of all samples are never among a pool's {self.q} hardest"
        )


@dataclass(frozen=True)
class Window:
    """Keeps the positions `first` to `last` of the pool, both included.

    Args:
        first: First position kept, from 1.
        last: Last position kept.
    """

    first: int
    last: int

    @property
    def kept(self) -> int:
        """Number of samples kept."""
        return self.last - self.first + 1

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        check_design(n, s, s)
        if not (is_count(self.first) and is_count(self.last) and self.first <= self.last <= s):
            raise ConfigError(
                f"a window must satisfy 1 <= first <= last <= s, got first={self.first!r}, last={self.last!r}, s={s}."
            )

    def inclusion(self, n: int, s: int) -> np.ndarray:
        """Return the probability of being kept by the top `last` and not by the top `first - 1`."""
        if self.last == s and self.first > 1:
            return Bottom(self.kept).inclusion(n, s)  # counted from the easiest: no cancellation
        whole = Top(self.last).inclusion(n, s)
        return whole if self.first == 1 else np.maximum(whole - Top(self.first - 1).inclusion(n, s), 0.0)

    def inclusion_at(self, rank: int, n: int, s: int) -> float:
        """Return the probability for one rank: it has `first - 1` to `last - 1` pool members above it."""
        start, chances = hypergeometric(n - 1, rank - 1, s - 1)
        return s / n * min(1.0, float(chances[max(0, self.first - 1 - start) : max(0, self.last - start)].sum()))

    def never_kept(self, n: int, s: int) -> str | None:
        """Return in words which ranks can never be kept; None if every rank can."""
        if self.first > 1:
            return f"the {self.first - 1} hardest of all samples are always above position {self.first} of their pool"
        return Top(self.last).never_kept(n, s)


@dataclass(frozen=True)
class Bottom:
    """Keeps the `q` smallest losses of the pool.

    Args:
        q: Number of samples kept.
    """

    q: int

    @property
    def kept(self) -> int:
        """Number of samples kept."""
        return self.q

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        check_design(n, s, self.q)

    def inclusion(self, n: int, s: int) -> np.ndarray:
        """Return the probabilities of the top, counted from the other end."""
        return np.flip(Top(self.q).inclusion(n, s))

    def inclusion_at(self, rank: int, n: int, s: int) -> float:
        """Return the probability that one rank is kept."""
        return Top(self.q).inclusion_at(n + 1 - rank, n, s)

    def never_kept(self, n: int, s: int) -> str | None:
        """Return in words which ranks can never be kept; None if every rank can."""
        return (
            None
            if self.q == s
            else f"the {s - self.q} hardest of all samples are never among a pool's {self.q} easiest"
        )


@dataclass(frozen=True)
class Trimmed:
    """Keeps the `q` largest losses after the `skip` largest: for labels that may be wrong.

    Args:
        skip: Number of positions skipped.
        q: Number of samples kept.
    """

    skip: int
    q: int

    @property
    def kept(self) -> int:
        """Number of samples kept."""
        return self.q

    @property
    def window(self) -> Window:
        """The positions that are kept."""
        return Window(self.skip + 1, self.skip + self.q)

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        if not (is_count(self.skip, least=0) and is_count(self.q) and self.skip + self.q <= s):
            raise ConfigError(
                f"a trimmed top must satisfy 0 <= skip, 1 <= q and skip + q <= s, got skip={self.skip!r}, "
                f"q={self.q!r}, s={s!r}."
            )
        self.window.check(n, s)

    def inclusion(self, n: int, s: int) -> np.ndarray:
        """Return the probability that rank j is kept, for j = 1..n."""
        return self.window.inclusion(n, s)

    def inclusion_at(self, rank: int, n: int, s: int) -> float:
        """Return the probability that one rank is kept."""
        return self.window.inclusion_at(rank, n, s)

    def never_kept(self, n: int, s: int) -> str | None:
        """Return in words which ranks can never be kept; None if every rank can."""
        return self.window.never_kept(n, s)


@dataclass(frozen=True)
class Mixed:
    """Keeps the `top` largest losses of the pool, and `uniform` more drawn uniformly from the rest of it.

    Args:
        top: Number of samples kept by loss.
        uniform: Number of samples drawn uniformly.
    """

    top: int
    uniform: int

    @property
    def kept(self) -> int:
        """Number of samples kept."""
        return self.top + self.uniform

    def check(self, n: int, s: int) -> None:
        """Raise if the rule does not fit pools of `s` of `n`."""
        check_design(n, s, s)
        fits = is_count(self.top, least=0) and is_count(self.uniform, least=0)
        if not (fits and 1 <= self.top + self.uniform <= s):
            raise ConfigError(
                f"a mix must satisfy 0 <= top, 0 <= uniform and 1 <= top + uniform <= s, got top={self.top!r}, "
                f"uniform={self.uniform!r}, s={s}."
            )

    def inclusion(self, n: int, s: int) -> np.ndarray:
        """Return the probability of being in the top, or of being in the rest of the pool and drawn."""
        return self._mix(Top(self.top).inclusion(n, s) if self.top else np.zeros(n), n, s)

    def inclusion_at(self, rank: int, n: int, s: int) -> float:
        """Return the probability that one rank is kept."""
        return float(self._mix(np.array(Top(self.top).inclusion_at(rank, n, s) if self.top else 0.0), n, s))

    def never_kept(self, n: int, s: int) -> str | None:
        """Return in words which ranks can never be kept; None if every rank can."""
        return None if self.uniform else Top(self.top).never_kept(n, s)

    def _mix(self, in_top: np.ndarray, n: int, s: int) -> np.ndarray:
        rest = s - self.top
        return in_top if rest == 0 else in_top + (s / n - in_top) * (self.uniform / rest)


def as_rule(q: int | RankRule, n: int, s: int) -> RankRule:
    """Return the rule itself, or the top q; checked."""
    rule = q if isinstance(q, RankRule) else Top(q)
    rule.check(n, s)
    return rule
