"""The paper's first figure: how accuracy and the size of the gradient move during training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from orderdp.diagnostics import accuracy_correlation, rolling_spread
from orderdp.diagnostics.curves import value_of
from orderdp.workbench.reading import Run
from orderdp.workbench.suites.measured import PartResults
from orderdp.workbench.suites.notes import fewer_seeds, really_saved
from orderdp.workbench.suites.suite import Suite, Table
from orderdp.workbench.suites.tables import NOTHING, paper_name, spread, title

__all__ = ["mean_unrest", "motivation_tables", "norms", "unrest"]

_WINDOW = 3  # epochs


def norms(run: Run) -> list[tuple[int, float]]:
    """The epochs whose gradient norm was recorded, with it."""
    found = [(int(epoch["epoch"]), value_of(epoch, "gradient_norm")) for epoch in run.epochs]
    return [(epoch, norm) for epoch, norm in found if norm is not None]


def mean_unrest(runs: Sequence[Run]) -> list[tuple[int, float]]:
    """The `unrest` of several runs, averaged epoch by epoch."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for epoch, value in unrest(run):
            found.setdefault(epoch, []).append(value)
    return [(epoch, statistics.fmean(values)) for epoch, values in sorted(found.items())]


def unrest(run: Run) -> list[tuple[int, float]]:
    """The spread of the gradient norm over some epochs, with the last of them."""
    found = norms(run)
    values = rolling_spread([norm for _, norm in found], _WINDOW)
    return [(epoch, float(value)) for (epoch, _), value in zip(found[_WINDOW - 1 :], values, strict=True)]


def motivation_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """How accuracy and gradient norm go together, and how large and how restless the norm is."""
    return [_table(suite, part) for part in parts]


def _table(suite: Suite, part: PartResults) -> Table:
    rows: list[tuple[str, ...]] = []
    for result in part.results:
        runs, name = result.row.runs, result.method.name
        together = [accuracy_correlation(run.epochs) for run in runs]
        sizes, restless = ([_mean(values(run)) for run in runs] for values in (norms, unrest))
        rows.append((name, _over_runs(together), _over_runs(sizes), _over_runs(restless)))
        printed = suite.printed.number("correlation", name, "accuracy with gradient norm")
        if printed is not None:
            rows.append(("  paper", f"{printed.value:.2f}", "", ""))
    header = ("", "correlation with accuracy", "gradient norm", "rolling spread")
    notes = (
        paper_name(suite, part.part.beside),
        f"The correlation is Pearson's, over epochs. The rolling spread is that of the norm over {_WINDOW} epochs.",
        *fewer_seeds(part),
        *really_saved(part),
    )
    return Table(title(suite, part), header, rows, notes)


def _mean(values: Sequence[tuple[int, float]]) -> float | None:
    return statistics.fmean(value for _, value in values) if values else None


def _over_runs(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return NOTHING
    return spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None)
