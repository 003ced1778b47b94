"""Tables and figures, and how a table is printed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence

__all__ = ["show", "table_text"]


def show(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: bool = False,
    names: bool = False,
) -> None:
    """Print a table; an empty header is not printed.

    Args:
        title: Title above the table.
        header: Titles of the columns.
        rows: Cells of each row.
        numbers: Whether all but the first column hold numbers, which are not wrapped.
        names: Whether the first column holds names to type, which are not wrapped.
    """
    lines = [tuple(row) for row in rows]
    if importlib.util.find_spec("rich") is None or not sys.stdout.isatty():
        print(f"{title}\n{table_text(header, lines)}")  # noqa: T201
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape  # square brackets in cells are text, not markup
    from rich.table import Table

    table = Table(
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE,
        show_header=any(header),
        padding=(0, 1 - numbers, 0, 1),
    )
    for place, name in enumerate(header):
        whole = names if place == 0 else numbers
        table.add_column(escape(name), overflow="fold", style="bold" if place == 0 else "", no_wrap=whole)
    for line in lines:
        table.add_row(*map(escape, line))
    Console().print(table)


def table_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text: aligned for a terminal, separated by tabs where stdout is a pipe or a file.

    Args:
        header: Titles of the columns; not printed if all are empty.
        rows: Cells of each row.
    """
    shown = [tuple(line) for line in ([header, *rows] if any(header) else rows)]
    if not sys.stdout.isatty():
        return "\n".join("\t".join(" ".join(cell.split()) for cell in line) for line in shown)
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in shown
    )
