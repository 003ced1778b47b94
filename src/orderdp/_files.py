"""Files that are written whole or not at all, and locks between processes."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from orderdp.errors import StateError

__all__ = ["flushed", "in_turn", "replacing", "try_lock", "write_text"]


# A temporary file that was not written to for so long, in seconds, was left by a writer that was killed.
_ABANDONED = 3600


@contextmanager
def replacing(path: Path, ending: str = ".tmp") -> Iterator[Path]:
    """Yield a temporary path beside `path`. It is renamed to `path` on success and removed on failure.

    No two writers get the same temporary path: not two threads, and not two containers whose processes have the same
    number. The last writer to finish wins.

    Args:
        path: The final path.
        ending: Suffix of the temporary name, for writers that depend on it.
    """
    _remove_abandoned(path, ending)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{ending}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path, ending: str) -> None:
    """Remove what killed writers of `path` have left."""
    start, now = f".{path.name}.", time.time()
    with suppress(OSError):  # a missing folder is the writer's error; another writer may have removed the file
        for file in path.parent.iterdir():
            mine = file.name.startswith(start) and file.name.endswith(ending)
            if mine and now - file.stat().st_mtime > _ABANDONED:
                file.unlink()


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


_LOCK = ".lock"  # file in a locked folder; it stays, because removing it would let two processes in


@contextmanager
def try_lock(folder: Path) -> Iterator[None]:
    """Lock the folder, or raise if another process holds the lock. A killed process releases its lock."""
    from filelock import FileLock, Timeout  # torch depends on it

    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StateError(
            f"another process is training in {str(folder)!r}. Wait for it, stop it, or choose another --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def in_turn(folder: Path, wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock the folder, after waiting for the process that holds the lock; `wait` is called if there is one."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
