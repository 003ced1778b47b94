"""The rank rules on candidates that many ranks hold: what `choose` does to a whole pool, piece by piece."""

from __future__ import annotations

from functools import partial

import numpy as np

from orderdp.errors import ConfigError
from orderdp.policies.budget import Budget
from orderdp.policies.full_data import FullData
from orderdp.policies.kit import tie_key
from orderdp.policies.learned import LossBelow, Probability, SkipLearned, Unlearned
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.rank_rules import Bottom, Mixed, Moving, RankRule, Top, Trimmed
from orderdp.policies.tails import UniformTail
from orderdp.policy import Context, Policy, describe
from orderdp.sharded.bits import Bits
from orderdp.sharded.field import Field, Scores
from orderdp.sharded.pools import chosen_among
from orderdp.sharded.wires import Wires

__all__ = ["checked_for_shards", "choose"]


def choose(rule: RankRule, pool: Bits, scores: Scores, sizes: tuple[int, int], context: Context, wires: Wires) -> Bits:
    """This rank's part of the `q` that `rule` keeps of the pool of all ranks. Uses the memory of `pool`.

    Args:
        rule: Which positions are kept.
        pool: This rank's part of the pool.
        scores: Reads its scores.
        sizes: The size of the pool and the number kept, s and q.
        context: The epoch's context.
        wires: The way to the other ranks.
    """
    s, q = sizes
    field = Field(pool, scores, tie_key(context), wires, smallest_first=isinstance(rule, Bottom))
    if isinstance(rule, Trimmed):
        skip = min(round(rule.share * field.count_seen()), s - q)
        if skip > 0:
            field.take(skip, seen_only=True)
    if isinstance(rule, Moving):
        rule = rule.at(context)
    if isinstance(rule, Mixed):
        by_loss = round(rule.top * q)
        return _with_some_of_the_rest(field, field.take(by_loss), s - by_loss, q - by_loss, context)
    return field.take(q)


def _with_some_of_the_rest(field: Field, best: Bits, rest: int, count: int, context: Context) -> Bits:
    """The best, and `count` drawn uniformly from the `rest` candidates of all ranks."""
    if count >= rest:
        best |= field.candidates
        return best
    before = 0
    if field.wires.world > 1:
        of_ranks = field.wires.gather(np.array([len(field.candidates)]))[:, 0]
        before = int(of_ranks[: field.wires.rank].sum())
    rng = partial(context.rng, "epoch", context.epoch, "mixed")
    best |= chosen_among(field.candidates, before, rest, count, rng)
    return best


_KNOWN = (Top, Bottom, Trimmed, Mixed, Moving)


def checked_for_shards(policy: Policy) -> Policy:
    """The policy, or an error that says why it needs the whole table in one place."""
    if type(policy) in (Budget, UniformTail):
        checked_for_shards(policy.policy)  # type: ignore[attr-defined]
        return policy
    if isinstance(policy, Unlearned | SkipLearned):
        if not isinstance(policy.learned, Probability | LossBelow):
            raise ConfigError(
                f'with table="sharded" a sample is learned by its own loss, got {policy.learned}: that is measured by '
                "the losses of all. Use Probability or LossBelow."
            )
        if policy.unbiased:
            raise ConfigError('table="sharded" has no weights, got unbiased=True. Leave it out.')
        return policy
    if type(policy) is FullData:
        return policy
    if type(policy) is not OrderDP:
        raise ConfigError(
            'table="sharded" needs orderdp.OrderDP, Unlearned, SkipLearned, Budget, UniformTail or FullData, got '
            f"{describe(policy)}: other policies read the whole table in "
            "one place. OrderDP(prune_ratio=..., exploitation=1) draws at random and OrderDP(prune_ratio=0) keeps all; "
            'for other policies use table="replicated".'
        )
    if policy.every != "epoch":
        raise ConfigError(
            f'table="sharded" draws once an epoch, got {policy}: a choice at every step would ask all ranks for '
            'scores at every step. Use every="epoch".'
        )
    if policy.unbiased:
        raise ConfigError(
            f'unbiased weights need the rank of every kept sample among all, got {policy}: with table="sharded" no '
            "process can sort the scores of all. Leave unbiased out."
        )
    if type(policy.rule) not in _KNOWN:
        raise ConfigError(
            f'table="sharded" knows the rules {", ".join(kind.__name__ for kind in _KNOWN)}, got {policy.rule}: a rule '
            "of one's own sees a whole pool at once, and no process has one."
        )
    return policy
