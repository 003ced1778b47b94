"""The command ``orderdp export``."""

from __future__ import annotations

import argparse
from pathlib import Path

from orderdp.cli._common import say

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "export"


SUMMARY = "scores, counts and a static subset of a checkpoint, as a file"


DESCRIPTION = """The score of every sample, how often it was trained on, when it was last seen, and whether it is kept,
as .npz, .csv or .parquet; and a fingerprint of the kept set.

examples:
  orderdp export run.pt samples.csv
  orderdp export run.pt half.npz --keep 0.5
  orderdp export run.pt hard.parquet --keep 10000 --by score
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="file that holds a pruner's state")
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write: .npz, .csv or .parquet")
    parser.add_argument(
        "--keep",
        metavar="K",
        help="what a static subset keeps: a number of samples, or a fraction with a decimal point (default: the "
        "selection of the checkpoint's open epoch)",
    )
    parser.add_argument(
        "--by", choices=["usage", "score"], default="usage", help="keep the most used, or the hardest (default usage)"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from orderdp.checkpoint import load_checkpoint
    from orderdp.errors import ConfigError
    from orderdp.export import columns_of_state, find_state, write_columns

    keep: float | None = None
    if options.keep is not None:
        try:
            keep = float(options.keep) if "." in options.keep else int(options.keep)
        except ValueError:
            raise ConfigError(f"--keep must be a number of samples or a fraction, got {options.keep!r}.") from None
    columns, selection = columns_of_state(find_state(load_checkpoint(options.checkpoint)), keep, options.by)
    write_columns(options.out, columns, selection)
    n, kept = len(columns["index"]), int(columns["kept"].sum())
    say(f"{options.out}: {n} samples, {kept} kept, selection {selection}")
