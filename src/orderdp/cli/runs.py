"""Commands about runs: ``orderdp train``, ``compare`` and ``report``."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderdp.cli._common import (
    Command,
    add_json,
    add_run_options,
    as_ratio,
    complain,
    name_defaults,
    numbers,
    outcome,
    run_all,
    run_options,
    say,
    say_json,
    seeds_of,
    settings_of,
    show_progress,
)
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from orderdp.experiments.config import MethodSpec, RunOptions, Settings
    from orderdp.experiments.records import Run, RunRecords
    from orderdp.experiments.statistics import Difference, Row

__all__ = ["COMPARE", "REPORT", "TRAIN", "as_csv", "as_dict"]


# -- train -------------------------------------------------------------------------------------------------------------


_TRAIN = """Trains a model on what a policy leaves of the data, tests it every epoch, and keeps records and
checkpoints.

examples:
  orderdp train --data digits --model mlp --prune-ratio 0.4 --out run
  orderdp train --data fashion-mnist --preset cpu --policy infobatch --prune-ratio 0.5 --epochs 10 --out run
  orderdp train --data cifar10 --preset paper-cifar-resnet18 --prune-ratio 0.4 --out run
  orderdp train --task examples/own_task.py:make --policy orderdp:exploration=0.9 --prune-ratio 0.3 --out run
  orderdp train --data digits --model mlp --prune-ratio 0.4 --out run --resume

After Ctrl-C or a kill, --resume continues from the last checkpoint. A policy's parameters follow its name:
NAME:key=value:key=value. `orderdp policies` shows which there are.
"""


def _add_train(parser: argparse.ArgumentParser) -> None:
    unset = argparse.SUPPRESS  # so that a file can set it
    parser.add_argument(
        "--policy", default=unset, metavar="P", help="policy that selects the samples (default: orderdp)"
    )
    parser.add_argument(
        "--prune-ratio", type=as_ratio, default=unset, metavar="R", help="fraction left out in each epoch, in [0, 1)"
    )
    parser.add_argument("--seed", type=int, default=unset, metavar="S", help="seed of all random draws (default: 0)")
    parser.add_argument("--resume", action="store_true", help="resume the run in the folder")
    add_run_options(parser)


def _run_train(arguments: argparse.Namespace) -> int:
    """Return 1 if the run failed."""
    from orderdp.experiments.config import parse_method
    from orderdp.experiments.records import RunRecords
    from orderdp.experiments.runner import check, check_tests, evaluate_all

    given = {name: getattr(arguments, name) for name in ("prune_ratio", "seed") if hasattr(arguments, name)}
    if hasattr(arguments, "policy"):
        method = parse_method(arguments.policy)
        given |= {"policy": method.policy, "policy_parameters": method.parameters}
    settings, options = settings_of(arguments, **given), run_options(arguments)
    check(settings)
    _check_folder(options, settings)
    check_tests(settings, options)
    name_defaults(arguments, settings)
    records = RunRecords(options.out)
    done = records.finished(settings.run_id)
    if done is not None:
        complain("This run is finished already.")
        summary = done.summary or {}
        say(outcome(settings, summary))
    else:
        summary = _train(settings, options, records)
    for tested in evaluate_all([settings], options, records=records):
        say(f"{tested.metric:.2f} % on {tested.data}.")
    if done is None:
        complain(f"Records are in {options.folder(settings)}. `orderdp report {options.out}` makes a page of them.")
    return 0 if summary["status"] == "done" else 1


def _train(settings: Settings, options: RunOptions, records: RunRecords) -> dict[str, Any]:
    from orderdp.experiments.runner import compare_all

    try:
        with show_progress(1, 0, quiet=options.quiet) as progress:
            ((_, summary),) = compare_all([settings], options, records=records, watch=progress.watch)
    except KeyboardInterrupt:
        complain(f"Interrupted; saved. Resume with: {options.command}{'' if options.resume else ' --resume'}")
        raise
    say(outcome(settings, summary))
    return summary


def _check_folder(options: RunOptions, settings: Settings) -> None:
    from orderdp.experiments.records import read_run

    folders = sorted((options.out / "runs").glob("*/records.jsonl"))
    own = options.folder(settings) / "records.jsonl"
    if options.resume:
        if folders and own not in folders:
            before = {name: value for name, value in read_run(folders[0]).config.items() if name != "label"}
            raise ConfigError(
                f"{str(options.out)!r} holds a run with other settings: {'; '.join(settings.differences(before))}. "
                "Resume with the settings it had, or use another --out."
            )
    elif own in folders:
        raise ConfigError(
            f"{str(options.out)!r} holds this run already. Resume it with --resume, or use another --out."
        )


TRAIN = Command("train", "train a model with a pruning policy", _TRAIN, _add_train, _run_train)


# -- report ------------------------------------------------------------------------------------------------------------


_REPORT = """What the runs in a folder, or in a file of packed records, say: a page (report.html, one file that
works offline) with the verdict, a table and charts; or verdict and table as markdown, JSON or CSV.

examples:
  orderdp report results
  orderdp report results --open
  orderdp report docs/results/records/cifar10.jsonl --markdown
  orderdp report results --markdown
  orderdp report results --csv > results.csv
  orderdp report results --charts figures --format svg
"""


def _add_report(parser: argparse.ArgumentParser) -> None:
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


def _run_report(options: argparse.Namespace) -> None:
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


REPORT = Command("report", "a page, or a table, of what was compared", _REPORT, _add_report, _run_report)


# -- compare -----------------------------------------------------------------------------------------------------------


_COMPARE = """Runs every policy at every prune ratio with every seed, and the controls: full data, full data for
fewer epochs at the cost of the pruned runs, and a random fraction in each epoch. Then writes a report: verdicts, and
what is saved.

examples:
  orderdp compare --data digits --model mlp --prune-ratios 0.3,0.5 --out results
  orderdp compare --data fashion-mnist --preset cpu --policies orderdp,infobatch,ucb --prune-ratios 0.3,0.5,0.7 \\
      --seeds 0-4 --jobs 2 --out results
  orderdp compare --data digits --model mlp --prune-ratios 0.5 --out results \\
      --policies 'orderdp,orderdp:select={"name":"mixed","top":0.9,"uniform":0.1}'
  orderdp compare --task examples/own_task.py:make --prune-ratios 0.4 --out results
  orderdp compare --data digits --model mlp --policies orderdp --find-lossless --out results
  orderdp compare --data digits --model mlp --also-test 'digits?corrupt=noise:3,digits?corrupt=blur:3' --out results

Started again with the same command, it resumes, also after Ctrl-C or a kill; finished runs are not repeated.
Policies, ratios, seeds and further test sets can be added later.
"""


_RATIOS = "0.3,0.5,0.7"


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies",
        default="full,reduced,random,infobatch,orderdp,unlearned",
        metavar="P,P",
        help="policies, with parameters as NAME:key=value (default: full,reduced,random,infobatch,orderdp,unlearned)",
    )
    parser.add_argument("--prune-ratios", metavar="R,R", help=f"prune ratios (default: {_RATIOS})")
    parser.add_argument(
        "--seeds",
        default="0-2",
        metavar="S,S",
        help="seeds, such as 0,1 or 0-4; every policy runs once per seed (default: 0-2)",
    )
    parser.add_argument("--no-controls", action="store_true", help="run no controls besides the given policies")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of runs at a time (default: 1)")
    parser.add_argument(
        "--margin",
        type=float,
        metavar="X",
        help="differences to full data up to this size count as none, in the unit of the metric (default: 0.5 points)",
    )
    parser.add_argument(
        "--find-lossless", action="store_true", help="search the largest ratio of each policy within the margin"
    )
    parser.add_argument(
        "--resolution", type=float, default=0.05, metavar="R", help="step between ratios of that search (default: 0.05)"
    )
    add_json(parser)
    add_run_options(parser)


def _run_compare(arguments: argparse.Namespace) -> int:
    """Return 1 if a run failed."""
    from orderdp.experiments.config import grid, parse_method, split_outside_brackets
    from orderdp.experiments.intervals import check_installed
    from orderdp.experiments.records import RunRecords
    from orderdp.experiments.runner import check, check_runs, check_tests, remember_settings
    from orderdp.experiments.statistics import check_margin

    check_installed()  # before hours of training that it would judge
    check_margin(arguments.margin)
    written = split_outside_brackets(arguments.policies, ",")
    methods = [parse_method(text) for text in written if text.strip()]
    seeds = seeds_of(arguments.seeds)
    options = run_options(arguments)
    base = settings_of(arguments, varied=True, policy="full")
    if arguments.find_lossless:
        methods, runs = _searched(base, methods, arguments)
    else:
        written_ratios = _RATIOS if arguments.prune_ratios is None else arguments.prune_ratios
        ratios = numbers(written_ratios, as_ratio, "--prune-ratios")
        runs = grid(base, methods, ratios, seeds, controls=not arguments.no_controls)
    for settings in runs:
        check(settings)
    check_runs(runs, options)
    check_tests(base, options)
    name_defaults(arguments, base)
    remember_settings(base, options.out)
    records = RunRecords(options.out)
    found: list[dict[str, Any]] | None = None
    try:
        if arguments.find_lossless:
            found, ended = _search(base, methods, seeds, options, records, arguments)
        else:
            ended = run_all(runs, options, records)
    except KeyboardInterrupt:
        complain(f"Interrupted; saved. Resume with: {options.command}")
        raise
    _report(options, records.all(), arguments, found)
    failed = sum(run.failed for run in ended)
    if failed:
        complain(f"{failed} of {len(ended)} runs failed.")
    return 1 if failed else 0


def _searched(
    base: Settings, methods: list[MethodSpec], arguments: argparse.Namespace
) -> tuple[list[MethodSpec], list[Settings]]:
    """Return the methods whose ratios are searched, and the runs at both ends of each search, for checks."""
    from orderdp.experiments.config import CONTROLS, distinct
    from orderdp.experiments.runner import possible_ratios

    if arguments.prune_ratios is not None:
        raise ConfigError(
            f"--find-lossless chooses the ratios itself, got --prune-ratios {arguments.prune_ratios}. Give one of the "
            "two; --resolution says how finely it searches."
        )
    searched = [method for method in distinct(methods) if method.policy not in CONTROLS]
    if not searched:
        raise ConfigError("--find-lossless needs a policy with a ratio to search, and full data has none.")
    ends = [base]
    for method in searched:
        ratios = possible_ratios(base, method, resolution=arguments.resolution)
        own = replace(base, policy=method.policy, policy_parameters=method.parameters)
        ends += [replace(own, prune_ratio=ratio) for ratio in (ratios[0], ratios[-1])]
    return searched, ends


def _search(
    base: Settings,
    methods: list[MethodSpec],
    seeds: list[int],
    options: RunOptions,
    records: RunRecords,
    arguments: argparse.Namespace,
) -> tuple[list[dict[str, Any]], list[Run]]:
    """Search the largest ratio of each method; return what was found, and all runs that it took."""
    from orderdp.experiments.runner import find_lossless

    ended: dict[str, Run] = {}

    def train(runs: list[Settings]) -> list[Run]:
        trained = run_all(runs, options, records)
        ended.update({run.id: run for run in trained})
        return trained

    tell = complain if arguments.json else say
    found = []
    for method in methods:
        name = replace(base, policy=method.policy, policy_parameters=method.parameters).label
        best, within = None, "within the margin"
        rule = {"resolution": arguments.resolution, "margin": arguments.margin}
        trials = []
        for trial in find_lossless(base, method, seeds, train, **rule):
            tell(f"{trial.row.label}: {trial.said}")
            trials.append({"prune_ratio": trial.prune_ratio, "holds": trial.lossless, "verdict": trial.said})
            best = trial if trial.lossless else best
            within = f"within {trial.row.measure.amount(trial.row.margin)}"
        if best is None:
            tell(f"{name}: no ratio that was tried is {within} of full data, as far as these seeds can tell.")
        else:
            tell(
                f"{name}: {100 * best.prune_ratio:g}% is the largest ratio {within} of full data. "
                "Of 40 such searches, at most 1 names a ratio that loses more."
            )
        largest = None if best is None else best.prune_ratio
        found.append({"method": name, "prune_ratio": largest, "trials": trials})
    return found, list(ended.values())


def _report(
    options: RunOptions, runs: list[Run], arguments: argparse.Namespace, found: list[dict[str, Any]] | None
) -> None:
    from orderdp.experiments.records import with_further_tests
    from orderdp.experiments.statistics import compare
    from orderdp.report.page import PAGE_NAME, report_command
    from orderdp.report.tables import show_comparison, task_name, tasks

    rows = compare(with_further_tests(runs), arguments.margin)
    if not arguments.json:
        by_task = tasks(rows)
        for same in by_task:
            show_comparison(task_name(same, by_task), same, say)
    page: Path | None = options.out / PAGE_NAME
    try:
        tell = complain if arguments.json else say
        report_command(options.out, say=tell, runs=runs, margin=arguments.margin)
    except ConfigError as error:  # the page needs optional packages; the table does not
        complain(f"No page was written: {error}")
        page = None
    if arguments.json:
        searched = {} if found is None else {"find_lossless": found}
        say_json({**as_dict(rows), **searched, "page": page})


COMPARE = Command(
    "compare", "compare policies fairly, and write a page with the answer", _COMPARE, _add_compare, _run_compare
)
