"""How alike repeated runs are, stage by stage."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from orderdp.diagnostics.curves import value_of
from orderdp.errors import ConfigError
from orderdp.planning import is_count

__all__ = ["Stage", "stability"]

_Epochs = Sequence[Mapping[str, Any]]


class Stage(NamedTuple):
    """A stage of training, over all runs.

    Attributes:
        start: Share of the epochs after which it begins.
        end: Share of the epochs with which it ends; the last epoch alone is the stage from 1 to 1.
        runs: How many runs have a metric in it.
        accuracy: Mean over runs of the metric's mean in the stage.
        accuracy_spread: Standard deviation of that over runs; None for fewer than two.
        gradient: The same for the gradient norm; None where it was not recorded.
        gradient_spread: Its standard deviation over runs.
        gradient_swing: How much the norm swings from step to step within an epoch, its standard deviation, mean over
            epochs and runs.
    """

    start: float
    end: float
    runs: int
    accuracy: float | None
    accuracy_spread: float | None
    gradient: float | None
    gradient_spread: float | None
    gradient_swing: float | None


def stability(runs: Iterable[_Epochs], stages: int | Sequence[float] = 3) -> list[Stage]:
    """Accuracy and gradient norm of repeated runs, by stage of training, and at the end.

    >>> runs = [[{"metric": 10.0}, {"metric": 20.0}], [{"metric": 14.0}, {"metric": 20.0}]]
    >>> [(stage.accuracy, round(stage.accuracy_spread, 3)) for stage in stability(runs, 2)]
    [(12.0, 2.828), (20.0, 0.0), (20.0, 0.0)]

    Args:
        runs: For each run a record for each epoch: ``[run.epochs for run in read_runs(folder) if run.done]``, of one
            setting. A run that has not ended would have its stages too early.
        stages: How many, of equal length; or where they end, as shares: (0.3, 0.5, 0.7, 1.0) are those of the paper.

    Returns:
        The stages in order, and after them the last epoch by itself.
    """
    all_runs = [list(run) for run in runs]
    ends = _ends(stages)
    found = [
        _stage(start, end, [_within(run, start, end) for run in all_runs])
        for start, end in zip([0.0, *ends], ends, strict=False)
    ]
    return [*found, _stage(1.0, 1.0, [run[-1:] for run in all_runs])]


def _ends(stages: int | Sequence[float]) -> list[float]:
    if not isinstance(stages, Sequence):
        if not is_count(stages):
            raise ConfigError(f"stages must be a whole number, at least 1, or a list of shares, got {stages!r}.")
        return [number / stages for number in range(1, stages + 1)]
    ends = [float(end) for end in stages]
    if not ends or ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] != 1:
        raise ConfigError(f"stages must rise from above 0 to 1, got {list(stages)}.")
    return ends


def _within(run: _Epochs, start: float, end: float) -> _Epochs:
    """The epochs that end after `start` and not after `end`."""
    slack = 1e-9  # or 3/10 would not be 0.3
    total = len(run)
    return [record for number, record in enumerate(run, start=1) if start + slack < number / total <= end + slack]


def _stage(start: float, end: float, parts: Sequence[_Epochs]) -> Stage:
    metrics, norms, swings = (
        [mean for mean in (_mean(part, name) for part in parts) if mean is not None]
        for name in ("metric", "gradient_norm", "gradient_norm_std")
    )
    return Stage(
        start, end, len(metrics), *_mean_and_spread(metrics), *_mean_and_spread(norms), _mean_and_spread(swings)[0]
    )


def _mean(records: _Epochs, name: str) -> float | None:
    values = [value for value in (value_of(record, name) for record in records) if value is not None]
    return statistics.fmean(values) if values else None


def _mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None
