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
from orderdp.workbench.suites.preparing import BROUGHT
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
    differs = _differs(suite, scale, results)
    say(f"  At this scale: {differs}")
    page = out / f"{suite.id}-{scale}.md"
    write_text(page, markdown(suite, scale, tables, differs))
    say(f"The table is in {page}.")
    try:
        path = out / f"{suite.id}-{scale}.{ending}"
        save(draw(suite, results), path)
        say(f"The figure is {path}.")
    except ConfigError as error:  # figures need an extra; the table does not
        say(f"No figure was drawn: {error}")


def markdown(suite: Suite, scale: str, tables: Sequence[Table], differs: str) -> str:
    """The tables for a page, under a sentence on how this is not what the paper did."""
    lines = [f"# {suite.id}, scale {scale}", "", f"{_sentence(suite.shows)} {differs}", ""]
    return "\n".join(lines + table_lines(tables))


def _differs(suite: Suite, scale: str, results: Sequence[PartResults]) -> str:
    """How this is not what the paper did; what --data has put in place of the suite's data is said first."""
    planned, used = suite.scales[scale], [str(part.part.base["data"]) for part in results]
    replaced = [name for name in planned.data if name not in used and name not in BROUGHT]
    own = dict.fromkeys(name for name in used if name not in planned.data)
    if not replaced:
        return planned.differs
    return f"On {' and '.join(own)}, in place of {' and '.join(replaced)}. As planned: {planned.differs}"


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
    n = failed = 0
    for part, planned, steps, seconds, reason in trials:
        n, failed = n + 1, failed + (reason is not None)
        base = part.base
        say(
            f"  {base['data']}, {base['model']}, {base.get('optimiser', 'sgd')}, {planned.method.name}: "
            f"{steps} step{'' if steps == 1 else 's'}, "
            + (f"{seconds:.3g} s a step" if reason is None else f"then it failed: {reason}")
        )
    went = f"went well, those of {failed} failed" if failed else "went well"
    say(f"{suite.id}: the first steps of {n - failed} kinds of runs {went}. Nothing was kept.")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.strip() or " " for cell in cells) + " |"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
