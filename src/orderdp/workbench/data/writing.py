"""Files that are written whole or not at all, and what to do where that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orderdp.errors import DatasetError
from orderdp.replacing import replacing

__all__ = ["made_folder", "write_whole", "writing_to"]

_ADVICE = {
    errno.ENOSPC: "The disk is full: make room, or name another place with --data-dir.",
    errno.EDQUOT: "Your quota is used up: make room, or name another place with --data-dir.",
}
_ELSEWHERE = "Name a place you may write to with --data-dir or in ORDERDP_DATA."


@contextmanager
def writing_to(path: Path, *, kept: str = "") -> Iterator[None]:
    """Turns the operating system's complaints about writing `path` into errors that say what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, _ELSEWHERE)
        raise DatasetError(f"cannot write {path}: {error.strerror or error}. {advice}{kept}") from error


def made_folder(path: Path) -> Path:
    """The folder, after making it where it is missing, or an error where it cannot be written to."""
    with writing_to(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission to write there")
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file under a temporary name and renames it, so that nobody ever sees half of it."""
    with writing_to(path, kept=" What was written of it was removed."), replacing(path) as temporary:
        temporary.write_bytes(data)
