"""The command ``orderdp data``."""

from __future__ import annotations

import argparse
from pathlib import Path

from orderdp.cli._common import add_json, complain, say, say_json
from orderdp.errors import ConfigError

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "data"


SUMMARY = "which data sets there are, where they are, and how to get them"


DESCRIPTION = """Data sets by name. Nothing is ever downloaded unless you ask for it here; what comes is checked.

examples:
  orderdp data
  orderdp data list --json
  orderdp data fetch fashion-mnist
  orderdp data fetch cifar10 --data-dir /data
  orderdp data where fashion-mnist
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "action", nargs="?", choices=("list", "fetch", "where"), default="list", help="what to do (default: list)"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the data set")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder of the data sets (default: the user's cache)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return 1 if the data set is not here."""
    from orderdp import datasets as data

    if options.action == "list":
        _list(options)
        return 0
    if options.name is None:
        raise ConfigError(f"data {options.action} needs the name of a data set; `orderdp data list` shows them.")
    if options.action == "fetch":
        path: Path | None = data.fetch(options.name, options.data_dir, progress=complain)
    else:
        path = data.where(options.name, options.data_dir)
    if options.json:
        say_json({"name": options.name, "path": path})
    elif path is not None:
        say(str(path))
    if path is None:
        complain(f"{options.name} is not here; get it with: orderdp data fetch {options.name}")
        return 1
    return 0


def _list(options: argparse.Namespace) -> None:
    from orderdp import datasets as data
    from orderdp.datasets.catalog import DATASETS
    from orderdp.report.tables import show

    rows = data.list_rows(options.data_dir)
    if options.json:
        told = []
        for name, *_, get in rows:
            known, path = DATASETS[name], data.where(name, options.data_dir)
            samples = {"train_samples": known.n_train, "test_samples": known.n_test, "shape": known.shape}
            told.append({"name": name, **samples, "path": path, "get": get})
        say_json(told)
        return
    show("orderdp data fetch NAME", ("name", "samples", "shape", "where it is", "how to get it"), rows)
