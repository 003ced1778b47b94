"""Tables of a comparison, for the terminal and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orderdp.experiments.config import planned_epochs
from orderdp.experiments.records import Run
from orderdp.experiments.statistics import SAME_COST, Difference, Metric, Row, more_seeds
from orderdp.report import show

__all__ = [
    "Cell",
    "Column",
    "as_title",
    "caption",
    "columns",
    "commands",
    "counted_out",
    "diverged",
    "duration",
    "flat_rows",
    "gallery",
    "headline",
    "in_order",
    "is_further_test",
    "measure",
    "note",
    "run_list",
    "shared_settings",
    "show_comparison",
    "task_name",
    "tasks",
]


def tasks(rows: Sequence[Row]) -> list[list[Row]]:
    """Group the rows by task; a run killed before it recorded its task joins the first group."""
    known = [row.task for row in rows if any(value is not None for _, value in row.task)]
    found: dict[Any, list[Row]] = {task: [] for task in known or [rows[0].task]}
    for row in rows:
        found[row.task if row.task in found else next(iter(found))].append(row)
    return list(found.values())


def task_name(rows: Sequence[Row], all_tasks: Sequence[Sequence[Row]]) -> str:
    """Return data and model, or the task that provides both, and the settings that differ from the other tasks."""
    task = dict(rows[0].task)
    others = [dict(other[0].task) for other in all_tasks]
    named = ("data", "model") if task.get("task") is None else ("task",)
    name = ", ".join(str(task[field]) for field in named if task.get(field) is not None)
    special = [
        f"{field} {task[field]}"
        for field in task
        if field not in ("data", "model", "task") and any(other[field] != task[field] for other in others)
    ]
    return ", ".join([name or "runs", *special])


def measure(rows: Sequence[Row]) -> Metric:
    """Return what the metric of a task is; accuracy if none was recorded."""
    return next((row.measure for row in rows if row.runs), Metric())


def as_title(metric: str) -> str:
    """Return the metric's name for the start of a sentence; a name with capitals keeps them.

    >>> as_title("accuracy"), as_title("mIoU")
    ('Accuracy', 'mIoU')
    """
    return metric[:1].upper() + metric[1:] if metric.islower() else metric


def is_further_test(rows: Sequence[Row]) -> bool:
    """Whether the rows show the results of a further test set."""
    return any(run.tested_on is not None for row in rows for run in row.runs)


def counted_out(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the failed and unfinished runs, in words."""
    result = []
    for row in rows:
        for run in row.failed:
            reason = run.reason if run.failed else "no final metric was recorded"
            result.append({"state": "Failed", "text": f"{row.label}, seed {run.seed}: {reason}", "id": run.id})
        for run in row.unfinished:
            result.append(
                {"state": "Unfinished", "text": f"{row.label}, seed {run.seed}: {_reached(run)}", "id": run.id}
            )
    return result


def _reached(run: Run) -> str:
    epochs = run.config.get("epochs")
    if not epochs:
        return f"{len(run.epochs)} epochs"
    planned = planned_epochs(run.config.get("policy", ""), epochs, run.config.get("prune_ratio"))
    return f"{len(run.epochs)} of {planned} epochs"


def commands(runs: Sequence[Run]) -> list[str]:
    """Return the command lines of the runs, without repetition."""
    return list(dict.fromkeys(run.command for run in runs if run.command))


def shared_settings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return the settings, versions and host facts that all runs share."""
    facts = [_facts(run) for run in runs]
    return [(name, value) for name, value in facts[0].items() if all(fact.get(name) == value for fact in facts)]


def run_list(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return each run with the facts that it does not share with all others."""
    shared = dict(shared_settings(runs))
    return [
        {
            "id": run.id,
            "state": "done" if run.done else "failed" if run.failed else "unfinished",
            "special": ", ".join(f"{name} {value}" for name, value in _facts(run).items() if name not in shared),
        }
        for run in runs
    ]


def _facts(run: Run) -> dict[str, str]:
    """Return all recorded settings, versions and host facts of a run, as a flat dict."""
    versions = {f"{name} version": value for name, value in run.versions.items()}
    facts = {**run.config, **versions, **run.host, "started": run.started}
    return {name.replace("_", " "): _text(value) for name, value in facts.items() if value not in (None, {}, [])}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_NOTHING = "–"  # noqa: RUF001


_CONTROLS = ("full", "reduced", "random")


# A saving of time that exceeds that of samples by more is doubted.
_UNEXPLAINED = 0.1


@dataclass(frozen=True)
class Cell:
    """A table cell: a value, a smaller text next to it, and a sort key."""

    text: str
    detail: str = ""
    order: float | str | None = None

    @property
    def empty(self) -> bool:
        """Whether the cell is empty."""
        return self.text == _NOTHING and not self.detail


@dataclass(frozen=True)
class Column:
    """A table column: a title, and a function from row to cell."""

    title: str
    cell: Callable[[Row], Cell]
    numeric: bool = True


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the table in which a row has a value.

    The verdict comes last, after the estimates and their intervals.
    """
    metric = measure(rows)
    found = (
        Column("Method", lambda row: Cell(row.label, note(row), row.label), numeric=False),
        Column(as_title(metric.titled), _metric),
        Column("Samples saved", _saved),
        Column("Time saved", _time),
        Column("Against full data", lambda row: _difference(row.against_full, metric)),
        Column("Against fewer epochs", lambda row: _difference(row.against_reduced, metric)),
        Column("Against random", lambda row: _difference(row.against_random, metric)),
        Column("Verdict", lambda row: Cell(_word(row), order=_word(row)), numeric=False),
    )
    return [column for column in found if not all(column.cell(row).empty for row in rows)]


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return the rows by prune ratio, full data first, and within a ratio by their difference to full data."""

    def place(row: Row) -> tuple[bool, bool, float, bool, float]:
        gained = None if row.against_full is None else row.against_full.mean
        gained = row.metric if gained is None else gained
        better = 0.0 if gained is None else gained if row.measure.higher_is_better else -gained
        without_ratio = row.prune_ratio is None
        return row.policy != "full", without_ratio, row.prune_ratio or 0.0, gained is None, -better

    return sorted(rows, key=place)


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return all numbers of the table without rounding, a flat dict per row, for CSV and JSON."""
    result = []
    for row in in_order(rows):
        found: dict[str, Any] = {
            "method": row.label,
            "policy": row.policy,
            "parameters": json.dumps(row.parameters, sort_keys=True) if row.parameters else None,
            "prune_ratio": row.prune_ratio,
            "metric_name": row.measure.name,
            "metric_unit": row.measure.unit,
            "metric": row.metric,
            "standard_deviation": row.deviation,
            "seeds": len(row.runs),
            "failed": len(row.failed),
            "unfinished": len(row.unfinished),
            "samples_saved": row.saved,
            "seconds": row.seconds,
            "time_saved": row.saved_time,
        }
        against = {"full": row.against_full, "fewer_epochs": row.against_reduced, "random": row.against_random}
        for name, difference in against.items():
            found[f"to_{name}"] = None if difference is None else difference.mean
            found[f"to_{name}_low"] = None if difference is None else difference.low
            found[f"to_{name}_high"] = None if difference is None else difference.high
        result.append({**found, "margin": row.margin, "verdict": row.word, "diverged": row.diverged or None})
    return result


_KINDS = {"least": "Kept least often", "most": "Kept most often", "hardest": "Hardest: the largest losses"}


def gallery(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the pictures of the method of the headline, by kind; None where its records have none."""
    best = _best(rows)
    for run in best.runs if best is not None else ():
        found = (run.summary or {}).get("notable") or {}
        kinds = [
            {"title": _kind(kind, found[kind], run), "samples": [_pictured(kind, shown) for shown in found[kind]]}
            for kind in _KINDS
            if any(shown.get("picture") for shown in found.get(kind) or [])
        ]
        if kinds:
            return {"title": f"Samples of {run.label}, seed {run.seed}", "kinds": kinds}
    return None


def _kind(kind: str, samples: Sequence[dict[str, Any]], run: Run) -> str:
    counts = {shown.get("used") for shown in samples}
    usage = (run.summary or {}).get("usage") or []
    if kind == "least" and counts == {0}:
        return f"Never kept: {usage[0]:,} samples" if usage else "Never kept"
    if kind == "most" and counts == {len(run.epochs)}:
        return f"Always kept: {usage[-1]:,} samples" if usage else "Always kept"
    return _KINDS[kind]


def _pictured(kind: str, shown: dict[str, Any]) -> dict[str, str]:
    """Return a picture with its index, its label, and what is special about it."""
    number = shown.get("score") if kind == "hardest" else shown.get("used")
    special = "" if number is None else f"loss {number:.2f}" if kind == "hardest" else f"used {number}×"  # noqa: RUF001
    return {
        "picture": str(shown.get("picture") or ""),
        "index": f"#{shown['index']}",
        "label": f"label {shown['label']}" if "label" in shown else "",
        "special": special,
    }


def caption(rows: Sequence[Row]) -> str:
    """Return what the numbers of the table are, and on which words its verdicts rest."""
    metric = measure(rows)
    better = "" if metric.higher_is_better else ", lower is better"
    margin = next((row.margin for row in rows if row.runs), None)
    limit = "" if margin is None else f" The margin is {metric.amount(margin)}."
    return (
        f"{as_title(metric.name)} after the last epoch, mean ± standard deviation over seeds{better}; differences with "
        f"95 % intervals that hold for a whole column at once.{limit}"
    )


def _word(row: Row) -> str:
    if row.against_full is None:
        return row.word
    return row.word + more_seeds(row.against_full, row.margin, row.measure)


def headline(rows: Sequence[Row]) -> list[str]:
    """Return the verdict on one task in sentences, the most important first."""
    if not any(row.runs for row in rows):
        failed = sum(len(row.failed) for row in rows)
        unfinished = sum(len(row.unfinished) for row in rows)
        return [f"No run has come to its end: {unfinished} unfinished, {failed} failed."]
    best = _best(rows)
    if best is None:
        methods = [row for row in rows if row.policy not in _CONTROLS] or [row for row in rows if row.policy != "full"]
        waiting = not any(row.runs for row in methods)
        what = "a method to set against full data" if waiting else "full data of the same seeds"
        return [f"Nothing can be said yet: there is no finished run of {what}."]
    return [_main_sentence(best) + _same_saving(best) + _doubted_time(best), *_control_sentences(best), *diverged(rows)]


def _best(rows: Sequence[Row]) -> Row | None:
    """Return the row that the headline is about, if there is one."""
    methods = [row for row in rows if row.policy not in _CONTROLS] or [row for row in rows if row.policy != "full"]
    return max((row for row in methods if row.against_full is not None), key=_merit, default=None)


def _same_saving(row: Row) -> str:
    """Return what full data loses where it saves as much by fewer epochs, in a sentence."""
    own, reduced = row.against_full, row.against_reduced
    if own is None or reduced is None:
        return ""
    return f" The same saving by fewer epochs: {row.measure.written(own.mean - reduced.mean, '+')}."


def _doubted_time(row: Row) -> str:
    """Return a warning if the time fell by much more than the samples, which pruning does not explain."""
    if row.saved is None or row.saved_time is None or row.saved_time <= row.saved + _UNEXPLAINED:
        return ""
    return " Time fell by more than samples did: the runs were likely not timed alike."


def diverged(rows: Sequence[Row]) -> list[str]:
    """Name the settings that are left out of the pooled variance, in a sentence."""
    named = [f"{row.label} ({row.diverged})" for row in rows if row.diverged]
    return [f"Diverged, and left out of the pooled variance: {', '.join(named)}."] if named else []


def _merit(row: Row) -> tuple[int, float, float]:
    """Rank rows that are within the margin or better first, by what they save; then those that saved what was asked.

    Among rows that save as much (in whole percent), among the latter, and among the rest, the row comes first whose
    loss is at most the smallest.
    """
    difference = row.against_full
    as_asked = row.prune_ratio is None or (row.saved or 0.0) >= row.prune_ratio - SAME_COST
    if difference is None or difference.low is None or difference.high is None:
        return 0, as_asked, (row.metric or 0.0) * (1 if row.measure.higher_is_better else -1)
    at_worst = difference.low if row.measure.higher_is_better else -difference.high
    return (2, round(row.saved or 0.0, 2), at_worst) if row.holds else (1, as_asked, at_worst)


def _main_sentence(row: Row) -> str:
    metric, difference = row.measure, row.against_full
    assert difference is not None
    assert row.metric is not None
    result = f"{row.label}: {_change(row.saved, 'fewer', 'more')} samples"
    if row.saved_time is not None:
        result += f", {_change(row.saved_time, 'less', 'more')} time"
    own, full = (
        f"{metric.written(value)} {metric.unit}".strip() for value in (row.metric, row.metric - difference.mean)
    )
    result += f": {own} against {full} on full data ({metric.written(difference.mean, '+')}"
    if difference.low is None:
        result += f"; {metric.interval(difference)})"
    else:
        result += f"; 95 % interval {metric.interval(difference)}): {_word(row).replace(' of full data', '')}"
    if row.failed:
        result += f"; {len(row.failed)} of its runs failed and {'is' if len(row.failed) == 1 else 'are'} not counted"
    return result + "."


def _control_sentences(row: Row) -> list[str]:
    controls = (
        (row.against_reduced, "fewer epochs at the same cost"),
        (row.against_random, "dynamic random at the same cost"),
    )
    return [f"Against {name}: {_relation(found, row.measure)}." for found, name in controls if found is not None]


def _relation(difference: Difference, metric: Metric) -> str:
    estimate = f"{metric.written(difference.mean, '+')} ({metric.interval(difference)})"
    if difference.low is None or difference.high is None:
        return estimate
    if difference.low <= 0 <= difference.high:
        return f"{estimate}, not settled"
    return f"{estimate}, {'better' if (difference.low > 0) == metric.higher_is_better else 'worse'}"


def _change(share: float | None, down: str, up: str) -> str:
    percent = 100 * (share or 0.0)
    size = f"{abs(percent):.0f}" if abs(percent) >= 10 else f"{abs(percent):.1f}".removesuffix(".0")
    return f"{size} % {down if percent >= 0 else up}"


def duration(seconds: float | None) -> str:
    """Format a time in a suitable unit.

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
    """Return the number of runs behind the row, and the runs that are left out."""
    parts = [f"{len(row.runs)} {'seed' if len(row.runs) == 1 else 'seeds'}"]
    for count, word in ((len(row.failed), "failed"), (len(row.unfinished), "unfinished"), (row.repeated, "repeated")):
        parts += [f"{count} {word}"] if count else []
    return ", ".join(parts)


def _metric(row: Row) -> Cell:
    return Cell(_NOTHING) if row.metric is None else Cell(_mean(row), order=row.metric)


def _mean(row: Row) -> str:
    if row.metric is None:
        return ""
    spread = "" if row.deviation is None else f" ± {row.measure.written(row.deviation)}"
    return row.measure.written(row.metric) + spread


def _saved(row: Row) -> Cell:
    return Cell(_NOTHING) if row.saved is None else Cell(f"{100 * row.saved:.1f} %", order=row.saved)


def _time(row: Row) -> Cell:
    if row.saved_time is None:
        return Cell(_NOTHING, duration(row.seconds) if row.seconds is not None else "")
    return Cell(f"{100 * row.saved_time:.1f} %", duration(row.seconds), row.saved_time)


def _difference(difference: Difference | None, metric: Metric) -> Cell:
    if difference is None:
        return Cell(_NOTHING)
    return Cell(metric.written(difference.mean, "+"), metric.interval(difference), difference.mean)


_SAVED_AND_GAINED = ("samples", "time", "vs full", "vs fewer", "vs random")


def show_comparison(title: str, rows: Sequence[Row], say: Callable[[str], None]) -> None:
    """Print the comparison of one task.

    Args:
        title: Name of the task.
        rows: Rows of the comparison.
        say: Called with lines of output.
    """
    metric = measure(rows)
    header = ("", metric.titled, *_SAVED_AND_GAINED)
    lines = [_line(row) for row in rows]
    used = [place for place, name in enumerate(header) if place == 0 or any(line[place] for line in lines)]
    shown = [[line[place] for place in used] for line in lines]
    gained = "points gained" if metric.unit == "%" else f"difference in {metric.name}"
    show(f"{title}: samples and time saved, {gained}", [header[place] for place in used], shown, numbers=True)
    margin = next((row.margin for row in rows if row.against_full is not None), None)
    if margin is not None:
        say(f"Against full data, with 95 % intervals that hold at once and a margin of {metric.amount(margin)}:")
    for row in rows:
        troubled = row.failed or row.unfinished
        if troubled or row.policy != "full":
            # The table does not show the number of seeds of its means, so missing seeds are reported here.
            say(f"  {row.label}: {_judgement(row)}" + (f" ({note(row)})" if troubled else ""))
    for sentence in diverged(rows):
        say(f"  {sentence}")


def _line(row: Row) -> list[str]:
    return [
        row.label,
        _mean(row),
        "" if row.saved is None else f"{row.saved:.1%}",
        "" if row.saved_time is None else f"{row.saved_time:.1%}",
        *(_estimate(found, row.measure) for found in (row.against_full, row.against_reduced, row.against_random)),
    ]


def _judgement(row: Row) -> str:
    """Return estimate, interval and word, in this order."""
    if row.against_full is None or row.against_full.low is None:
        return row.verdict
    estimate = row.measure.written(row.against_full.mean, "+")
    return f"{estimate} ({row.measure.interval(row.against_full)}), {_word(row)}"


def _estimate(difference: Difference | None, metric: Metric) -> str:
    return "" if difference is None else metric.written(difference.mean, "+")
