"""Mathematics that coreset methods share: kernels in blocks, last-layer gradients, greedy maximization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from math import ceil, log
from typing import Any, Protocol

import numpy as np

from orderdp.errors import ConfigError, install_command

__all__ = [
    "CosineKernel",
    "Gradients",
    "Kernel",
    "Objective",
    "centered",
    "dense_kernel",
    "lazy_greedy",
    "log_softmax",
    "prediction_errors",
    "row_blocks",
    "sklearn",
    "softmax",
    "stochastic_greedy",
    "unit_rows",
]


def sklearn(module: str) -> Any:
    """Import a module of scikit-learn; if it is missing, raise with the pip line."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise ConfigError(
            f"this method needs scikit-learn, which is not installed: {install_command('coresets')}"
        ) from None


#: Numbers per block: 64 MB of float32.
_BLOCK = 1 << 24


class Kernel(Protocol):
    """Similarities of n samples, non-negative."""

    @property
    def n(self) -> int:
        """Number of samples."""
        ...

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all, (positions, n)."""
        ...


def row_blocks(n: int, rows: int | None = None) -> Iterator[slice]:
    """Slices that cover `rows` rows (default n); each has as many rows of n numbers as fit in a block."""
    height, rows = max(1, _BLOCK // max(1, n)), n if rows is None else rows
    return (slice(start, min(start + height, rows)) for start in range(0, rows, height))


class CosineKernel:
    """0.5 + 0.5 cos, in [0, 1]. A row of zeros has similarity 0.5 to everything."""

    def __init__(self, features: np.ndarray) -> None:
        self._directions = unit_rows(features)

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self._directions)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Similarity of each of these samples to all."""
        found = self._directions[positions] @ self._directions.T
        found *= 0.5
        found += 0.5
        # Rounding must not make values negative: gains would no longer be monotone.
        return np.asarray(np.maximum(found, 0.0, out=found))


def dense_kernel(kernel: Kernel) -> np.ndarray:
    """Compute the whole kernel, block by block. Only for small groups."""
    whole = np.empty((kernel.n, kernel.n), dtype=np.float32)
    for part in row_blocks(kernel.n):
        whole[part] = kernel.rows(np.arange(part.start, part.stop))
    return whole


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows normalized to length 1; a zero row stays zero."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def centered(features: np.ndarray) -> np.ndarray:
    """Rows minus their mean. Distances stay the same, but their squares round less."""
    return np.asarray(features - features.mean(0, dtype=np.float64), dtype=np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities, without overflow."""
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), dtype=np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities."""
    return np.asarray(np.exp(log_softmax(logits)))


def prediction_errors(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Softmax minus one-hot label: the gradient of the cross-entropy with respect to the logits."""
    errors = softmax(logits)
    errors[np.arange(len(labels)), labels] -= 1
    return errors


@dataclass(frozen=True, eq=False)
class Gradients:
    """Last-layer gradients of n samples, factorized.

    Attributes:
        errors: p - y, (n, classes).
        inputs: [h, 1], (n, width + 1).
    """

    errors: np.ndarray
    inputs: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> Gradients:
        """Build from recordings of the proxy."""
        inputs = np.empty((len(features), features.shape[1] + 1), dtype=np.float32)
        inputs[:, :-1] = features
        inputs[:, -1] = 1
        return cls(prediction_errors(logits, labels), inputs)

    def __len__(self) -> int:
        return len(self.errors)

    def __getitem__(self, positions: np.ndarray) -> Gradients:
        return Gradients(self.errors[positions], self.inputs[positions])

    def squared_norms(self) -> np.ndarray:
        """Squared norm of each sample's gradient."""
        return np.asarray(_squares(self.errors) * _squares(self.inputs))

    def mean(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Mean gradient or, with weights, the weighted sum: (classes, width + 1)."""
        if weights is None:
            return np.asarray(self.errors.T @ self.inputs / np.float32(len(self)))
        return np.asarray((self.errors * weights[:, None]).T @ self.inputs)

    def along(self, direction: np.ndarray) -> np.ndarray:
        """Inner product of each sample's gradient with a direction of shape (classes, width + 1)."""
        return np.asarray(np.einsum("nc,nc->n", self.inputs @ direction.T, self.errors))

    def inner(self, others: Gradients) -> np.ndarray:
        """Inner products of these gradients with `others`, (len(self), len(others))."""
        product = self.inputs @ others.inputs.T
        product *= self.errors @ others.errors.T
        return np.asarray(product)


def _squares(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("nd,nd->n", rows, rows))


_FIRST_CHUNK = 8


class Objective(Protocol):
    """Function to maximize.

    Attributes:
        bounds: Upper bound of each sample's gain; the objective may lower it at any time.
    """

    bounds: np.ndarray

    def gains(self, positions: np.ndarray) -> np.ndarray:
        """Current gain of each of these samples."""
        ...

    def take(self, position: int) -> None:
        """Add a selected sample."""
        ...


def lazy_greedy(objective: Objective, count: int) -> np.ndarray:
    """Selection of `count` samples by plain greedy, in its order; on a tie the lowest position.

    A gain that was computed earlier is an upper bound now. So only the samples with the largest bounds are evaluated
    again, in chunks that double, until the largest bound of all is a gain of this step.
    """
    bounds = objective.bounds
    picks = np.empty(count, dtype=np.int64)
    step_of_gain = np.full(len(bounds), -1, dtype=np.int64)
    for step in range(count):
        chunk = _FIRST_CHUNK
        while step_of_gain[best := int(bounds.argmax())] != step:
            stale = _largest(bounds, chunk)
            stale = stale[step_of_gain[stale] != step]
            bounds[stale] = objective.gains(stale)
            step_of_gain[stale] = step
            chunk *= 2
        picks[step] = best
        bounds[best] = -np.inf
        objective.take(best)
    return picks


def stochastic_greedy(objective: Objective, count: int, rng: np.random.Generator, eps: float = 0.01) -> np.ndarray:
    """Select `count` samples, each the best of a random subset of the remaining ones.

    The subset has (n / count) ln(1 / eps) samples, so that all steps together evaluate n ln(1 / eps) of them, for any
    `count`.
    """
    left = rng.permutation(len(objective.bounds))
    size = ceil(len(left) / count * log(1 / eps))
    picks = np.empty(count, dtype=np.int64)
    for step in range(count):
        positions = rng.integers(0, len(left), min(size, len(left))) if size < len(left) else np.arange(len(left))
        part = np.unique(positions)
        best = part[objective.gains(left[part]).argmax()]
        picks[step] = left[best]
        left[best] = left[-1]
        left = left[:-1]
        objective.take(int(picks[step]))
    return picks


def _largest(bounds: np.ndarray, chunk: int) -> np.ndarray:
    if chunk >= len(bounds):
        return np.flatnonzero(bounds > -np.inf)
    largest = np.argpartition(bounds, len(bounds) - chunk)[len(bounds) - chunk :]
    kept: np.ndarray = largest[bounds[largest] > -np.inf]
    return kept
