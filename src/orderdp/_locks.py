"""One process at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orderdp.errors import StateError

__all__ = ["in_turn", "try_lock"]


@contextmanager
def try_lock(folder: Path) -> Iterator[None]:
    """Holds the folder, or says that another process does. A process that is killed holds nothing any more."""
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
    """Holds the folder, after another process that does has let it go; `wait` is called where there is one.

    Nothing is left in the folder: it is locked itself.
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
