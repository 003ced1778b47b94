"""Tables of the suites: accuracy and cost, values by stages of training, and the points of the figures in numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, zip_longest
from typing import NamedTuple

from orderdp.diagnostics import accuracy_correlation, rolling_spread, time_to_accuracy
from orderdp.diagnostics.kept_sets import value_of
from orderdp.experiments.records import Run
from orderdp.experiments.statistics import Difference, Row
from orderdp_paper.suite import Number, PartResults, Result, Suite, Table, fewer_seeds, really_saved

__all__ = [
    "FIFTHS",
    "NOTHING",
    "QUARTERS",
    "Stage",
    "StagePoint",
    "ablation_tables",
    "accuracy_cell",
    "accuracy_tables",
    "cost_tables",
    "duration",
    "is_decomposition",
    "lossless_tables",
    "mean_unrest",
    "motivation_tables",
    "norms",
    "over_stages",
    "paper_name",
    "percent",
    "ratio_tables",
    "spread",
    "stability_points",
    "stability_tables",
    "stage_points",
    "stage_tables",
    "static_tables",
    "time_to_accuracy_tables",
    "title",
    "unrest",
    "usage_counts",
    "usage_tables",
]


NOTHING = "–"  # noqa: RUF001


_PAPER = "  paper"


_HUGE = 1e5  # gradient norm at which training has broken down


def accuracy_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return one table per part: methods by ratios; accuracy, and in brackets the difference to full data."""
    return [_accuracy_table(suite, part) for part in parts]


def _accuracy_table(suite: Suite, part: PartResults) -> Table:
    ratios = sorted({result.ratio for result in part.results if result.ratio is not None})
    columns = [f"{100 * ratio:g}" for ratio in ratios]
    group = part.part.beside
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(result.method.name for result in part.results):
        rows.append((name, *(accuracy_cell(part.find(name, ratio)) for ratio in ratios)))
        printed = [suite.printed.number(group, name, column) for column in columns]
        if any(printed):
            full = [suite.printed.number(group, "Full data", column) for column in columns]
            rows.append((_PAPER, *map(_printed_accuracy, printed, full)))
    header = ("", *(f"{column} % left out" for column in columns))
    notes = ("Accuracy in %, and in brackets the points gained against full data.", paper_name(suite, group))
    return Table(title(suite, part), header, rows, (*notes, *fewer_seeds(part, paired=True), *really_saved(part)))


def cost_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of accuracy and time of each method at one ratio."""
    return [_cost_table(suite, part) for part in parts]


def _cost_table(suite: Suite, part: PartResults) -> Table:
    rows: list[tuple[str, ...]] = []
    group = part.part.beside
    for result in part.results:
        row, name = result.row, result.method.name
        rows.append((name, accuracy_cell(row), duration(row.seconds), percent(row.saved_time), percent(row.saved)))
        accuracy, hours = (suite.printed.number(group, name, column) for column in ("accuracy", "hours"))
        full, full_hours = (suite.printed.number(group, "Full data", column) for column in ("accuracy", "hours"))
        if accuracy and hours and full_hours:
            saved = "" if name == "Full data" else percent(1 - hours.value / full_hours.value)
            rows.append((_PAPER, _printed_accuracy(accuracy, full), f"{hours.value:g} h", saved, ""))
    header = ("", "accuracy % (to full)", "time", "time saved", "samples saved")
    hours_note = "The paper's hours are those of two GPUs together; one GPU takes twice as many."
    notes = (paper_name(suite, group), hours_note, *fewer_seeds(part, paired=True), *really_saved(part))
    return Table(title(suite, part), header, rows, notes)


def lossless_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return one table of all parts: each method at the ratio at which the paper found no loss."""
    rows: list[tuple[str, ...]] = []
    notes = [f"paper: {suite.printed.setting} ({suite.printed.source})."]
    for part in parts:
        group = part.part.beside
        rows.append((f"{group}:", "", "", ""))
        recipe = f"{part.title}, {part.part.base.get('optimizer', 'sgd')}, {_seeds(part.seeds)}"
        verdicts = [f"{result.method.name}: {result.row.verdict}" for result in part.results[1:]]
        notes.append(" ".join([f"{group}: here {recipe}. {'; '.join(verdicts)}.", *fewer_seeds(part, paired=True)]))
        for result in part.results:
            row = result.row
            rows.append((result.method.name, accuracy_cell(row), _interval(row.against_full), percent(row.saved)))
            found = [suite.printed.number(group, result.method.name, column) for column in ("accuracy", "saved")]
            if found[0] and found[1]:
                full = suite.printed.number(group, "Full data", "accuracy")
                rows.append((_PAPER, _printed_accuracy(found[0], full), "", f"{found[1].value:.1f}%"))
    header = ("", "accuracy % (to full)", "95 % interval", "samples saved")
    return [Table(f"{suite.id}: {suite.shows}", header, rows, tuple(notes))]


# -- words ----------------------------------------------------------------------------------------------------------


def title(suite: Suite, part: PartResults) -> str:
    """Return the title of a part's table."""
    return f"{suite.id}, here: {part.title}, {_seeds(part.seeds)}"


def paper_name(suite: Suite, group: str) -> str:
    """Return the explanation of the lines called "paper"."""
    return f"paper: {group}, {suite.printed.setting} ({suite.printed.source})."


def spread(value: float, deviation: float | None, digits: int = 2) -> str:
    """Format a number with its standard deviation.

    >>> spread(90.704, 0.118), spread(0.5, None), spread(1.2e8, 2.1e8)
    ('90.70±0.12', '0.50', '1.2e+08±2.1e+08')
    """
    if abs(value) >= _HUGE:
        return f"{value:.1e}" + ("" if deviation is None else f"±{deviation:.1e}")
    return f"{value:.{digits}f}" + ("" if deviation is None else f"±{deviation:.{digits}f}")


def accuracy_cell(row: Row | None) -> str:
    """Format accuracy with its standard deviation, and in brackets the difference to full data."""
    if row is None:
        return NOTHING
    if row.metric is None:
        return row.verdict or NOTHING
    return spread(row.metric, row.deviation) + _gap(row.against_full)


def _interval(difference: Difference | None) -> str:
    if difference is None or difference.low is None or difference.high is None:
        return ""
    return f"{difference.low:+.2f} to {difference.high:+.2f}"


def _gap(difference: Difference | None) -> str:
    return "" if difference is None else f" ({difference.mean:+.2f})"


def _printed_accuracy(number: Number | None, full: Number | None) -> str:
    if number is None:
        return NOTHING
    gap = "" if full is None or number is full else f" ({number.value - full.value:+.1f})"
    return spread(number.value, number.deviation, 1) + gap


def duration(seconds: float | None) -> str:
    """Format a time in a suitable unit.

    >>> duration(75), duration(5400)
    ('75 s', '1.5 h')
    """
    if seconds is None:
        return NOTHING
    value, unit = (
        (seconds, "s") if seconds < 600 else (seconds / 60, "min") if seconds < 5000 else (seconds / 3600, "h")
    )
    return f"{value:.3g} {unit}"


def percent(share: float | None) -> str:
    """Format a fraction in percent."""
    return NOTHING if share is None else f"{share:.1%}"


def _seeds(number: int) -> str:
    return f"{number} seed{'' if number == 1 else 's'}"


_HEADER = ("", "left out", "choosing", "training", "together", "time saved")


_NOTES = (
    "Choosing is the proxy, trained as far as the method needs it and recorded, and the choice itself. Methods share a "
    "proxy; each is charged for it as if it were alone.",
    "Time saved is of that of full data; below 0 the method takes longer than training on everything.",
)


def static_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of accuracy and of costs for each part."""
    return [table for part in parts for table in (*accuracy_tables(suite, [part]), _static_cost_table(suite, part))]


def _static_cost_table(suite: Suite, part: PartResults) -> Table:
    rows = [
        (result.method.name, result.column and f"{result.column} %", *_costs(result.row))
        for result in part.results
        if result.row.seconds is not None
    ]
    notes = (*_NOTES, *fewer_seeds(part, paired=True))
    return Table(f"{suite.id}, what choosing cost here: {part.title}", _HEADER, rows, notes)


def _costs(row: Row) -> tuple[str, ...]:
    """Return the costs of a row, means over seeds."""
    together = row.seconds or 0.0
    choosing = statistics.fmean((run.summary or {}).get("proxy_seconds") or 0.0 for run in row.runs)
    return (
        duration(choosing) if choosing else NOTHING,
        duration(together - choosing),
        duration(together),
        "" if row.policy == "full" else percent(row.saved_time),
    )


class Stage(NamedTuple):
    """A stage of training, from after one fraction of the epochs up to another; only the last epoch if both are 1."""

    name: str
    begin: float
    end: float

    def holds(self, epoch: int, epochs: int) -> bool:
        """Whether an epoch, counted from 1, is in the stage."""
        if self.begin == self.end:
            return epoch == epochs
        return self.begin * epochs + 1e-9 < epoch <= self.end * epochs + 1e-9


def _stages(*ends: int) -> tuple[Stage, ...]:
    pairs = zip((0, *ends), ends, strict=False)
    return (*(Stage(f"{a}-{b}%", a / 100, b / 100) for a, b in pairs), Stage("100%", 1.0, 1.0))


#: The paper's stages: for kept sets and directions, and for stability.
FIFTHS = _stages(20, 40, 60, 80, 100)


QUARTERS = _stages(30, 50, 70, 100)


def over_stages(row: Row, name: str, stages: Sequence[Stage]) -> list[Number | None]:
    """Return mean and standard deviation over seeds of each stage's mean; None if nothing was recorded.

    Args:
        row: Row whose runs are used.
        name: Name of the recorded value: "metric", or a diagnostic.
        stages: Stages of training.
    """
    means = [[mean for run in row.runs if (mean := _stage_mean(run, name, stage)) is not None] for stage in stages]
    return [
        Number(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None) if found else None
        for found in means
    ]


def _stage_mean(run: Run, name: str, stage: Stage) -> float | None:
    inside = [epoch for epoch in run.epochs if stage.holds(int(epoch["epoch"]), len(run.epochs))]
    numbers = [number for epoch in inside if (number := value_of(epoch, name)) is not None]
    return statistics.fmean(numbers) if numbers else None


class StagePoint(NamedTuple):
    """A cell of a stage table, measured or printed in the paper."""

    group: str
    method: str
    stage: str
    who: str
    number: Number


def stage_points(suite: Suite, part: PartResults, recorded: str) -> list[StagePoint]:
    """Return cells by ratio, method and fifth of training."""
    points = []
    for result in part.results:
        if result.ratio is None:
            continue
        name, group = result.method.name, f"{result.column} %"
        for stage, number in zip(FIFTHS, over_stages(result.row, recorded, FIFTHS), strict=True):
            points += [StagePoint(group, name, stage.name, "here", number)] if number else []
            printed = suite.printed.number(result.column, name, stage.name)
            points += [StagePoint(group, name, stage.name, "paper", printed)] if printed else []
    return points


def stage_tables(recorded: str) -> Callable[[Suite, Sequence[PartResults]], list[Table]]:
    """Return a function that builds tables of a value recorded per epoch, by ratio and method."""

    def tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
        return [_stage_table(suite, part, stage_points(suite, part, recorded), FIFTHS, recorded, 3) for part in parts]

    return tables


def stability_points(suite: Suite, part: PartResults) -> list[StagePoint]:
    """Return cells of accuracy and gradient norm by method and stage."""
    points = []
    for group, recorded in (("accuracy", "metric"), ("gradient norm", "gradient_norm")):
        for result in part.results:
            for stage, number in zip(QUARTERS, over_stages(result.row, recorded, QUARTERS), strict=True):
                name = result.method.name
                points += [StagePoint(group, name, stage.name, "here", number)] if number else []
                printed = suite.printed.number(group, name, stage.name)
                points += [StagePoint(group, name, stage.name, "paper", printed)] if printed else []
    return points


def stability_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of accuracy and gradient norm by stage."""
    return [_stage_table(suite, part, stability_points(suite, part), QUARTERS, "by stage", 2) for part in parts]


def _stage_table(
    suite: Suite, part: PartResults, points: Sequence[StagePoint], stages: Sequence[Stage], what: str, digits: int
) -> Table:
    """Build a table of measured numbers above the paper's, with as many digits as the paper prints."""
    rows: list[tuple[str, ...]] = []
    for group in dict.fromkeys(point.group for point in points):
        rows.append((f"{group}:", *[""] * len(stages)))
        for name in dict.fromkeys(point.method for point in points if point.group == group):
            for who, label in (("here", name), ("paper", "  paper")):
                own = {
                    point.stage: point.number
                    for point in points
                    if (point.group, point.method, point.who) == (group, name, who)
                }
                if own or who == "here":
                    rows.append((label, *(_cell(own.get(stage.name), digits) for stage in stages)))
    header = (what, *(stage.name for stage in stages))
    notes = [paper_name(suite, part.part.beside), *fewer_seeds(part), *really_saved(part)]
    if any(result.row.runs for result in part.results) and not any(point.who == "here" for point in points):
        notes.append("Nothing was recorded here: the runs are older than these diagnostics. Use another --out.")
    return Table(title(suite, part), header, rows, tuple(notes))


def _cell(number: Number | None, digits: int) -> str:
    return NOTHING if number is None else spread(*number, digits)


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
    return [_motivation_table(suite, part) for part in parts]


def _motivation_table(suite: Suite, part: PartResults) -> Table:
    rows: list[tuple[str, ...]] = []
    for result in part.results:
        runs, name = result.row.runs, result.method.name
        together = [accuracy_correlation(run.epochs) for run in runs]
        sizes, restless = ([_mean_value(values(run)) for run in runs] for values in (norms, unrest))
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


def _mean_value(values: Sequence[tuple[int, float]]) -> float | None:
    return statistics.fmean(value for _, value in values) if values else None


def _over_runs(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return NOTHING
    return spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None)
