"""Similarities and distances, a few rows at a time: an n x n kernel of 50,000 samples does not fit in memory.

All of them are made of matrix products, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

__all__ = ["CosineKernel", "Kernel", "centred", "dense_kernel", "row_blocks", "unit_rows"]

#: Numbers in a block: 64 MB of float32.
_BLOCK = 1 << 24


class Kernel(Protocol):
    """Similarities of n samples, none negative."""

    @property
    def n(self) -> int:
        """How many samples."""
        ...

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all, (places, n)."""
        ...


def row_blocks(n: int, rows: int | None = None) -> Iterator[slice]:
    """Slices that cover `rows` rows (n where it is not given), each of as many rows of n numbers as make a block."""
    height, rows = max(1, _BLOCK // max(1, n)), n if rows is None else rows
    return (slice(start, min(start + height, rows)) for start in range(0, rows, height))


class CosineKernel:
    """0.5 + 0.5 cos, in [0, 1]. A row of zeros has similarity 0.5 to everything."""

    def __init__(self, features: np.ndarray) -> None:
        self._directions = unit_rows(features)

    @property
    def n(self) -> int:
        """How many samples."""
        return len(self._directions)

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all."""
        found = self._directions[places] @ self._directions.T
        found *= 0.5
        found += 0.5
        # Rounding must not make anything negative: gains would no longer only fall.
        return np.asarray(np.maximum(found, 0.0, out=found))


def dense_kernel(kernel: Kernel) -> np.ndarray:
    """The whole kernel, filled block by block. Only for groups that are small enough."""
    whole = np.empty((kernel.n, kernel.n), dtype=np.float32)
    for part in row_blocks(kernel.n):
        whole[part] = kernel.rows(np.arange(part.start, part.stop))
    return whole


def unit_rows(features: np.ndarray) -> np.ndarray:
    """The rows at length 1; a row of zeros stays as it is."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def centred(features: np.ndarray) -> np.ndarray:
    """The rows less their mean, which distances do not notice, but the rounding of their squares does."""
    return np.asarray(features - features.mean(0, dtype=np.float64), dtype=np.float32)
