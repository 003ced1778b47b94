"""The command ``orderdp report``."""

from __future__ import annotations

import argparse
from pathlib import Path

from orderdp.cli._common import say

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "report"


SUMMARY = "a page, or a table, of what was compared"


DESCRIPTION = """What the runs in a folder, or in a file of packed records, say: a page (report.html, one file that
works offline) with the verdict, a table and charts; or verdict and table as markdown.

examples:
  orderdp report results
  orderdp report results --open
  orderdp report docs/results/records/cifar10.jsonl --markdown
  orderdp report results --markdown
  orderdp report results --charts figures --format svg
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="output folder of train or compare, or a .jsonl file"
    )
    parser.add_argument("--markdown", action="store_true", help="print verdict and table, write no page")
    parser.add_argument(
        "--margin",
        type=float,
        metavar="X",
        help="differences to full data up to this size count as none, in the unit of the metric (default: 0.5 points)",
    )
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument("--charts", type=Path, metavar="DIR", help="also write the charts as files")
    parser.add_argument("--format", default="png", metavar="F", help="format of the charts: png or svg (default: png)")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from orderdp.report.page import report_command

    report_command(
        options.directory,
        say=say,
        markdown=options.markdown,
        open_page=options.open,
        charts=options.charts,
        chart_format=options.format,
        margin=options.margin,
    )
