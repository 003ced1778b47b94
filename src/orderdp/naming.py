"""Names that people mistype."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from orderdp.errors import ConfigError

__all__ = ["checked_name", "suggestion"]


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence with the name that was probably meant, or with all there are; it starts with a space."""
    choices = list(known)
    close = difflib.get_close_matches(name, choices, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" There {'is' if len(choices) == 1 else 'are'} {', '.join(choices) or 'none'}."


def checked_name(name: str, known: Iterable[str], kind: str) -> str:
    """The name itself if it is known, or an error that suggests the one that was meant.

    >>> checked_name("orderpd", ["orderdp", "rs2"], "policy")
    Traceback (most recent call last):
    orderdp.errors.ConfigError: there is no policy 'orderpd'. Did you mean 'orderdp'?
    """
    choices = list(known)
    if name not in choices:
        raise ConfigError(f"there is no {kind} {name!r}.{suggestion(name, choices)}")
    return name
