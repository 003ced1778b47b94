"""Words for the terminal."""

from __future__ import annotations

import sys

__all__ = ["complain", "say"]


def say(text: str) -> None:
    """To whoever reads the output."""
    print(text, flush=True)  # noqa: T201


def complain(text: str) -> None:
    """To whoever reads errors."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
