"""The comparison as a table and in sentences; the page and the markdown say the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orderdp.report.run_facts import as_title
from orderdp.workbench.intervals import Difference
from orderdp.workbench.statistics import Row

__all__ = ["Cell", "Column", "columns", "duration", "headline", "note"]

_NOTHING = "–"  # noqa: RUF001
_CONTROLS = ("full", "reduced", "random")


@dataclass(frozen=True)
class Cell:
    """What stands in a table: a value, something smaller beside it, and what it is sorted by."""

    text: str
    detail: str = ""
    order: float | str | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return self.text == _NOTHING and not self.detail


@dataclass(frozen=True)
class Column:
    """A title, and what it shows of a row."""

    title: str
    cell: Callable[[Row], Cell]
    numeric: bool = True


def columns(metric: str, *, times: bool = True) -> tuple[Column, ...]:
    """The table's columns.

    Args:
        metric: What it is called, with its unit.
        times: Whether time is among them; not for runs on a machine that had other work to do.
    """
    return (
        Column("Method", lambda row: Cell(row.label, note(row), row.label), numeric=False),
        Column(as_title(metric), _metric),
        Column("Samples saved", _saved),
        *([Column("Time saved", _time)] if times else []),
        Column("Against full data", lambda row: _difference(row.against_full)),
        Column("Against fewer epochs", lambda row: _difference(row.against_reduced)),
        Column("Against random", lambda row: _difference(row.against_random)),
        Column("Verdict", lambda row: Cell(row.verdict, order=row.verdict), numeric=False),
    )


def headline(rows: Sequence[Row], *, times: bool = True) -> list[str]:
    """The verdict on one task in sentences; the first is the most important.

    Args:
        rows: Of the task.
        times: Whether to speak of time, too.
    """
    if not any(row.runs for row in rows):
        failed = sum(len(row.failed) for row in rows)
        unfinished = sum(len(row.unfinished) for row in rows)
        return [f"No run has come to its end: {unfinished} unfinished, {failed} failed."]
    methods = [row for row in rows if row.policy not in _CONTROLS] or [row for row in rows if row.policy != "full"]
    judged = [row for row in methods if row.against_full is not None]
    if not judged:
        waiting = not any(row.runs for row in methods)
        what = "a method to set against full data" if waiting else "full data of the same seeds"
        return [f"Nothing can be said yet: there is no finished run of {what}."]
    best = max(judged, key=_merit)
    return [_main_sentence(best, times), *_control_sentences(best)]


def _merit(row: Row) -> tuple[int, float]:
    """Lossless before all others, and of those what saves most; else what loses least for sure.

    "No measurable loss" is no merit by itself: it is said of whatever was measured badly enough, and a loss that is
    known to be small is worth more than one that may be large.
    """
    difference = row.against_full
    if difference is None or difference.low is None:
        return 0, row.metric or 0.0
    if row.verdict == "lossless":
        return 2, row.saved or 0.0
    return 1, difference.low


def _main_sentence(row: Row, times: bool) -> str:
    difference = row.against_full
    pairs = difference.pairs if difference else 0
    result = f"{row.label} trained on {_change(row.saved, 'fewer', 'more')} samples"
    if times and row.saved_time is not None:
        result += f" and took {_change(row.saved_time, 'less', 'more')} time"
    result += f" than full data: {row.verdict}"
    if pairs > 1:
        result += f", over {pairs} seeds"
    elif difference is not None:
        result += f"; the difference is {difference.mean:+.2f} points"
    if row.failed:
        result += f"; {len(row.failed)} of its runs failed and {'is' if len(row.failed) == 1 else 'are'} not counted"
    return result + "."


def _control_sentences(row: Row) -> list[str]:
    like = "at nearly the same cost" if row.prune_ratio is None else "at the same ratio"
    controls = (
        (row.against_reduced, "full data with fewer epochs at the same cost"),
        (row.against_random, f"dynamic random {like}"),
    )
    return [f"It is {_relation(found)} {name} ({_interval(found)})." for found, name in controls if found is not None]


def _relation(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.2f} points against"
    if difference.low > 0:
        return f"{difference.mean:.2f} points better than"
    if difference.high < 0:
        return f"{-difference.mean:.2f} points worse than"
    return "not measurably different from"


def _interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return "one seed, no interval"
    return f"{difference.low:.2f} to {difference.high:.2f}"


def _change(share: float | None, down: str, up: str) -> str:
    share = share or 0.0
    return f"{100 * abs(share):.1f} % {down if share >= 0 else up}"


def duration(seconds: float | None) -> str:
    """A time in the unit that suits it.

    >>> duration(0.5), duration(75), duration(5400)
    ('0.50 s', '75.0 s', '1.50 h')
    """
    if seconds is None:
        return _NOTHING
    for limit, unit, name in ((10, 1, "2"), (120, 1, "1"), (3600, 60, "1")):
        if seconds < limit:
            return f"{seconds / unit:.{name}f} {'s' if unit == 1 else 'min'}"
    return f"{seconds / 3600:.2f} h"


def note(row: Row) -> str:
    """How many runs the row stands on, and which are not in it."""
    parts = [f"{len(row.runs)} {'seed' if len(row.runs) == 1 else 'seeds'}"]
    for count, word in ((len(row.failed), "failed"), (len(row.unfinished), "unfinished"), (row.repeated, "repeated")):
        parts += [f"{count} {word}"] if count else []
    return ", ".join(parts)


def _metric(row: Row) -> Cell:
    if row.metric is None:
        return Cell(_NOTHING)
    spread = "" if row.deviation is None else f" ± {row.deviation:.2f}"
    return Cell(f"{row.metric:.2f}{spread}", order=row.metric)


def _saved(row: Row) -> Cell:
    return Cell(_NOTHING) if row.saved is None else Cell(f"{100 * row.saved:.1f} %", order=row.saved)


def _time(row: Row) -> Cell:
    if row.saved_time is None:
        return Cell(_NOTHING, duration(row.seconds) if row.seconds is not None else "")
    return Cell(f"{100 * row.saved_time:.1f} %", duration(row.seconds), row.saved_time)


def _difference(difference: Difference | None) -> Cell:
    if difference is None:
        return Cell(_NOTHING)
    return Cell(f"{difference.mean:+.2f}", _interval(difference), difference.mean)
