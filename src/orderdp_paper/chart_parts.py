"""Parts that the figures of suites share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orderdp.report.charts import altair
from orderdp_paper import Suite
from orderdp_paper.suite import PartResults

__all__ = ["by_method", "colour_of", "heading", "panels"]


# The colors of methods, as in the report.
_COLOURS = {
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


def colour_of(method: str) -> str:
    """Return the color of a method."""
    return _COLOURS.get(method, "#3f8f8f")


def by_method(methods: Iterable[str]) -> Any:
    """Return the color encoding of methods, with a legend below."""
    alt = altair()
    names = list(methods)
    scale = alt.Scale(domain=names, range=[colour_of(name) for name in names])
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
