"""The command ``orderdp completion``."""

from __future__ import annotations

import argparse

from orderdp.cli._common import say

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "completion"


SUMMARY = "a script that completes commands and options in a shell"


DESCRIPTION = """Prints a script that completes the commands and options of orderdp in bash, zsh or fish.

examples:
  eval "$(orderdp completion bash)"                   # in ~/.bashrc
  eval "$(orderdp completion zsh)"                    # in ~/.zshrc, after compinit
  orderdp completion fish > ~/.config/fish/completions/orderdp.fish
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from orderdp.cli import _parser

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
