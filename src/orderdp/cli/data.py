"""The command ``orderdp data``."""

from __future__ import annotations

import argparse
from pathlib import Path

from orderdp.cli._common import say
from orderdp.errors import ConfigError

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "data"


SUMMARY = "which data sets there are, where they are, and how to get them"


DESCRIPTION = """Data sets by name. Nothing is ever downloaded unless you ask for it here; what comes is checked.

examples:
  orderdp data list
  orderdp data fetch fashion-mnist
  orderdp data fetch cifar10 --data-dir /data
  orderdp data where fashion-mnist
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("action", choices=("list", "fetch", "where"), help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the data set")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder of the data sets (default: the user's cache)"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from orderdp import datasets as data
    from orderdp.report.tables import show

    if options.action == "list":
        rows = data.list_rows(options.data_dir)
        show("orderdp data fetch NAME", ("name", "samples", "shape", "where it is", "how to get it"), rows)
        return
    if options.name is None:
        raise ConfigError(f"data {options.action} needs the name of a data set; `orderdp data list` shows them.")
    if options.action == "fetch":
        data.fetch_command(options.name, options.data_dir, say)
    else:
        path = data.where(options.name, options.data_dir)
        say(f"not here; get it with: orderdp data fetch {options.name}" if path is None else str(path))
