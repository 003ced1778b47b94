"""Real text that is always at hand: the docstrings of the standard library's functions and classes."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def docstrings(package: str) -> tuple[str, ...]:
    """What the functions and classes of a package or module say about themselves; each text once, on one line."""
    home = Path(sysconfig.get_path("stdlib")) / package
    files = sorted(home.rglob("*.py")) if home.is_dir() else [home.with_suffix(".py")]
    texts = (text for file in files for text in _documents(file.read_text(encoding="utf-8")))
    return tuple(dict.fromkeys(texts))


def _documents(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = " ".join((ast.get_docstring(node) or "").split())
            if len(text) >= 20:
                yield text
