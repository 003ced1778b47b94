"""Farthest-first traversal: what k-center and contextual diversity share. Lazy, and in blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.blocks import centred, row_blocks
from orderdp.coresets.greedy import lazy_greedy
from orderdp.coresets.last_layer import log_softmax

__all__ = ["Divergence", "farthest_first", "squared_euclidean", "symmetric_kl"]

#: So many centres are collected before all samples are told of them, in one matrix product.
_PENDING = 64


@dataclass(frozen=True, eq=False)
class Divergence:
    """A divergence that is own_i + own_j - <left_i, right_j>: a block of them is one matrix product."""

    own: np.ndarray
    left: np.ndarray
    right: np.ndarray

    def between(self, rows: np.ndarray | slice, columns: np.ndarray | slice) -> np.ndarray:
        """The block of these rows and columns, never negative."""
        block = self.left[rows] @ self.right[columns].T
        np.subtract(self.own[rows][:, None] + self.own[columns], block, out=block)
        return np.asarray(np.maximum(block, 0, out=block))


def squared_euclidean(features: np.ndarray) -> Divergence:
    """Squared distances between rows."""
    rows = centred(features)
    return Divergence(np.einsum("nd,nd->n", rows, rows), rows, 2 * rows)


def symmetric_kl(logits: np.ndarray) -> Divergence:
    """KL(p, q) + KL(q, p) between the softmax of rows: the sum of (p - q)(ln p - ln q)."""
    logarithms = log_softmax(logits)
    p = np.exp(logarithms)
    return Divergence((p * logarithms).sum(1), np.hstack((p, logarithms)), np.hstack((logarithms, p)))


def farthest_first(divergence: Divergence, count: int, start: int) -> np.ndarray:
    """`count` places: `start`, then each time the one farthest from all before; of equals the lowest place.

    These are the picks of the naive algorithm. Distances to the nearest pick only fall, so the last known ones are
    bounds, and most samples need not be looked at again (see `lazy_greedy`).
    """
    cover = _Cover(divergence, start)
    return np.concatenate(([start], lazy_greedy(cover, count - 1))).astype(np.int64)


class _Cover:
    """How far each sample is from the nearest pick, at most."""

    def __init__(self, divergence: Divergence, start: int) -> None:
        self._divergence = divergence
        self._pending = [start]
        self.bounds = np.full(len(divergence.own), np.inf, dtype=np.float32)
        self.bounds[start] = -np.inf
        self._tell_all()

    def gains(self, places: np.ndarray) -> np.ndarray:
        """The distance of these to the nearest pick."""
        if not self._pending:
            return np.asarray(self.bounds[places])
        nearest = self._divergence.between(places, np.array(self._pending)).min(1)
        return np.asarray(np.minimum(self.bounds[places], nearest))

    def take(self, place: int) -> None:
        """One more pick."""
        self._pending.append(place)
        if len(self._pending) == _PENDING:
            self._tell_all()

    def _tell_all(self) -> None:
        centres = np.array(self._pending)
        for part in row_blocks(len(self.bounds)):
            nearest = self._divergence.between(part, centres).min(1)
            np.minimum(self.bounds[part], nearest, out=self.bounds[part])
        self._pending = []
