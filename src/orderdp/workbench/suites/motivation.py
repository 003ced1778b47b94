"""The paper's first figure: how accuracy and the size of the gradient move during training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from orderdp.workbench.reading import Run
from orderdp.workbench.suites.measured import PartResults
from orderdp.workbench.suites.suite import Suite, Table
from orderdp.workbench.suites.tables import NOTHING, paper_name, spread, title

__all__ = ["correlation", "motivation_tables", "norms", "rolling_deviation"]


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's, or None where it is not defined.

    >>> correlation([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)])
    -1.0
    """
    if len(pairs) < 2:
        return None
    try:
        return round(statistics.correlation([a for a, _ in pairs], [b for _, b in pairs]), 12)
    except statistics.StatisticsError:  # one of them does not move
        return None


def rolling_deviation(values: Sequence[float], window: int = 5) -> list[float]:
    """Standard deviation of each value and those before it, as many as the window holds.

    >>> rolling_deviation([1.0, 1.0, 3.0], window=2)
    [0.0, 0.0, 1.4142135623730951]
    """
    parts = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [statistics.stdev(part) if len(part) > 1 else 0.0 for part in parts]


def norms(run: Run) -> list[tuple[dict[str, Any], float]]:
    """The epochs whose gradient norm was recorded, with it."""
    found = [(epoch, (epoch.get("diagnostics") or {}).get("gradient_norm")) for epoch in run.epochs]
    return [(epoch, float(norm)) for epoch, norm in found if isinstance(norm, int | float) and math.isfinite(norm)]


def motivation_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """How accuracy and gradient norm go together, and how large and how restless the norm is."""
    return [_table(suite, part) for part in parts]


def _table(suite: Suite, part: PartResults) -> Table:
    rows: list[tuple[str, ...]] = []
    for result in part.results:
        found = [norms(run) for run in result.row.runs]
        together = [correlation(_pairs(each)) for each in found]
        sizes = [statistics.fmean(norm for _, norm in each) for each in found if each]
        restless = [statistics.fmean(rolling_deviation([norm for _, norm in each])) for each in found if each]
        rows.append((result.method.name, _over_runs(together), _over_runs(sizes), _over_runs(restless)))
        printed = suite.printed.number("correlation", result.method.name, "accuracy with gradient norm")
        if printed is not None:
            rows.append(("  paper", f"{printed.value:.2f}", "", ""))
    header = ("", "correlation with accuracy", "gradient norm", "rolling spread")
    notes = (
        paper_name(suite, part.part.beside),
        "The correlation is Pearson's, over epochs. The rolling spread is over five epochs.",
    )
    return Table(title(suite, part), header, rows, notes)


def _pairs(found: Sequence[tuple[dict[str, Any], float]]) -> list[tuple[float, float]]:
    return [(float(epoch["metric"]), norm) for epoch, norm in found if isinstance(epoch.get("metric"), int | float)]


def _over_runs(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return NOTHING
    return spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None)
