"""Orthogonal matching pursuit of a gradient, with weights that are not negative."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.last_layer import Gradients

__all__ = ["Pursuit", "pursue"]


@dataclass(frozen=True, eq=False)
class Pursuit:
    """What a pursuit found.

    Attributes:
        places: Which samples, in the order in which they joined; only those with a weight above 0.
        weights: Of each, above 0.
        objectives: |target - weighted sum|^2 + ridge |weights|^2 after each step.
        along: Inner product of every gradient with what is left of the target.
    """

    places: np.ndarray
    weights: np.ndarray
    objectives: list[float]
    along: np.ndarray


def pursue(gradients: Gradients, target: np.ndarray, count: int, ridge: float) -> Pursuit:
    """At most `count` gradients and weights >= 0 whose weighted sum is near `target`, of shape (classes, width + 1).

    Each step adds the gradient with the largest inner product with what is left, and solves for all weights again:
    min |target - sum|^2 + ridge |w|^2 over w >= 0. A weight that would be negative goes out, as in the method of
    Lawson and Hanson, so every step lowers the objective. Ends early where no gradient points towards what is left.
    """
    active = _Active(gradients, target, ridge, count)
    along, objectives = gradients.along(target), []
    smallest = 1e-6 * max(float(np.abs(along).max()), np.finfo(np.float32).tiny)
    while active.size < count:
        candidates = along.copy()
        candidates[active.places] = -np.inf
        best = int(candidates.argmax())
        if candidates[best] <= smallest or not active.add(best):
            break
        left = target - gradients[active.places].mean(active.weights.astype(np.float32))
        objectives.append(float(np.square(left, dtype=np.float64).sum() + ridge * np.square(active.weights).sum()))
        along = gradients.along(left)
        if len(objectives) > 2 * count + 10:
            break  # samples that go in and out for ever: rounding
    return Pursuit(active.places, active.weights, objectives, along)


class _Active:
    """The gradients in use, and the inverse of their Gram matrix plus the ridge, grown and shrunk by bordering."""

    def __init__(self, gradients: Gradients, target: np.ndarray, ridge: float, most: int) -> None:
        self._gradients, self._ridge = gradients, ridge
        self._towards = gradients.along(target).astype(np.float64)
        self._inverse = np.empty((most, most))
        self._places = np.empty(most, dtype=np.int64)
        self.weights = np.empty(0)
        self.size = 0

    @property
    def places(self) -> np.ndarray:
        """Which gradients are in use."""
        return np.asarray(self._places[: self.size])

    def add(self, place: int) -> bool:
        """Takes one more in and solves; False where it is, but for rounding, a combination of the others."""
        one = self._gradients[np.array([place])]
        cross = self._gradients[self.places].inner(one)[:, 0].astype(np.float64)
        own = float(one.squared_norms()[0]) + self._ridge
        inverse = self._inverse[: self.size, : self.size]
        through = inverse @ cross
        rest = own - float(cross @ through)
        if rest <= 1e-7 * own:
            return False
        inverse += np.outer(through, through / rest)
        m = self.size
        self._inverse[:m, m] = self._inverse[m, :m] = -through / rest
        self._inverse[m, m] = 1 / rest
        self._places[m] = place
        self.size += 1
        self._solve(np.append(self.weights, 0.0))
        return True

    def _solve(self, before: np.ndarray) -> None:
        """The best weights >= 0: from `before` towards the free solution, as far as nothing gets negative."""
        while True:
            free = self._inverse[: self.size, : self.size] @ self._towards[self.places]
            if free.min() > 0:
                self.weights = free
                return
            falling = free <= 0
            steps = np.where(falling, before / np.maximum(before - free, 1e-300), np.inf)
            step = min(1.0, float(steps.min()))
            before = before + step * (free - before)
            out = np.flatnonzero(falling & (steps <= step))
            before = np.delete(before, out)
            for place in out[::-1]:
                self._remove(int(place))

    def _remove(self, place: int) -> None:
        m = self.size
        last = m - 1
        order = np.r_[0:place, place + 1 : m, place]
        inverse = self._inverse[:m, :m][np.ix_(order, order)]
        border = inverse[:last, last]
        self._inverse[:last, :last] = inverse[:last, :last] - np.outer(border, border / inverse[last, last])
        self._places[:m] = self._places[:m][order]
        self.size = last
