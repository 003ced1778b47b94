"""``orderdp reproduce``."""

from __future__ import annotations

import argparse
from pathlib import Path

from orderdp.commands.saying import say
from orderdp.naming import checked_name

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]

NAME = "reproduce"
SUMMARY = "the paper's theory figures and tables, drawn from the library"
DESCRIPTION = """The paper's theory figures and tables, drawn from the library.

examples:
  orderdp reproduce --list
  orderdp reproduce fig-weights-limit --out figures
  orderdp reproduce table-toy
"""


def add(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("id", nargs="?", metavar="ID", help="which figure or table")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where figures go (default: here)")
    parser.add_argument("--format", default="png", metavar="F", help="png, svg or html (default: png)")


def run(options: argparse.Namespace) -> None:
    """What it does."""
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
    say(f"{path}")
