"""What else there is to say about runs: which task they belong to, which do not count, how they were started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from orderdp.workbench.reading import Run
from orderdp.workbench.settings import planned_epochs
from orderdp.workbench.statistics import Row

__all__ = [
    "as_title",
    "commands",
    "counted_out",
    "in_percent",
    "is_further_test",
    "metric_name",
    "run_list",
    "shared_settings",
    "task_name",
    "tasks",
]


def tasks(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows, those of each task together; a run killed before it could say what it is goes with the first."""
    known = [row.task for row in rows if any(value is not None for _, value in row.task)]
    found: dict[Any, list[Row]] = {task: [] for task in known or [rows[0].task]}
    for row in rows:
        found[row.task if row.task in found else next(iter(found))].append(row)
    return list(found.values())


def task_name(rows: Sequence[Row], all_tasks: Sequence[Sequence[Row]]) -> str:
    """Data and model, or the task that brings both, and whatever else tells it from the others."""
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


def metric_name(rows: Sequence[Row]) -> str:
    """What the task calls its metric; accuracy where nothing was recorded."""
    summaries = (run.summary or {} for row in rows for run in row.runs)
    return next((str(summary["metric_name"]) for summary in summaries if summary.get("metric_name")), "accuracy")


def in_percent(metric: str) -> str:
    """The metric with its unit, which must not look like a part of the name.

    >>> in_percent("accuracy"), in_percent("within 0.1")
    ('accuracy %', 'within 0.1 (%)')
    """
    return f"{metric} %" if metric[-1:].isalpha() else f"{metric} (%)"


def as_title(metric: str) -> str:
    """The metric's name where a sentence begins; one that has its own capitals keeps them.

    >>> as_title("accuracy"), as_title("mIoU")
    ('Accuracy', 'mIoU')
    """
    return metric[:1].upper() + metric[1:] if metric.islower() else metric


def is_further_test(rows: Sequence[Row]) -> bool:
    """Whether the rows are another view of runs, by a further test set."""
    return any(run.tested_on is not None for row in rows for run in row.runs)


def counted_out(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Runs that failed or have no end, said plainly."""
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
    """What was typed, each once."""
    return list(dict.fromkeys(run.command for run in runs if run.command))


def shared_settings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Settings, versions and host, as far as all runs agree."""
    facts = [_facts(run) for run in runs]
    return [(name, value) for name, value in facts[0].items() if all(fact.get(name) == value for fact in facts)]


def run_list(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Each run with whatever it does not share with all others."""
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
    """Everything that was recorded about how a run was made, flat."""
    versions = {f"{name} version": value for name, value in run.versions.items()}
    facts = {**run.config, **versions, **run.host, "started": run.started}
    return {name.replace("_", " "): _text(value) for name, value in facts.items() if value not in (None, {}, [])}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
