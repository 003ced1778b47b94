"""Figures of the suites: differences to full data, stages of training, and curves over ratios, pools and time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orderdp.diagnostics.kept_sets import value_of
from orderdp.report.charts import Series, altair, curves, time_unit
from orderdp_paper.suite import PartResults, Result, Suite
from orderdp_paper.tables import StagePoint, is_decomposition, mean_unrest, stability_points, stage_points, usage_counts

__all__ = [
    "ablation",
    "by_method",
    "color_of",
    "draw",
    "heading",
    "motivation",
    "panels",
    "ratios",
    "time_to_accuracy",
    "usage",
]


# The colors of methods, as in the report.
_COLORS = {
    "Full data": "#808080",
    "OrderDP": "#0a7ac0",
    "Dynamic Random": "#e08a00",
    "Fewer epochs": "#b0559b",
    "InfoBatch": "#009e73",
    "Epsilon-greedy": "#d55e00",
    "UCB": "#8c7a00",
    "50 % left out": "#8f6bd8",
    "70 % left out": "#c4586c",
}


def color_of(method: str) -> str:
    """Return the color of a method."""
    return _COLORS.get(method, "#3f8f8f")


def by_method(methods: Iterable[str]) -> Any:
    """Return the color encoding of methods, with a legend below."""
    alt = altair()
    names = list(methods)
    scale = alt.Scale(domain=names, range=[color_of(name) for name in names])
    return alt.Color("method:N", title=None, scale=scale, legend=alt.Legend(orient="bottom"))


def panels(rows: Sequence[tuple[str, Sequence[Any]]]) -> Any:
    """Arrange charts in rows, each row with its own title and each chart with its own scales."""
    alt = altair()
    lines = []
    for title, drawn in rows:
        if not drawn:
            continue
        line = alt.hconcat(*drawn).resolve_scale(color="shared")
        lines.append(line.properties(title=alt.Title(title, anchor="start", fontSize=13)) if title else line)
    if not lines:  # all runs failed, or no row has its reference
        empty = alt.Chart(alt.Data(values=[{"text": "nothing was measured"}])).mark_text().encode(text="text:N")
        return alt.vconcat(empty.properties(width=320, height=80))
    return alt.vconcat(*lines, spacing=24)


def heading(chart: Any, suite: Suite, parts: Sequence[PartResults]) -> Any:
    """Add a heading to the chart: its subject, and the conditions of the measurement here and in the paper."""
    alt = altair()
    here = "; ".join(dict.fromkeys(part.title for part in parts))
    seeds = f"{parts[0].seeds} seed{'' if parts[0].seeds == 1 else 's'}"
    beside = "" if len({part.part.beside for part in parts}) > 1 else f"{parts[0].part.beside}, "
    lines = [f"here: {here}; {seeds}", f"paper: {beside}{suite.printed.setting} ({suite.printed.source})"]
    title = alt.Title(
        f"{suite.id}: {suite.shows}", subtitle=lines, anchor="start", fontSize=15, subtitleFontSize=11, offset=16
    )
    return (
        chart.properties(title=title)
        .configure_view(strokeOpacity=0.15)
        .configure_legend(symbolStrokeWidth=2, symbolOpacity=1, labelLimit=240)
    )


_WIDTH, _HEIGHT = 340, 250


# -- against the ratio ----------------------------------------------------------------------------------------------


def ratios(suite: Suite, parts: Sequence[PartResults]) -> Any:
    """Draw accuracy and time against the measured fraction left out."""
    return panels([(part.part.beside if len(parts) > 1 else "", _against_ratio(part.results)) for part in parts])


def _against_ratio(results: Sequence[Result], colors: Sequence[str] = ()) -> list[Any]:
    measured = [result for result in results if result.row.metric is not None and result.row.saved is not None]
    unit, name = time_unit(result.row.seconds or 0.0 for result in measured)
    points: list[dict[str, Any]] = [
        {
            "method": result.method.name,
            "x": 100 * (result.row.saved or 0.0),
            "accuracy": result.row.metric,
            "low": (result.row.metric or 0.0) - (result.row.deviation or 0.0),
            "high": (result.row.metric or 0.0) + (result.row.deviation or 0.0),
            "time": (result.row.seconds or 0.0) / unit,
        }
        for result in measured
    ]
    methods = list(colors) or list(dict.fromkeys(point["method"] for point in points))
    return [
        _lines(points, methods, "accuracy", "accuracy (%)", zero=False),
        _lines(points, methods, "time", f"time of a run ({name})", zero=True),
    ]


def _lines(points: list[dict[str, Any]], methods: list[str], field: str, axis: str, zero: bool) -> Any:
    alt = altair()
    scale = alt.Scale(zero=zero)
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("x:Q", title="samples really left out (%)", scale=alt.Scale(domain=[0, 100])),
        color=by_method(methods),
        tooltip=["method:N", alt.Tooltip("x:Q", format=".1f"), alt.Tooltip(f"{field}:Q", format=".2f")],
    )
    line = base.mark_line(point=alt.OverlayMarkDef(size=45, filled=True, opacity=1)).encode(
        y=alt.Y(f"{field}:Q", title=axis, scale=scale)
    )
    layers = [line]
    if field == "accuracy":
        layers.insert(0, base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q", title=axis, scale=scale), y2="high:Q"))
        full = [point for point in points if point["method"] == "Full data"]
        rule = alt.Chart(alt.Data(values=full)).mark_rule(strokeDash=[4, 3], color=color_of("Full data"))
        layers.insert(0, rule.encode(y=alt.Y("accuracy:Q", title=axis, scale=scale)))
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)


# -- decompositions -------------------------------------------------------------------------------------------------


def ablation(suite: Suite, parts: Sequence[PartResults]) -> Any:
    """Draw accuracy against the size of the pool at fixed ratios, and accuracy and time against the ratio."""
    rows = []
    for part in parts:
        chosen = [result for result in part.results if is_decomposition(result)]
        others = [result for result in part.results if not is_decomposition(result)]
        title = part.part.beside if len(parts) > 1 else ""
        # Panels in a row share their colors, so each panel needs all of them.
        colors = list(
            dict.fromkeys(
                [*(f"{result.column} % left out" for result in chosen), *(result.method.name for result in others)]
            )
        )
        rows.append((title, [_pools(chosen, part, colors), *_against_ratio(others, colors)]))
    return panels(rows)


def _pools(results: Sequence[Result], part: PartResults, colors: Sequence[str]) -> Any:
    alt = altair()
    points = [
        {
            "method": f"{result.column} % left out",
            "x": result.method.parameters["exploration"],
            "accuracy": result.row.metric,
            "low": result.row.metric - (result.row.deviation or 0.0),
            "high": result.row.metric + (result.row.deviation or 0.0),
        }
        for result in results
        if result.row.metric is not None
    ]
    x = alt.X(
        "x:Q", title="exploration s/n (left: random, right: top-q)", scale=alt.Scale(zero=False, nice=False, padding=15)
    )
    scale = alt.Scale(zero=False)
    base = alt.Chart(alt.Data(values=points)).encode(x=x, color=by_method(colors))
    y, low = (alt.Y(f"{field}:Q", title="accuracy (%)", scale=scale) for field in ("accuracy", "low"))
    line = base.mark_line(point=alt.OverlayMarkDef(size=45, filled=True, opacity=1)).encode(y=y)
    layers = [base.mark_rule(opacity=0.5).encode(y=low, y2="high:Q"), line]
    if part.full is not None and part.full.metric is not None:
        full = alt.Chart(alt.Data(values=[{"accuracy": part.full.metric}]))
        layers.insert(0, full.mark_rule(strokeDash=[4, 3], color=color_of("Full data")).encode(y=y))
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title="pools of several sizes")


# -- over time ------------------------------------------------------------------------------------------------------


def time_to_accuracy(suite: Suite, parts: Sequence[PartResults]) -> Any:
    """Draw accuracy over the time spent, one panel per ratio, with full data in all panels."""
    rows = []
    for part in parts:
        drawn = []
        for column in sorted({result.column for result in part.results if result.column}, key=float):
            shown = [result for result in part.results if result.column in ("", column)]
            drawn.append(_race(shown, f"{column} % left out"))
        rows.append(("", drawn))
    return panels(rows)


def _race(results: Sequence[Result], title: str) -> Any:
    alt = altair()
    points = _curves(results, lambda epoch: epoch.get("metric"))
    unit, name = time_unit(point["seconds"] for point in points)
    for point in points:
        point["spent"] = point["seconds"] / unit
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("spent:Q", title=f"time spent ({name})", scale=alt.Scale(zero=True)),
        y=alt.Y("y:Q", title="accuracy (%)", scale=alt.Scale(zero=False)),
        color=by_method(dict.fromkeys(result.method.name for result in results)),
        tooltip=["method:N", alt.Tooltip("spent:Q", format=".3g"), alt.Tooltip("y:Q", format=".2f")],
    )
    line = base.mark_line(point=alt.OverlayMarkDef(size=25, filled=True, opacity=1))
    return line.properties(width=_WIDTH, height=_HEIGHT, title=title)


def motivation(suite: Suite, parts: Sequence[PartResults]) -> Any:
    """Draw accuracy, gradient norm and its rolling spread over epochs, and accuracy against the norm."""
    results = parts[0].results
    accuracy = _curves(results, lambda epoch: epoch.get("metric"))
    size = _curves(results, lambda epoch: (epoch.get("diagnostics") or {}).get("gradient_norm"))
    restless = [
        {"method": result.method.name, "epoch": epoch, "y": value}
        for result in results
        for epoch, value in mean_unrest(result.row.runs)
    ]
    methods = list(dict.fromkeys(result.method.name for result in results))
    top = [_over_epochs(accuracy, methods, "accuracy (%)"), _over_epochs(size, methods, "gradient norm")]
    return panels(
        [("", top), ("", [_over_epochs(restless, methods, "rolling spread of the norm"), _joint(results, methods)])]
    )


def _over_epochs(points: list[dict[str, Any]], methods: list[str], axis: str) -> Any:
    alt = altair()
    last = max((point["epoch"] for point in points), default=1)
    epochs = alt.Scale(domain=[1, last], nice=False)
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1), scale=epochs), color=by_method(methods)
    )
    scale = alt.Scale(zero=False)
    line = base.mark_line().encode(y=alt.Y("y:Q", title=axis, scale=scale))
    layers = [line]
    if any("low" in point for point in points):
        low = alt.Y("low:Q", title=axis, scale=scale)
        layers.insert(0, base.mark_area(opacity=0.15).encode(y=low, y2="high:Q"))
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)


def _joint(results: Sequence[Result], methods: list[str]) -> Any:
    alt = altair()
    points = [
        {"method": result.method.name, "x": norm, "y": epoch["metric"], "epoch": epoch["epoch"]}
        for result in results
        for run in result.row.runs
        for epoch in run.epochs
        if (norm := value_of(epoch, "gradient_norm")) is not None and epoch.get("metric") is not None
    ]
    chart = alt.Chart(alt.Data(values=points)).mark_point(filled=True, opacity=0.7, size=30)
    return chart.encode(
        x=alt.X("x:Q", title="gradient norm", scale=alt.Scale(zero=False)),
        y=alt.Y("y:Q", title="accuracy (%)", scale=alt.Scale(zero=False)),
        color=by_method(methods),
        tooltip=["method:N", "epoch:Q", alt.Tooltip("x:Q", format=".3g"), alt.Tooltip("y:Q", format=".2f")],
    ).properties(width=_WIDTH, height=_HEIGHT)


def _curves(results: Sequence[Result], value: Any) -> list[dict[str, Any]]:
    """Return the means over seeds, per epoch."""
    points = []
    for result in results:
        looks = {result.row.label: Series(result.method.name, color_of(result.method.name), "", (1, 0))}
        points += curves([result.row], looks, value)
    return points


_BARS = 40


def usage(suite: Suite, parts: Sequence[PartResults]) -> Any:
    """Draw how often samples are used, one panel per ratio."""
    drawn = []
    for part in parts:
        for column in dict.fromkeys(result.column for result in part.results):
            results = [result for result in part.results if result.column == column]
            drawn.append(_panel(results, f"{column} % left out, {part.part.base['epochs']} epochs"))
    return panels([("", drawn)])


def _panel(results: Sequence[Result], title: str) -> Any:
    alt = altair()
    longest = max(len(usage_counts(result.row)) for result in results)
    width = max(1, math.ceil(longest / _BARS))
    values = [value for result in results for value in _shares(result, longest, width)]
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("edge:Q", title="times trained on", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False)),
        y=alt.Y("share:Q", title="share of the samples (%)"),
        color=by_method(dict.fromkeys(result.method.name for result in results)),
        tooltip=["method:N", "times:N", alt.Tooltip("share:Q", format=".2f")],
    )
    area = base.mark_area(interpolate="step-after", opacity=0.15).encode(y=alt.Y("share:Q", stack=None))
    line = base.mark_line(interpolate="step-after", strokeWidth=2)
    return alt.layer(area, line).properties(width=250, height=220, title=title)


def _shares(result: Result, longest: int, width: int) -> list[dict[str, Any]]:
    """Return the left edge and height of each bar, and the right edge of the last bar."""
    counts = usage_counts(result.row)
    n = sum(counts) or 1
    points: list[dict[str, Any]] = []
    for start in range(0, longest, width):
        times = str(start) if width == 1 else f"{start} to {start + width - 1}"
        share = 100 * sum(counts[start : start + width]) / n
        points.append({"method": result.method.name, "edge": start - 0.5, "times": times, "share": share})
    if not points:  # no run is finished
        return []
    last = points[-1]
    return [*points, {**last, "edge": last["edge"] + width}]


_FAR_BELOW = 20.0  # points below full data at which training broke down


_STAGE_VALUES = {"table-jaccard": ("jaccard", "Jaccard similarity"), "table-cosine": ("cosine", "cosine")}


def draw(suite: Suite, parts: Sequence[PartResults]) -> Any:
    """Draw the figure of a suite."""
    return heading(_FIGURES[suite.figure](suite, parts), suite, parts)


# -- differences to full data ---------------------------------------------------------------------------------------


def _gaps(suite: Suite, parts: Sequence[PartResults]) -> Any:
    rows = []
    for part in parts:
        results = [result for result in part.results if result.method.policy != "full"]
        here = [_gap_here(result) for result in results if result.row.against_full is not None]
        paper = [point for result in results if (point := _gap_printed(suite, part, result)) is not None]
        shown = {point["method"] for point in (*here, *paper)}
        order = [name for name in dict.fromkeys(_names(result)["method"] for result in results) if name in shown]
        title = "here, with 95 % intervals" if any(point["low"] < point["high"] for point in here) else "here"
        drawn = [_gap_panel(here, order, title, labels=True)] if here else []
        drawn += [_gap_panel(paper, order, "in the paper", labels=not here)] if paper else []
        rows.append((part.part.beside if len(parts) > 1 else "", drawn))
    return panels(rows)


def _gap_here(result: Result) -> dict[str, Any]:
    difference = result.row.against_full
    assert difference is not None
    low = difference.mean if difference.low is None else difference.low
    high = difference.mean if difference.high is None else difference.high
    return {**_names(result), "gap": difference.mean, "low": low, "high": high}


def _gap_printed(suite: Suite, part: PartResults, result: Result) -> dict[str, Any] | None:
    group, name = part.part.beside, result.method.name
    for column in (result.column, "accuracy"):
        own, full = (suite.printed.number(group, row, column) for row in (name, "Full data"))
        if own is not None and full is not None:
            gap = own.value - full.value
            return {**_names(result), "gap": gap, "low": gap, "high": gap}
    return None


def _names(result: Result) -> dict[str, Any]:
    if result.method.ratios is not None:  # each method has its own ratio
        return {"method": f"{result.method.name}, {result.column} %", "ratio": ""}
    return {"method": result.method.name, "ratio": f"{result.column} % left out"}


def _gap_panel(points: list[dict[str, Any]], order: list[str], title: str, labels: bool) -> Any:
    alt = altair()
    ratios = list(dict.fromkeys(point["ratio"] for point in points))
    offset = {"yOffset": alt.YOffset("ratio:N", sort=ratios)} if len(ratios) > 1 else {}
    legend = alt.Legend(orient="bottom", title=None) if len(ratios) > 1 else None
    blues = ["#9ecae1", "#4292c6", "#08519c"] if len(ratios) > 1 else ["#0a7ac0"]
    encodings = {
        "y": alt.Y("method:N", title=None, scale=alt.Scale(domain=order), axis=alt.Axis(labelLimit=180, labels=labels)),
        "color": alt.Color("ratio:N", sort=ratios, legend=legend, scale=alt.Scale(domain=ratios, range=blues)),
        "tooltip": ["method:N", "ratio:N", alt.Tooltip("gap:Q", format="+.2f")],
        **offset,
    }
    axis = "accuracy minus that of full data (points)"
    broken = _broken_down([point["gap"] for point in points])
    sound = [point for point in points if point["gap"] not in broken]
    gaps = [0.0, *(point["gap"] for point in sound)]
    margin = 0.08 * (max(gaps) - min(gaps)) or 0.5
    # With two or three seeds an interval can be wider than the range of all gaps; it is cut off at the edges.
    scale = alt.Scale(domain=[min(gaps) - margin, max(gaps) + margin], nice=False)
    base = alt.Chart(alt.Data(values=sound)).encode(**encodings)
    whiskers = base.mark_rule(strokeWidth=1.5, clip=True).encode(x=alt.X("low:Q", title=axis, scale=scale), x2="high:Q")
    dots = base.mark_point(filled=True, size=55, opacity=1).encode(
        x=alt.X("gap:Q", title=axis, scale=scale, axis=alt.Axis(tickCount=6))
    )
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[4, 3], color="#808080").encode(x="x:Q")
    edge = [{**point, "said": f"◂ {point['gap']:+.1f}"} for point in points if point["gap"] in broken]
    away = alt.Chart(alt.Data(values=edge)).encode(**encodings).mark_text(align="left", dx=4)
    layers = [zero, whiskers, dots, *([away.encode(x=alt.value(0), text="said:N")] if edge else [])]
    height = (16 + 8 * len(ratios)) * len(order)
    return alt.layer(*layers).properties(width=300, height=height, title=title)


def _broken_down(gaps: list[float]) -> set[float]:
    """Return the gaps shown as a number at the edge, because they would hide the differences between the others.

    >>> sorted(_broken_down([-1.0, -2.5, -80.9])), sorted(_broken_down([-20.0, -21.0, -30.0]))
    ([-80.9], [])
    """
    return {gap for gap in gaps if gap < min(-_FAR_BELOW, 5 * statistics.median(gaps))} if gaps else set()


# -- stages ---------------------------------------------------------------------------------------------------------


def _stages(suite: Suite, parts: Sequence[PartResults]) -> Any:
    name, axis = _STAGE_VALUES[suite.id]
    points = stage_points(suite, parts[0], name)
    groups = list(dict.fromkeys(point.group for point in points))
    drawn = [
        _stage_panel([point for point in points if point.group == group], f"{group} left out", axis) for group in groups
    ]
    return panels([("", drawn)])


def _stability(suite: Suite, parts: Sequence[PartResults]) -> Any:
    points = stability_points(suite, parts[0])
    rows = []
    for group in ("accuracy", "gradient norm"):
        drawn = [
            _stage_panel(found, f"{group}, {'here' if who == 'here' else 'in the paper'}", group)
            for who in ("here", "paper")
            if (found := [point for point in points if (point.group, point.who) == (group, who)])
        ]
        rows.append(("", drawn))
    return panels(rows)


def _stage_panel(points: Sequence[StagePoint], title: str, axis: str) -> Any:
    alt = altair()
    found = [point.number.value for point in points]
    wide = 0 < 1000 * min(found) < max(found)  # a run that broke down would hide all others
    lowest = min(found) / 2 if wide else -math.inf  # a logarithmic axis has no values at or below 0
    values = [
        {
            "method": point.method,
            "stage": point.stage,
            "who": "here" if point.who == "here" else "in the paper",
            "y": point.number.value,
            "low": max(lowest, point.number.value - (point.number.deviation or 0.0)),
            "high": point.number.value + (point.number.deviation or 0.0),
        }
        for point in points
    ]
    stages = sorted({point.stage for point in points}, key=_begin)
    both = len({value["who"] for value in values}) > 1
    below = alt.Legend(orient="bottom", symbolSize=400)
    shares = alt.StrokeDash("who:N", title=None, sort=["here", "in the paper"], legend=below)
    dash = {"strokeDash": shares} if both else {}
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("stage:N", title="share of the epochs", sort=stages, axis=alt.Axis(labelAngle=0)),
        color=by_method(dict.fromkeys(point.method for point in points)),
    )
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=False)
    y = alt.Y("y:Q", title=axis, scale=scale)
    line, dots = base.mark_line().encode(y=y, **dash), base.mark_point(filled=True, size=35, opacity=1).encode(y=y)
    bars = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q", title=axis, scale=scale), y2="high:Q")
    return alt.layer(bars, line, dots).properties(width=320, height=240, title=title)


def _begin(stage: str) -> tuple[int, int]:
    begin, _, end = stage.rstrip("%").partition("-")
    return (int(begin), int(end)) if end else (int(begin), 0)


_FIGURES: dict[str, Callable[[Suite, Sequence[PartResults]], Any]] = {
    "gaps": _gaps,
    "stages": _stages,
    "stability": _stability,
    "motivation": motivation,
    "ratios": ratios,
    "ablation": ablation,
    "time-to-accuracy": time_to_accuracy,
    "usage": usage,
}
