"""A comparison in a terminal: a table that fits eighty columns, then the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orderdp.report.run_facts import in_percent, metric_name
from orderdp.report.run_tables import note
from orderdp.report.tables import show
from orderdp.workbench.intervals import Difference
from orderdp.workbench.statistics import Row

__all__ = ["show_comparison"]

_SAVED_AND_GAINED = ("samples", "time", "vs full", "vs fewer", "vs random")


def show_comparison(title: str, rows: Sequence[Row], say: Callable[[str], None]) -> None:
    """Prints what was measured of one task.

    Args:
        title: What was trained.
        rows: The settings that were compared.
        say: Where sentences go.
    """
    header = ("", in_percent(metric_name(rows)), *_SAVED_AND_GAINED)
    lines = [_line(row) for row in rows]
    used = [place for place, name in enumerate(header) if place == 0 or any(line[place] for line in lines)]
    shown = [[line[place] for place in used] for line in lines]
    show(f"{title}: samples and time saved, points gained", [header[place] for place in used], shown, numbers=True)
    for row in rows:
        troubled = row.failed or row.unfinished
        if troubled or row.policy != "full":
            # The table does not say over how many seeds its means are; where some are missing, that must not be missed.
            say(f"  {row.label}: {row.verdict}" + (f" ({note(row)})" if troubled else ""))


def _line(row: Row) -> list[str]:
    spread = "" if row.deviation is None else f" ± {row.deviation:.2f}"
    return [
        row.label,
        "" if row.metric is None else f"{row.metric:.2f}{spread}",
        "" if row.saved is None else f"{row.saved:.1%}",
        "" if row.saved_time is None else f"{row.saved_time:.1%}",
        *(_points(difference) for difference in (row.against_full, row.against_reduced, row.against_random)),
    ]


def _points(difference: Difference | None) -> str:
    return "" if difference is None else f"{difference.mean:+.2f}"
