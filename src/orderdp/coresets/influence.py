"""Coresets by influence on the parameters, through the Hessian of the last linear layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orderdp._draw import generator
from orderdp._validation import is_count
from orderdp.coresets.base import Gradients, Method, ScoreMethod, Task, softmax
from orderdp.coresets.sources import FeatureSource, Requirements
from orderdp.errors import ConfigError
from orderdp.policy import Selection

__all__ = [
    "GeneralizationPruning",
    "Hessian",
    "Influence",
    "anneal",
    "check_influence",
    "influence_vectors",
    "parameter_influence",
]


#: Numbers per block of rows: 16 MB of float32. Larger blocks are slower, because they do not fit the CPU cache.
_BLOCK = 1 << 22


#: Numbers in the right-hand sides solved at once: 64 MB of float64, and conjugate gradients need six copies.
_SOLVED_AT_ONCE = 1 << 23


@dataclass(frozen=True, eq=False)
class Hessian:
    """Hessian of the last linear layer over n samples.

    Attributes:
        probabilities: (n, classes).
        inputs: [h, 1], (n, width + 1).
        damping: Value added to the diagonal.
    """

    probabilities: np.ndarray
    inputs: np.ndarray
    damping: float

    def times(self, directions: np.ndarray) -> np.ndarray:
        """Products with directions of shape (count, classes, width + 1)."""
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
        """Inverse times each right-hand side, by conjugate gradients on all of them at once.

        Preconditioned by the Kronecker product of the two factors' means, which has an inverse in closed form.
        """
        precondition = self._preconditioner()
        solution = np.zeros_like(right_sides)
        residual = right_sides.copy()
        direction = conditioned = precondition(residual)
        power = _dots(residual, conditioned)
        start = _dots(right_sides, right_sides)
        enough = tolerance**2 * start
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
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
            failed = ~(_dots(residual, residual) <= start)
        if failed.any():  # rounding of a badly conditioned Hessian: the preconditioner is an approximate inverse
            solution[failed] = precondition(right_sides)[failed]
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
    """Per sample, a vector with the norms, and norms of sums, of H^-1 times its gradient.

    If the gradient has at most `probes` numbers these are the vectors themselves. Otherwise they are scaled products
    with `probes` random sign vectors: the square of any norm is then unbiased, with a relative standard deviation of
    at most sqrt(2 / probes). H is symmetric, so only `probes` systems are solved instead of n.
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


def parameter_influence(source: FeatureSource, damping: float, probes: int, rng: np.random.Generator) -> np.ndarray:
    """Per sample, a vector that represents H^-1 times its last-layer gradient; see `influence_vectors`."""
    assert source.labels is not None
    logits = source.logits()
    gradients = Gradients.of(source.features(), logits, source.labels)
    return influence_vectors(gradients, Hessian(softmax(logits), gradients.inputs, damping), probes, rng)


@dataclass(frozen=True, kw_only=True)
class Influence(ScoreMethod):
    """Keep the largest norms of the inverse Hessian times the last-layer gradient.

    Args:
        damping: Value added to the diagonal of the Hessian.
        probes: Norms are exact for gradients of at most this many numbers; otherwise they are estimated from this many
            random projections.
    """

    damping: float = 0.01
    probes: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_influence(self.damping, self.probes)

    @property
    def needs(self) -> Requirements:
        """Features and logits."""
        return Requirements(features=True, logits=True, labels=True)

    def rate(self, source: FeatureSource, seed: int) -> np.ndarray:
        """Norms."""
        rng = generator(seed, "coreset", "Influence", "probes")
        return np.asarray(np.linalg.norm(parameter_influence(source, self.damping, self.probes, rng), axis=1))


def check_influence(damping: object, probes: object) -> None:
    """Raise unless these are a valid damping and number of probes."""
    if not (isinstance(damping, int | float) and 0 < damping < float("inf")):
        raise ConfigError(f"damping must be a number above 0, got {damping!r}. Without it the Hessian is singular.")
    if not is_count(probes):
        raise ConfigError(f"probes must be a whole number, at least 1, got {probes!r}.")


def anneal(
    vectors: np.ndarray, removed: list[np.ndarray], kept: list[np.ndarray], moves: int, rng: np.random.Generator
) -> float:
    """Exchange samples between `removed` and `kept`, in place, to minimize the norm of the sum over the removed ones.

    Simulated annealing of the squared norm: an exchange within a group that lowers it is made, an exchange that
    raises it is made with probability exp(-growth / temperature). The temperature falls from the mean growth of the
    first exchanges to a millionth of it. Ends at the best set found; returns its squared norm.

    Args:
        vectors: One row per sample.
        removed: Per group, the samples left out.
        kept: Per group, the other samples.
        moves: Number of exchanges that are tried.
        rng: Proposes and accepts exchanges.
    """
    total = sum((vectors[group].sum(0, dtype=np.float64) for group in removed), np.zeros(vectors.shape[1]))
    value = best = float(total @ total)
    movable = np.array([len(r) * len(k) > 0 for r, k in zip(removed, kept, strict=True)])
    if moves == 0 or not movable.any():
        return value
    sizes = np.where(movable, [len(r) for r in removed], 0)
    groups = rng.choice(len(removed), moves, p=sizes / sizes.sum())
    draws, chances = rng.random((moves, 2)), -np.log(rng.random(moves))
    hot, undone = _typical_growth(vectors, removed, kept, total, groups, draws), []
    for move in range(moves):
        out, rest = removed[groups[move]], kept[groups[move]]
        i, j = int(draws[move, 0] * len(out)), int(draws[move, 1] * len(rest))
        difference = vectors[rest[j]].astype(np.float64) - vectors[out[i]]
        growth = float(difference @ (2 * total + difference))
        if growth < chances[move] * hot * 1e-6 ** (move / moves):
            total += difference
            value += growth
            out[i], rest[j] = rest[j], out[i]
            undone.append((groups[move], i, j))
            if value < best:
                best, undone = value, []
    for group, i, j in reversed(undone):
        removed[group][i], kept[group][j] = kept[group][j], removed[group][i]
    return best


def _typical_growth(
    vectors: np.ndarray,
    removed: list[np.ndarray],
    kept: list[np.ndarray],
    total: np.ndarray,
    groups: np.ndarray,
    draws: np.ndarray,
) -> float:
    growths = []
    for group, (first, second) in zip(groups[:200], draws[:200], strict=True):
        out, rest = removed[group], kept[group]
        difference = vectors[rest[int(second * len(rest))]] - vectors[out[int(first * len(out))]]
        growths.append(abs(float(difference @ (2 * total + difference))))
    return float(np.mean(growths))


@dataclass(frozen=True, kw_only=True)
class GeneralizationPruning(Method):
    """Remove the samples whose summed parameter influence is shortest, by simulated annealing.

    Args:
        damping: Value added to the diagonal of the Hessian.
        probes: Number of random projections that represent a gradient of more numbers than that.
        moves: Number of exchanges that the annealing tries.
    """

    damping: float = 0.01
    probes: int = 128
    moves: int = 200_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_influence(self.damping, self.probes)
        if not is_count(self.moves, least=0):
            raise ConfigError(f"moves must be a whole number, at least 0, got {self.moves!r}.")

    @property
    def needs(self) -> Requirements:
        """Features and logits."""
        return Requirements(features=True, logits=True, labels=True)

    def choose(self, task: Task) -> Selection:
        """Start with the shortest vectors of each group removed, and anneal over all groups together."""
        vectors = parameter_influence(task.source, self.damping, self.probes, task.rng("probes"))
        lengths = np.linalg.norm(vectors, axis=1)
        removed, kept = [], []
        for group in task.groups:
            order = group.members[np.argsort(lengths[group.members], kind="stable")]
            leave = len(order) - group.count
            removed.append(order[:leave])
            kept.append(order[leave:])
        # Classes that keep nothing are removed too: they are part of the sum, though they cannot be exchanged.
        removed.append(np.setdiff1d(np.arange(task.source.n), np.concatenate([*removed, *kept])))
        kept.append(np.empty(0, dtype=np.int64))
        anneal(vectors, removed, kept, self.moves, task.rng("anneal"))
        return Selection(np.sort(np.concatenate(kept)))
