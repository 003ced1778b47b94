"""Statistics of a comparison: final metrics, paired differences by seed, measured costs, and verdicts."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from orderdp.experiments.config import BEFORE, Settings
from orderdp.experiments.records import Run

__all__ = [
    "LOSSLESS_POINTS",
    "TASK_FIELDS",
    "UNDECIDED_POINTS",
    "Difference",
    "Row",
    "compare",
    "paired_difference",
    "shows_no_loss",
    "student_t",
    "verdict",
]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and its confidence interval; no interval for a single pair."""

    mean: float
    low: float | None
    high: float | None
    pairs: int


def paired_difference(differences: Sequence[float], confidence: float = 0.95) -> Difference:
    """Return the mean of `differences`, one per seed, and Student's confidence interval around it.

    Differences 0.25, 0 and 0.5 have the mean 0.25 and the standard deviation 0.25; with two degrees of freedom the
    interval reaches 4.303 times 0.25 / sqrt(3) to either side.

    >>> paired_difference([0.25, 0.0, 0.5])
    Difference(mean=0.25, low=-0.3710..., high=0.8710..., pairs=3)
    """
    pairs = len(differences)
    mean = math.fsum(differences) / pairs
    if pairs == 1:
        return Difference(mean, None, None, pairs)
    reach = student_t(confidence, pairs - 1) * statistics.stdev(differences) / math.sqrt(pairs)
    return Difference(mean, mean - reach, mean + reach, pairs)


def student_t(confidence: float, degrees: int) -> float:
    """Return the two-sided quantile of Student's t: the bound on abs(t) that holds with the given probability.

    >>> round(student_t(0.95, 2), 3)
    4.303
    """
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(degrees)
    for _ in range(100):
        middle = (low + high) / 2
        if _probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _probability(angle: float, degrees: int) -> float:
    """P(|t| < sqrt(degrees) tan(angle)), a finite sum because the degrees are a whole number."""
    odd = degrees % 2
    cosine = math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


LOSSLESS_POINTS = 0.1


UNDECIDED_POINTS = 1.0
"""If a larger loss, in points, is possible, the verdict is "undecided"."""


_ROUNDING = 1e-9  # 92.1 - 92.2 is a little below -0.1


def verdict(difference: Difference) -> str:
    """Return the verdict on a difference to full data.

    >>> verdict(Difference(mean=0.1, low=-0.05, high=0.25, pairs=5))
    'lossless'
    >>> verdict(Difference(mean=0.1, low=-0.396, high=0.596, pairs=3))
    'no measurable loss (within 0.40 points)'
    >>> verdict(Difference(mean=-1.0, low=-1.5, high=-0.5, pairs=3))
    'loses 1.00 points (-1.50 to -0.50)'
    >>> verdict(Difference(mean=-12.0, low=-25.0, high=1.0, pairs=3))
    'undecided (-25.00 to 1.00)'
    """
    low, high = difference.low, difference.high
    if low is None or high is None:
        return "one seed, no interval"
    if low >= -LOSSLESS_POINTS - _ROUNDING:
        return "lossless"
    if high >= -_ROUNDING and low < -UNDECIDED_POINTS - _ROUNDING:
        return f"undecided ({low:.2f} to {high:.2f})"
    if high >= -_ROUNDING:
        return f"no measurable loss (within {math.ceil(-low * 100 - _ROUNDING) / 100:.2f} points)"
    return f"loses {-difference.mean:.2f} points ({low:.2f} to {high:.2f})"


def shows_no_loss(difference: Difference | None) -> bool:
    """Whether the verdict is "lossless" or "no measurable loss"."""
    return difference is not None and verdict(difference).startswith(("lossless", "no measurable loss"))


_NAMED = ("data", "task", "model", "preset", "batch_size", "optimizer", "lr", "schedule")


_REGULARISED = ("weight_decay", "label_smoothing", "mixup", "cutmix", "augment", "flip")


_DETAILS = ("width", "momentum", "nesterov", "accumulate", "average", "amp", "drop_last", "steps", *_REGULARISED)


_DEFAULTS = {**{entry.name: entry.default for entry in fields(Settings) if entry.name in _DETAILS}, **BEFORE}


TASK_FIELDS = (*_NAMED, *_DETAILS)
"""Runs are compared only if they agree in these settings."""


_SAME_COST = 0.05 + 1e-9  # a whole number of epochs cannot meet every ratio


@dataclass(frozen=True)
class Row:
    """All runs of one setting, over its seeds.

    Attributes:
        label: Name of the row, unique within its task.
        task: The task, as pairs of `TASK_FIELDS` and their values.
        policy: Name in the registry, "full" or "reduced".
        parameters: Parameters of the policy.
        prune_ratio: Requested prune ratio, or None.
        epochs: Requested number of epochs.
        runs: The runs that count, one per seed, sorted by seed.
        failed: Runs that failed or have no final metric.
        unfinished: Runs that have not ended.
        repeated: Number of earlier runs of the same seeds, which are left out.
        metric: Mean of the final metric, None without runs.
        deviation: Sample standard deviation of the metric, None for fewer than two runs.
        saved: Measured fraction of full data's samples that were not trained on.
        full_samples: Number of samples that full data uses, the budget by which rows find their reference.
        seconds: Mean cost in seconds: training, selection, overhead, proxy.
        evaluation_seconds: Mean time of evaluation, which is not part of the cost.
        saved_time: Measured fraction of full data's time that was saved, same seeds only.
        against_full: Paired difference to full data.
        against_reduced: Paired difference to full data with fewer epochs, at the same cost.
        against_random: Paired difference to dynamic random at the same ratio.
        verdict: Verdict in words.
    """

    label: str
    task: tuple[tuple[str, Any], ...]
    policy: str
    parameters: dict[str, Any]
    prune_ratio: float | None
    epochs: Any
    runs: tuple[Run, ...]
    failed: tuple[Run, ...]
    unfinished: tuple[Run, ...]
    repeated: int = 0
    metric: float | None = None
    deviation: float | None = None
    saved: float | None = None
    full_samples: int | None = None
    seconds: float | None = None
    evaluation_seconds: float | None = None
    saved_time: float | None = None
    against_full: Difference | None = None
    against_reduced: Difference | None = None
    against_random: Difference | None = None
    verdict: str = ""


def compare(runs: Iterable[Run]) -> list[Row]:
    """Return one row per setting: full data, OrderDP, other methods, then controls; each method sorted by ratio."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_setting(run), []).append(run)
    rows = sorted(map(_measured, groups.values()), key=_place)
    rows = _with_unique_labels(rows)
    return [_judged(row, [other for other in rows if other.task == row.task]) for row in rows]


def _setting(run: Run) -> str:
    names = ("policy", "policy_parameters", "prune_ratio", "epochs", "label", "proxy_epochs", "proxy_inits")
    own = [run.config.get(name) for name in names]
    return json.dumps([_task(run.config), own] if run.config else run.id, sort_keys=True)


def _task(config: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the task of a configuration; a setting that was not recorded counts as the default."""
    known = {**_DEFAULTS, **config} if config else {}
    return tuple((name, _hashable(known.get(name))) for name in TASK_FIELDS)


def _measured(runs: list[Run]) -> Row:
    """Build a row without its comparisons."""
    config = runs[0].config
    counted = {run.seed: run for run in sorted(runs, key=lambda run: (run.started, run.id)) if _counts(run)}
    done = tuple(sorted(counted.values(), key=lambda run: str(run.seed).zfill(20)))
    row = Row(
        label=runs[0].label,
        task=_task(config),
        policy=str(config.get("policy", "")),
        parameters=dict(config.get("policy_parameters") or {}),
        prune_ratio=config.get("prune_ratio"),
        epochs=config.get("epochs"),
        runs=done,
        failed=tuple(run for run in runs if run.failed or (run.done and run.final_metric is None)),
        unfinished=tuple(run for run in runs if run.summary is None),
        repeated=sum(map(_counts, runs)) - len(done),
    )
    if not done:
        return row
    metrics = [_metric(run) for run in done]
    summaries = [run.summary or {} for run in done]
    return replace(
        row,
        metric=statistics.fmean(metrics),
        deviation=statistics.stdev(metrics) if len(metrics) > 1 else None,
        saved=statistics.fmean(map(_saved, summaries)),
        full_samples=summaries[0].get("full_samples"),
        seconds=statistics.fmean(run.seconds for run in done),
        evaluation_seconds=statistics.fmean(summary.get("evaluation_seconds") or 0.0 for summary in summaries),
    )


def _judged(row: Row, rows: list[Row]) -> Row:
    """Add the comparisons to the other rows of the task."""
    if row.policy == "full":
        return replace(row, verdict="the reference" if row.runs else _without_runs(row))
    budget = [other for other in rows if other.runs and other.full_samples == row.full_samples]
    full = next((other for other in budget if other.policy == "full"), None)
    reduced = _control(row, [other for other in budget if other.policy == "reduced"], by_ratio=False)
    random = _control(row, [other for other in budget if other.policy == "random"], by_ratio=True)
    against_full = _difference(row, full, _metric)
    return replace(
        row,
        against_full=against_full,
        against_reduced=_difference(row, reduced, _metric),
        against_random=_difference(row, random, _metric),
        saved_time=_saved_time(row, full),
        verdict=_without_runs(row) or (verdict(against_full) if against_full else "no full data of the same seeds"),
    )


def _without_runs(row: Row) -> str:
    if row.runs:
        return ""
    return "failed" if row.failed else "not finished"


def _control(row: Row, controls: list[Row], by_ratio: bool) -> Row | None:
    """Return the control at the row's ratio if wanted and present, else at its measured cost; None if none is near."""
    if row.saved is None or any(other is row for other in controls):
        return None
    if by_ratio and row.prune_ratio is not None:
        return next((other for other in controls if other.prune_ratio == row.prune_ratio), None)
    gaps = [(abs((other.saved or 0.0) - row.saved), place) for place, other in enumerate(controls)]
    gap, place = min(gaps, default=(math.inf, -1))
    return controls[place] if gap <= _SAME_COST else None


def _pairs(row: Row, other: Row | None) -> list[tuple[Run, Run]]:
    theirs = {run.seed: run for run in other.runs} if other else {}
    return [(run, theirs[run.seed]) for run in row.runs if run.seed in theirs]


def _difference(row: Row, other: Row | None, value: Callable[[Run], float]) -> Difference | None:
    pairs = _pairs(row, other)
    return paired_difference([value(mine) - value(theirs) for mine, theirs in pairs]) if pairs else None


def _saved_time(row: Row, full: Row | None) -> float | None:
    pairs = _pairs(row, full)
    theirs = sum(other.seconds for _, other in pairs)
    return 1 - sum(mine.seconds for mine, _ in pairs) / theirs if theirs else None


def _metric(run: Run) -> float:
    return run.final_metric or 0.0  # only called for runs that have one


def _saved(summary: dict[str, Any]) -> float:
    full = summary.get("full_samples")
    return 1 - summary["samples"] / full if full else float(summary.get("saved") or 0.0)


def _hashable(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value


def _counts(run: Run) -> bool:
    return run.done and run.final_metric is not None


def _place(row: Row) -> tuple[str, int, str, float, str]:
    rank = {"full": 0, "orderdp": 1, "random": 3, "reduced": 4}.get(row.policy, 2)
    return json.dumps(row.task), rank, row.policy, row.prune_ratio or 0.0, row.label


def _with_unique_labels(rows: list[Row]) -> list[Row]:
    """Add ratio, epochs and parameters to labels that several rows of one task share."""
    names = [(row.task, row.label) for row in rows]
    taken: set[tuple[Any, str]] = set()
    result = []
    for row in rows:
        label = row.label
        if names.count((row.task, label)) > 1:
            details = {"prune_ratio": row.prune_ratio, "epochs": row.epochs, **row.parameters}
            label = f"{label} ({', '.join(f'{name}={value}' for name, value in details.items() if value is not None)})"
        while (row.task, label) in taken:
            label += "'"
        taken.add((row.task, label))
        result.append(replace(row, label=label))
    return result
