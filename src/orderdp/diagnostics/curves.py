"""Metrics computed from the records of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from orderdp.errors import ConfigError

__all__ = ["TimeToAccuracy", "accuracy_correlation", "correlation", "time_to_accuracy", "value_of"]


_COST = ("training_seconds", "selection_seconds", "overhead_seconds")


class TimeToAccuracy(NamedTuple):
    """Cost of reaching a target.

    Attributes:
        epochs: The first epoch after which the metric was at or above the target.
        samples: Samples trained on until then.
        seconds: Time of training, selection and overhead until then, without tests and diagnostics.
    """

    epochs: int
    samples: int
    seconds: float


def time_to_accuracy(
    epochs: Iterable[Mapping[str, Any]], target: float, *, proxy_seconds: float = 0.0
) -> TimeToAccuracy | None:
    """Cost until a run first reached a target; None if it never did.

    >>> run = [{"epoch": 1, "metric": 80.0, "samples": 600, "training_seconds": 2.0},
    ...        {"epoch": 2, "metric": 91.0, "samples": 600, "training_seconds": 2.5}]
    >>> time_to_accuracy(run, 90.0)
    TimeToAccuracy(epochs=2, samples=1200, seconds=4.5)

    Args:
        epochs: One record per epoch, in order: ``read_run(...).epochs``.
        target: Target of the metric, in its own unit.
        proxy_seconds: Time spent before the first epoch, as by coreset methods.
    """
    samples, seconds = 0, proxy_seconds
    for record in epochs:
        samples += int(record.get("samples") or 0)
        seconds += sum(float(record.get(part) or 0.0) for part in _COST)
        metric = value_of(record, "metric")
        if metric is not None and metric >= target:
            return TimeToAccuracy(int(record["epoch"]), samples, seconds)
    return None


def correlation(first: Iterable[float], second: Iterable[float]) -> float | None:
    """Pearson correlation; None for fewer than three pairs, or if one side is constant or not finite.

    >>> correlation([1, 2, 3], [6, 4, 2])
    -1.0

    Args:
        first: One side of the pairs.
        second: The other side, of the same length.
    """
    one, two = np.asarray(list(first), dtype=np.float64), np.asarray(list(second), dtype=np.float64)
    if len(one) != len(two):
        raise ConfigError(f"a correlation needs pairs, got {len(one)} and {len(two)} numbers.")
    if len(one) < 3 or not all(np.isfinite(side).all() and np.ptp(side) > 0 for side in (one, two)):
        return None
    one, two = one - one.mean(), two - two.mean()
    scale = math.sqrt(float(one @ one) * float(two @ two))
    return max(-1.0, min(1.0, float(one @ two) / scale)) if scale else None


def accuracy_correlation(epochs: Iterable[Mapping[str, Any]], name: str = "gradient_norm") -> float | None:
    """Correlation of a diagnostic with the metric, over the epochs that have both.

    Args:
        epochs: One record per epoch, or ``Diagnostics.history`` with a metric in each.
        name: Name of the diagnostic.
    """
    pairs = [(value_of(record, name), value_of(record, "metric")) for record in epochs]
    whole = [(one, two) for one, two in pairs if one is not None and two is not None]
    return correlation([one for one, _ in whole], [two for _, two in whole])


def value_of(record: Mapping[str, Any], name: str) -> float | None:
    """A number of an epoch's record, or of the diagnostics in it; None if there is none."""
    value = record.get(name, (record.get("diagnostics") or {}).get(name))
    usable = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    return float(value) if usable else None
