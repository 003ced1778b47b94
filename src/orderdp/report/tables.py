"""Tables in a terminal: by rich where it is installed, plain otherwise."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence

__all__ = ["show"]


def show(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: bool = False,
    names: bool = False,
) -> None:
    """Prints a table; without a header line where all of it is empty.

    Args:
        title: Above it.
        header: Of the columns.
        rows: Their cells.
        numbers: Whether all but the first column hold numbers, which are not broken up.
        names: Whether the first column holds names to be typed, which are not broken up.
    """
    lines = [tuple(row) for row in rows]
    if importlib.util.find_spec("rich") is None:
        _show_plainly(title, header, lines)
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape  # square brackets are what was written, and no markup
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


def _show_plainly(title: str, header: Sequence[str], lines: list[tuple[str, ...]]) -> None:
    shown = [tuple(header), *lines] if any(header) else lines
    widths = [max(len(line[place]) for line in shown) for place in range(len(header))]
    print(title)  # noqa: T201
    for line in shown:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())  # noqa: T201
