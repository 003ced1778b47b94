"""Simultaneous confidence intervals of differences between settings, whose variances are moved toward their pool."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from orderdp.errors import ConfigError, install_command

__all__ = [
    "CONFIDENCE",
    "Difference",
    "Own",
    "Spread",
    "check_installed",
    "critical_value",
    "differences",
    "pooled_spread",
]


CONFIDENCE = 0.95


Values = Mapping[Hashable, float]
"""Final metrics of one setting, by seed."""


_Array = np.ndarray[Any, np.dtype[np.float64]]


_NODES = 64


_COMMON_NODES = 32


_PRIOR = 2.0
"""How many degrees of freedom the pool counts beside a setting's own runs; chosen by simulation (decision 0024)."""


_FEWEST_DEGREES = 4
"""With fewer degrees of freedom left, blocking by seed costs more than it gains, unless seeds matter much."""


_CLEAR = 0.01
"""Level of the test of whether seeds matter, with so few degrees of freedom."""


_LARGER_SPREAD = 0.01
"""Probability of leaving a setting out of the pool although it spreads like the others, over all settings."""


def check_installed() -> None:
    """Raise if scipy, which computes the intervals, is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise ConfigError(f"intervals need scipy, which is not installed: {install_command('workbench')}")


@lru_cache(maxsize=4096)
def critical_value(shares: tuple[float, ...], degrees: float, confidence: float = CONFIDENCE) -> float:
    """Return the bound that all of several t statistics keep with the given probability (Dunnett, two-sided).

    The statistics have one estimate of the variance in common, and a part z of their numerators: each is
    ``sqrt(share) * z + sqrt(1 - share) * its own``, over the estimated deviation. In Dunnett's design z is the control,
    and with groups of equal size all shares are one half. Smaller shares give a larger, safe bound.

    Three treatments, a control and 16 degrees of freedom, as in Dunnett's table; one comparison has Student's t:

    >>> round(critical_value((0.5, 0.5, 0.5), 16), 2)
    2.59
    >>> round(critical_value((0.5,), 2), 3)
    4.303

    Args:
        shares: For each statistic, the share of the common part in its variance, from 0 to below 1.
        degrees: Degrees of freedom of the variance.
        confidence: Probability that all statistics keep the bound.
    """
    from scipy import optimize, special

    alone = float(special.stdtrit(degrees, (1 + confidence) / 2))
    if len(shares) == 1:
        return alone
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    deviation = np.sqrt(special.gammaincinv(degrees / 2, (nodes + 1) / 2) * 2 / degrees)[:, None]
    common, likely = np.polynomial.hermite_e.hermegauss(_COMMON_NODES)
    weights, likely, common = weights / 2, likely / likely.sum(), common[None, :]
    counts = Counter(shares)

    def missing(bound: float) -> float:
        """Given z and the deviation, the statistics are independent: multiply, then integrate over the two."""
        inside = np.ones(())
        for share, count in counts.items():
            middle, own = math.sqrt(share) * common, math.sqrt(1 - share)
            upper, lower = (bound * deviation - middle) / own, (-bound * deviation - middle) / own
            inside = inside * (special.ndtr(upper) - special.ndtr(lower)) ** count
        return float(weights @ inside @ likely) - confidence

    bonferroni = float(special.stdtrit(degrees, 1 - (1 - confidence) / (2 * len(shares))))
    return float(optimize.brentq(missing, 0.9 * alone, 1.1 * bonferroni, xtol=1e-6))


class Own(NamedTuple):
    """The variance of a run of one setting.

    Attributes:
        variance: The variance: the setting's own and that of the pool, weighted by their degrees of freedom.
        degrees: Degrees of freedom of the setting's own runs.
        prior: Degrees of freedom that the pool counts; 0 for a setting that is left out of the pool.
    """

    variance: float
    degrees: float
    prior: float


@dataclass(frozen=True)
class Spread:
    """How much runs of one setting differ, over the settings of a task.

    Attributes:
        variance: Pooled variance of a run; None if no setting has two runs.
        degrees: Degrees of freedom of the pooled variance.
        blocked: Whether effects of the seeds are removed.
        left_out: Settings that are not in the pool, with the reason in words.
        own: Variance of each setting that has two runs.
        step: What one test sample changes in the metric; no interval reaches less far. None if unknown.
    """

    variance: float | None
    degrees: float
    blocked: bool
    left_out: dict[Hashable, str] = field(default_factory=dict)
    own: dict[Hashable, Own] = field(default_factory=dict)
    step: float | None = None


def pooled_spread(
    settings: Mapping[Hashable, Values],
    reference: Hashable | None = None,
    *,
    higher_is_better: bool = True,
    step: float | None = None,
) -> Spread:
    """Find the variance of runs of each setting: its own, moved toward the pool of all settings.

    Three runs say little about a variance, and one variance for all is wrong where settings spread differently. So the
    pool counts as two further degrees of freedom beside a setting's own.

    A setting has *diverged* if its mean is less than half as good as that of the reference, or if its runs spread
    more than those of the others by more than chance: by an F test of its variance against theirs, the level of 1 %
    divided by the number of settings. It is left out of the pool, and its own variance is used for it.

    Effects of the seeds are removed (a fit of settings and seeds, added up). If fewer than four degrees of freedom
    would be left, they are removed only if they are larger than chance, by an F test at 1 %.

    Args:
        settings: Final metrics by setting and seed.
        reference: The setting of full data, if there is one.
        higher_is_better: Direction of the metric.
        step: What one test sample changes in the metric.
    """
    check_installed()
    left_out = _collapsed(settings, reference, higher_is_better)
    pool = {name: values for name, values in settings.items() if name not in left_out and values}
    for name, factor in _spreading(pool, step).items():
        left_out[name] = f"its runs spread {factor:.1f} times as much as those of the others"
        del pool[name]
    variance, degrees, blocked, own = _variances(pool)
    for name in left_out:
        if len(settings[name]) > 1:
            own[name] = Own(statistics.variance(settings[name].values()), float(len(settings[name]) - 1), 0.0)
    return Spread(variance, degrees, blocked, left_out, own, step)


def _collapsed(
    settings: Mapping[Hashable, Values], reference: Hashable | None, higher_is_better: bool
) -> dict[Hashable, str]:
    full = settings.get(reference) if reference is not None else None
    if not full or statistics.fmean(full.values()) <= 0:
        return {}
    limit = statistics.fmean(full.values()) * (0.5 if higher_is_better else 2.0)
    means = {name: statistics.fmean(values.values()) for name, values in settings.items() if values}
    return {
        name: "it is less than half as good as full data"
        for name, mean in means.items()
        if (mean < limit if higher_is_better else mean > limit)
    }


def _spreading(pool: Mapping[Hashable, Values], step: float | None) -> dict[Hashable, float]:
    """Return the settings that spread more than the others, and by which factor; the largest is found first."""
    squares = {
        name: (statistics.variance(values.values()) * (len(values) - 1), len(values) - 1)
        for name, values in pool.items()
        if len(values) > 1
    }
    found: dict[Hashable, float] = {}
    least = 0.0 if step is None else step**2 / 12  # the variance of rounding to whole test samples
    while len(squares) > 2:
        total, degrees = sum(own for own, _ in squares.values()), sum(own for _, own in squares.values())
        chances = {}
        for name, (own, own_degrees) in squares.items():
            rest = degrees - own_degrees
            others = max(total - own, least * rest)
            if others > 0:
                factor = math.sqrt(own / own_degrees * rest / others)
                chances[name] = _chance(own, own_degrees, others, rest), factor
        name = min(chances, key=lambda name: chances[name][0], default=None)
        if name is None or chances[name][0] >= _LARGER_SPREAD / len(squares):
            break
        found[name] = chances[name][1]
        del squares[name]
    return found


def _variances(pool: Mapping[Hashable, Values]) -> tuple[float | None, float, bool, dict[Hashable, Own]]:
    """Return the pooled variance, its degrees of freedom, whether effects of seeds are removed, and each setting's."""
    runs = [(name, seed, value) for name, values in pool.items() for seed, value in values.items()]
    if not runs:
        return None, 0.0, False, {}
    metrics = np.array([value for _, _, value in runs])
    settings, seeds = (_indicators([run[place] for run in runs]) for place in (0, 1))
    plain, degrees, residuals = _rest(metrics, settings)
    blocked, left, fewer = _rest(metrics, np.concatenate([settings, seeds], axis=1))
    by_seed = left >= _FEWEST_DEGREES or (left > 0 and _chance(plain - blocked, degrees - left, blocked, left) < _CLEAR)
    if by_seed:
        plain, degrees, residuals = blocked, left, fewer
    if degrees == 0:
        return None, 0.0, False, {}
    variance = plain / degrees
    rest = residuals @ (metrics - metrics.mean()) if plain else np.zeros(len(metrics))
    own = zip(pool, *_by_setting(rest, residuals, settings), strict=True)
    moved = {
        name: Own((_PRIOR * variance + count * found) / (_PRIOR + count), count, _PRIOR)
        for name, found, count in own
        if len(pool[name]) > 1
    }
    return variance, float(degrees), by_seed, moved


def _by_setting(rest: _Array, residuals: _Array, settings: _Array) -> tuple[list[float], list[float]]:
    """Return an unbiased variance of each setting, not below 0, and its degrees of freedom.

    What a fit of settings and seeds leaves of a run depends on the variances of all settings, each times a square of
    the matrix that makes residuals; this is solved for the variances. Without seeds they are the usual ones.
    """
    found = np.linalg.lstsq(settings.T @ residuals**2 @ settings, settings.T @ rest**2, rcond=1e-9)[0]
    return np.maximum(found, 0.0).tolist(), (settings.T @ residuals.diagonal()).tolist()


def _rest(metrics: _Array, design: _Array) -> tuple[float, int, _Array]:
    """Return the sum of squares that a linear fit leaves, its degrees of freedom, and the matrix of residuals."""
    rank = int(np.linalg.matrix_rank(design))
    residuals = np.eye(len(metrics)) - design @ np.linalg.pinv(design, rcond=1e-9)
    rest = residuals @ (metrics - metrics.mean())
    squares = float(rest @ rest)
    return (squares if squares > 1e-15 * len(metrics) else 0.0), len(metrics) - rank, residuals  # 0 but for rounding


def _chance(squares: float, degrees: int, others: float, other_degrees: int) -> float:
    """Return the probability of such a ratio of two sums of squares or a larger one, if their variances are equal."""
    from scipy import special

    if degrees == 0 or squares <= 0:
        return 1.0
    return float(special.fdtrc(degrees, other_degrees, squares / degrees / (others / other_degrees))) if others else 0.0


def _indicators(names: Sequence[Hashable]) -> _Array:
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.eye(len(order))[[order[name] for name in names]]


@dataclass(frozen=True)
class Difference:
    """The mean difference of two settings and its confidence interval.

    Attributes:
        mean: Mean over the seeds that both have.
        low: Lower end of the interval; None without an interval.
        high: Upper end of the interval.
        pairs: Number of seeds that both have.
        deviation: Standard deviation of the difference for one seed; None if unknown.
        parts: Variances of the two settings, with their degrees of freedom.
        pooled: Degrees of freedom of the pool, which no interval of settings in the pool exceeds.
        shares: Those of all comparisons that the interval holds for at once, see `critical_value`.
        step: The least that an interval reaches to either side.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int
    deviation: float | None = field(default=None, repr=False, compare=False)
    parts: tuple[Own, ...] = field(default=(), repr=False, compare=False)
    pooled: float = field(default=0.0, repr=False, compare=False)
    shares: tuple[float, ...] = field(default=(), repr=False, compare=False)
    step: float = field(default=0.0, repr=False, compare=False)

    def reach(self, seeds: int) -> float:
        """Return how far the interval reaches to either side, with this number of seeds for all settings."""
        assert self.deviation is not None
        bound = critical_value(self.shares, self.degrees(seeds))
        return max(bound * self.deviation / math.sqrt(seeds), self.step)

    def likely_factors(self) -> tuple[float, ...]:
        """Return by which factors the true deviation may differ from the estimate, all equally likely.

        1 alone for settings in the pool, whose variance many runs say; five quantiles for others.
        """
        if all(part.prior for part in self.parts):
            return (1.0,)
        return _factors(max(self.degrees(self.pairs), 1.0))

    def degrees(self, seeds: int) -> float:
        """Return the degrees of freedom with this number of seeds for all settings, by Welch and Satterthwaite."""
        more = (seeds - 1) / (self.pairs - 1)
        total = sum(part.variance for part in self.parts)
        each = sum(part.variance**2 / (part.prior + part.degrees * more) for part in self.parts)
        welch = total**2 / each if each else math.inf  # ties
        in_pool = all(part.prior for part in self.parts)
        return _rounded_down(min(welch, self.pooled * more) if in_pool or not each else welch)


def differences(
    settings: Mapping[Hashable, Values],
    pairs: Sequence[tuple[Hashable, Hashable] | None],
    spread: Spread,
    *,
    comparisons: int = 0,
) -> list[Difference | None]:
    """Return the differences of pairs of settings, with intervals that hold for all pairs at once.

    A pair with a single seed in common has no interval, and neither has any pair if nothing is known about how much
    runs differ. Without a pair or a seed in common the result is None.

    Args:
        settings: Final metrics by setting and seed.
        pairs: Names of a setting and of the setting that is subtracted from it.
        spread: The pooled variance of the settings.
        comparisons: Least number of comparisons that the intervals hold for at once.
    """
    found = [None if pair is None else _gaps(settings[pair[0]], settings[pair[1]]) for pair in pairs]
    errors = [
        _error(pair, spread) if pair and gaps and len(gaps) > 1 else None
        for pair, gaps in zip(pairs, found, strict=True)
    ]
    measured = [(pair, gaps) for pair, gaps, error in zip(pairs, found, errors, strict=True) if pair and gaps and error]
    shares = _shares(measured, spread)
    shares += tuple(min(shares, default=0.0) for _ in range(comparisons - len(shares)))
    result: list[Difference | None] = []
    for gaps, error in zip(found, errors, strict=True):
        if not gaps:
            result.append(None)
            continue
        plain = Difference(math.fsum(gaps.values()) / len(gaps), None, None, len(gaps))
        if error is None:
            result.append(plain)
            continue
        more = replace(
            plain,
            deviation=math.sqrt(sum(part.variance for part in error)),
            parts=error,
            pooled=max(spread.degrees, 1.0),
            shares=shares,
            step=spread.step or 0.0,
        )
        reach = more.reach(plain.pairs)
        result.append(replace(more, low=plain.mean - reach, high=plain.mean + reach))
    return result


def _gaps(values: Values, others: Values) -> dict[Hashable, float]:
    return {seed: value - others[seed] for seed, value in values.items() if seed in others}


@lru_cache(maxsize=4096)
def _factors(degrees: float) -> tuple[float, ...]:
    """Return five equally likely ratios of the true deviation to one estimated with these degrees of freedom."""
    from scipy import special

    return tuple(math.sqrt(degrees / special.chdtri(degrees, place / 10)) for place in (1, 3, 5, 7, 9))


def _rounded_down(degrees: float) -> float:
    """Round degrees of freedom down, so that few values are computed; intervals grow by at most 4 %."""
    for limit, step in ((3, 0.05), (10, 0.25), (40, 1.0), (100, 5.0)):
        if degrees < limit:
            return max(math.floor(degrees / step + 1e-9) * step, min(degrees, 0.25))
    return math.floor(min(degrees, 1000.0) / 20) * 20.0


def _error(pair: tuple[Hashable, Hashable], spread: Spread) -> tuple[Own, Own] | None:
    """Return the variances of the two settings; None if nothing is known, or nothing says what ties are worth.

    An error in the variance of the reference moves all intervals at once: it is never taken for less than the pool's.
    """
    own, reference = (spread.own.get(name) for name in pair)
    if own is None or reference is None:
        return None
    if reference.prior:
        reference = reference._replace(variance=max(reference.variance, spread.variance or 0.0))
    return (own, reference) if own.variance + reference.variance > 0.0 or spread.step else None


def _shares(
    pairs: Sequence[tuple[tuple[Hashable, Hashable], Mapping[Hashable, float]]], spread: Spread
) -> tuple[float, ...]:
    """Return the share of the reference in the variance of each difference; 0 if the references are not the same.

    With fewer or other seeds the shares are made smaller, so that no correlation is taken for larger than it is.
    """
    if len({reference for (_, reference), _ in pairs}) != 1:
        return (0.0,) * len(pairs)
    most = max(len(gaps) for _, gaps in pairs)
    overlaps = [len(set(gaps) & set(others)) / min(len(gaps), len(others)) for _, gaps in pairs for _, others in pairs]
    shares = []
    pool = spread.variance or 0.0  # what the settings of the pool share is taken for one half: it is not well known
    for (name, reference), gaps in pairs:
        own, common = (spread.own[each].variance if each in spread.left_out else pool for each in (name, reference))
        shares.append(min(overlaps) * len(gaps) / most * (common / (own + common) if own + common else 0.5))
    return tuple(math.floor(20 * min(share, 0.99) + 1e-9) / 20 for share in shares)  # rounded: see `_rounded_down`
