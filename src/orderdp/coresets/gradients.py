"""Coresets by gradients of the last layer: matching those of all data, and influence on the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orderdp._draw import generator
from orderdp._validation import is_count
from orderdp.coresets.base import Gradients, Group, Method, ScoreMethod, Task, Weighted, prediction_errors, softmax
from orderdp.coresets.sources import FeatureSource, Labeled, Requirements
from orderdp.errors import ConfigError
from orderdp.policy import Selection

__all__ = [
    "GeneralizationPruning",
    "Glister",
    "GradMatch",
    "Hessian",
    "Influence",
    "OMPResult",
    "anneal",
    "check_influence",
    "follow_validation",
    "influence_vectors",
    "omp",
    "parameter_influence",
]


# -- gradient matching -------------------------------------------------------------------------------------------------


_ROWS_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class OMPResult:
    """Result of OMP.

    Attributes:
        positions: Positions of the samples with a weight above 0.
        weights: Their weights.
        objectives: |target - weighted sum|^2 + ridge |weights|^2 after each step.
        along: Inner product of every gradient with the residual.
    """

    positions: np.ndarray
    weights: np.ndarray
    objectives: list[float]
    along: np.ndarray


def omp(gradients: Gradients, target: np.ndarray, count: int, ridge: float) -> OMPResult:
    """Orthogonal matching pursuit: at most `count` gradients with weights >= 0 whose weighted sum is near `target`.

    `target` has the shape (classes, width + 1). Each step adds the gradient with the largest inner product with the
    residual, and solves for all weights again: min |target - sum|^2 + ridge |w|^2 over w >= 0. A weight that would be
    negative is removed, as in the method of Lawson and Hanson, so every step lowers the objective. Ends early if no
    gradient points toward the residual.
    """
    active = _Active(gradients, target, ridge, count)
    along, objectives = gradients.along(target), []
    smallest = 1e-6 * max(float(np.abs(along).max()), np.finfo(np.float32).tiny)
    while active.size < count:
        candidates = along.copy()
        candidates[active.positions] = -np.inf
        best = int(candidates.argmax())
        if candidates[best] <= smallest or not active.add(best):
            break
        left = target - active.total()
        objectives.append(float(np.square(left, dtype=np.float64).sum() + ridge * np.square(active.weights).sum()))
        along = gradients.along(left)
        if len(objectives) > 2 * count + 10:
            break  # samples that enter and leave forever: rounding
    return OMPResult(active.positions, active.weights, objectives, along)


class _Active:
    """Active gradients, their weights, and the inverse of their Gram matrix plus the ridge.

    The inverse grows and shrinks by bordering, and the weights with it, so a step costs O(size^2) instead of O(size^3).
    """

    def __init__(self, gradients: Gradients, target: np.ndarray, ridge: float, most: int) -> None:
        self._ridge, self._all = ridge, gradients
        self._toward = gradients.along(target).astype(np.float64)
        self._inverse = np.empty((most, most))
        self._positions = np.empty(most, dtype=np.int64)
        # Contiguous copies: indexing at every step would cost more than the computation.
        self._errors = np.empty((most, gradients.errors.shape[1]), dtype=np.float32)
        self._inputs = np.empty((most, gradients.inputs.shape[1]), dtype=np.float32)
        self.weights = np.empty(0)
        self.size = 0

    @property
    def positions(self) -> np.ndarray:
        """Positions of the active gradients."""
        return np.asarray(self._positions[: self.size])

    def total(self) -> np.ndarray:
        """Weighted sum of the active gradients."""
        return self._gradients().mean(self.weights.astype(np.float32))

    def add(self, position: int) -> bool:
        """Add a gradient and solve; False if it is, up to rounding, a combination of the others."""
        m, one = self.size, self._all[np.array([position])]
        cross = self._gradients().inner(one)[:, 0].astype(np.float64)
        own = float(one.squared_norms()[0]) + self._ridge
        through = self._inverse[:m, :m] @ cross
        rest = own - float(cross @ through)
        if rest <= 1e-7 * own:
            return False
        _add_outer(self._inverse[:m, :m], through, through / rest)
        self._inverse[:m, m] = self._inverse[m, :m] = -through / rest
        self._inverse[m, m] = 1 / rest
        self._positions[m], self._errors[m], self._inputs[m] = position, one.errors[0], one.inputs[0]
        self.size += 1
        weight = (self._toward[position] - float(cross @ self.weights)) / rest
        self._keep_positive(np.append(self.weights, 0.0), np.append(self.weights - through * weight, weight))
        return True

    def _keep_positive(self, before: np.ndarray, free: np.ndarray) -> None:
        """Move from `before` toward the `free` solution while all weights are positive; remove those that reach 0."""
        while len(free) and free.min() <= 0:
            steps = np.where(free <= 0, before / np.maximum(before - free, 1e-300), np.inf)
            first = int(steps.argmin())
            before = before + min(1.0, float(steps[first])) * (free - before)
            column = self._inverse[: self.size, first] / self._inverse[first, first]
            before, free = _without(before, first), _without(free - column * free[first], first)
            self._remove(first)
        self.weights = free

    def _remove(self, position: int) -> None:
        """Remove a gradient; the last one moves to its position."""
        last = self.size - 1
        order = np.arange(last)
        if position < last:
            order[position] = last
        column = self._inverse[: self.size, position] / self._inverse[position, position]
        row = self._inverse[position, : self.size].copy()
        _add_outer(self._inverse[: self.size, : self.size], -column, row)
        self._inverse[:last, position] = self._inverse[order, last]
        self._inverse[position, :last] = self._inverse[last, order]
        for array in (self._positions, self._errors, self._inputs):
            array[position] = array[last]
        self.size = last

    def _gradients(self) -> Gradients:
        return Gradients(self._errors[: self.size], self._inputs[: self.size])


def _without(values: np.ndarray, position: int) -> np.ndarray:
    """All values but one; the last one moves to its position."""
    kept: np.ndarray = values[:-1].copy()
    if position < len(kept):
        kept[position] = values[-1]
    return kept


def _add_outer(matrix: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Add an outer product, a few rows at a time, because the whole product would be as large as the matrix."""
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        matrix[start : start + _ROWS_AT_ONCE] += left[start : start + _ROWS_AT_ONCE, None] * right


#: Maximum size in bytes of the matrix of OMP: one number per pair of kept samples of a group.
_FITS = 1_500_000_000


@dataclass(frozen=True, kw_only=True)
class GradMatch(Method):
    """Orthogonal matching pursuit of the group's mean last-layer gradient, with non-negative weights.

    Args:
        ridge: Weight of the squared weights in the objective (lambda).
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.ridge, int | float) and 0 <= self.ridge < float("inf")):
            raise ConfigError(f"ridge must be a number, at least 0, got {self.ridge!r}.")

    @property
    def needs(self) -> Requirements:
        """Features and logits."""
        return Requirements(features=True, logits=True, labels=True)

    def choose(self, task: Task) -> Selection:
        """Run OMP in each group; the selection has weights."""
        largest = max(group.count for group in task.groups)
        if 8 * largest**2 > _FITS:
            raise ConfigError(
                f"GradMatch holds a number for each pair of kept samples of a group; {largest} of a group need "
                f"{8e-9 * largest**2:.1f} GB, more than {_FITS / 1e9:g}. Use balanced=True, or prune more."
            )
        source, labels = task.source, task.labels
        features, logits = source.features(), source.logits()

        def picks(group: Group) -> Weighted:
            own = group.members
            gradients = Gradients.of(features[own], logits[own], labels[own])
            return _filled(omp(gradients, gradients.mean(), group.count, self.ridge), group.count)

        return task.pick_weighted(picks)


def _filled(pursuit: OMPResult, count: int) -> Weighted:
    """Samples of OMP, filled up to `count` with the next best at the smallest of its weights."""
    along = pursuit.along.copy()
    along[pursuit.positions] = -np.inf
    others = np.argsort(-along, kind="stable")[: count - len(pursuit.positions)]
    smallest = pursuit.weights.min() if len(pursuit.weights) else 1.0
    weights = np.append(pursuit.weights, np.full(len(others), smallest))
    return Weighted(np.append(pursuit.positions, others), weights)


def follow_validation(
    gradients: Gradients, validation: Labeled, groups: np.ndarray, counts: np.ndarray, eta: float
) -> np.ndarray:
    """Positions in the order of selection, ``counts[g]`` of each group g.

    Each step selects the largest inner product with the gradient of the validation loss, among the groups that are
    not full, and moves the last layer by -eta times the selected gradient; the validation gradient is then that of
    the moved layer. Only validation logits move, so a step needs no model.

    A step evaluates few samples. Since an inner product was last computed, it has changed by at most the norm of the
    sample's gradient times the distance that the validation gradient has moved: the other samples cannot be the best.
    """
    logits, left = validation.logits.astype(np.float32).copy(), counts.copy()
    norms = np.sqrt(gradients.squared_norms())
    fixed = Gradients.of(validation.features, logits, validation.labels)
    known_at = now = fixed.mean()
    known, looked_at = gradients.along(known_at), 0
    open_places = left[groups] > 0
    picks = np.empty(int(counts.sum()), dtype=np.int64)
    for step in range(len(picks)):
        slack = norms * np.float32(np.linalg.norm(now - known_at))
        upper = np.where(open_places, known + slack, -np.inf)
        candidates = np.flatnonzero(upper >= np.where(open_places, known - slack, -np.inf).max())
        looked_at += len(candidates)
        if looked_at > len(norms) // 4:  # by now, evaluating all of them once would have been cheaper
            known_at, known, looked_at = now, gradients.along(now), 0
            candidates = np.array([np.where(open_places, known, -np.inf).argmax()])
        best = int(candidates[gradients[candidates].along(now).argmax()])
        picks[step] = best
        open_places[best] = False
        left[groups[best]] -= 1
        if left[groups[best]] == 0:
            open_places[groups == groups[best]] = False
        logits -= eta * np.outer(fixed.inputs @ gradients.inputs[best], gradients.errors[best])
        now = Gradients(prediction_errors(logits, validation.labels), fixed.inputs).mean()
    return picks


@dataclass(frozen=True, kw_only=True)
class Glister(Method):
    """Greedy alignment with the validation gradient, which is updated after each selected sample.

    Args:
        eta: How far a selected sample moves the last layer. The default is the move of one sample in a step of the
            shared protocol: 0.1 / 256.
        validation_size: If the proxy has no validation set, this many of its samples are drawn at random.
    """

    eta: float = 0.1 / 256
    validation_size: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.eta, int | float) and 0 <= self.eta < float("inf")):
            raise ConfigError(f"eta must be a number, at least 0, got {self.eta!r}.")
        if not is_count(self.validation_size):
            raise ConfigError(f"validation_size must be a whole number, at least 1, got {self.validation_size!r}.")

    @property
    def needs(self) -> Requirements:
        """Features and logits, of the validation set too."""
        return Requirements(features=True, logits=True, labels=True, validation=True)

    def choose(self, task: Task) -> Selection:
        """One greedy run over all groups, each within its budget, in that order."""
        source, labels = task.source, task.labels
        features, logits = source.features(), source.logits()
        validation = source.validation()
        if validation is None:
            size = min(self.validation_size, source.n)
            drawn = np.sort(task.rng("validation").choice(source.n, size, replace=False))
            validation = Labeled(features[drawn], logits[drawn], labels[drawn])
        groups = np.full(source.n, len(task.groups))
        for position, group in enumerate(task.groups):
            groups[group.members] = position
        counts = np.array([group.count for group in task.groups] + [0])
        gradients = Gradients.of(features, logits, labels)
        return Selection(follow_validation(gradients, validation, groups, counts, self.eta))


# -- influence on the parameters, through the Hessian of the last linear layer -----------------------------------------


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
