"""Charts of a comparison. Altair describes them; a browser or vl-convert draws them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orderdp.report import run_data
from orderdp.report.charts import altair
from orderdp.report.series import Series, series
from orderdp.workbench.statistics import Row

__all__ = ["Chart", "charts"]

_HEIGHT = 300
_PART_COLOURS = {
    "training": "#4477aa",
    "selection": "#e0606f",
    "overhead": "#c0a92c",
    "proxy": "#9a55a8",
    "evaluation": "#9a9a9a",
}


@dataclass(frozen=True)
class Chart:
    """A chart with its words; without anything to show, `chart` is None and `text` says why.

    Attributes:
        name: Good for a file name.
        title: Shown above it.
        text: What it shows, in a sentence.
        chart: Altair's.
    """

    name: str
    title: str
    text: str
    chart: Any


def charts(rows: Sequence[Row], width: int | str = 640) -> list[Chart]:
    """All charts of one task.

    Args:
        rows: The comparison.
        width: In pixels, or "container" for as wide as the page has room.
    """
    return [_sized(chart, width) for chart in _all(rows, series(rows))]


def _sized(chart: Chart, width: int | str) -> Chart:
    if chart.chart is None:
        return chart
    fit = altair().AutoSizeParams(type="fit-x", contains="padding")
    return Chart(chart.name, chart.title, chart.text, chart.chart.properties(width=width, autosize=fit))


def _all(rows: Sequence[Row], looks: dict[str, Series]) -> Iterator[Chart]:
    alt = altair()
    points = run_data.final_points(rows, looks)
    yield _chart("accuracy", "Accuracy against what is left out", _ACCURACY, _accuracy, points, looks)
    learning = run_data.curves(rows, looks, lambda epoch: epoch.get("metric"))
    time = alt.X("seconds:Q", title="training time so far (s)", scale=alt.Scale(nice=False))
    epoch = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))
    yield _chart("time-to-accuracy", "Time to accuracy", _TIME, _lines, learning, looks, time, "accuracy (%)", False)
    yield _chart("learning-curves", "Learning curves", _LEARNING, _lines, learning, looks, epoch, "accuracy (%)", True)
    yield _chart("cost", "Where the time goes", _COST, _cost, run_data.cost_parts(rows, looks), looks)
    yield _chart("usage", "How often samples are used", _USAGE, _usage, run_data.usage_shares(rows, looks), looks)
    for name in run_data.diagnostic_names(rows):
        found = run_data.curves(rows, looks, run_data.diagnostic(name))
        title = name.replace("_", " ")
        file_name = "diagnostic-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        yield _chart(file_name, title[:1].upper() + title[1:], _DIAGNOSTIC, _lines, found, looks, epoch, title, True)


_ACCURACY = "Final accuracy, mean and standard deviation over seeds; the dashed line is full data."
_TIME = "Accuracy over the time spent on training, selection and overhead; evaluation is not counted."
_LEARNING = "Test accuracy after each epoch, mean and standard deviation over seeds. The steep beginning is cut off."
_COST = "Mean over seeds, per run."
_USAGE = "Share of the samples that were trained on so many times. Full data uses each one once an epoch."
_DIAGNOSTIC = "Mean and standard deviation over seeds."


def _chart(name: str, title: str, text: str, draw: Any, numbers: run_data.Numbers, *rest: Any) -> Chart:
    if not numbers:
        return Chart(name, title, "Nothing was recorded for this chart.", None)
    return Chart(name, title, text, draw(numbers, *rest).properties(height=_HEIGHT))


def _accuracy(points: run_data.Numbers, looks: dict[str, Series]) -> Any:
    alt = altair()
    colour, pick, opacity = _colour(points, looks)
    x = alt.X("x:Q", title="samples really left out (%)", scale=alt.Scale(nice=True))
    y = alt.Y("y:Q", title="accuracy (%)", scale=alt.Scale(zero=False, padding=12))
    tooltip = [_tip("label:N", "method"), _tip("y:Q", "accuracy (%)", ".2f"), _tip("x:Q", "left out (%)", ".1f")]
    tooltip += [_tip("asked:N", "asked for"), _tip("low:Q", "mean - deviation", ".2f")]
    tooltip += [_tip("high:Q", "mean + deviation", ".2f"), _tip("seeds:Q", "seeds")]
    base = alt.Chart(alt.Data(values=points)).encode(x=x, color=colour, opacity=opacity)
    reference = alt.Chart(alt.Data(values=[point for point in points if point["x"] == 0][:1]))
    return alt.layer(
        reference.mark_rule(strokeDash=[5, 4], color="#808080").encode(y="y:Q"),
        base.mark_line(strokeWidth=1.5).encode(y=y),
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=90).encode(y=y, tooltip=tooltip).add_params(pick),
    )


def _lines(points: run_data.Numbers, looks: dict[str, Series], x: Any, title: str, with_spread: bool) -> Any:
    alt = altair()
    colour, pick, opacity = _colour(points, looks)
    y = alt.Y("y:Q", title=title, scale=_from_first_quarter(points))
    base = alt.Chart(alt.Data(values=points)).encode(x=x, color=colour, detail="label:N", opacity=opacity)
    tooltip = [_tip("label:N", "method"), _tip("epoch:Q", "epoch"), _tip("y:Q", title, ".4~g")]
    tooltip += [_tip("seconds:Q", "seconds so far", ".3~s"), _tip("seeds:Q", "seeds")]
    line = base.mark_line(strokeWidth=2, clip=True).encode(y=y, **_dashes(points, looks))
    touch = base.mark_point(filled=True, size=45, clip=True).encode(y=y, tooltip=tooltip).add_params(pick)
    if not with_spread or not any(point["seeds"] > 1 for point in points):
        return alt.layer(line, touch)
    band = base.mark_area(fillOpacity=0.13, clip=True).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    return alt.layer(band, line, touch)


def _from_first_quarter(points: run_data.Numbers) -> Any:
    """A scale that starts where the curves are after a quarter of the epochs, or their ends could not be told apart."""
    last = max(point["epoch"] for point in points)
    later = [point for point in points if point["epoch"] > last / 4]
    low, high = min(point["low"] for point in later), max(point["high"] for point in later)
    margin = 0.05 * (high - low) or 0.5
    return altair().Scale(domain=[low - margin, high + margin], zero=False, nice=True)


def _cost(points: run_data.Numbers, looks: dict[str, Series]) -> Any:
    alt = altair()
    parts = [part for part in _PART_COLOURS if any(point["part"] == part for point in points)]
    scale = alt.Scale(domain=parts, range=[_PART_COLOURS[part] for part in parts])
    labels = list(dict.fromkeys(point["label"] for point in points))
    chart = alt.Chart(alt.Data(values=points)).mark_bar()
    return chart.encode(
        x=alt.X("seconds:Q", title="seconds a run", stack="zero"),
        y=alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(labelLimit=130)),
        color=alt.Color("part:N", title=None, scale=scale, legend=_legend()),
        order=alt.Order("place:Q"),
        tooltip=[_tip("label:N", "method"), _tip("part:N", "part"), _tip("seconds:Q", "seconds", ".3~f")],
    )


def _usage(points: run_data.Numbers, looks: dict[str, Series]) -> Any:
    alt = altair()
    colour, pick, opacity = _colour(points, looks)
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("x:Q", title="times trained on", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False)),
        y=alt.Y("y:Q", title="share of the samples (%)"),
        color=colour,
        detail="label:N",
        opacity=opacity,
    )
    tooltip = [_tip("label:N", "method"), _tip("times:N", "times trained on"), _tip("y:Q", "samples (%)", ".2f")]
    line = base.mark_line(interpolate="step", strokeWidth=2).encode(**_dashes(points, looks))
    return alt.layer(line, base.mark_point(filled=True, size=35).encode(tooltip=tooltip).add_params(pick))


def _colour(points: run_data.Numbers, looks: dict[str, Series]) -> tuple[Any, Any, Any]:
    """The colour of each method, and how a click on the legend dims the others."""
    alt = altair()
    colours = {looks[point["label"]].method: looks[point["label"]].colour for point in points}
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    pick = alt.selection_point(fields=["method"], bind="legend")
    opacity = alt.condition(pick, alt.value(1.0), alt.value(0.12))
    return alt.Color("method:N", title=None, scale=scale, legend=_legend()), pick, opacity


def _dashes(points: run_data.Numbers, looks: dict[str, Series]) -> dict[str, Any]:
    """Dashes for the ratio, where there is more than one."""
    alt = altair()
    shown = {
        look.ratio: list(look.dash) for look in (looks[point["label"]] for point in points) if look.ratio != "none"
    }
    if len(shown) < 2:
        return {}
    scale = alt.Scale(domain=["none", *shown], range=[[1, 0], *shown.values()])
    return {"strokeDash": alt.StrokeDash("ratio:N", title="asked to leave out", scale=scale, legend=_legend())}


def _legend() -> Any:
    alt = altair()
    columns = alt.ExprRef("max(1, floor(width / 150))")
    return alt.Legend(orient="top", columns=columns, symbolStrokeWidth=2, labelLimit=200)


def _tip(field: str, title: str, form: str | None = None) -> Any:
    alt = altair()
    return alt.Tooltip(field, title=title) if form is None else alt.Tooltip(field, title=title, format=form)
