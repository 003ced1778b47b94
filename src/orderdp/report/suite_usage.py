"""How often samples are used, as histograms side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from orderdp.report.charts import altair
from orderdp.report.suite_parts import by_method, panels
from orderdp.workbench.suites import Suite
from orderdp.workbench.suites.curve_tables import usage_counts
from orderdp.workbench.suites.measured import PartResults, Result

__all__ = ["usage"]

_BARS = 40


def usage(suite: Suite, parts: Sequence[PartResults]) -> Any:
    """A panel for each ratio."""
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
    """The left edge of each bar and its height, and the right edge of the last one."""
    counts = usage_counts(result.row)
    n = sum(counts) or 1
    points: list[dict[str, Any]] = []
    for start in range(0, longest, width):
        times = str(start) if width == 1 else f"{start} to {start + width - 1}"
        share = 100 * sum(counts[start : start + width]) / n
        points.append({"method": result.method.name, "edge": start - 0.5, "times": times, "share": share})
    if not points:  # no run has come to its end
        return []
    last = points[-1]
    return [*points, {**last, "edge": last["edge"] + width}]
