"""Helpers for policies: counts, uniform draws, the largest scores, a random order. All are functions of the context."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from orderdp import _draw as draw
from orderdp._draw import key64
from orderdp.errors import ConfigError
from orderdp.policy import Context

__all__ = [
    "at_least_one",
    "count_kept",
    "hardest_first",
    "is_annealed",
    "proportional",
    "shuffled",
    "streams",
    "tie_key",
    "top",
    "uniform",
    "weighted",
]


def count_kept(n: int, prune_ratio: float) -> int:
    """Return how many of `n` samples this ratio keeps: the nearest whole number, or an error if that is 0."""
    kept = round((1 - prune_ratio) * n)
    if kept < 1:
        raise ConfigError(f"prune_ratio={prune_ratio} keeps {kept} of {n} samples; at least one must be kept.")
    return kept


def streams(context: Context) -> draw.Streams:
    """Return the random streams of this epoch's selection."""
    return partial(context.rng, "epoch", context.epoch)


def tie_key(context: Context) -> int:
    """Return the key that orders equal scores in this epoch."""
    return key64(context.seed, "ties", context.epoch)


def shuffled(indices: np.ndarray, context: Context) -> np.ndarray:
    """Return the indices in a random order. Reuses their memory."""
    return draw.visiting_order(indices, context.n, context.rng("epoch", context.epoch, "order"))


def top(scores: np.ndarray, count: int, context: Context) -> np.ndarray:
    """Return the indices of the `count` largest scores, ascending; ties are broken fairly."""
    return draw.top_of_pool(scores.astype(np.float32), count, tie_key(context)) if count else np.empty(0, np.int64)


def uniform(candidates: np.ndarray, count: int, context: Context, tag: str) -> np.ndarray:
    """Draw `count` of the candidates uniformly; keep their order. `tag` names the random stream."""
    if count >= len(candidates):
        return candidates
    chosen = draw.pool_mask(len(candidates), count, partial(context.rng, "epoch", context.epoch, tag))
    drawn: np.ndarray = candidates[chosen]
    return drawn


def hardest_first(candidates: np.ndarray, scores: np.ndarray, context: Context) -> np.ndarray:
    """Return the candidates from the largest score to the smallest, equal ones in random order."""
    ranked: np.ndarray = candidates[draw.ranking(scores[candidates], context.rng("epoch", context.epoch, "ranks"))]
    return ranked


def weighted(logarithms: np.ndarray, count: int, context: Context) -> np.ndarray:
    """Draw `count` positions one by one without replacement, each in proportion to the remaining weights.

    Args:
        logarithms: Logarithms of the weights, because the weights may underflow.
        count: Number of positions to draw.
        context: Gives the random stream.
    """
    if count == 0:
        return np.empty(0, np.int64)
    # The smallest exponential variates divided by the weights are such a draw.
    exponentials = context.rng("epoch", context.epoch, "weighted").standard_exponential(len(logarithms))
    with np.errstate(divide="ignore"):
        keys = np.log(exponentials) - logarithms
    return np.argpartition(keys, count - 1)[:count]


def is_annealed(share: float | None, context: Context, policy: str) -> bool:
    """Return True if the epoch comes after this fraction of all epochs; None for never."""
    if share is None:
        return False
    if context.epochs is None:
        raise ConfigError(
            "annealing needs to know how many epochs are planned. Use Pruner(..., epochs=...), or switch it off with "
            f"{policy}(..., annealing=None)."
        )
    # In whole epochs: a comparison of floats would miss the start at some numbers of epochs.
    return context.epoch >= math.ceil(round(share * context.epochs, 9))


def at_least_one(kept: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the mask; if it is empty, with the largest score added."""
    if not kept.any():
        kept[int(np.argmax(scores))] = True
    return kept


def proportional(members: np.ndarray, total: int) -> np.ndarray:
    """Divide `total` among groups in proportion to their sizes; the sum is exact and no group exceeds its size.

    Uses largest remainders; if there are enough, every group gets at least one.

    >>> proportional(np.array([70, 25, 5]), 10).tolist()
    [7, 2, 1]
    >>> proportional(np.array([97, 2, 1]), 10).tolist()
    [8, 1, 1]
    """
    everything = int(members.sum())
    budgets = np.array([int(size) * total // everything for size in members], dtype=np.int64)
    remainders = np.array([int(size) * total % everything for size in members], dtype=np.float64)
    if total >= int((members > 0).sum()):
        without = (budgets == 0) & (members > 0)
        budgets[without], remainders[without] = 1, -1.0
    left = total - int(budgets.sum())
    budgets[np.argsort(-remainders, kind="stable")[: max(0, left)]] += 1
    for _ in range(-left):
        budgets[int(np.argmax(budgets))] -= 1
    return budgets
