"""The command ``orderdp train``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from orderdp.cli._common import (
    add_run_options,
    as_ratio,
    complain,
    name_defaults,
    outcome,
    run_options,
    say,
    settings_of,
    show_progress,
)
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from orderdp.experiments.config import RunOptions, Settings
    from orderdp.experiments.records import RunRecords

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "train"


SUMMARY = "train a model with a pruning policy"


DESCRIPTION = """Trains a model on what a policy leaves of the data, tests it every epoch, and keeps records and
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


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 1 if the run failed."""
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
