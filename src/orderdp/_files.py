"""Files that are written completely or not at all: under a temporary name that is then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["flushed", "replacing", "write_text"]


@contextmanager
def replacing(path: Path, ending: str = ".tmp") -> Iterator[Path]:
    """Yield a temporary path beside `path`. It is renamed to `path` on success and removed on failure.

    Args:
        path: The final path.
        ending: Suffix of the temporary name, for writers that depend on it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{ending}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def flushed(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that replaces `path` once it is on the disk: a power cut leaves the old or the new file."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
