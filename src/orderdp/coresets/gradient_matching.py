"""Coresets whose gradient matches that of all data: GradMatch and Glister."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp._validation import is_count
from orderdp.coresets.base import Gradients, Group, Method, Task, Weighted, prediction_errors
from orderdp.coresets.sources import Labeled, Requirements
from orderdp.errors import ConfigError
from orderdp.policy import Selection

__all__ = ["Glister", "GradMatch", "OMPResult", "follow_validation", "omp"]


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
    gradient points towards the residual.
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
        self._towards = gradients.along(target).astype(np.float64)
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
        weight = (self._towards[position] - float(cross @ self.weights)) / rest
        self._keep_positive(np.append(self.weights, 0.0), np.append(self.weights - through * weight, weight))
        return True

    def _keep_positive(self, before: np.ndarray, free: np.ndarray) -> None:
        """Move from `before` towards the `free` solution while all weights are positive; remove those that reach 0."""
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
