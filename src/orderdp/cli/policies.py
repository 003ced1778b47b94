"""The command ``orderdp policies``."""

from __future__ import annotations

import argparse

from orderdp.cli._common import add_json, say, say_json

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "policies"


SUMMARY = "list the policies, or print the card of one"


DESCRIPTION = """Which policies there are, one line each; or the card of one: its rule, parameters, cost and guarantees.

examples:
  orderdp policies
  orderdp policies infobatch
  orderdp policies --json
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="policy whose card is printed")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from orderdp.policies.registry import NAMES, RECORDED, card, summary
    from orderdp.report.tables import show

    if options.json:
        names = (*NAMES, *RECORDED) if options.name is None else (options.name,)
        told = [{"name": name, "summary": summary(name)} for name in names]
        say_json(told if options.name is None else {**told[0], "card": card(options.name)})
    elif options.name is None:
        show("orderdp policies NAME", ("name", "what it does"), [(name, summary(name)) for name in (*NAMES, *RECORDED)])
    else:
        say(card(options.name))
