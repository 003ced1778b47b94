"""Numbers of the charts, and the style of each method in all charts."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from orderdp.experiments.records import Run, seconds_of
from orderdp.experiments.statistics import Row
from orderdp.report.tables import duration

__all__ = [
    "ONLY_IN_RECORDS",
    "Series",
    "cost_parts",
    "curves",
    "diagnostic",
    "diagnostic_names",
    "differences",
    "final_points",
    "frontier",
    "full_epoch",
    "learned_percent",
    "series",
    "time_unit",
    "usage_shares",
    "words_for",
]


# Distinct for color-blind readers, on white and on black. Controls and OrderDP always have the same color.
_OWN = {"full": "#808080", "orderdp": "#0a7ac0", "random": "#e08a00", "reduced": "#b0559b"}


_OTHERS = ("#009e73", "#d55e00", "#4fb0e6", "#8c7a00", "#8f6bd8", "#c4586c", "#3f8f8f", "#a0703c")


_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [1, 3])


_RATIO = re.compile(r"[\s,(]*\d+(\.\d+)?\s*%\)?$")


@dataclass(frozen=True)
class Series:
    """Style of a row.

    Attributes:
        method: Label without the ratio; it has one color.
        color: Color of the method.
        ratio: Prune ratio in words; it has one dash pattern. Empty if none was requested.
        dash: Dash pattern of the ratio.
    """

    method: str
    color: str
    ratio: str
    dash: tuple[int, ...]


def series(rows: Sequence[Row]) -> dict[str, Series]:
    """Return the style of each row, by its label."""
    methods: dict[str, str] = {}  # method -> color
    ratios: list[float] = sorted({row.prune_ratio for row in rows if row.prune_ratio is not None})
    looks = {}
    for row in rows:
        method = _RATIO.sub("", row.label) or row.label
        if method not in methods:
            methods[method] = _color(row.policy, list(methods.values()))
        place = 0 if row.prune_ratio is None else ratios.index(row.prune_ratio)
        ratio = "" if row.prune_ratio is None else f"{100 * row.prune_ratio:g} % left out"
        looks[row.label] = Series(method, methods[method], ratio, tuple(_DASHES[place % len(_DASHES)]))
    return looks


def _color(policy: str, taken: list[str]) -> str:
    own = _OWN.get(policy)
    if own and own not in taken:
        return own
    free = [color for color in _OTHERS if color not in taken]
    return free[0] if free else _OTHERS[len(taken) % len(_OTHERS)]


_BARS = 60


_EPOCHS = 120  # more points on a line make the page larger and not clearer


_PARTS = ("training", "selection", "overhead", "proxy", "evaluation", "diagnosis")


Looks = dict[str, Series]


Numbers = list[dict[str, Any]]


def final_points(rows: Sequence[Row], looks: Looks) -> Numbers:
    """Return the final metric against the measured cost, with the interval of its difference to full data."""
    points = []
    for row in rows:
        if row.metric is None or row.saved is None:
            continue
        reach = _reach(row)
        asked = "none" if row.prune_ratio is None else f"{100 * row.prune_ratio:g} %"
        numbers = {"x": 100 * (1 - row.saved), "y": row.metric, "low": row.metric - reach, "high": row.metric + reach}
        interval = "" if row.against_full is None else row.measure.interval(row.against_full)
        more = {"policy": row.policy, "asked": asked, "deviation": row.deviation, "seeds": len(row.runs)}
        more |= {"time": duration(row.seconds), "interval": interval or "the reference"}
        points.append({**_names(row, looks), **numbers, **more})
    return points


def frontier(points: Numbers, higher_is_better: bool) -> Numbers:
    """Return the points that no other one beats at the same or a lower cost, from the cheapest on.

    >>> [point["x"] for point in frontier([{"x": 50, "y": 9}, {"x": 60, "y": 8}, {"x": 100, "y": 10}], True)]
    [50, 100]
    """
    best: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda point: (point["x"], -point["y"] if higher_is_better else point["y"])):
        if not best or (point["y"] > best[-1]["y"] if higher_is_better else point["y"] < best[-1]["y"]):
            best.append(point)
    return best


def _reach(row: Row) -> float:
    found = row.against_full
    return 0.0 if found is None or found.high is None else found.high - found.mean


def differences(rows: Sequence[Row], looks: Looks) -> Numbers:
    """Return the differences to full data with their intervals, without rows that have diverged."""
    points = []
    for row in rows:
        found = row.against_full
        if found is not None and not row.diverged:
            reach = _reach(row)
            numbers = {"y": found.mean, "low": found.mean - reach, "high": found.mean + reach}
            points.append({**_names(row, looks), **numbers, "word": row.word, "interval": row.measure.interval(found)})
    return points


def curves(
    rows: Sequence[Row], looks: Looks, value: Callable[[dict[str, Any]], Any], full: float | None = None
) -> Numbers:
    """Return mean and standard deviation over seeds of a value recorded per epoch, with the mean time spent so far.

    A row without finished runs shows its unfinished ones. Of very many epochs some are shown, always the last.

    Args:
        rows: Rows of the comparison.
        looks: Styles of the rows.
        value: Reads the value from the record of an epoch.
        full: Samples per epoch of full data; if given, each point has its cost in such epochs.
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
    """Return, per epoch, the values of all runs that have one, and the time and samples each run had spent by then."""
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
    """Return the samples per epoch of full data, from finished runs of the task; None if there is none."""
    for run in (run for row in rows for run in row.runs):
        samples, epochs = (run.summary or {}).get("full_samples"), run.config.get("epochs")
        if samples and epochs:
            return float(samples) / float(epochs)
    return None


def learned_percent(epoch: dict[str, Any]) -> float | None:
    """Return the percentage of learned samples in the record of an epoch; None in records of earlier versions."""
    share = epoch.get("learned")
    return 100 * share if isinstance(share, int | float) else None


def diagnostic(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return a function that reads a diagnostic from the record of an epoch."""
    return lambda epoch: (epoch.get("diagnostics") or {}).get(name)


def diagnostic_names(rows: Sequence[Row]) -> list[str]:
    """Return the names under ``diagnostics`` in the records that have a chart, in the order of first occurrence."""
    runs = (run for row in rows for run in row.runs or row.unfinished)
    found = dict.fromkeys(name for run in runs for epoch in run.epochs for name in epoch.get("diagnostics") or {})
    return [name for name in found if name not in ONLY_IN_RECORDS]


def cost_parts(rows: Sequence[Row], looks: Looks) -> Numbers:
    """Return the mean seconds of each part of a run."""
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
    """Return the unit that suits the longest of these times, in seconds and by name.

    >>> time_unit([3.0, 600.0])
    (60.0, 'min')
    """
    longest = max(seconds, default=0.0)
    return (1.0, "s") if longest < 300 else (60.0, "min") if longest < 5 * 3600 else (3600.0, "h")


def usage_shares(rows: Sequence[Row], looks: Looks) -> Numbers:
    """Return the percentage of samples by how often they were trained on; many counts are grouped into ranges."""
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
    """Round to six digits, more than a chart can show; this halves the size of the page."""
    return {name: float(f"{number:.6g}") for name, number in numbers.items()}


_SPREAD = "Mean and standard deviation over seeds."


_KNOWN = {
    "jaccard": ("Kept again", "Similarity (Jaccard) of what an epoch kept with what the epoch before kept."),
    "age_mean": ("Age of scores", "Epochs since a score was refreshed, mean over the samples that have one."),
    "gradient_norm": ("Gradient norm", "Mean over the steps of an epoch."),
    "cosine": (
        "Cosine with the full gradient",
        "Between the gradient of what the next epoch would keep and that of all data, at the same weights.",
    ),
    "surrogate_risk": (
        "Surrogate risk",
        "What the rule's mean loss is on average over draws, by the scores: last-seen losses, or under epsilon-greedy "
        "their averages.",
    ),
    "bias": ("Bias of the surrogate", "By how much the surrogate risk exceeds the mean of the scores."),
}


#: Details of the diagnostics above, without a chart of their own.
ONLY_IN_RECORDS = frozenset(
    ("age_median", "age_p95", "unseen", "usage_min", "usage_max", "gradient_norm_std", "bias_bound")
)


def words_for(name: str) -> tuple[str, str]:
    """Return title and explanation of a diagnostic.

    >>> words_for("kept_overlap")
    ('Kept overlap', 'Mean and standard deviation over seeds.')
    """
    plain = name.replace("_", " ")
    title, text = _KNOWN.get(name, (plain[:1].upper() + plain[1:], ""))
    return title, f"{text} {_SPREAD}".strip()
