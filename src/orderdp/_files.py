"""Files that are written whole or not at all: under a temporary name, which then takes the place of the real one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["flushed", "replacing", "write_text"]


@contextmanager
def replacing(path: Path, ending: str = ".tmp") -> Iterator[Path]:
    """A name beside `path` to write to. It is renamed where all goes well, and removed where it does not.

    Args:
        path: What is to be there in the end.
        ending: Of the temporary name, for writers that go by it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{ending}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def flushed(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` once it is on the disk: even a power cut leaves a whole one."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Writes a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
