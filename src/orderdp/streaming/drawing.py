"""How a policy draws from keys: those known to be in the stream are its data set, in the order of their fingerprints.

That order is the same whatever order the keys came in, so workers, ranks and shuffled shards change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from orderdp.checks import checked_policy
from orderdp.errors import ConfigError
from orderdp.policies.budget import refuse_budget
from orderdp.policy import Context, Policy, describe, nominal_ratio
from orderdp.streaming.fingerprints import is_drawn, share_threshold
from orderdp.streaming.keytable import KeyTable

__all__ = ["Expected", "checked_for_keys", "draw_keys", "expected_kept", "kept_share"]

# Large enough that rounding to whole samples does not show in a share.
_MANY = 10**9

_COLUMNS = ("score", "usage", "seen")


class Expected(NamedTuple):
    """How many samples an epoch keeps: on average, and with what standard deviation."""

    mean: float
    deviation: float


class KeyView:
    """What a policy may read of a key table: some of its rows.

    Args:
        table: The table.
        rows: Which of its rows are the policy's samples.
    """

    def __init__(self, table: KeyTable, rows: np.ndarray) -> None:
        self.n = len(rows)
        self._table, self._rows = table, rows

    def __getitem__(self, name: str) -> np.ndarray:
        """The column called `name`, read-only."""
        if name not in _COLUMNS:
            raise ConfigError(f"there is no column {name!r} in a table of keys; there are {', '.join(_COLUMNS)}.")
        values: np.ndarray = self._table[name][self._rows]
        values.flags.writeable = False
        return values


def checked_for_keys(policy: Policy) -> Policy:
    """A policy that can draw from keys, or an error."""
    checked_policy(policy)
    refuse_budget(policy, "how many samples a stream has is not known before it has passed")
    if getattr(policy, "every", "epoch") == "batch":
        raise ConfigError(
            f"{describe(policy)} chooses at every step, and a stream is filtered before there are steps. "
            'Use every="epoch".'
        )
    extra: Sequence[object] = tuple(getattr(policy, "columns", ()))
    if extra or getattr(policy, "remember", None) is not None:
        raise ConfigError(
            f"a table of keys remembers the last loss and nothing else, and {type(policy).__name__} wants more. Use "
            "OrderDP, or a Pruner over data that have an index."
        )
    return policy


def kept_share(policy: Policy, context: Context) -> float:
    """The share of a large data set that the policy keeps in this epoch; all of it where it does not say."""
    ratio = nominal_ratio(policy, _MANY, Context(_MANY, context.epoch, context.seed, context.epochs))
    return 1.0 if ratio is None else 1 - ratio


def draw_keys(table: KeyTable, rows: np.ndarray, policy: Policy, context: Context, hash_key: int) -> bool:
    """Decides about every key in the table, in its column "kept", and in "weight" where the policy weights.

    Args:
        table: Where the keys are.
        rows: Those known to be in the stream, in the order of their fingerprints; the policy draws among them.
        policy: Who decides.
        context: The epoch's; its n is that of `rows`.
        hash_key: Key of the hash that decides about all others.

    Returns:
        Whether the policy gave weights.
    """
    threshold = share_threshold(kept_share(policy, context))
    kept = table["kept"]
    kept[:] = is_drawn(table["key"], hash_key, threshold)
    if table.has("weight"):
        table["weight"][:] = 1.0
    if not _can_draw(policy, context):
        return False
    selection = policy.select(KeyView(table, rows), context)
    kept[rows] = 0
    kept[rows[selection.indices]] = 1
    if selection.weights is not None:
        table["weight"][rows[selection.indices]] = selection.weights
    return selection.weights is not None


def expected_kept(policy: Policy, context: Context, new: int) -> Expected:
    """What is kept where `context.n` known keys come, and so many new ones.

    Of the known ones exactly as many as the policy says. Of the new ones each by itself, with the share as its
    probability: a binomial number, whose variance is new * share * (1 - share).
    """
    share = kept_share(policy, context)
    known = context.n
    exact = policy.size(known, context) if _can_draw(policy, context) else None
    loose = new if exact is not None else new + known
    return Expected((exact or 0) + loose * share, math.sqrt(loose * share * (1 - share)))


def _can_draw(policy: Policy, context: Context) -> bool:
    """Whether there are enough known keys for the policy to keep one of them."""
    if context.n < 1:
        return False
    try:
        policy.size(context.n, context)
    except ConfigError:
        if context.n * kept_share(policy, context) >= 2:
            raise
        return False
    return True
