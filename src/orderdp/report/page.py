"""The report: one self-contained HTML file, Markdown, and charts as files."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import webbrowser
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from orderdp._files import write_text
from orderdp._validation import checked_name
from orderdp.experiments.records import Run, plain, read_runs, with_further_tests
from orderdp.experiments.statistics import Row, compare
from orderdp.report.charts import Chart, altair, charts, save, series
from orderdp.report.tables import (
    Cell,
    Column,
    caption,
    columns,
    commands,
    counted_out,
    flat_rows,
    gallery,
    headline,
    in_order,
    is_further_test,
    run_list,
    shared_settings,
    task_name,
    tasks,
)

__all__ = ["PAGE_NAME", "export_charts", "markdown_of", "markdown_report", "page", "report_command", "write_report"]


PAGE_NAME = "report.html"


# The shapes of the charts, in a square of ten units.
_OUTLINES = {
    "circle": "M0 5A5 5 0 1 0 10 5A5 5 0 1 0 0 5Z",
    "square": "M.5 .5H9.5V9.5H.5Z",
    "triangle-up": "M5 .5L10 9.5H0Z",
    "diamond": "M5 0L10 5L5 10L0 5Z",
    "cross": "M3.3 0H6.7V3.3H10V6.7H6.7V10H3.3V6.7H0V3.3H3.3Z",
    "triangle-down": "M5 9.5L0 .5H10Z",
}


def write_report(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    runs: list[Run] | None = None,
    margin: float | None = None,
) -> Path:
    """Write the page about all runs of a folder.

    Args:
        directory: Output folder of ``orderdp train`` or ``orderdp compare``, or a file of packed records.
        out: File to write; if not given, ``report.html`` in the folder, or beside the file under its name.
        runs: The runs, if they have been read.
        margin: Differences to full data up to this size count as none; see `compare`.

    Returns:
        Path of the page.
    """
    directory = Path(directory)
    text = page(read_runs(directory) if runs is None else runs, os.fspath(directory), margin)
    own = directory.with_suffix(".html") if directory.is_file() else directory / PAGE_NAME
    path = own if out is None else Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def page(runs: list[Run], directory: str, margin: float | None = None) -> str:
    """Return the page as text."""
    altair()  # first, because its error says what to install
    import jinja2

    specs: dict[str, Any] = {}
    by_task = tasks(compare(with_further_tests(runs), margin))
    shown = [_task(rows, by_task, f"chart-{number}", specs) for number, rows in enumerate(by_task, start=1)]
    names = [task["name"] for task, rows in zip(shown, by_task, strict=True) if not is_further_test(rows)]
    tables = [{"name": task["file"], "rows": flat_rows(rows)} for task, rows in zip(shown, by_task, strict=True)]
    scripts = [_drawing_library(), _asset("page.js")]
    environment = jinja2.Environment(autoescape=True, trim_blocks=True)
    environment.filters["joined"] = _joined
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
        tables=_inside_script(json.dumps(plain(tables), allow_nan=False)),
        scripts=scripts,
        outlines=_OUTLINES,
        digests=[_digest(script) for script in scripts],
    )


def _task(rows: list[Row], by_task: list[list[Row]], prefix: str, specs: dict[str, Any]) -> dict[str, Any]:
    """Return the page's content for one task; the specifications of its charts are added to `specs`."""
    looks = series(rows)
    shown = columns(rows)
    return {
        "name": task_name(rows, by_task),
        "headline": headline(rows),
        "caption": caption(rows),
        "columns": shown,
        "rows": [{"look": looks[row.label], "cells": [column.cell(row) for column in shown]} for row in in_order(rows)],
        "file": re.sub(r"[^a-z0-9]+", "-", task_name(rows, by_task).lower()).strip("-") or "comparison",
        "gallery": None if is_further_test(rows) else gallery(rows),
        "troubled": counted_out(rows),
        "charts": [_figure(chart, prefix, specs) for chart in charts(rows, width="container")],
    }


def _figure(chart: Chart, prefix: str, specs: dict[str, Any]) -> dict[str, str]:
    if chart.chart is None:
        return {"id": "", "title": chart.title, "text": chart.text}
    name = f"{prefix}-{len(specs)}-{chart.name}"
    specs[name] = chart.chart.to_dict()
    return {"id": name, "title": chart.title, "text": chart.text}


def _joined(text: str) -> str:
    """Return the text with no-break spaces before percent signs, which no line should begin with."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _inside_script(text: str) -> str:
    r"""Escape JSON or JavaScript so that no string in it can end the script element.

    >>> _inside_script('"</script>"')
    '"\\u003c/script>"'
    """
    return text.replace("</", "\\u003c/").replace("<!--", "\\u003c!--")


@cache
def _drawing_library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    return _inside_script(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _digest(script: str) -> str:
    """Return the hash of a script for the page's content security policy; a script without one does not run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files("orderdp.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def report_command(
    directory: str | os.PathLike[str],
    *,
    say: Callable[[str], None],
    runs: list[Run] | None = None,
    markdown: bool = False,
    open_page: bool = False,
    charts: str | os.PathLike[str] | None = None,
    chart_format: str = "png",
    margin: float | None = None,
) -> None:
    """Run ``orderdp report``.

    Args:
        directory: Output folder of ``orderdp train`` or ``orderdp compare``, or a file of packed records.
        say: Called with lines of output.
        runs: The runs, if they have been read.
        margin: Differences to full data up to this size count as none; see `compare`.
        markdown: Whether to print verdict and table as Markdown, and write no page.
        open_page: Whether to open the page in a browser.
        charts: Folder to which the charts are also written.
        chart_format: "png" or "svg".
    """
    runs = read_runs(directory) if runs is None else runs
    if charts is not None:
        for path in export_charts(directory, charts, chart_format, runs=runs, margin=margin):
            say(os.fspath(path))
    if markdown:
        say(markdown_of(compare(with_further_tests(runs), margin)))
        return
    path = write_report(directory, runs=runs, margin=margin)
    by_task = tasks(compare(with_further_tests(runs), margin))
    for rows in by_task:
        say((f"{task_name(rows, by_task)}: " if len(by_task) > 1 else "") + headline(rows)[0])
    say(os.fspath(path))
    if open_page and not webbrowser.open(path.resolve().as_uri()):
        say("No browser was found to show it in; open the file yourself.")


def markdown_report(directory: str | os.PathLike[str], margin: float | None = None) -> str:
    """Return verdict and table of all runs of a folder, in GitHub's Markdown.

    Args:
        directory: The folder.
        margin: Difference that is accepted, in the unit of the metric; by default that of `compare`.
    """
    return markdown_of(compare(with_further_tests(read_runs(directory)), margin))


def markdown_of(rows: Sequence[Row]) -> str:
    """Return verdict and table of rows."""
    by_task = tasks(rows)
    parts = []
    for same in by_task:
        title = f"### {_escaped(task_name(same, by_task))}"
        first, *more = map(_escaped, headline(same))
        shown = columns(same)
        troubled = [f"- {run['state']}: {_escaped(run['text'])}" for run in counted_out(same)]
        parts += [title, " ".join([f"**{first}**", *more]), _table(same, shown), "\n".join(troubled)]
    return "\n\n".join(part for part in parts if part)


def export_charts(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str],
    format: str = "png",
    *,
    runs: list[Run] | None = None,
    margin: float | None = None,
) -> list[Path]:
    """Write the page's charts as single files.

    Args:
        directory: Output folder of ``orderdp train`` or ``orderdp compare``.
        out: Folder for the files.
        format: "png" or "svg".
        runs: The runs, if they have been read.
        margin: Differences to full data up to this size count as none; see `compare`.

    Returns:
        Paths of the files.
    """
    checked_name(format, ("png", "svg"), "format of charts")
    by_task = tasks(compare(with_further_tests(read_runs(directory) if runs is None else runs), margin))
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, rows in enumerate(by_task, start=1):
        for chart in charts(rows):
            if chart.chart is not None:
                name = chart.name if len(by_task) == 1 else f"{number}-{chart.name}"
                paths.append(out / f"{name}.{format}")
                save(chart.chart.properties(title=chart.title), paths[-1])
    return paths


def _table(rows: list[Row], columns: Sequence[Column]) -> str:
    lines = [[column.title for column in columns], ["---:" if column.numeric else "---" for column in columns]]
    lines += [[_cell(column.cell(row)) for column in columns] for row in in_order(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: Cell) -> str:
    return _escaped(f"{cell.text} ({cell.detail})" if cell.detail else cell.text)


def _escaped(text: str) -> str:
    """Escape a name so that Markdown shows it unchanged."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
