"""The command ``orderdp compare``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderdp.cli._common import (
    add_json,
    add_run_options,
    as_ratio,
    complain,
    name_defaults,
    numbers,
    run_all,
    run_options,
    say,
    say_json,
    seeds_of,
    settings_of,
)
from orderdp.cli.report import as_dict
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from orderdp.experiments.config import MethodSpec, RunOptions, Settings
    from orderdp.experiments.records import Run, RunRecords

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "compare"


SUMMARY = "compare policies fairly, and write a page with the answer"


DESCRIPTION = """Runs every policy at every prune ratio with every seed, and the controls: full data, full data for
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


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--policies",
        default="full,reduced,random,infobatch,orderdp",
        metavar="P,P",
        help="policies, with parameters as NAME:key=value (default: full,reduced,random,infobatch,orderdp)",
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


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 1 if a run failed."""
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
