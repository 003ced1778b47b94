"""Folder locks: one process at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orderdp.errors import StateError

__all__ = ["in_turn", "try_lock"]


@contextmanager
def try_lock(folder: Path) -> Iterator[None]:
    """Lock the folder, or raise if another process holds the lock. A killed process releases its lock."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with (folder / ".lock").open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(
                f"another process is training in {str(folder)!r}. Wait for it, stop it, or choose another --out."
            ) from None
        yield


@contextmanager
def in_turn(folder: Path, wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock the folder, after waiting for the process that holds the lock; `wait` is called if there is one.

    The folder itself is locked, so no lock file is left in it.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
