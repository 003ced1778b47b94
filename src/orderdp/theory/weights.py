"""gamma_j, the probability that the sample of loss rank j is kept; its risk, and bounds; weights that undo it.

For learned samples there is a bound on the gradient that is left out, which rank rules do not have. A sample with
cross-entropy loss c gives the right class the probability exp(-c). Its gradient in the logits, p - e_y, has the entry
1 - exp(-c) in the right class and entries in the others that sum to as much, so its norm is at most
sqrt(2) (1 - exp(-c)). Leaving out samples whose loss is at most c therefore changes the mean gradient in the logits by
at most their fraction times that.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from orderdp._validation import is_count
from orderdp.errors import ConfigError
from orderdp.theory.rank_rules import (
    RankRule,
    Top,
    as_rule,
    binomial,
    check_design,
    checked_losses,
    checked_positive,
    checked_steps,
)

__all__ = [
    "BiasTerms",
    "SkipChances",
    "averaged_convergence_bound",
    "bias_terms",
    "convergence_bound",
    "deviation",
    "generalization_bound",
    "gradient_bound",
    "horvitz_thompson",
    "learned_rates",
    "limit_weights",
    "longest_gap",
    "sampling_rate",
    "skip_bias_bound",
    "skip_chances",
    "skip_surrogate_loss",
    "spaced_bias_bound",
    "spaced_surrogate_loss",
    "stratified_weights",
    "stratum_sizes",
    "surrogate_loss",
    "surrogate_weights",
    "visiting_shares",
    "weights",
    "weights_at",
]


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


def surrogate_loss(losses: Any, s: int, q: int | RankRule) -> Any:
    """Return L_q = (1/q) * sum_j gamma_j L_(j), where L_(1) is the largest loss.

    This is the expected mean loss of one selection. A tensor gives a tensor, through which gradients flow: they are
    those of `surrogate_weights`, a subgradient. It has single precision if the losses have less.

    >>> surrogate_loss([1.0, 2.0, 3.0, 4.0], s=3, q=2)
    3.125

    Args:
        losses: One loss for each of n samples; an array, a list or a tensor.
        s: Size of the pool.
        q: Number of samples kept, or a `RankRule`.
    """
    shares = surrogate_weights(losses, s, q)
    if hasattr(losses, "detach"):
        # Weights are about 1/q: 0 as integers, and nearly 0 in half precision.
        exact = losses if losses.is_floating_point() and losses.element_size() >= 4 else losses.float()
        return (exact * exact.new_tensor(shares)).sum()
    return float(checked_losses(losses) @ shares)


def surrogate_weights(losses: Any, s: int, q: int | RankRule) -> np.ndarray:
    """Return the weight of each sample in `surrogate_loss`: gamma of its rank over the number kept. They sum to 1.

    Equal losses share the mean of their weights, so that their order does not matter.

    >>> surrogate_weights([3.0, 7.0, 7.0], s=2, q=1).round(4).tolist()
    [0.0, 0.5, 0.5]

    Args:
        losses: One loss for each of n samples.
        s: Size of the pool.
        q: Number of samples kept, or a `RankRule`.
    """
    values = checked_losses(losses)
    rule = as_rule(q, len(values), s)
    return _by_sample(values, rule.inclusion(len(values), s)) / rule.kept


def horvitz_thompson(losses: Any, s: int, q: int | RankRule) -> np.ndarray:
    """Return weights that make the mean over the kept samples unbiased for the mean over all: kept / (n * pi).

    Needs a rule that can keep every rank, such as `Mixed`. Plain top-q cannot: the easiest samples are never kept, and
    no weight corrects that.

    >>> from orderdp.theory.rank_rules import Mixed
    >>> horvitz_thompson([1.0, 2.0, 3.0, 4.0], s=3, q=Mixed(top=1, uniform=1)).round(4).tolist()
    [1.3333, 1.3333, 1.0, 0.6667]

    Args:
        losses: One loss for each of n samples.
        s: Size of the pool.
        q: A `RankRule`, or how many of the largest are kept.
    """
    values = checked_losses(losses)
    rule = as_rule(q, len(values), s)
    reason = rule.never_kept(len(values), s)
    if reason is not None:
        raise ConfigError(
            f"Horvitz-Thompson weights need a rule that can keep every rank; with {rule}, {reason}. "
            "Use Mixed(top=..., uniform=...) with uniform at least 1."
        )
    chances = _by_sample(values, rule.inclusion(len(values), s))
    return rule.kept / (len(values) * chances)


def _by_sample(losses: np.ndarray, by_rank: np.ndarray) -> np.ndarray:
    """Map one number per rank to the samples by their losses; equal losses share the mean."""
    order = np.argsort(-losses)
    falling = losses[order]
    starts_group = np.concatenate(([True], falling[1:] != falling[:-1]))
    shared = np.empty(len(losses))
    if starts_group.all():
        shared[order] = by_rank
        return shared
    group = np.cumsum(starts_group) - 1
    means = np.add.reduceat(by_rank, np.flatnonzero(starts_group)) / np.bincount(group)
    shared[order] = means[group]
    return shared


# -- the paper's bounds: convergence on the surrogate, and the gap between surrogate and plain risk --------------------


class BiasTerms(NamedTuple):
    """The parts of Theorem 3's bias term.

    Attributes:
        deviation: C_s, the largest distance of the density n gamma_j / q from 1.
        largest_loss: B.
        shift: Q_n, by how much the surrogate exceeds the mean of the losses.
        sampling: sqrt(2) C_s B sqrt((n - s) / (s (n - 1))).
    """

    deviation: float
    largest_loss: float
    shift: float
    sampling: float

    @property
    def bound(self) -> float:
        """The bias term: sampling - shift."""
        return self.sampling - self.shift


def deviation(n: int, s: int, q: int) -> float:
    """Return C_s = sup |n gamma_j / q - 1|: max(1, s/q - 1) for q < s, and 0 for q = s.

    >>> deviation(100, 50, 10), deviation(100, 50, 49), deviation(100, 50, 50)
    (4.0, 1.0, 0.0)
    """
    check_design(n, s, q)
    return 0.0 if q == s else max(1.0, s / q - 1)


def sampling_rate(n: int, s: int) -> float:
    """Return sqrt(2 (n - s) / (s (n - 1))): the distance of a pool's losses from all losses; 0 if s = n."""
    check_design(n, s, s)
    return 0.0 if n == s else math.sqrt(2 * (n - s) / (s * (n - 1)))


def bias_terms(losses: Any, s: int, q: int) -> BiasTerms:
    """Return C_s, B, Q_n and the sampling term of Theorem 3 for these losses.

    >>> terms = bias_terms([1.0, 2.0, 3.0, 4.0], s=3, q=2)
    >>> terms.deviation, terms.shift, round(terms.sampling, 4)
    (1.0, 0.625, 1.8856)

    Args:
        losses: One loss for each of n samples.
        s: Size of the pool.
        q: Number of samples kept of it.
    """
    values = checked_losses(losses)
    n = len(values)
    check_design(n, s, q)
    shift = float(values @ (surrogate_weights(values, s, q) - 1 / n))
    largest = float(np.abs(values).max())
    distance = deviation(n, s, q)
    return BiasTerms(distance, largest, shift, distance * largest * sampling_rate(n, s))


def convergence_bound(distance: float, lipschitz: float, step_sizes: Any) -> float:
    """Theorem 2: bound the smallest expected gap to the surrogate's minimum, for convex G-Lipschitz losses.

    With the constant step distance / (G sqrt(T)) it is G distance / sqrt(T):

    >>> round(convergence_bound(2.0, 3.0, [2 / (3 * 10)] * 100), 9)
    0.6

    Args:
        distance: Distance from the start to a minimizer of the surrogate.
        lipschitz: G.
        step_sizes: eta_1 .. eta_T.
    """
    steps = checked_steps(step_sizes)
    return averaged_convergence_bound(distance, lipschitz, steps) * float(steps.max() / steps.min())


def averaged_convergence_bound(distance: float, lipschitz: float, step_sizes: Any) -> float:
    """Return the same bound for the average of the iterates, weighted by step size: without eta_max / eta_min.

    >>> averaged_convergence_bound(1.0, 1.0, [0.5, 0.25])
    0.875

    Args:
        distance: Distance from the start to a minimizer of the surrogate.
        lipschitz: G.
        step_sizes: eta_1 .. eta_T.
    """
    steps = checked_steps(step_sizes)
    distance = checked_positive("distance", distance, zero_allowed=True)
    lipschitz = checked_positive("lipschitz", lipschitz, zero_allowed=True)
    return float((distance**2 + lipschitz**2 * (steps @ steps)) / (2 * steps.sum()))


def generalization_bound(
    losses: Any, s: int, q: int, *, distance: float, lipschitz: float, step_sizes: Any, averaged: bool = False
) -> float:
    """Theorem 3 as printed: the bias term of these losses plus the convergence bound.

    Read its limits in the documentation before using it: the printed proof has gaps.

    Args:
        losses: One loss for each of n samples.
        s: Size of the pool.
        q: Number of samples kept of it.
        distance: Distance from the start to a minimizer of the surrogate.
        lipschitz: G.
        step_sizes: eta_1 .. eta_T.
        averaged: Whether the output is the average of the iterates.
    """
    bound = averaged_convergence_bound if averaged else convergence_bound
    return bias_terms(losses, s, q).bound + bound(distance, lipschitz, step_sizes)


# -- learned samples: what leaving them out does to the gradient, the risk and the visits ------------------------------


class SkipChances(NamedTuple):
    """The probability that a sample is trained on in an epoch.

    Attributes:
        unlearned: Probability of a sample that is not learned.
        learned: Probability of a learned sample.
    """

    unlearned: float
    learned: float


def skip_chances(n: int, n_learned: int, kept: int, refreshed: int = 0) -> SkipChances:
    """Return the probabilities under `orderdp.Unlearned`: `kept` samples, at least `refreshed` of them learned.

    Half of ten samples are learned and seven are kept: all others, and two of the five.

    >>> skip_chances(10, n_learned=5, kept=7)
    SkipChances(unlearned=1.0, learned=0.4)

    Args:
        n: Number of samples.
        n_learned: Number of learned samples.
        kept: Number of samples trained on.
        refreshed: Number of learned samples that are trained on in any case.
    """
    if not (is_count(n) and is_count(n_learned, least=0) and n_learned <= n and is_count(kept) and kept <= n):
        raise ConfigError(
            "n, n_learned and kept must be whole numbers with 0 <= n_learned <= n and 1 <= kept <= n, got "
            f"n={n!r}, n_learned={n_learned!r}, kept={kept!r}."
        )
    if not (is_count(refreshed, least=0) and refreshed <= min(n_learned, kept)):
        raise ConfigError(
            f"refreshed must be a whole number from 0 to {min(n_learned, kept)}, no more than are learned or kept, got "
            f"{refreshed!r}."
        )
    others = n - n_learned
    of_learned = max(kept - others, refreshed)
    return SkipChances(
        unlearned=(kept - of_learned) / others if others else 0.0,
        learned=of_learned / n_learned if n_learned else 0.0,
    )


def skip_surrogate_loss(losses: Any, threshold: float, kept: int, refreshed: int = 0) -> float:
    """Return the expected mean loss of an epoch's selection: the risk that `orderdp.Unlearned` minimizes.

    >>> skip_surrogate_loss([0.0, 0.0, 1.0, 3.0], threshold=0.1, kept=3)
    1.3333333333333333

    Args:
        losses: One loss per sample.
        threshold: At or below this loss a sample is learned.
        kept: Number of samples trained on.
        refreshed: Number of learned samples that are trained on in any case.
    """
    values = checked_losses(losses)
    learned = values <= threshold
    chances = skip_chances(len(values), int(learned.sum()), kept, refreshed)
    return float(np.where(learned, chances.learned, chances.unlearned) @ values) / kept


def gradient_bound(loss: float, floor: float = 0.0) -> float:
    """Return the largest possible norm of the gradient, in the logits, of a sample with this cross-entropy loss.

    Without label smoothing it is sqrt(2) (1 - exp(-loss)). With it the gradient is p - t, t the smoothed target, and
    loss - floor is the divergence of p from t, so that by Pinsker's inequality the norm is at most
    sqrt(2 (loss - floor)).

    >>> round(gradient_bound(0.1054), 3)
    0.141

    Args:
        loss: Loss of the sample.
        floor: The smallest possible loss: 0, or with label smoothing `orderdp.losses.smallest_loss`.
    """
    loss = checked_positive("loss", loss, zero_allowed=True)
    floor = checked_positive("floor", floor, zero_allowed=True)
    if floor == 0:
        return math.sqrt(2) * -math.expm1(-loss)
    return min(math.sqrt(2), math.sqrt(2 * max(0.0, loss - floor)))


def skip_bias_bound(threshold: float, learned_share: float, refresh: float = 0.0, floor: float = 0.0) -> float:
    """Bound the expected change of the mean gradient over all data, in the logits, if learned samples are left out.

    The gradients of the samples trained on, summed and divided by n, differ in expectation from the mean gradient over
    all n by those that were left out: a fraction (1 - refresh) of the learned ones, each with a norm of at most
    `gradient_bound(threshold)`. This holds for current losses; stored losses may be older.

    Half of the samples have probability 0.9 or more, and a tenth of them is trained on:

    >>> round(skip_bias_bound(0.1054, learned_share=0.5, refresh=0.1), 4)
    0.0637

    Args:
        threshold: At or below this loss a sample is learned.
        learned_share: Fraction of the samples that is learned, in [0, 1].
        refresh: Fraction of the learned samples that is trained on, in [0, 1].
        floor: The smallest possible loss.
    """
    for name, value in (("learned_share", learned_share), ("refresh", refresh)):
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} must be in [0, 1], got {value!r}.")
    return (1 - refresh) * learned_share * gradient_bound(threshold, floor)


# -- spaced repetition -------------------------------------------------------------------------------------------------


def learned_rates(losses: np.ndarray, threshold: float, *, floor: float = 0.0, slowest: float = 0.0) -> np.ndarray:
    """Return how often each sample is trained on under `orderdp.SpacedRepetition`, relative to one that is not learned.

    >>> learned_rates(np.array([0.0, 0.1, 0.2, 3.0]), 0.2, slowest=0.05).tolist()
    [0.05000000074505806, 0.5, 1.0, 1.0]

    Args:
        losses: One loss per sample.
        threshold: The loss from which on the rate is 1.
        floor: The smallest possible loss.
        slowest: The smallest rate.
    """
    if not threshold > floor:  # no loss is below the threshold, or only the smallest possible one
        rates: np.ndarray = np.where(losses > threshold, np.float32(1), np.float32(slowest))
        return rates
    with np.errstate(over="ignore"):
        rates = (losses.astype(np.float32) - np.float32(floor)) / np.float32(threshold - floor)
    np.clip(rates, np.float32(slowest), np.float32(1), out=rates)
    return rates


def visiting_shares(rates: Any, kept: int) -> np.ndarray:
    """Return the fraction of epochs in which each sample is trained on if the rates stay: min(1, c rate), sum `kept`.

    >>> visiting_shares([1.0, 1.0, 0.5, 0.25, 0.25], kept=3).round(4).tolist()
    [1.0, 1.0, 0.5, 0.25, 0.25]

    Args:
        rates: One rate per sample, in (0, 1].
        kept: Number of samples trained on per epoch.
    """
    values = np.asarray(rates, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not ((values > 0) & (values <= 1)).all():
        raise ConfigError("rates must be a list of numbers in (0, 1], one per sample.")
    if not (is_count(kept) and kept <= len(values)):
        raise ConfigError(f"kept must be a whole number from 1 to {len(values)}, the number of rates, got {kept!r}.")
    falling = np.sort(values)[::-1]
    # With the m largest at share 1, the others share what is left in proportion to their rates.
    rest = np.cumsum(falling[::-1])[::-1]
    for m in range(kept + 1):
        if m == len(values):
            return np.ones_like(values)
        factor = (kept - m) / rest[m]
        if factor * falling[m] <= 1:
            shares: np.ndarray = np.minimum(1.0, factor * values)
            return shares
    raise AssertionError  # m = kept gives the factor 0


def spaced_surrogate_loss(losses: Any, threshold: float) -> float:
    """Return the risk that training minimizes if each sample is trained on at its rate: the mean Huber loss of losses.

    The rate of a loss l is the derivative of l^2 / (2 t) below the threshold t and of l - t / 2 above it. Smallest
    rate and floor are 0.

    >>> round(spaced_surrogate_loss([0.1, 1.0], threshold=0.2), 6)
    0.4625

    Args:
        losses: One loss per sample.
        threshold: The loss from which on the rate is 1.
    """
    values = checked_losses(losses)
    t = checked_positive("threshold", threshold)
    return float(np.where(values < t, values**2 / (2 * t), values - t / 2).mean())


def spaced_bias_bound(losses: Any, threshold: float, slowest: float = 0.0) -> float:
    """Bound the change of the mean gradient over all data, in the logits, if samples are trained on at their rates.

    The gradient of a sample with loss l is missing for a fraction 1 - rate(l) of the time, and has a norm of at most
    `gradient_bound(l)`: nothing is missing at or above the threshold, and next to nothing at a loss of 0.

    >>> round(spaced_bias_bound([0.0, 0.1, 3.0], threshold=0.2), 4)
    0.0224

    Args:
        losses: One cross-entropy loss per sample.
        threshold: The loss from which on the rate is 1.
        slowest: The smallest rate.
    """
    values = checked_losses(losses)
    t = checked_positive("threshold", threshold)
    missing = 1 - np.clip(values / t, slowest, 1)
    return float((missing * math.sqrt(2) * -np.expm1(-values)).mean())


def longest_gap(n: int, kept: int, slowest: float) -> int:
    """Bound the epochs between two trainings on the same sample under `orderdp.SpacedRepetition`.

    A sample that has waited for A epochs was passed by in the second half of them for samples that had waited for at
    least slowest A / 4 themselves, so each of these was kept at most 1 + 2.04 / slowest times in that half. Together
    they were kept kept A / 2 times, which is at most n (1 + 2.04 / slowest).

    >>> longest_gap(1000, kept=500, slowest=0.1)
    86

    Args:
        n: Number of samples.
        kept: Number of samples trained on per epoch.
        slowest: The smallest rate, in (0, 1].
    """
    if not (is_count(n) and is_count(kept) and kept <= n and 0 < slowest <= 1):
        raise ConfigError(
            "n and kept must be whole numbers with 1 <= kept <= n, and slowest in (0, 1], got "
            f"n={n!r}, kept={kept!r}, slowest={slowest!r}."
        )
    return math.ceil(2 * n * (1 + 2.04 / slowest) / kept)
