"""Records as rows of numbers for the charts: means and spreads over seeds, epoch by epoch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from orderdp.report.diagnosed import ONLY_IN_RECORDS
from orderdp.report.run_tables import duration
from orderdp.report.series import Series
from orderdp.workbench.reading import Run, seconds_of
from orderdp.workbench.statistics import Row

__all__ = [
    "cost_parts",
    "curves",
    "diagnostic",
    "diagnostic_names",
    "final_points",
    "full_epoch",
    "learned_percent",
    "time_unit",
    "usage_shares",
]

_BARS = 60
_EPOCHS = 120  # more points on a line than that make the page heavy and nothing clearer
_PARTS = ("training", "selection", "overhead", "proxy", "evaluation", "diagnosis")

Looks = dict[str, Series]
Numbers = list[dict[str, Any]]


def final_points(rows: Sequence[Row], looks: Looks) -> Numbers:
    """Final metric with its spread, against what was really left out."""
    points = []
    for row in rows:
        if row.metric is None or row.saved is None:
            continue
        spread = row.deviation or 0.0
        asked = "none" if row.prune_ratio is None else f"{100 * row.prune_ratio:g} %"
        numbers = {"x": 100 * row.saved, "y": row.metric, "low": row.metric - spread, "high": row.metric + spread}
        more = {"policy": row.policy, "asked": asked, "deviation": row.deviation, "seeds": len(row.runs)}
        points.append({**_names(row, looks), **numbers, **more})
    return points


def curves(
    rows: Sequence[Row], looks: Looks, value: Callable[[dict[str, Any]], Any], full: float | None = None
) -> Numbers:
    """Mean and spread over seeds of something recorded each epoch, with the mean cost in time so far.

    Of a row without finished runs the unfinished ones are shown; of very many epochs some, always the last.

    Args:
        rows: The comparison.
        looks: Of the rows.
        value: What reads it from the record of an epoch.
        full: Samples of an epoch of full data; with it, each point has its cost in such epochs.
    """
    points = []
    for row in rows:
        epochs = list(_by_epoch(row.runs or row.unfinished, value))
        step = math.ceil(len(epochs) / _EPOCHS)
        for epoch, found, seconds, samples in epochs[::-1][::step][::-1] if epochs else []:
            mean = statistics.fmean(found)
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            spent = statistics.fmean(seconds)
            numbers = _rounded(y=mean, low=mean - spread, high=mean + spread, seconds=spent)
            words = {**_names(row, looks), "time": duration(spent)}
            cost = {} if full is None else _rounded(cost=statistics.fmean(samples) / full)
            points.append({**words, "epoch": epoch, **numbers, **cost, "seeds": len(found)})
    return points


def _by_epoch(
    runs: Sequence[Run], value: Callable[[dict[str, Any]], Any]
) -> Iterator[tuple[int, list[float], list[float], list[float]]]:
    """For each epoch the values of all runs that have one, and the time and the samples each run had spent by then."""
    found: dict[int, list[tuple[float, float, float]]] = {}
    for run in runs:
        proxy = float((run.summary or {}).get("proxy_seconds") or 0.0)
        spent = accumulate((seconds_of(epoch) for epoch in run.epochs), initial=proxy)
        next(spent)
        trained = accumulate(float(epoch.get("samples") or 0) for epoch in run.epochs)
        for epoch, seconds, samples in zip(run.epochs, spent, trained, strict=True):
            number = value(epoch)
            if isinstance(number, int | float) and math.isfinite(number):
                found.setdefault(int(epoch["epoch"]), []).append((float(number), seconds, samples))
    for epoch_number, entries in sorted(found.items()):
        values, seconds_spent, samples_spent = (list(column) for column in zip(*entries, strict=True))
        yield epoch_number, values, seconds_spent, samples_spent


def full_epoch(rows: Sequence[Row]) -> float | None:
    """Samples that an epoch of full data trains on, as finished runs of the task tell it; None where there is none."""
    for run in (run for row in rows for run in row.runs):
        samples, epochs = (run.summary or {}).get("full_samples"), run.config.get("epochs")
        if samples and epochs:
            return float(samples) / float(epochs)
    return None


def learned_percent(epoch: dict[str, Any]) -> float | None:
    """The share of learned samples in the record of an epoch; None in those of earlier versions."""
    share = epoch.get("learned")
    return 100 * share if isinstance(share, int | float) else None


def diagnostic(name: str) -> Callable[[dict[str, Any]], Any]:
    """What reads a diagnostic from the record of an epoch."""
    return lambda epoch: (epoch.get("diagnostics") or {}).get(name)


def diagnostic_names(rows: Sequence[Row]) -> list[str]:
    """What the records hold under ``diagnostics`` for a chart, in the order in which it first occurs."""
    runs = (run for row in rows for run in row.runs or row.unfinished)
    found = dict.fromkeys(name for run in runs for epoch in run.epochs for name in epoch.get("diagnostics") or {})
    return [name for name in found if name not in ONLY_IN_RECORDS]


def cost_parts(rows: Sequence[Row], looks: Looks) -> Numbers:
    """Mean seconds of each part of a run."""
    points = []
    for row in rows:
        for place, part in enumerate(_PARTS):
            found = [float((run.summary or {}).get(f"{part}_seconds") or 0.0) for run in row.runs]
            if found and any(found):
                mean = statistics.fmean(found)
                words = {**_names(row, looks), "part": part, "time": duration(mean)}
                points.append({**words, "place": place, "seconds": mean})
    return points


def time_unit(seconds: Iterable[float]) -> tuple[float, str]:
    """The unit in which the longest of these times reads well, in seconds and by name.

    >>> time_unit([3.0, 600.0])
    (60.0, 'min')
    """
    longest = max(seconds, default=0.0)
    return (1.0, "s") if longest < 300 else (60.0, "min") if longest < 5 * 3600 else (3600.0, "h")


def usage_shares(rows: Sequence[Row], looks: Looks) -> Numbers:
    """Share of the samples that were trained on so and so many times; a range of times where there are many."""
    found = {row.label: _mean_usage(row.runs) for row in rows if row.policy not in ("full", "reduced")}
    longest = max(map(len, found.values()), default=0)
    width = max(1, math.ceil(longest / _BARS))
    points = []
    for row in rows:
        counts = found.get(row.label)
        if not counts or not sum(counts):
            continue
        for first in range(0, longest, width):
            share = 100 * sum(counts[first : first + width]) / sum(counts)
            times = str(first) if width == 1 else f"{first} to {first + width - 1}"
            points.append({**_names(row, looks), "x": first, "times": times, **_rounded(y=share)})
    return points


def _mean_usage(runs: Sequence[Run]) -> list[float]:
    histograms = [(run.summary or {}).get("usage") or [] for run in runs]
    longest = max(map(len, histograms), default=0)
    padded = [[*histogram, *[0] * (longest - len(histogram))] for histogram in histograms if histogram]
    return [statistics.fmean(counts) for counts in zip(*padded, strict=True)]


def _names(row: Row, looks: Looks) -> dict[str, Any]:
    look = looks[row.label]
    return {"label": row.label, "method": look.method, "ratio": look.ratio}


def _rounded(**numbers: float) -> dict[str, float]:
    """Six digits, more than a chart can show; the page is half as large for it."""
    return {name: float(f"{number:.6g}") for name, number in numbers.items()}
