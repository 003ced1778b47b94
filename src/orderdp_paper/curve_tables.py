"""Tables of the figures: the points in numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, zip_longest

from orderdp.diagnostics import accuracy_correlation, rolling_spread, time_to_accuracy
from orderdp.diagnostics.curves import value_of
from orderdp.experiments.records import Run
from orderdp.experiments.statistics import Row
from orderdp_paper.suite import PartResults, Result, Suite, Table, fewer_seeds, really_saved
from orderdp_paper.tables import NOTHING, accuracy_cell, duration, paper_name, percent, spread, title

__all__ = [
    "ablation_tables",
    "is_decomposition",
    "mean_unrest",
    "motivation_tables",
    "norms",
    "ratio_tables",
    "time_to_accuracy_tables",
    "unrest",
    "usage_counts",
    "usage_tables",
]


_TARGETS = (0.95, 0.98, 0.99)


def ratio_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of accuracy and time of each method at each ratio."""
    tables = []
    for part in parts:
        rows: list[tuple[str, ...]] = []
        for result in part.results:
            rows.append(_cost_row(result, f"{result.method.name} {_asked(result)}".strip()))
        limit = suite.printed.number(part.part.beside, "InfoBatch", "largest ratio reached")
        notes = [_claim(suite, part), *fewer_seeds(part, paired=True)]
        if limit is not None:
            own = max((result.row.saved or 0.0 for result in part.of("InfoBatch")), default=0.0)
            notes.append(f"The most InfoBatch left out: {own:.1%} here, {limit.value:g} % in the paper.")
        header = ("", "accuracy % (to full)", "samples saved", "time saved", "time")
        tables.append(Table(title(suite, part), header, rows, tuple(notes)))
    return tables


def ablation_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of several pool sizes at one ratio, then of several ratios."""
    tables = []
    for part in parts:
        for kind, name in ((True, "exploration x exploitation"), (False, "ratio")):
            shown = [result for result in part.results if is_decomposition(result) == kind]
            rows = [_cost_row(result, f"{_asked(result)} {result.method.name}".strip()) for result in shown]
            header = (name, "accuracy % (to full)", "samples saved", "time saved", "time")
            notes = (_claim(suite, part), *fewer_seeds(replace(part, results=tuple(shown)), paired=True))
            tables.append(Table(title(suite, part), header, rows, notes))
    return tables


def is_decomposition(result: Result) -> bool:
    """Whether the method sets the size of its pool."""
    return "exploration" in result.method.parameters


def _cost_row(result: Result, name: str) -> tuple[str, ...]:
    row = result.row
    return (name, accuracy_cell(row), percent(row.saved), percent(row.saved_time), duration(row.seconds))


def _asked(result: Result) -> str:
    return "" if result.ratio is None else f"{result.column} %"


def _claim(suite: Suite, part: PartResults) -> str:
    printed = suite.printed
    numbers = "" if printed.values else ", without numbers"
    return f"paper: {printed.claim} ({part.part.beside}, {printed.setting}; {printed.source}{numbers})."


# -- usage ----------------------------------------------------------------------------------------------------------


def usage_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of how many samples were never used, and how often the others were used."""
    rows = [
        (f"{_asked(result)} {result.method.name}, {part.part.base['epochs']} epochs", *_usage_cells(result.row))
        for part in parts
        for result in part.results
        if usage_counts(result.row)
    ]
    header = ("left out", "never used", "least", "median", "most", "mean")
    several = "Over all seeds; the number of those never used is that of the seed with the most."
    notes = [several] if any(len(result.row.runs) > 1 for part in parts for result in part.results) else []
    notes += [_claim(suite, parts[0]), *(note for part in parts for note in fewer_seeds(part))]
    return [Table(title(suite, parts[0]), header, rows, tuple(notes))]


def _usage_cells(row: Row) -> tuple[str, ...]:
    each, counts = _usage_by_run(row), usage_counts(row)
    n = max(map(sum, each))
    used = [times for times, samples in enumerate(counts) if samples]
    mean = sum(times * samples for times, samples in enumerate(counts)) / sum(counts)
    never = max(found[0] for found in each)
    return f"{never:,} of {n:,}", str(used[0]), _median(counts), str(used[-1]), f"{mean:.2f}"


def usage_counts(row: Row) -> list[int]:
    """Return how many samples were used 0, 1, 2, ... times, summed over all runs."""
    return [sum(counts) for counts in zip_longest(*_usage_by_run(row), fillvalue=0)]


def _usage_by_run(row: Row) -> list[list[int]]:
    found = [(run.summary or {}).get("usage") or [] for run in row.runs]
    return [[int(count) for count in counts] for counts in found if counts]


def _median(counts: Sequence[int]) -> str:
    half = sum(counts) / 2
    return str(next(times for times, below in enumerate(accumulate(counts)) if below >= half))


# -- time to accuracy -----------------------------------------------------------------------------------------------


def time_to_accuracy_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of the time until a run is close to the final accuracy of full data."""
    return [_race(suite, part) for part in parts]


def _race(suite: Suite, part: PartResults) -> Table:
    full = part.full
    if full is None or full.metric is None:
        notes = ("There is no finished run of full data to set the target.", *fewer_seeds(part))
        return Table(title(suite, part), ("",), [], notes)
    targets = [share * full.metric for share in _TARGETS]
    rows: list[tuple[str, ...]] = []
    for result in part.results:
        times = [[_seconds_to(run, target) for run in result.row.runs] for target in targets]
        name = f"{result.method.name} {_asked(result)}".strip()
        rows.append((name, *map(_reached, times), accuracy_cell(result.row)))
    header = ("time to reach", *(f"{target:.2f} %" for target in targets), "at the end (to full)")
    shares = ", ".join(f"{share:.0%}" for share in _TARGETS)
    notes = (f"The targets are {shares} of what full data ends at.", _claim(suite, part))
    return Table(title(suite, part), header, rows, (*notes, *fewer_seeds(part, paired=True), *really_saved(part)))


def _seconds_to(run: Run, target: float) -> float | None:
    proxy_seconds = float((run.summary or {}).get("proxy_seconds") or 0.0)
    found = time_to_accuracy(run.epochs, target, proxy_seconds=proxy_seconds)
    return None if found is None else found.seconds


def _reached(times: Sequence[float | None]) -> str:
    found = [time for time in times if time is not None]
    if not found:
        return "never"
    some = "" if len(found) == len(times) else f" ({len(found)} of {len(times)})"
    return f"{duration(statistics.fmean(found))}{some}"


_WINDOW = 3  # epochs


def norms(run: Run) -> list[tuple[int, float]]:
    """Return (epoch, gradient norm) for each epoch that recorded the norm."""
    found = [(int(epoch["epoch"]), value_of(epoch, "gradient_norm")) for epoch in run.epochs]
    return [(epoch, norm) for epoch, norm in found if norm is not None]


def mean_unrest(runs: Sequence[Run]) -> list[tuple[int, float]]:
    """Return the `unrest` of several runs, averaged per epoch."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for epoch, value in unrest(run):
            found.setdefault(epoch, []).append(value)
    return [(epoch, statistics.fmean(values)) for epoch, values in sorted(found.items())]


def unrest(run: Run) -> list[tuple[int, float]]:
    """Return (last epoch, spread of the gradient norm) for each window of epochs."""
    found = norms(run)
    values = rolling_spread([norm for _, norm in found], _WINDOW)
    return [(epoch, float(value)) for (epoch, _), value in zip(found[_WINDOW - 1 :], values, strict=True)]


def motivation_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of the correlation of accuracy and gradient norm, and of the size and spread of the norm."""
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
