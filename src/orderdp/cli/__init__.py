"""The command line ``orderdp``.

A command imports its modules when it runs, so that ``--help`` and ``plan`` do not import torch. Results go to stdout,
progress and notes to stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from orderdp._validation import suggestion
from orderdp.cli import advise, compare, completion, coreset, data, export, plan, policies, report, reproduce, train
from orderdp.cli._common import complain, in_option_names, say, without_library_frames
from orderdp.errors import ConfigError, OrderDPError

__all__ = ["main"]


_COMMANDS = (plan, train, advise, compare, report, reproduce, policies, coreset, data, export, completion)


_DESCRIPTION = "Train on fewer samples per epoch, and measure what that costs.\n\ncommands:\n" + "\n".join(
    f"  {command.NAME:<11} {command.SUMMARY}" for command in _COMMANDS
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The arguments, without the name of the program; by default those of the process.

    Returns:
        0 when done; 1 if a run failed, a task raised an error, or what was asked for is not there; 2 for bad usage; 130
        when interrupted.
    """
    options = _parsed(sys.argv[1:] if arguments is None else list(arguments))
    try:
        run: Callable[[argparse.Namespace], int | None] = options.run
        code = run(options) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has closed the pipe (`orderdp policies | head`). Without the redirection Python would
        # report the error again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ConfigError as error:
        complain(f"orderdp {options.command}: {in_option_names(str(error), options)}")
        return 2
    except (OrderDPError, OSError) as error:
        complain(f"orderdp {options.command}: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        shown = without_library_frames(error)
        if shown is None:  # an error of this library, whose frames say where it is
            raise
        complain(f"orderdp {options.command}: your code raised an error.\n{shown}")
        return 1
    return code


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments; a mistyped command or option is answered with the nearest one."""
    parser = _parser()
    names = [command.NAME for command in _COMMANDS]
    first = next((argument for argument in arguments if not argument.startswith("-")), None)
    if first is not None and first not in names:
        parser.error(f"there is no command {first!r}.{suggestion(first, names)}")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        own: argparse.ArgumentParser = getattr(options, "parser", parser)
        known = [text for action in own._actions for text in action.option_strings if text.startswith("--")]
        option = unknown[0].partition("=")[0]
        if option.startswith("--"):
            close = suggestion(option, known)
            own.error(f"there is no option {option}.{close if 'Did you mean' in close else ' --help shows them.'}")
        own.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("orderdp", description=_DESCRIPTION, formatter_class=_Manual)
    parser.add_argument("-V", "--version", action="store_true", help="print the version and stop")
    parser.set_defaults(run=lambda options: _show_version() if options.version else parser.print_help())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in _COMMANDS:
        own = commands.add_parser(command.NAME, description=command.DESCRIPTION, formatter_class=_Manual)
        own.set_defaults(run=command.run, parser=own)
        command.add(own)
    return parser


class _Manual(argparse.RawDescriptionHelpFormatter):
    """Prints descriptions as they are written."""


def _show_version() -> None:
    from orderdp import __version__

    say(f"orderdp {__version__}")
