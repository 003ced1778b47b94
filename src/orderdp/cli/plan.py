"""The command ``orderdp plan``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from orderdp.cli._common import as_ratio, say
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from orderdp.theory import Plan

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "plan"


SUMMARY = "what a setting will do, before anything is spent on it"


DESCRIPTION = """What a setting will do: pool and kept samples, steps, what is saved, how the losses are weighted,
and by when every sample will have been seen.

examples:
  orderdp plan --samples 50000 --prune-ratio 0.4 --epochs 200 --batch-size 128
  orderdp plan --samples 1281167 --prune-ratio 0.4 --epochs 90 --batch-size 1024 --hours 35.2 --price 4
  orderdp plan --samples 50000 --exploration 0.5 --exploitation 0.6 --epochs 200 --batch-size 128 --json
  orderdp plan --samples 50000 --prune-ratio 0.4 --epochs 200 --batch-size 128 --plot weights.png
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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


def run(options: argparse.Namespace) -> None:
    """Run the command."""
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
    widths = [max(len(row[place]) for row in rows) for place in range(2)]
    for what, value, more in rows:  # not by `report.tables.show`, which imports torch
        say(f"  {what:<{widths[0]}}  {value:<{widths[1]}}  {more}".rstrip())


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2g}"  # a run of minutes does not take 0.0 hours


def _all_seen(plan: Plan) -> str:
    if plan.all_seen_epoch is None:
        return "not all within 10,000 epochs"
    return f"all by epoch {plan.all_seen_epoch} (99.9 % sure)"
