"""``orderdp report``: the page, its table as markdown, its charts as files."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from orderdp.naming import checked_name
from orderdp.report.charts import save
from orderdp.report.page import write_report
from orderdp.report.run_charts import charts
from orderdp.report.run_facts import counted_out, in_percent, metric_name, task_name, tasks
from orderdp.report.run_tables import Cell, Column, columns, headline
from orderdp.workbench.reading import Run, read_runs, with_further_tests
from orderdp.workbench.statistics import Row, compare

__all__ = ["export_charts", "markdown_of", "markdown_report", "report_command"]


def report_command(
    directory: str | os.PathLike[str],
    *,
    say: Callable[[str], None],
    markdown: bool = False,
    open_page: bool = False,
    charts: str | os.PathLike[str] | None = None,
    chart_format: str = "png",
) -> None:
    """Does what the command line asks for.

    Args:
        directory: Where ``orderdp train`` or ``orderdp compare`` wrote to.
        say: Where lines go.
        markdown: Say verdict and table as markdown, and write no page.
        open_page: Show the page in a browser.
        charts: A folder that the charts go to as well.
        chart_format: "png" or "svg".
    """
    if charts is not None:
        for path in export_charts(directory, charts, chart_format):
            say(os.fspath(path))
    if markdown:
        say(markdown_report(directory))
        return
    path = write_report(directory)
    by_task = tasks(compare(with_further_tests(read_runs(directory))))
    for rows in by_task:
        say((f"{task_name(rows, by_task)}: " if len(by_task) > 1 else "") + headline(rows)[0])
    say(os.fspath(path))
    if open_page and not webbrowser.open(path.resolve().as_uri()):
        say("No browser was found to show it in; open the file yourself.")


def markdown_report(directory: str | os.PathLike[str]) -> str:
    """Verdict and table of all runs of a folder, as GitHub shows them."""
    return markdown_of(with_further_tests(read_runs(directory)))


def markdown_of(runs: list[Run], *, times: bool = True) -> str:
    """The same of runs that were read already; without times where a machine had other work to do."""
    by_task = tasks(compare(runs))
    parts = []
    for rows in by_task:
        title = f"### {_escaped(task_name(rows, by_task))}"
        first, *more = map(_escaped, headline(rows, times=times))
        shown = columns(in_percent(metric_name(rows)), times=times)
        troubled = [f"- {run['state']}: {_escaped(run['text'])}" for run in counted_out(rows)]
        parts += [title, " ".join([f"**{first}**", *more]), _table(rows, shown), "\n".join(troubled)]
    return "\n\n".join(part for part in parts if part)


def export_charts(directory: str | os.PathLike[str], out: str | os.PathLike[str], format: str = "png") -> list[Path]:
    """Writes the page's charts as files of their own.

    Args:
        directory: Where ``orderdp train`` or ``orderdp compare`` wrote to.
        out: The folder they go to.
        format: "png" or "svg".

    Returns:
        The files.
    """
    checked_name(format, ("png", "svg"), "format of charts")
    by_task = tasks(compare(with_further_tests(read_runs(directory))))
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
    lines += [[_cell(column.cell(row)) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: Cell) -> str:
    return _escaped(f"{cell.text} ({cell.detail})" if cell.detail else cell.text)


def _escaped(text: str) -> str:
    """Names as they are, whatever they are made of."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
