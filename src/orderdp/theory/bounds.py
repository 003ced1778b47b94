"""The paper's bounds: convergence on the surrogate, and the gap between surrogate and plain risk."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from orderdp.theory._checks import check_design, checked_losses, checked_positive, checked_steps
from orderdp.theory.weights import surrogate_weights

__all__ = [
    "BiasTerms",
    "averaged_convergence_bound",
    "bias_terms",
    "convergence_bound",
    "deviation",
    "generalization_bound",
    "sampling_rate",
]


class BiasTerms(NamedTuple):
    """The parts of Theorem 3's bias term.

    Attributes:
        deviation: C_s, the largest distance of the density n gamma_j / q from 1.
        largest_loss: B.
        shift: Q_n, by how much the surrogate exceeds the mean of the losses.
        sampling: sqrt(2) C_s B sqrt((n - s) / (s (n - 1))).
    """

    deviation: float
    largest_loss: float
    shift: float
    sampling: float

    @property
    def bound(self) -> float:
        """The bias term: sampling - shift."""
        return self.sampling - self.shift


def deviation(n: int, s: int, q: int) -> float:
    """Return C_s = sup |n gamma_j / q - 1|: max(1, s/q - 1) for q < s, and 0 for q = s.

    >>> deviation(100, 50, 10), deviation(100, 50, 49), deviation(100, 50, 50)
    (4.0, 1.0, 0.0)
    """
    check_design(n, s, q)
    return 0.0 if q == s else max(1.0, s / q - 1)


def sampling_rate(n: int, s: int) -> float:
    """Return sqrt(2 (n - s) / (s (n - 1))): the distance of a pool's losses from all losses; 0 if s = n."""
    check_design(n, s, s)
    return 0.0 if n == s else math.sqrt(2 * (n - s) / (s * (n - 1)))


def bias_terms(losses: Any, s: int, q: int) -> BiasTerms:
    """Return C_s, B, Q_n and the sampling term of Theorem 3 for these losses.

    >>> terms = bias_terms([1.0, 2.0, 3.0, 4.0], s=3, q=2)
    >>> terms.deviation, terms.shift, round(terms.sampling, 4)
    (1.0, 0.625, 1.8856)

    Args:
        losses: One loss for each of n samples.
        s: Size of the pool.
        q: Number of samples kept of it.
    """
    values = checked_losses(losses)
    n = len(values)
    check_design(n, s, q)
    shift = float(values @ (surrogate_weights(values, s, q) - 1 / n))
    largest = float(np.abs(values).max())
    distance = deviation(n, s, q)
    return BiasTerms(distance, largest, shift, distance * largest * sampling_rate(n, s))


def convergence_bound(distance: float, lipschitz: float, step_sizes: Any) -> float:
    """Theorem 2: bound the smallest expected gap to the surrogate's minimum, for convex G-Lipschitz losses.

    With the constant step distance / (G sqrt(T)) it is G distance / sqrt(T):

    >>> round(convergence_bound(2.0, 3.0, [2 / (3 * 10)] * 100), 9)
    0.6

    Args:
        distance: Distance from the start to a minimizer of the surrogate.
        lipschitz: G.
        step_sizes: eta_1 .. eta_T.
    """
    steps = checked_steps(step_sizes)
    return averaged_convergence_bound(distance, lipschitz, steps) * float(steps.max() / steps.min())


def averaged_convergence_bound(distance: float, lipschitz: float, step_sizes: Any) -> float:
    """Return the same bound for the average of the iterates, weighted by step size: without eta_max / eta_min.

    >>> averaged_convergence_bound(1.0, 1.0, [0.5, 0.25])
    0.875

    Args:
        distance: Distance from the start to a minimizer of the surrogate.
        lipschitz: G.
        step_sizes: eta_1 .. eta_T.
    """
    steps = checked_steps(step_sizes)
    distance = checked_positive("distance", distance, zero_allowed=True)
    lipschitz = checked_positive("lipschitz", lipschitz, zero_allowed=True)
    return float((distance**2 + lipschitz**2 * (steps @ steps)) / (2 * steps.sum()))


def generalization_bound(
    losses: Any, s: int, q: int, *, distance: float, lipschitz: float, step_sizes: Any, averaged: bool = False
) -> float:
    """Theorem 3 as printed: the bias term of these losses plus the convergence bound.

    Read its limits in the documentation before using it: the printed proof has gaps.

    Args:
        losses: One loss for each of n samples.
        s: Size of the pool.
        q: Number of samples kept of it.
        distance: Distance from the start to a minimizer of the surrogate.
        lipschitz: G.
        step_sizes: eta_1 .. eta_T.
        averaged: Whether the output is the average of the iterates.
    """
    bound = averaged_convergence_bound if averaged else convergence_bound
    return bias_terms(losses, s, q).bound + bound(distance, lipschitz, step_sizes)
