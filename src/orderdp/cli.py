"""The command line: ``orderdp plan``, ``orderdp policies``, ``orderdp reproduce``.

Loads what a command needs when it is run, so that ``--help`` and ``plan`` load no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orderdp.errors import OrderDPError
from orderdp.naming import checked_name

if TYPE_CHECKING:
    from orderdp.theory import Plan

__all__ = ["main"]

_DESCRIPTION = """Train on fewer samples each epoch without losing accuracy.

commands:
  plan        what a setting will do, before anything is spent on it
  policies    which rules there are, and the card of each
  reproduce   the paper's theory figures and tables, drawn from the library
"""

_PLAN = """What a setting will do: pool and kept samples, steps, what is saved, how the losses are weighted, and by
when every sample will have been seen.

examples:
  orderdp plan --samples 50000 --prune-ratio 0.4 --epochs 200 --batch-size 128
  orderdp plan --samples 1281167 --prune-ratio 0.4 --epochs 90 --batch-size 1024 --hours 35.2 --price 4
  orderdp plan --samples 50000 --exploration 0.5 --exploitation 0.6 --epochs 200 --batch-size 128 --json
  orderdp plan --samples 50000 --prune-ratio 0.4 --epochs 200 --batch-size 128 --plot weights.png
"""

_POLICIES = """Which policies there are, one line each; or the card of one: its rule, parameters, cost and guarantees.

examples:
  orderdp policies
  orderdp policies infobatch
"""

_REPRODUCE = """The paper's theory figures and tables, drawn from the library.

examples:
  orderdp reproduce --list
  orderdp reproduce fig-weights-limit --out figures
  orderdp reproduce table-toy
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 when done, 2 for bad usage, 130 when interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], None] = options.run
        run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Somebody has read enough (`orderdp policies | head`). Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OrderDPError, OSError) as error:
        print(f"orderdp {options.command}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("orderdp", description=_DESCRIPTION, formatter_class=_Manual)
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parser.set_defaults(run=lambda options: _show_version() if options.version else parser.print_help())
    _add_plan(commands.add_parser("plan", description=_PLAN, formatter_class=_Manual))
    _add_policies(commands.add_parser("policies", description=_POLICIES, formatter_class=_Manual))
    _add_reproduce(commands.add_parser("reproduce", description=_REPRODUCE, formatter_class=_Manual))
    return parser


class _Manual(argparse.RawDescriptionHelpFormatter):
    """Descriptions as they are written."""


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_plan)
    parser.add_argument("--samples", type=int, required=True, metavar="N", help="samples in the data set")
    parser.add_argument("--prune-ratio", type=float, metavar="R", help="share left out each epoch, in [0, 1)")
    parser.add_argument("--exploration", type=float, metavar="E", help="size of the pool as a share of the data set")
    parser.add_argument("--exploitation", type=float, metavar="E", help="share of the pool that is kept")
    parser.add_argument("--epochs", type=int, required=True, metavar="N", help="number of epochs")
    parser.add_argument("--batch-size", type=int, required=True, metavar="N", help="samples a batch and process")
    parser.add_argument("--drop-last", action="store_true", help="leave out a last, smaller batch")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="processes that share the work")
    parser.add_argument("--hours", type=float, metavar="H", help="what the full run takes")
    parser.add_argument("--price", type=float, metavar="P", help="of an hour")
    parser.add_argument("--json", action="store_true", help="print numbers as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the weights: .png, .svg or .html")


def _plan(options: argparse.Namespace) -> None:
    from orderdp.theory import plan

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
        from orderdp.report.theory_figures import weights_against_uniform

        save(weights_against_uniform(result.n, result.s, result.q), options.plot)
    if options.json:
        _say(json.dumps(result.as_dict()))
    else:
        _show_plan(result)
        if options.plot is not None:
            _say(f"The weights are drawn in {options.plot}.")


def _show_plan(plan: Plan) -> None:
    from orderdp.report.tables import show

    size = plan.effective_sample_size
    rows = [
        ("pool each epoch", f"{plan.s:,}", f"exploration {plan.exploration:.3f}"),
        ("trained on each epoch", f"{plan.q:,}", f"exploitation {plan.exploitation:.3f}"),
        ("steps an epoch", f"{plan.steps_an_epoch:,}", f"batches of {plan.batch_size:,}"),
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
        rows.append(("hours", f"{plan.hours:,.1f}", f"{plan.hours_saved:,.1f} saved"))
    if plan.money_saved is not None:
        rows.append(("money saved", f"{plan.money_saved:,.2f}", "time taken to follow samples"))
    show(f"{plan.n:,} samples, {plan.epochs} epochs, {plan.saved:.1%} pruned", ("", "", ""), rows)


def _all_seen(plan: Plan) -> str:
    if plan.all_seen_epoch is None:
        return "not all within 10,000 epochs"
    return f"all by epoch {plan.all_seen_epoch} (99.9 % sure)"


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_policies)
    parser.add_argument("name", nargs="?", metavar="NAME", help="whose card to print")


def _policies(options: argparse.Namespace) -> None:
    from orderdp.policies.registry import NAMES, card, summary
    from orderdp.report.tables import show

    if options.name is None:
        show("orderdp policies NAME", ("name", "what it does"), [(name, summary(name)) for name in NAMES])
    else:
        _say(card(options.name))


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_reproduce)
    parser.add_argument("id", nargs="?", metavar="ID", help="which figure or table")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where figures go (default: here)")
    parser.add_argument("--format", default="png", metavar="F", help="png, svg or html (default: png)")


def _reproduce(options: argparse.Namespace) -> None:
    from orderdp.report import theory_figures, toy
    from orderdp.report.tables import show

    if options.list or options.id is None:
        rows = [(name, text) for name, (text, _) in theory_figures.FIGURES.items()]
        show("orderdp reproduce ID", ("id", "what it shows"), [*rows, ("table-toy", toy.DESCRIPTION)])
        return
    if options.id == "table-toy":
        for table in toy.tables():
            show(*table)
        return
    from orderdp.report.charts import save

    checked_name(options.id, [*theory_figures.FIGURES, "table-toy"], "figure or table")
    _, draw = theory_figures.FIGURES[options.id]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.id}.{options.format}"
    save(draw(), path)
    _say(f"{path}")


def _show_version() -> None:
    from orderdp import __version__

    _say(f"orderdp {__version__}")


def _say(text: str) -> None:
    print(text)  # noqa: T201
