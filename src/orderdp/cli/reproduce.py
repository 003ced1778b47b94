"""The command ``orderdp reproduce``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderdp._validation import checked_name
from orderdp.cli._common import Command, complain, say, say_json
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from orderdp_paper import Suite
    from orderdp_paper.suite import Trial

__all__ = [
    "REPRODUCE",
]


_REPRODUCE = """The paper's tables and figures: runs what is needed, then shows it beside the paper's own numbers.

examples:
  orderdp reproduce --list
  orderdp reproduce table-dynamic --list
  orderdp reproduce table-dynamic --scale smoke
  orderdp reproduce table-dynamic --scale cpu --jobs 2 --out results
  orderdp reproduce table-dynamic --scale paper --max-steps 3
  orderdp reproduce table-imagenet --scale paper --data imagenet=/data/imagenet --out results
  orderdp reproduce fig-weights-limit --out figures

Scales: "smoke" takes seconds and shows that it works; "cpu" is for two cores and hours; "paper" is the full recipe, for
a server with GPUs. Started again with the same command, it resumes; finished runs are not repeated, and suites that
share runs in a folder share their cost.
"""


_OUT = Path("reproduced")


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="name of the table or figure")
    parser.add_argument(
        "--list", action="store_true", help="list all, with what each needs; with ID, describe one in full"
    )
    parser.add_argument("--json", action="store_true", help="with --list: print the list as JSON")
    parser.add_argument("--scale", metavar="S", help="smoke, cpu or paper")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="D",
        help="data set to use instead of the suite's, by name or path; NAME=D replaces only NAME; can be repeated",
    )
    parser.add_argument("--seeds", metavar="S,S", help="seeds, such as 0,1 or 0-4, instead of those of the suite")
    parser.add_argument("--max-steps", type=int, metavar="N", help="train only the first N steps of every method")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of runs at a time (default: 1)")
    parser.add_argument("--threads", type=int, metavar="N", help="number of torch threads in each process")
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="cpu, cuda, ... (default: a GPU if there is one)"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder that is searched for data first")
    parser.add_argument(
        "--out",
        type=Path,
        default=_OUT,
        metavar="DIR",
        help=f"output folder: figures, tables, records (default: {_OUT})",
    )
    parser.add_argument(
        "--format", default="png", metavar="F", help="format of figures: png, svg or html (default: png)"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _run_reproduce(options: argparse.Namespace) -> int:
    """Return 1 if a run failed."""
    from orderdp_paper import theory

    if options.json and options.id is not None and not options.list:
        raise ConfigError("--json prints the list as JSON, got it without --list. Add --list, or leave it out.")
    if options.id is None:
        _list(options.json)
        return 0
    if options.id in theory.FIGURES or options.id == "table-toy":
        if options.list:
            _describe_theory(options.id, options.json)
        else:
            _theory(options)
        return 0
    from orderdp_paper import SUITES

    checked_name(options.id, [*SUITES, *theory.FIGURES, "table-toy"], "figure or table")
    if options.list:
        from orderdp_paper.suites import describe

        if options.json:
            say_json(_told(SUITES[options.id]))
        else:
            describe(SUITES[options.id], say)
        return 0
    return _suite(SUITES[options.id], options)


def _list(json: bool) -> None:
    from orderdp_paper import SUITES, theory
    from orderdp_paper.suites import list_suites

    if json:
        figures = {**{name: shows for name, (shows, _) in theory.FIGURES.items()}, "table-toy": theory.TOY}
        say_json([*map(_told, SUITES.values()), *({"id": name, "shows": shows} for name, shows in figures.items())])
    else:
        list_suites(say)


def _told(suite: Suite) -> dict[str, Any]:
    """Return what a suite shows and needs, as plain values."""
    scales = {
        name: {
            "runs": sum(1 for part in scale.parts for _ in part.runs()),
            "seconds": scale.seconds,
            "machine": scale.machine,
            "memory": scale.memory,
            "data": scale.data,
            "differs": scale.differs,
        }
        for name, scale in suite.scales.items()
    }
    return {"id": suite.id, "shows": suite.shows, "scales": scales}


def _describe_theory(name: str, json: bool) -> None:
    from orderdp_paper import theory

    shows = theory.TOY if name == "table-toy" else theory.FIGURES[name][0]
    if json:
        say_json({"id": name, "shows": shows})
        return
    say(f"{name}: {shows}")
    say("  It takes no runs and no data, and seconds at any scale.")


def _theory(options: argparse.Namespace) -> None:
    from orderdp.report import show
    from orderdp_paper import theory

    if options.id == "table-toy":
        for table in theory.toy_tables():
            show(*table)
        return
    from orderdp.report.charts import save

    _, draw = theory.FIGURES[options.id]
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{options.id}.{options.format}"
    save(draw(), path)
    say(f"{path}")


def _suite(suite: Suite, arguments: argparse.Namespace) -> int:
    from orderdp.cli._common import run_all, run_options, seeds_of
    from orderdp.experiments.records import RunRecords
    from orderdp.experiments.runner import check, make_folder
    from orderdp.report.charts import check_ending
    from orderdp_paper.suite import prepare
    from orderdp_paper.suites import needs

    if arguments.scale is None:
        times = "; ".join(f"{name}: {needs(scale, smoke=name == 'smoke')}" for name, scale in suite.scales.items())
        raise ConfigError(f"give --scale, which decides what it takes. {times}.")
    out = arguments.out
    check_ending(out / f"{suite.id}.{arguments.format}")
    options = replace(run_options(arguments), out=suite.runs_in(out), diagnose=suite.diagnose)
    seeds = None if arguments.seeds is None else seeds_of(arguments.seeds)
    parts = prepare(suite, arguments.scale, data=arguments.data, seeds=seeds)
    runs = {planned.settings.run_id: planned.settings for part in parts for planned in part.runs()}
    for settings in runs.values():
        check(settings)
    if arguments.max_steps is not None:
        from orderdp_paper.suite import try_out
        from orderdp_paper.suites import show_trials

        reasons: list[str | None] = []

        def watched() -> Iterator[Trial]:
            for trial in try_out(parts, options, arguments.max_steps):
                reasons.append(trial.reason)
                yield trial

        show_trials(suite, watched(), say)
        return 1 if any(reasons) else 0
    make_folder(options.out)
    try:
        found = {run.id: run for run in run_all(list(runs.values()), options, RunRecords(options.out))}
    except KeyboardInterrupt:
        complain(f"Interrupted; saved. Resume with: {options.command}")
        raise
    from orderdp_paper.suite import measure
    from orderdp_paper.suites import show_suite

    results = [measure(part, [found[planned.settings.run_id] for planned in part.runs()]) for part in parts]
    show_suite(suite, arguments.scale, results, out, arguments.format, say)
    complain(f"Records are in {options.out / 'runs'}.")
    failed = sum(run.failed for run in found.values())
    if failed:
        complain(f"{failed} of {len(found)} runs failed.")
    return 1 if failed else 0


REPRODUCE = Command(
    "reproduce", "the paper's tables and figures, each by one command", _REPRODUCE, _add_reproduce, _run_reproduce
)
