"""Figures over ratios, pools and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from orderdp.diagnostics.curves import value_of
from orderdp.report.chart_data import Series, curves, time_unit
from orderdp.report.charts import altair
from orderdp_paper import Suite
from orderdp_paper.chart_parts import by_method, colour_of, panels
from orderdp_paper.curve_tables import is_decomposition, mean_unrest, usage_counts
from orderdp_paper.suite import PartResults, Result

__all__ = ["ablation", "motivation", "ratios", "time_to_accuracy", "usage"]


_WIDTH, _HEIGHT = 340, 250


# -- against the ratio ----------------------------------------------------------------------------------------------


def ratios(suite: Suite, parts: Sequence[PartResults]) -> Any:
    """Draw accuracy and time against the measured fraction left out."""
    return panels([(part.part.beside if len(parts) > 1 else "", _against_ratio(part.results)) for part in parts])


def _against_ratio(results: Sequence[Result], colours: Sequence[str] = ()) -> list[Any]:
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
    methods = list(colours) or list(dict.fromkeys(point["method"] for point in points))
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
        rule = alt.Chart(alt.Data(values=full)).mark_rule(strokeDash=[4, 3], color=colour_of("Full data"))
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
        colours = list(
            dict.fromkeys(
                [*(f"{result.column} % left out" for result in chosen), *(result.method.name for result in others)]
            )
        )
        rows.append((title, [_pools(chosen, part, colours), *_against_ratio(others, colours)]))
    return panels(rows)


def _pools(results: Sequence[Result], part: PartResults, colours: Sequence[str]) -> Any:
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
    base = alt.Chart(alt.Data(values=points)).encode(x=x, color=by_method(colours))
    y, low = (alt.Y(f"{field}:Q", title="accuracy (%)", scale=scale) for field in ("accuracy", "low"))
    line = base.mark_line(point=alt.OverlayMarkDef(size=45, filled=True, opacity=1)).encode(y=y)
    layers = [base.mark_rule(opacity=0.5).encode(y=low, y2="high:Q"), line]
    if part.full is not None and part.full.metric is not None:
        full = alt.Chart(alt.Data(values=[{"accuracy": part.full.metric}]))
        layers.insert(0, full.mark_rule(strokeDash=[4, 3], color=colour_of("Full data")).encode(y=y))
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
        looks = {result.row.label: Series(result.method.name, colour_of(result.method.name), "", (1, 0))}
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
