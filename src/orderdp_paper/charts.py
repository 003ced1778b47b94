"""Figures of the paper's tables: differences to full data, and changes from stage to stage."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from orderdp.report.charts import altair
from orderdp_paper import Suite
from orderdp_paper import curve_charts as suite_curves
from orderdp_paper import curve_charts as suite_usage
from orderdp_paper.chart_parts import by_method, heading, panels
from orderdp_paper.stage_tables import StagePoint, stability_points, stage_points
from orderdp_paper.suite import PartResults, Result

__all__ = ["draw"]


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
    "motivation": suite_curves.motivation,
    "ratios": suite_curves.ratios,
    "ablation": suite_curves.ablation,
    "time-to-accuracy": suite_curves.time_to_accuracy,
    "usage": suite_usage.usage,
}
