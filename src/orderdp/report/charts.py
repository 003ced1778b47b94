"""Charts of a comparison. Altair describes them, vl-convert draws them; neither needs a browser."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from orderdp._files import replacing
from orderdp.errors import ConfigError, install_command
from orderdp.experiments.records import Run, seconds_of
from orderdp.experiments.statistics import Metric, Row
from orderdp.report.tables import as_title, duration, in_order, is_further_test, measure

__all__ = [
    "ONLY_IN_RECORDS",
    "Chart",
    "Series",
    "altair",
    "charts",
    "check_ending",
    "color",
    "cost_parts",
    "curves",
    "dashes",
    "diagnostic",
    "diagnostic_names",
    "differences",
    "final_points",
    "frontier",
    "full_epoch",
    "learned_percent",
    "legend",
    "save",
    "series",
    "shapes",
    "time_unit",
    "tip",
    "usage_shares",
    "words_for",
]


# -- numbers of the charts, and the style of each method ---------------------------------------------------------------


# Distinct for color-blind readers, on white and on black. Controls and OrderDP always have the same color.
_OWN = {"full": "#808080", "orderdp": "#0a7ac0", "random": "#e08a00", "reduced": "#b0559b"}


_OTHERS = ("#009e73", "#d55e00", "#4fb0e6", "#8c7a00", "#8f6bd8", "#c4586c", "#3f8f8f", "#a0703c")


_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


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
        shape: Shape of the method's points; not a circle only where other methods have the color already.
    """

    method: str
    color: str
    ratio: str
    dash: tuple[int, ...]
    shape: str = "circle"


def series(rows: Sequence[Row]) -> dict[str, Series]:
    """Return the style of each row, by its label."""
    methods: dict[str, tuple[str, str]] = {}  # method -> color and shape
    ratios: list[float] = sorted({row.prune_ratio for row in rows if row.prune_ratio is not None})
    looks = {}
    for row in rows:
        method = _RATIO.sub("", row.label) or row.label
        if method not in methods:
            methods[method] = _mark(row.policy, list(methods.values()))
        place = 0 if row.prune_ratio is None else ratios.index(row.prune_ratio)
        ratio = "" if row.prune_ratio is None else f"{100 * row.prune_ratio:g} % left out"
        own, shape = methods[method]
        looks[row.label] = Series(method, own, ratio, tuple(_DASHES[place % len(_DASHES)]), shape)
    return looks


def _mark(policy: str, taken: list[tuple[str, str]]) -> tuple[str, str]:
    own = (_OWN.get(policy, ""), _SHAPES[0])
    if own[0] and own not in taken:
        return own
    marks = [(color, shape) for shape in _SHAPES for color in _OTHERS]
    return next((mark for mark in marks if mark not in taken), marks[len(taken) % len(marks)])


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


# -- charts ------------------------------------------------------------------------------------------------------------


_KINDS: dict[str, dict[str, Any]] = {".png": {"scale_factor": 2.0}, ".svg": {}, ".html": {"inline": True}}


def altair() -> ModuleType:
    """Import the plotting library; the error says how to install it."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"figures need {error.name}, which is not installed: {install_command('plot')}") from None
    # All rows are passed to the chart; Altair rejects more than 5,000 by default.
    altair.data_transformers.disable_max_rows()
    module: ModuleType = altair
    return module


def check_ending(path: Path) -> str:
    """Return the suffix of a figure's file; the error for an unknown suffix lists the valid ones."""
    kind = path.suffix.lower()
    if kind not in _KINDS:
        raise ConfigError(f"a figure must end in {', '.join(_KINDS)}, got {os.fspath(path)!r}.")
    return kind


def save(chart: Any, path: Path) -> None:
    """Write a chart to `path`, in the format of its suffix, under a temporary name that is then renamed."""
    kind = check_ending(path)
    with replacing(path, kind) as temporary:
        chart.save(os.fspath(temporary), **_KINDS[kind])


def color(points: Numbers, looks: dict[str, Series]) -> tuple[Any, Any, Any]:
    """Return the color of each method, and the selection by which a click on the legend dims the other methods."""
    alt = altair()
    colors = {looks[point["label"]].method: looks[point["label"]].color for point in points}
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    pick = alt.selection_point(fields=["method"], bind="legend", toggle="true")
    opacity = alt.condition(pick, alt.value(1.0), alt.value(0.12))
    return alt.Color("method:N", title=None, scale=scale, legend=legend()), pick, opacity


def shapes(points: Numbers, looks: dict[str, Series]) -> dict[str, Any]:
    """Return the shapes of points, if there are more methods than colors."""
    alt = altair()
    found = {looks[point["label"]].method: looks[point["label"]].shape for point in points}
    if len(set(found.values())) < 2:
        return {}
    scale = alt.Scale(domain=list(found), range=list(found.values()))
    return {"shape": alt.Shape("method:N", title=None, scale=scale, legend=legend())}


def dashes(points: Numbers, looks: dict[str, Series]) -> dict[str, Any]:
    """Return the dash patterns of the ratios, if there is more than one; rows without a ratio have solid lines."""
    alt = altair()
    found = [looks[label] for label in dict.fromkeys(point["label"] for point in points)]
    shown = {look.ratio: list(look.dash) for look in found if look.ratio}
    if len(shown) < 2:
        return {}
    scale = alt.Scale(domain=[*shown, ""], range=[*shown.values(), [1, 0]])
    below = legend("bottom", values=list(shown))
    return {"strokeDash": alt.StrokeDash("ratio:N", title=None, scale=scale, legend=below)}


def legend(orient: str = "top", **options: Any) -> Any:
    """Return a legend above or below the chart, where it takes no width."""
    alt = altair()
    return alt.Legend(orient=orient, symbolStrokeWidth=2, labelLimit=200, **options)


def tip(field: str, title: str, form: str | None = None) -> Any:
    """Return one line of a tooltip."""
    alt = altair()
    return alt.Tooltip(field, title=title) if form is None else alt.Tooltip(field, title=title, format=form)


_HEIGHT = 300


_HEIGHT_OF_SMALL = 200


_CROWDED = 12


_PART_COLORS = {
    "training": "#4477aa",
    "selection": "#e0606f",
    "overhead": "#c0a92c",
    "proxy": "#9a55a8",
    "evaluation": "#9a9a9a",
    "diagnosis": "#5f7f5f",
}


@dataclass(frozen=True)
class Chart:
    """A chart with its title and text; without data, `chart` is None and `text` says why.

    Attributes:
        name: Name of the chart, valid in a file name.
        title: Title above the chart.
        text: Description, in one sentence.
        chart: The Altair chart.
    """

    name: str
    title: str
    text: str
    chart: Any


def charts(rows: Sequence[Row], width: int | str = 640) -> list[Chart]:
    """Return all charts of one task.

    Args:
        rows: Rows of the comparison.
        width: Width in pixels, or "container" for the width of the page.
    """
    looks = series(rows)
    column = 36 + 7 * min(28, max((len(look.method) for look in looks.values()), default=0))
    return [_sized(chart, width, max(column, 120)) for chart in _all(rows, looks)]


def _sized(chart: Chart, width: int | str, column: int) -> Chart:
    """Set the width of a chart; `column` is that of a name in its legend."""
    if chart.chart is None:
        return chart
    fit = altair().AutoSizeParams(type="fit-x", contains="padding")
    sized = chart.chart.properties(width=width, autosize=fit, usermeta={"column": column})
    if isinstance(width, int):  # on the page, a script sets columns and limits for the current width
        sized = sized.configure_legend(columns=max(1, (width - 60) // column)).configure_axisYBand(labelLimit=220)
    return replace(chart, chart=sized)


def _all(rows: Sequence[Row], looks: dict[str, Series]) -> Iterator[Chart]:
    found = measure(rows)
    rows = in_order(rows)
    metric, axis = found.name, f"{found.name} ({found.unit})" if found.unit else found.name
    gaps = differences(rows, looks)
    if gaps:
        margin = next(row.margin for row in rows if row.against_full is not None)
        text = _DIFFERENCES.format(margin=found.amount(margin))
        yield _chart("differences", "Difference to full data", text, _differences, gaps, looks, found, margin)
    trained = [row for row in rows if not row.diverged]
    left_out = f" {_LEFT_OUT}" if len(trained) < len(rows) else ""
    points = final_points(trained, looks)
    title = f"{as_title(metric)} against real cost"
    yield _chart("accuracy", title, _FINAL + left_out, _final, points, looks, axis, found.higher_is_better)
    if is_further_test(rows):
        return  # the other charts are about training, and the view of the training runs has them
    learning = curves(trained, looks, lambda epoch: epoch.get("metric"))
    unit, unit_name = time_unit(point["seconds"] for point in learning)
    learning = [{**point, "spent": round(point["seconds"] / unit, 4)} for point in learning]
    yield _chart("time-to-accuracy", f"Time to {metric}", _TIME + left_out, _time_to, learning, looks, axis, unit_name)
    if learning and len({point["label"] for point in learning}) == len(learning):
        yield Chart("learning-curves", "Learning curves", _TESTED_ONCE, None)
    else:
        yield _chart("learning-curves", "Learning curves", _LEARNING + left_out, _learning, learning, looks, axis)
    full = full_epoch(rows)
    learned = [] if full is None else curves(rows, looks, learned_percent, full)
    if learned:  # records of earlier versions lack it
        yield _chart("learned", "Share of samples learned", _LEARNED, _learned, learned, looks)
    yield _chart("cost", "Where the time goes", _COST, _cost, cost_parts(rows, looks), looks)
    yield _chart("usage", "How often samples are used", _USAGE, _usage, usage_shares(rows, looks), looks)
    for place, name in enumerate(diagnostic_names(rows), start=1):
        curve = curves(rows, looks, diagnostic(name))
        title, text = words_for(name)
        file_name = f"diagnostic-{place}-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        yield _chart(file_name, title, text, _diagnostic, curve, looks, title[:1].lower() + title[1:])


_LEFT_OUT = "Methods that diverged are left out."


_DIFFERENCES = f"Mean and 95 % interval; the intervals hold at once. The margin, {{margin}}, is shaded. {_LEFT_OUT}"


_FINAL = (
    "After the last epoch, mean over seeds, with the 95 % interval of the difference to full data, the dashed line. "
    "The gray steps are the frontier: nothing that costs as little has a better mean."
)


_TIME = "Over the time spent on training, selection, overhead and a coreset's proxy; evaluation is not counted."


_LEARNING = "On the test set after each epoch, mean and standard deviation over seeds. The steep beginning is cut off."


_TESTED_ONCE = "Each run was tested once, at its end. With --evaluate-every 1 it is tested after each epoch."


_LEARNED = (
    "Samples whose last stored loss is at or below the threshold of the method's policy; where it has none, that of a "
    "right class with probability 0.9. Mean and standard deviation over seeds."
)


_COST = "Mean over seeds, per run."


_USAGE = "Share of the samples that were trained on so many times. Full data uses each one once per epoch."


def _chart(name: str, title: str, text: str, draw: Any, numbers: Numbers, *rest: Any) -> Chart:
    if not numbers:
        return Chart(name, title, "Nothing was recorded for this chart.", None)
    return Chart(name, title, text, draw(numbers, *rest))


def _differences(points: Numbers, looks: dict[str, Series], metric: Metric, margin: float) -> Any:
    """Return a forest plot: an estimate and an interval per row, the margin shaded, full data at 0."""
    alt = altair()
    colors = {point["label"]: looks[point["label"]].color for point in points}
    color = alt.Color("label:N", legend=None, scale=alt.Scale(domain=list(colors), range=list(colors.values())))
    unit = "points" if metric.unit == "%" else metric.unit
    x = alt.X("low:Q", title=f"difference to full data{f' ({unit})' if unit else ''}", scale=alt.Scale(padding=12))
    y = alt.Y("label:N", title=None, sort=list(colors))
    shaded = alt.Chart(alt.Data(values=[{"low": -margin, "high": margin}])).mark_rect(color="#808080", opacity=0.18)
    zero = alt.Chart(alt.Data(values=[{"low": 0.0}])).mark_rule(color="#808080", strokeDash=[5, 4])
    base = alt.Chart(alt.Data(values=points), height=26 * len(points)).encode(y=y, color=color)
    outlines = [looks[label].shape for label in colors]
    by_label = alt.Shape("label:N", legend=None, scale=alt.Scale(domain=list(colors), range=outlines))
    shape = {"shape": by_label} if len(set(outlines)) > 1 else {}
    tooltip = [tip("label:N", "method"), tip("y:Q", "difference", f"+.{metric.digits}f")]
    tooltip += [tip("interval:N", "95 % interval"), tip("word:N", "verdict")]
    return alt.layer(
        shaded.encode(x=x, x2="high:Q"),
        zero.encode(x=x),
        base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q"),
        base.mark_point(filled=True, size=90, opacity=1.0).encode(x=alt.X("y:Q"), tooltip=tooltip, **shape),
    )


def _final(points: Numbers, looks: dict[str, Series], metric: str, higher_is_better: bool) -> Any:
    alt = altair()
    by_method, pick, opacity = color(points, looks)
    x = alt.X("x:Q", title="samples trained on (% of full data)", scale=alt.Scale(zero=False, nice=False, padding=15))
    y = alt.Y("y:Q", title=metric, scale=alt.Scale(zero=False, padding=12))
    tooltip = [tip("label:N", "method"), tip("y:Q", metric, ".4~g"), tip("x:Q", "samples (%)", ".1f")]
    tooltip += [tip("interval:N", "95 % interval to full data"), tip("asked:N", "left out, as asked for")]
    tooltip += [tip("time:N", "time"), tip("deviation:Q", "deviation", ".2~g"), tip("seeds:Q", "seeds")]
    methods = list(dict.fromkeys(point["method"] for point in points))
    reference = alt.Chart(alt.Data(values=[point for point in points if point["policy"] == "full"][:1]))
    corners = frontier(points, higher_is_better)
    end = {"x": max(point["x"] for point in points), "y": corners[-1]["y"]}  # the last step reaches the dearest
    steps = alt.Chart(alt.Data(values=[{"x": each["x"], "y": each["y"]} for each in corners] + [end]))
    steps = steps.mark_line(color="#808080", strokeWidth=5, opacity=0.35, interpolate="step-after").encode(x=x, y=y)
    layers = [reference.mark_rule(strokeDash=[5, 4], color="#808080").encode(y=y), steps]
    apart = min(4, 30 / len(methods))  # or error bars at the same ratio would hide each other
    shape = shapes(points, looks)
    for place, method in enumerate(methods):
        aside = apart * (place - len(methods) // 2) if place else 0
        data = alt.Data(values=[point for point in points if point["method"] == method])
        base = alt.Chart(data).encode(x=x, color=by_method, opacity=opacity)
        layers.append(base.mark_line(strokeWidth=1.5, xOffset=aside).encode(y=y))
        layers.append(base.mark_rule(strokeWidth=2, xOffset=aside).encode(y=alt.Y("low:Q"), y2="high:Q"))
        layers.append(base.mark_point(filled=True, size=90, xOffset=aside).encode(y=y, tooltip=tooltip, **shape))
    return _layered(layers[:2], layers[2:], pick, _HEIGHT)


def _time_to(points: Numbers, looks: dict[str, Series], metric: str, unit: str) -> Any:
    alt = altair()
    x = alt.X("spent:Q", title=f"training time so far ({unit})", scale=_wide())
    line, dots, _, pick = _curves(points, looks, x, alt.Y("y:Q", title=metric, scale=_from_first_quarter(points)))
    return _layered([], [line, dots], pick, _HEIGHT)


def _wide() -> Any:
    """Return a scale with room for the dots at both ends."""
    return altair().Scale(nice=False, padding=6)


def _learning(points: Numbers, looks: dict[str, Series], metric: str) -> Any:
    return _over_epochs(points, looks, metric, _from_first_quarter(points))


def _learned(points: Numbers, looks: dict[str, Series]) -> Any:
    alt = altair()
    x = alt.X("cost:Q", title="samples trained on so far, in epochs of full data", scale=_wide())
    return _with_spread(points, looks, x, "samples learned (%)", alt.Scale(domainMin=0), height=_HEIGHT_OF_SMALL)


def _diagnostic(points: Numbers, looks: dict[str, Series], title: str) -> Any:
    return _over_epochs(points, looks, title, altair().Scale(zero=False))


def _over_epochs(points: Numbers, looks: dict[str, Series], title: str, scale: Any) -> Any:
    alt = altair()
    first, last = (pick(point["epoch"] for point in points) for pick in (min, max))
    few = last - first < _CROWDED  # of so few, Vega would also mark halves
    axis = alt.Axis(values=list(range(first, last + 1)), format="d") if few else alt.Axis(tickMinStep=1)
    x = alt.X("epoch:Q", title="epoch", axis=axis, scale=_wide())
    return _with_spread(points, looks, x, title, scale)


def _with_spread(
    points: Numbers, looks: dict[str, Series], x: Any, title: str, scale: Any, height: int = _HEIGHT
) -> Any:
    """Return lines with dots, and a band of one standard deviation if there are several seeds."""
    alt = altair()
    line, dots, base, pick = _curves(points, looks, x, alt.Y("y:Q", title=title, scale=scale))
    band = base.mark_area(fillOpacity=0.13, clip=True).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    with_spread = any(point["seeds"] > 1 for point in points)
    return _layered([], [*([band] if with_spread else []), line, dots], pick, height)


def _layered(below: list[Any], layers: list[Any], pick: Any, height: int) -> Any:
    """Return layers on others; the selection is on the first that has colors, whose legend is drawn and clicked."""
    first, *others = layers
    return altair().layer(*below, first.add_params(pick), *others, height=height)


def _curves(points: Numbers, looks: dict[str, Series], x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Return lines, dots with tooltips, the base chart of both, and the selection of a method."""
    alt = altair()
    by_method, pick, opacity = color(points, looks)
    base = alt.Chart(alt.Data(values=points)).encode(x=x, color=by_method, detail="label:N", opacity=opacity)
    tooltip = [tip("label:N", "method"), tip("epoch:Q", "epoch"), tip("y:Q", "value", ".4~g")]
    tooltip += [tip("time:N", "time so far"), tip("seeds:Q", "seeds")]
    line = base.mark_line(strokeWidth=2, clip=True).encode(y=y, **dashes(points, looks))
    dots = base.mark_point(filled=True, size=45, clip=True, fillOpacity=0.0 if _crowded(points, "epoch") else 1.0)
    return line, dots.encode(y=y, tooltip=tooltip, **shapes(points, looks)), base, pick


def _crowded(points: Numbers, field: str) -> bool:
    """Whether dots would hide the lines; if so, the dots are invisible and only carry the tooltips."""
    return len({point[field] for point in points}) > _CROWDED


def _from_first_quarter(points: Numbers) -> Any:
    """Return a scale that starts at the values after a quarter of the epochs, so that the ends can be told apart."""
    last = max(point["epoch"] for point in points)
    later = [point for point in points if point["epoch"] > last / 4]
    low, high = min(point["low"] for point in later), max(point["high"] for point in later)
    margin = 0.05 * (high - low) or 0.5
    return altair().Scale(domain=[low - margin, high + margin], zero=False, nice=True)


def _cost(points: Numbers, looks: dict[str, Series]) -> Any:
    alt = altair()
    parts = [part for part in _PART_COLORS if any(point["part"] == part for point in points)]
    scale = alt.Scale(domain=parts, range=[_PART_COLORS[part] for part in parts])
    labels = list(dict.fromkeys(point["label"] for point in points))
    unit, name = time_unit(point["seconds"] for point in points)
    values = [{**point, "spent": round(point["seconds"] / unit, 4)} for point in points]
    chart = alt.Chart(alt.Data(values=values), height=24 * len(labels)).mark_bar()
    return chart.encode(
        x=alt.X("spent:Q", title=f"time of a run ({name})", stack="zero"),
        y=alt.Y("label:N", title=None, sort=labels),
        color=alt.Color("part:N", title=None, scale=scale, legend=legend()),
        order=alt.Order("place:Q"),
        tooltip=[tip("label:N", "method"), tip("part:N", "part"), tip("time:N", "time")],
    )


def _usage(points: Numbers, looks: dict[str, Series]) -> Any:
    alt = altair()
    by_method, pick, opacity = color(points, looks)
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("x:Q", title="times trained on", axis=alt.Axis(tickMinStep=1), scale=_wide()),
        y=alt.Y("y:Q", title="share of the samples (%)"),
        color=by_method,
        detail="label:N",
        opacity=opacity,
    )
    tooltip = [tip("label:N", "method"), tip("times:N", "times trained on"), tip("y:Q", "samples (%)", ".2f")]
    line = base.mark_line(interpolate="step", strokeWidth=2).encode(**dashes(points, looks))
    dots = base.mark_point(filled=True, size=45, fillOpacity=0.0 if _crowded(points, "x") else 1.0)
    return _layered([], [line, dots.encode(tooltip=tooltip, **shapes(points, looks))], pick, _HEIGHT)
