"""The command line ``orderdp``.

A command imports its modules when it runs, so that ``--help`` and ``plan`` do not import torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from orderdp.cli import advise, compare, coreset, data, export, plan, policies, report, reproduce, train
from orderdp.cli._common import complain, say
from orderdp.errors import OrderDPError

__all__ = ["main"]


_COMMANDS = (plan, train, advise, compare, report, reproduce, policies, coreset, data, export)


_DESCRIPTION = "Train on fewer samples per epoch, and measure what that costs.\n\ncommands:\n" + "\n".join(
    f"  {command.NAME:<11} {command.SUMMARY}" for command in _COMMANDS
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 when done, 2 for bad usage, 130 when interrupted."""
    options = _parser().parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], None] = options.run
        run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has closed the pipe (`orderdp policies | head`). Without the redirection Python would
        # report the error again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OrderDPError, OSError) as error:
        complain(f"orderdp {options.command}: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("orderdp", description=_DESCRIPTION, formatter_class=_Manual)
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    parser.set_defaults(run=lambda options: _show_version() if options.version else parser.print_help())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in _COMMANDS:
        own = commands.add_parser(command.NAME, description=command.DESCRIPTION, formatter_class=_Manual)
        own.set_defaults(run=command.run)
        command.add(own)
    return parser


class _Manual(argparse.RawDescriptionHelpFormatter):
    """Prints descriptions as they are written."""


def _show_version() -> None:
    from orderdp import __version__

    say(f"orderdp {__version__}")
