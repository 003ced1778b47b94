"""The page: one file with everything in it, which loads nothing and runs nothing that came with the data."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from orderdp.replacing import write_text
from orderdp.report.charts import altair
from orderdp.report.run_charts import Chart, charts
from orderdp.report.run_facts import (
    as_title,
    commands,
    counted_out,
    in_percent,
    is_further_test,
    metric_name,
    run_list,
    shared_settings,
    task_name,
    tasks,
)
from orderdp.report.run_tables import columns, headline
from orderdp.report.series import series
from orderdp.workbench.reading import Run, read_runs, with_further_tests
from orderdp.workbench.statistics import Row, compare

__all__ = ["PAGE_NAME", "page", "write_report"]

PAGE_NAME = "report.html"


def write_report(directory: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Writes the page about all runs of a folder.

    Args:
        directory: Where ``orderdp train`` or ``orderdp compare`` wrote to.
        out: The file to write, or ``report.html`` in that folder.

    Returns:
        Where the page is.
    """
    directory = Path(directory)
    text = page(read_runs(directory), os.fspath(directory))
    path = directory / PAGE_NAME if out is None else Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def page(runs: list[Run], directory: str) -> str:
    """The page as text."""
    altair()  # first, for its error that says what to install
    import jinja2

    specs: dict[str, Any] = {}
    by_task = tasks(compare(with_further_tests(runs)))
    shown = [_task(rows, by_task, f"chart-{number}", specs) for number, rows in enumerate(by_task, start=1)]
    names = [task["name"] for task, rows in zip(shown, by_task, strict=True) if not is_further_test(rows)]
    scripts = [_drawing_library(), _asset("page.js")]
    environment = jinja2.Environment(autoescape=True, trim_blocks=True)
    return environment.from_string(_asset("page.html")).render(
        title=f"Comparison of {', '.join(names)}",
        directory=directory,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        tasks=shown,
        runs=run_list(runs),
        commands=commands(runs),
        shared=shared_settings(runs),
        css=_asset("page.css"),
        specs=_inside_script(json.dumps(specs, allow_nan=False, separators=(",", ":"))),
        scripts=scripts,
        digests=[_digest(script) for script in scripts],
    )


def _task(rows: list[Row], by_task: list[list[Row]], prefix: str, specs: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of one task; the charts' descriptions are added to `specs`."""
    looks = series(rows)
    metric = metric_name(rows)
    shown = columns(in_percent(metric))
    return {
        "name": task_name(rows, by_task),
        "headline": headline(rows),
        "metric": as_title(metric),
        "columns": shown,
        "rows": [{"colour": looks[row.label].colour, "cells": [column.cell(row) for column in shown]} for row in rows],
        "troubled": counted_out(rows),
        "charts": [_figure(chart, prefix, specs) for chart in charts(rows, width="container")],
    }


def _figure(chart: Chart, prefix: str, specs: dict[str, Any]) -> dict[str, str]:
    if chart.chart is None:
        return {"id": "", "title": chart.title, "text": chart.text}
    name = f"{prefix}-{len(specs)}-{chart.name}"
    specs[name] = chart.chart.to_dict()
    return {"id": name, "title": chart.title, "text": chart.text}


def _inside_script(text: str) -> str:
    r"""JSON or JavaScript that cannot end the element it stands in, whatever the strings in it say.

    >>> _inside_script('"</script>"')
    '"\\u003c/script>"'
    """
    return text.replace("</", "\\u003c/").replace("<!--", "\\u003c!--")


@cache
def _drawing_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    return _inside_script(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _digest(script: str) -> str:
    """What the page's own rules name a script by; a script that is not named does not run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files("orderdp.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")
