"""Tables of accuracy and cost, measured numbers above those of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from orderdp.experiments.statistics import Difference, Row
from orderdp_paper.printed import Number
from orderdp_paper.suite import PartResults, Suite, Table, fewer_seeds, really_saved

__all__ = [
    "NOTHING",
    "accuracy_cell",
    "accuracy_tables",
    "cost_tables",
    "duration",
    "lossless_tables",
    "paper_name",
    "percent",
    "spread",
    "static_tables",
    "title",
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
    cards = "The paper's hours are those of two cards together; one card takes twice as many."
    notes = (paper_name(suite, group), cards, *fewer_seeds(part, paired=True), *really_saved(part))
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
