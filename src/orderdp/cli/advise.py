"""The command ``orderdp advise``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderdp.cli._common import say
from orderdp.errors import ConfigError, DatasetError, RecordError

if TYPE_CHECKING:
    from orderdp.experiments.records import Run
    from orderdp.policies import Probability

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "advise"


SUMMARY = "what can be pruned, after a few epochs of your training"


DESCRIPTION = """What can be pruned, by the losses that a training has left behind: how many samples are learned, by how
much leaving them out changes the gradient at most, and what to write. It says nothing about accuracy.

examples:
  orderdp advise run.pt                                          # a checkpoint with pruner.state_dict() in it
  orderdp advise run.pt --learned 0.95 --refresh 0.2
  orderdp advise run.pt --label-smoothing 0.1 --classes 10       # that the losses were computed with
  orderdp advise losses.npy --json                               # one loss for each sample
  orderdp advise results                                         # a folder of orderdp train or compare
"""


_SHOWN = 6  # epochs of a run that the terminal shows


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a checkpoint, .npy or .npz with losses, or a folder of runs"
    )
    parser.add_argument(
        "--learned",
        type=float,
        metavar="P",
        help="a sample is learned if the probability of its class is at least P (default: 0.9)",
    )
    parser.add_argument(
        "--refresh",
        type=float,
        default=0.1,
        metavar="R",
        help="fraction of the learned samples that is still trained on (default: 0.1)",
    )
    parser.add_argument("--label-smoothing", type=float, metavar="X", help="label smoothing of the losses (default: 0)")
    parser.add_argument("--classes", type=int, metavar="N", help="number of classes, for label smoothing")
    parser.add_argument("--json", action="store_true", help="print numbers as JSON")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if not options.path.exists():
        raise DatasetError(f"there is no file or folder {str(options.path)!r}.")
    if options.path.is_dir():
        _advise_on_runs(options)
        return
    from orderdp.advice import advise, stored_losses

    advice = advise(stored_losses(options.path), learned=_rule(options), refresh=options.refresh)
    say(json.dumps(advice.as_dict(), allow_nan=False) if options.json else str(advice))


def _rule(options: argparse.Namespace) -> Probability:
    from orderdp.losses import smallest_loss
    from orderdp.policies import Probability

    if (options.label_smoothing is None) != (options.classes is None):
        raise ConfigError(
            "with label smoothing the smallest loss depends on both: give both --label-smoothing and --classes."
        )
    floor = 0.0 if options.classes is None else smallest_loss(options.label_smoothing, options.classes)
    return Probability(0.9 if options.learned is None else options.learned, floor=floor)


# -- runs --------------------------------------------------------------------------------------------------------------


def _advise_on_runs(options: argparse.Namespace) -> None:
    from orderdp._validation import check_ratio
    from orderdp.advice import refuse_parts
    from orderdp.experiments.records import read_runs

    if any(value is not None for value in (options.learned, options.label_smoothing, options.classes)):
        raise ConfigError(
            "records hold fractions, not losses: a sample is learned by the threshold of the run's policy. Leave out "
            "--learned, --label-smoothing and --classes, or give a checkpoint."
        )
    check_ratio("refresh", options.refresh)
    refuse_parts(options.path)
    runs = read_runs(options.path)
    told = [_told(run, options.refresh) for run in runs]
    if not any(each["epochs"] for each in told):
        raise RecordError(f"there is no advice for {str(options.path)!r}: {_missing(runs[0])}")
    if options.json:
        say(json.dumps({"refresh": options.refresh, "runs": told}, allow_nan=False))
    else:
        _show_runs(runs, told)


def _told(run: Run, refresh: float) -> dict[str, Any]:
    """Return the fraction learned after each epoch that recorded it, and the possible saving per epoch at the end."""
    epochs = [
        {"epoch": int(epoch["epoch"]), "learned": float(epoch["learned"])}
        for epoch in run.epochs
        if isinstance(epoch.get("learned"), int | float)
    ]
    last = epochs[-1]["learned"] if epochs else None
    saving = None if last is None else (1 - refresh) * last
    return {
        "id": run.id,
        "label": run.label,
        "seed": run.seed,
        "epochs": epochs,
        "learned": last,
        "saving": saving,
    }


def _show_runs(runs: list[Run], told: list[dict[str, Any]]) -> None:
    from orderdp.advice import FEW, as_percent, little_to_leave_out, whole_percent
    from orderdp.report.tables import show

    rows = []
    for each in told:
        epochs, last = each["epochs"], each["learned"]
        step = max(1, -(-len(epochs) // _SHOWN))
        shown = epochs[::-1][::step][::-1]
        shares = ", ".join(f"{epoch['epoch']}: {as_percent(epoch['learned'])}" for epoch in shown)
        left_out = "" if last is None or last < FEW else f"{whole_percent(each['saving'])} %"
        rows.append((f"{each['label']}, seed {each['seed']}", shares or "not recorded", left_out))
    show("Samples learned after each epoch, and what the next can leave out", ("", "epoch: share", "up to"), rows)
    known = [each["learned"] for each in told if each["learned"] is not None]
    if max(known) >= FEW:
        say("Savings up to that come from samples that are learned; beyond that you pay as with fewer epochs.")
    if min(known) < FEW:
        say(f"Where less than {as_percent(FEW)} are learned: {little_to_leave_out(min(known))}")
    for run, each in zip(runs, told, strict=True):
        if each["learned"] is None:
            say(f"{each['label']}, seed {each['seed']}: {_missing(run)}")
    say(
        "Samples are learned by the threshold of the run's policy and the losses it had stored, which may be some "
        "epochs old. The shares say nothing about accuracy."
    )


def _missing(run: Run) -> str:
    if not run.epochs:
        return "no epoch has come to its end yet. Ask again later."
    return (
        "its records hold no learned share; they were written by an earlier version. Run it again, or give a "
        "checkpoint."
    )
