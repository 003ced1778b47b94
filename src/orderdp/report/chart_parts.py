"""Parts that charts of a comparison share."""

from __future__ import annotations

from typing import Any

from orderdp.report.charts import altair
from orderdp.report.run_data import Numbers
from orderdp.report.series import Series

__all__ = ["colour", "dashes", "legend", "tip"]


def colour(points: Numbers, looks: dict[str, Series]) -> tuple[Any, Any, Any]:
    """The colour of each method, and how a click on the legend dims the others."""
    alt = altair()
    colours = {looks[point["label"]].method: looks[point["label"]].colour for point in points}
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    pick = alt.selection_point(fields=["method"], bind="legend")
    opacity = alt.condition(pick, alt.value(1.0), alt.value(0.12))
    return alt.Color("method:N", title=None, scale=scale, legend=legend()), pick, opacity


def dashes(points: Numbers, looks: dict[str, Series]) -> dict[str, Any]:
    """Dashes for the ratio, where there is more than one; what was asked for none is drawn through."""
    alt = altair()
    found = [looks[label] for label in dict.fromkeys(point["label"] for point in points)]
    shown = {look.ratio: list(look.dash) for look in found if look.ratio}
    if len(shown) < 2:
        return {}
    scale = alt.Scale(domain=[*shown, ""], range=[*shown.values(), [1, 0]])
    below = legend("bottom", values=list(shown))
    return {"strokeDash": alt.StrokeDash("ratio:N", title=None, scale=scale, legend=below)}


def legend(orient: str = "top", **options: Any) -> Any:
    """Above or below the chart, where it takes no width."""
    alt = altair()
    return alt.Legend(orient=orient, symbolStrokeWidth=2, labelLimit=200, **options)


def tip(field: str, title: str, form: str | None = None) -> Any:
    """A line of a tooltip."""
    alt = altair()
    return alt.Tooltip(field, title=title) if form is None else alt.Tooltip(field, title=title, format=form)
