"""Tables of static methods: accuracy as of any method, then what choosing took, which dynamic methods do not pay."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from orderdp.workbench.statistics import Row
from orderdp.workbench.suites.measured import PartResults
from orderdp.workbench.suites.notes import fewer_seeds
from orderdp.workbench.suites.suite import Suite, Table
from orderdp.workbench.suites.tables import NOTHING, accuracy_tables, duration, percent

__all__ = ["static_tables"]

_HEADER = ("", "left out", "choosing", "training", "together", "time saved")
_NOTES = (
    "Choosing is the proxy, trained as far as the method needs it and recorded, and the choice itself. Methods share a "
    "proxy; each is charged for it as if it were alone.",
    "Time saved is of that of full data; below 0 the method takes longer than training on everything.",
)


def static_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """The accuracy of each part, and its costs."""
    return [table for part in parts for table in (*accuracy_tables(suite, [part]), _cost_table(suite, part))]


def _cost_table(suite: Suite, part: PartResults) -> Table:
    rows = [
        (result.method.name, result.column and f"{result.column} %", *_costs(result.row))
        for result in part.results
        if result.row.seconds is not None
    ]
    notes = (*_NOTES, *fewer_seeds(part, paired=True))
    return Table(f"{suite.id}, what choosing cost here: {part.title}", _HEADER, rows, notes)


def _costs(row: Row) -> tuple[str, ...]:
    """Means over seeds."""
    together = row.seconds or 0.0
    choosing = statistics.fmean((run.summary or {}).get("proxy_seconds") or 0.0 for run in row.runs)
    return (
        duration(choosing) if choosing else NOTHING,
        duration(together - choosing),
        duration(together),
        "" if row.policy == "full" else percent(row.saved_time),
    )
