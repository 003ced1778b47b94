"""Commands that say what pruning will do: ``orderdp plan``, before a training, and ``advise``, after a few epochs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderdp.cli._common import Command, as_ratio, say
from orderdp.errors import ConfigError, DatasetError, RecordError

if TYPE_CHECKING:
    from orderdp.experiments.records import Run
    from orderdp.policies import Probability
    from orderdp.theory import Plan

__all__ = ["ADVISE", "PLAN"]


# -- plan --------------------------------------------------------------------------------------------------------------


_PLAN = """What a setting will do: pool and kept samples, steps, what is saved, how the losses are weighted,
and by when every sample will have been seen.

examples:
  orderdp plan --samples 50000 --prune-ratio 0.4 --epochs 200 --batch-size 128
  orderdp plan --samples 1281167 --prune-ratio 0.4 --epochs 90 --batch-size 1024 --hours 35.2 --price 4
  orderdp plan --samples 50000 --exploration 0.5 --exploitation 0.6 --epochs 200 --batch-size 128 --json
  orderdp plan --samples 50000 --prune-ratio 0.4 --epochs 200 --batch-size 128 --plot weights.png
"""


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, required=True, metavar="N", help="samples in the data set")
    parser.add_argument("--prune-ratio", type=as_ratio, metavar="R", help="fraction left out in each epoch, in [0, 1)")
    parser.add_argument("--exploration", type=float, metavar="E", help="size of the pool as a fraction of the data set")
    parser.add_argument("--exploitation", type=float, metavar="E", help="fraction of the pool that is kept")
    parser.add_argument("--epochs", type=int, required=True, metavar="N", help="number of epochs")
    parser.add_argument("--batch-size", type=int, required=True, metavar="N", help="samples per batch and process")
    parser.add_argument("--drop-last", action="store_true", help="drop an incomplete last batch")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="number of processes")
    parser.add_argument("--hours", type=float, metavar="H", help="hours that training on all data takes")
    parser.add_argument("--price", type=float, metavar="P", help="price per hour")
    parser.add_argument("--json", action="store_true", help="print numbers as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the weights: .png, .svg or .html")


def _run_plan(options: argparse.Namespace) -> None:
    from orderdp.theory import plan

    if options.prune_ratio is None and (options.exploration is None or options.exploitation is None):
        raise ConfigError(
            "give --prune-ratio, or both --exploration and --exploitation; a ratio of 0.4 trains on 60 % of the data."
        )
    result = plan(
        options.samples,
        options.prune_ratio,
        options.epochs,
        options.batch_size,
        exploration=options.exploration,
        exploitation=options.exploitation,
        drop_last=options.drop_last,
        world_size=options.world_size,
        hours=options.hours,
        price=options.price,
    )
    if options.plot is not None:
        from orderdp.report.charts import save
        from orderdp_paper.theory import weights_against_uniform

        save(weights_against_uniform(result.n, result.s, result.q), options.plot)
    if options.json:
        say(json.dumps(result.as_dict()))
    else:
        _show_plan(result)
        if options.plot is not None:
            say(f"The weights are drawn in {options.plot}.")


def _show_plan(plan: Plan) -> None:
    from orderdp.report import table_text

    size = plan.effective_sample_size
    rows = [
        ("pool each epoch", f"{plan.s:,}", f"exploration {plan.exploration:.3f}"),
        ("trained on each epoch", f"{plan.q:,}", f"exploitation {plan.exploitation:.3f}"),
        ("steps per epoch", f"{plan.steps_an_epoch:,}", f"batches of {plan.batch_size:,}"),
        ("steps in all", f"{plan.steps:,}", f"{plan.steps_saved:,} saved"),
        ("samples in all", f"{plan.samples:,}", f"{plan.samples_saved:,} saved"),
        ("hardest sample's chance", f"{plan.largest_inclusion:.4f}", "to be trained on in an epoch"),
        ("easiest sample's chance", f"{plan.smallest_inclusion:.4f}", f"uniform: {plan.q / plan.n:.4f}"),
        ("effective sample size", f"{size:,.0f}", f"{size / plan.n:.1%} of all"),
        ("largest weight shift, C_s", f"{plan.deviation:.3f}", "0 where the draw is uniform"),
        ("sampling term", f"{plan.sampling:.2e}", "for losses of at most 1"),
        ("seen after all epochs", f"{plan.coverage:.2%}", _all_seen(plan)),
    ]
    if plan.hours is not None and plan.hours_saved is not None:
        rows.append(("hours", _hours(plan.hours), f"{_hours(plan.hours_saved)} saved"))
    if plan.money_saved is not None:
        rows.append(("money saved", f"{plan.money_saved:,.2f}", "time taken to follow samples"))
    say(f"{plan.n:,} samples, {plan.epochs} epochs, {plan.saved:.1%} pruned")
    say(table_text(("", "", ""), rows))


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2g}"  # a run of minutes does not take 0.0 hours


def _all_seen(plan: Plan) -> str:
    if plan.all_seen_epoch is None:
        return "not all within 10,000 epochs"
    return f"all by epoch {plan.all_seen_epoch} (99.9 % sure)"


PLAN = Command("plan", "what a setting will do, before anything is spent on it", _PLAN, _add_plan, _run_plan)


# -- advise ------------------------------------------------------------------------------------------------------------


_ADVISE = """What can be pruned, by the losses that a training has left behind: how many samples are learned, by how
much leaving them out changes the gradient at most, and what to write. It says nothing about accuracy.

examples:
  orderdp advise run.pt                                          # a checkpoint with pruner.state_dict() in it
  orderdp advise run.pt --learned 0.95 --refresh 0.2
  orderdp advise run.pt --label-smoothing 0.1 --classes 10       # that the losses were computed with
  orderdp advise losses.npy --json                               # one loss for each sample
  orderdp advise results                                         # a folder of orderdp train or compare
"""


_SHOWN = 6  # epochs of a run that the terminal shows


def _add_advise(parser: argparse.ArgumentParser) -> None:
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


def _run_advise(options: argparse.Namespace) -> None:
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
    from orderdp.report import show

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


ADVISE = Command("advise", "what can be pruned, after a few epochs of your training", _ADVISE, _add_advise, _run_advise)
