"""The risk that OrderDP minimizes, and weights that undo it."""

from __future__ import annotations

from typing import Any

import numpy as np

from orderdp.errors import ConfigError
from orderdp.theory._checks import checked_losses
from orderdp.theory.rank_rules import RankRule, as_rule

__all__ = ["horvitz_thompson", "surrogate_loss", "surrogate_weights"]


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
