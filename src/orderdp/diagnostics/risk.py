"""What the rule minimises at the moment, and how far that is from the mean of the losses."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from orderdp.errors import ConfigError
from orderdp.policies import RS2, DynamicRandom, EpsilonGreedy, FullData, OrderDP, Scheduled
from orderdp.policy import Context, Policy
from orderdp.theory import Mixed, RankRule, Top, bias_terms, surrogate_loss

__all__ = ["Design", "Risk", "design_of", "surrogate_risk"]


class Design(NamedTuple):
    """A policy in the words of the theory: the size of its pool, and which positions of it are kept."""

    s: int
    rule: RankRule


class Risk(NamedTuple):
    """The risk of the losses at hand.

    Attributes:
        surrogate: What the rule's mean loss is on average over draws.
        mean: The mean of all losses.
        bias: By how much the surrogate exceeds the mean: Q_n of Theorem 3.
        bound: Theorem 3's bias term, for the top of a pool; None for other rules.
    """

    surrogate: float
    mean: float
    bias: float
    bound: float | None


def design_of(policy: Policy, context: Context) -> Design | None:
    """The pool and the rule of a policy in an epoch; None for policies that are not of the family.

    Of the family are those that draw uniformly, `OrderDP` with one draw an epoch, and `EpsilonGreedy`, whose pool is
    everything. With weights that undo the rule the risk is that of all data.
    """
    n = context.n
    while isinstance(policy, Scheduled):
        policy = policy.at(context)
    if isinstance(policy, FullData | DynamicRandom | RS2):
        kept = policy.size(n, context)
        return Design(kept, Top(kept))
    if isinstance(policy, EpsilonGreedy):
        kept = policy.size(n, context)
        at_random = round(policy.epsilon * kept)
        return Design(n, Mixed(kept - at_random, at_random))
    if isinstance(policy, OrderDP) and policy.every == "epoch":
        s, q = policy.sizes(n)
        return Design(n, Top(n)) if policy.unbiased else Design(s, policy.rule.positions(s, q, context))
    return None


def surrogate_risk(policy: Policy, scores: Any, context: Context) -> Risk | None:
    """The surrogate risk of the scores, and its bias.

    Only seen samples count, as if they were all there are: early in training that is a part of the data. Scores are
    last-seen losses, so this is what the rule believes; where they are old, the truth may differ. Under `EpsilonGreedy`
    they are exponential averages of the losses seen, and so is the risk.

    Args:
        policy: Who chooses.
        scores: A score for each sample, infinite for the unseen: ``pruner.scores``.
        context: Of the epoch; how many samples there are is taken from the scores.

    Returns:
        None where nothing was seen, or the policy has no surrogate risk (`design_of`).
    """
    values = np.asarray(scores, dtype=np.float64)
    losses = values[np.isfinite(values)]
    if len(losses) == 0:
        return None
    try:
        design = design_of(policy, Context(len(losses), context.epoch, context.seed, context.epochs))
        if design is None:
            return None
        surrogate = surrogate_loss(losses, design.s, design.rule)
    except ConfigError:  # too few have been seen for this ratio
        return None
    mean = float(losses.mean())
    bound = bias_terms(losses, design.s, design.rule.q).bound if isinstance(design.rule, Top) else None
    return Risk(surrogate, mean, surrogate - mean, bound)
