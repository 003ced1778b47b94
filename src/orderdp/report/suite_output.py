"""What a suite measured: tables in the terminal and as markdown, and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from orderdp.errors import ConfigError
from orderdp.replacing import write_text
from orderdp.report.charts import save
from orderdp.report.suite_charts import draw
from orderdp.report.tables import show
from orderdp.workbench.suites import Suite, Table
from orderdp.workbench.suites.measured import PartResults
from orderdp.workbench.suites.trying import Trial

__all__ = ["markdown", "show_suite", "show_trials", "table_lines"]


def show_suite(
    suite: Suite, scale: str, results: Sequence[PartResults], out: Path, ending: str, say: Callable[[str], None]
) -> None:
    """Prints the tables and writes them and the figure.

    Args:
        suite: Which.
        scale: At which scale it was run.
        results: What was measured.
        out: Where files go.
        ending: The kind of figure: png, svg or html.
        say: Where sentences go.
    """
    tables = suite.tables(suite, results)
    for table in tables:
        show(table.title, table.header, table.rows, numbers=True)
        for note in table.notes:
            say(f"  {note}")
    differs = suite.scales[scale].differs
    say(f"  At this scale: {differs}")
    page = out / f"{suite.id}-{scale}.md"
    write_text(page, markdown(suite, scale, tables))
    say(f"The table is in {page}.")
    try:
        path = out / f"{suite.id}-{scale}.{ending}"
        save(draw(suite, results), path)
        say(f"The figure is {path}.")
    except ConfigError as error:  # figures need an extra; the table does not
        say(f"No figure was drawn: {error}")


def markdown(suite: Suite, scale: str, tables: Sequence[Table]) -> str:
    """The tables for a page."""
    lines = [f"# {suite.id}, scale {scale}", "", f"{_sentence(suite.shows)} {suite.scales[scale].differs}", ""]
    return "\n".join(lines + table_lines(tables))


def table_lines(tables: Iterable[Table]) -> list[str]:
    """Tables with what is to be said about them, as lines of markdown."""
    lines = []
    for table in tables:
        lines += [f"**{table.title}**", "", _line(table.header), _line(["---"] * len(table.header))]
        lines += [_line(row) for row in table.rows]
        lines += ["", *[f"- {note}" for note in table.notes], ""]
    return lines


def show_trials(suite: Suite, trials: Iterable[Trial], say: Callable[[str], None]) -> None:
    """Prints what the first steps took, each as soon as it is known."""
    n = 0
    for part, planned, steps, seconds in trials:
        n += 1
        base = part.base
        say(
            f"  {base['data']}, {base['model']}, {base.get('optimiser', 'sgd')}, {planned.method.name}: "
            f"{steps} step{'' if steps == 1 else 's'}, {seconds:.3g} s a step"
        )
    say(f"{suite.id}: the first steps of {n} kinds of runs went well. Nothing was kept.")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.strip() or " " for cell in cells) + " |"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
