"""The command ``orderdp report``."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderdp.cli._common import add_json, complain, say, say_json

if TYPE_CHECKING:
    from orderdp.experiments.statistics import Difference, Row

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "as_csv", "as_dict", "run"]


NAME = "report"


SUMMARY = "a page, or a table, of what was compared"


DESCRIPTION = """What the runs in a folder, or in a file of packed records, say: a page (report.html, one file that
works offline) with the verdict, a table and charts; or verdict and table as markdown, JSON or CSV.

examples:
  orderdp report results
  orderdp report results --open
  orderdp report docs/results/records/cifar10.jsonl --markdown
  orderdp report results --markdown
  orderdp report results --csv > results.csv
  orderdp report results --charts figures --format svg
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="output folder of train or compare, or a .jsonl file"
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--markdown", action="store_true", help="print verdict and table, write no page")
    printed.add_argument("--csv", action="store_true", help="print the table as CSV, write no page")
    add_json(printed)
    parser.add_argument(
        "--margin",
        type=float,
        metavar="X",
        help="differences to full data up to this size count as none, in the unit of the metric (default: 0.5 points)",
    )
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument("--charts", type=Path, metavar="DIR", help="also write the charts as files")
    parser.add_argument("--format", default="png", metavar="F", help="format of the charts: png or svg (default: png)")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from orderdp.report.page import export_charts, report_command

    if options.json or options.csv:
        from orderdp.experiments.records import read_runs, with_further_tests
        from orderdp.experiments.statistics import compare

        runs = read_runs(options.directory)
        rows = compare(with_further_tests(runs), options.margin)
        if options.charts is not None:
            for path in export_charts(
                options.directory, options.charts, options.format, runs=runs, margin=options.margin
            ):
                complain(str(path))
        if options.json:
            say_json(as_dict(rows))
        else:
            say(as_csv(rows))
        return
    report_command(
        options.directory,
        say=say,
        markdown=options.markdown,
        open_page=options.open,
        charts=options.charts,
        chart_format=options.format,
        margin=options.margin,
    )


def as_dict(rows: Sequence[Row]) -> dict[str, Any]:
    """Return a comparison as plain values: tasks, and the rows of each."""
    from orderdp.report.tables import headline, measure, task_name, tasks

    by_task = tasks(rows)
    told = []
    for same in by_task:
        metric = measure(same)
        direction = {"name": metric.name, "unit": metric.unit, "higher_is_better": metric.higher_is_better}
        task = {"name": task_name(same, by_task), "metric": direction, "verdict": headline(same)}
        told.append({**task, "rows": [_row(row) for row in same]})
    return {"tasks": told}


def _row(row: Row) -> dict[str, Any]:
    return {
        "label": row.label,
        "policy": row.policy,
        "parameters": row.parameters,
        "prune_ratio": row.prune_ratio,
        "epochs": row.epochs,
        "seeds": [run.seed for run in row.runs],
        "failed": [run.seed for run in row.failed],
        "unfinished": [run.seed for run in row.unfinished],
        "metric": row.metric,
        "deviation": row.deviation,
        "saved_samples": row.saved,
        "saved_time": row.saved_time,
        "seconds": row.seconds,
        "against_full": _difference(row.against_full),
        "against_reduced": _difference(row.against_reduced),
        "against_random": _difference(row.against_random),
        "margin": row.margin,
        "diverged": row.diverged or None,
        "verdict": row.verdict,
    }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {"estimate": difference.mean, "low": difference.low, "high": difference.high, "pairs": difference.pairs}


def as_csv(rows: Sequence[Row]) -> str:
    """Return a comparison as CSV, one line per row; lists are counted, and a difference has three columns."""
    lines = []
    for task in as_dict(rows)["tasks"]:
        for row in task["rows"]:
            metric = {f"metric_{name}": value for name, value in task["metric"].items()}
            lines.append({"task": task["name"], **metric, **_flat(row)})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().removesuffix("\n")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name.startswith("against_"):
            flat |= {f"{name}_{part}": (value or {}).get(part) for part in ("estimate", "low", "high")}
        elif isinstance(value, list):
            flat[name] = len(value)
        else:
            flat[name] = json.dumps(value) if isinstance(value, dict) else value
    return flat
