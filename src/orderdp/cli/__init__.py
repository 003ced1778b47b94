"""The command line ``orderdp``.

A command imports its modules when it runs, so that ``--help`` and ``plan`` do not import torch. Results go to stdout,
progress and notes to stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from orderdp._validation import suggestion
from orderdp.cli._common import Command, complain, in_option_names, say, without_library_frames
from orderdp.cli.advice import ADVISE, PLAN
from orderdp.cli.methods import CORESET, DATA, EXPORT, POLICIES
from orderdp.cli.reproduce import REPRODUCE
from orderdp.cli.runs import COMPARE, REPORT, TRAIN
from orderdp.errors import ConfigError, OrderDPError

__all__ = ["main"]


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
    names = [command.name for command in _COMMANDS]
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
            own.error(f"there is no option {option}.{close if 'Did you mean' in close else ''}")
        own.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("orderdp", description=_DESCRIPTION, formatter_class=_Manual)
    parser.add_argument("-V", "--version", action="store_true", help="print the version and stop")
    parser.set_defaults(run=lambda options: _show_version() if options.version else parser.print_help())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in _COMMANDS:
        own = commands.add_parser(command.name, description=command.description, formatter_class=_Manual)
        own.set_defaults(run=command.run, parser=own)
        command.add(own)
    return parser


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in a line; argparse prints all options first, under which the line is lost."""

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ")
        end = "" if text.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog}: {text}{end} `{self.prog} --help` shows the options.\n")


class _Manual(argparse.RawDescriptionHelpFormatter):
    """Prints descriptions as they are written."""


def _show_version() -> None:
    from orderdp import __version__

    say(f"orderdp {__version__}")


# -- completion --------------------------------------------------------------------------------------------------------


_COMPLETION = """Prints a script that completes the commands and options of orderdp in bash, zsh or fish.

examples:
  eval "$(orderdp completion bash)"                   # in ~/.bashrc
  eval "$(orderdp completion zsh)"                    # in ~/.zshrc, after compinit
  orderdp completion fish > ~/.config/fish/completions/orderdp.fish
"""


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def _run_completion(options: argparse.Namespace) -> None:
    parser = _parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
    words = {name: _words(own) for name, own in commands.items()}
    make = _fish if options.shell == "fish" else _bash
    say(make(_words(parser), words, zsh=options.shell == "zsh"))


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Return what can follow a command: the values of its first argument, then its options."""
    words: list[str] = []
    for action in parser._actions:
        if action.option_strings:
            words += action.option_strings
        elif action.choices:
            words = [*map(str, action.choices), *words]
    return words


def _bash(top: list[str], commands: dict[str, list[str]], *, zsh: bool) -> str:
    cases = "\n".join(f"        {name}) words='{' '.join(words)}' ;;" for name, words in commands.items())
    start = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{start}_orderdp() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words command place
    for ((place = 1; place < COMP_CWORD; place++)); do
        [[ "${{COMP_WORDS[place]}}" != -* ]] && command="${{COMP_WORDS[place]}}" && break
    done
    case "$command" in
{cases}
        *) words='{" ".join(top)}' ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _orderdp orderdp"""


def _fish(top: list[str], commands: dict[str, list[str]], *, zsh: bool) -> str:
    lines = ["complete -c orderdp -n __fish_use_subcommand -a '" + " ".join(top) + "'"]
    lines += [
        f"complete -c orderdp -n '__fish_seen_subcommand_from {name}' -a '{' '.join(words)}'"
        for name, words in commands.items()
    ]
    return "\n".join(lines)


COMPLETION = Command(
    "completion",
    "a script that completes commands and options in a shell",
    _COMPLETION,
    _add_completion,
    _run_completion,
)


_COMMANDS = (PLAN, TRAIN, ADVISE, COMPARE, REPORT, REPRODUCE, POLICIES, CORESET, DATA, EXPORT, COMPLETION)


_DESCRIPTION = "Train on fewer samples per epoch, and measure what that costs.\n\ncommands:\n" + "\n".join(
    f"  {command.name:<11} {command.summary}" for command in _COMMANDS
)
