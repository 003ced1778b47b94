"""The Hessian of the mean cross-entropy with respect to the last linear layer, and what its inverse does to gradients.

It is the mean of (diag(p) - p p^T) (x) x x^T with x = [h, 1]; it is multiplied with, never written down. A multiple of
the identity is added (damping), because it is singular: a constant added to all logits changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orderdp.coresets.last_layer import Gradients

__all__ = ["Hessian", "influence_vectors"]

#: Numbers in a block of rows: 16 MB of float32. Larger ones are slower, the processor's cache does not hold them.
_BLOCK = 1 << 22

#: Numbers in the right sides that are solved at once: 64 MB of float64, and conjugate gradients need six of them.
_SOLVED_AT_ONCE = 1 << 23


@dataclass(frozen=True, eq=False)
class Hessian:
    """Of n samples.

    Attributes:
        probabilities: (n, classes).
        inputs: [h, 1], (n, width + 1).
        damping: What is added to the diagonal.
    """

    probabilities: np.ndarray
    inputs: np.ndarray
    damping: float

    def times(self, directions: np.ndarray) -> np.ndarray:
        """Its products with directions of shape (count, classes, width + 1)."""
        count, classes, width = directions.shape
        flat = directions.reshape(count * classes, width).astype(np.float32)
        result = np.zeros((count * classes, width))
        rows = _rows_at_once(count * classes)
        for start in range(0, len(self.inputs), rows):
            x, p = self.inputs[start : start + rows], self.probabilities[start : start + rows]
            moved = (x @ flat.T).reshape(len(x), count, classes)
            moved -= np.einsum("nc,nrc->nr", p, moved)[:, :, None]
            moved *= p[:, None, :]
            result += moved.reshape(len(x), -1).T @ x
        result /= len(self.inputs)
        return np.asarray(result.reshape(directions.shape) + self.damping * directions)

    def solve(self, right_sides: np.ndarray, *, tolerance: float = 1e-5, iterations: int = 500) -> np.ndarray:
        """Its inverse times each of the right sides, by conjugate gradients on all of them at once.

        Preconditioned by the Kronecker product of the two factors' means, which has an inverse in closed form.
        """
        precondition = self._preconditioner()
        solution = np.zeros_like(right_sides)
        residual = right_sides.copy()
        direction = conditioned = precondition(residual)
        power = _dots(residual, conditioned)
        enough = tolerance**2 * _dots(right_sides, right_sides)
        for _ in range(iterations):
            if (_dots(residual, residual) <= enough).all():
                break
            product = self.times(direction)
            step = power / np.maximum(_dots(direction, product), 1e-300)
            solution += step[:, None, None] * direction
            residual -= step[:, None, None] * product
            conditioned = precondition(residual)
            power, before = _dots(residual, conditioned), power
            direction = conditioned + (power / np.maximum(before, 1e-300))[:, None, None] * direction
        return solution

    def _preconditioner(self) -> Callable[[np.ndarray], np.ndarray]:
        n = len(self.inputs)
        p = self.probabilities.astype(np.float64)
        across_classes = np.diag(p.mean(0)) - p.T @ p / n
        across_inputs = (self.inputs.T @ self.inputs).astype(np.float64) / n
        values_c, vectors_c = np.linalg.eigh(across_classes)
        values_x, vectors_x = np.linalg.eigh(across_inputs)
        scale = np.maximum(values_c, 0)[:, None] * np.maximum(values_x, 0) + self.damping
        return lambda block: np.asarray(vectors_c @ ((vectors_c.T @ block @ vectors_x) / scale) @ vectors_x.T)


def influence_vectors(gradients: Gradients, hessian: Hessian, probes: int, rng: np.random.Generator) -> np.ndarray:
    """For each sample a vector that stands for H^-1 times its gradient: same norms, same norms of sums.

    Where the gradient has no more than `probes` numbers these are the vectors themselves. Otherwise their products
    with `probes` random signs, scaled: the square of any norm is then right on average, with a relative standard
    deviation of sqrt(2 / probes) at most. H is symmetric, so only `probes` systems are solved and not n.
    """
    shape = gradients.errors.shape[1], gradients.inputs.shape[1]
    size = shape[0] * shape[1]
    count = size if size <= probes else probes
    vectors = np.empty((len(gradients), count), dtype=np.float32)
    at_once = max(1, _SOLVED_AT_ONCE // size)
    for start in range(0, count, at_once):
        part = slice(start, min(start + at_once, count))
        if size <= probes:
            right_sides = np.eye(size)[part].reshape(-1, *shape)
        else:
            right_sides = rng.choice(np.array([-1.0, 1.0]), (part.stop - part.start, *shape)) / np.sqrt(probes)
        vectors[:, part] = _products(gradients, hessian.solve(right_sides))
    return vectors


def _products(gradients: Gradients, directions: np.ndarray) -> np.ndarray:
    """Inner products of each gradient with each direction, (n, count)."""
    count, classes, width = directions.shape
    flat = directions.reshape(-1, width).astype(np.float32)
    products = np.empty((len(gradients), count), dtype=np.float32)
    rows = _rows_at_once(count * classes)
    for start in range(0, len(gradients), rows):
        moved = (gradients.inputs[start : start + rows] @ flat.T).reshape(-1, count, classes)
        products[start : start + rows] = np.einsum("nc,nrc->nr", gradients.errors[start : start + rows], moved)
    return products


def _rows_at_once(width: int) -> int:
    return max(1, _BLOCK // width)


def _dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("rcd,rcd->r", a, b))
