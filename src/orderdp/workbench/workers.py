"""A process that trains for another one: it saves and ends when that one says so, and when that one is no more."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["follow", "saving_at_the_end"]

_TERMINATED = 128 + signal.SIGTERM


class _Worker:
    """What this process is doing."""

    def __init__(self) -> None:
        self.training = False
        self.told_to_end = False

    def watch(self, done: float, epochs: int, metric: float | None) -> None:
        """Called after every step, where there is something to save and all of it fits together."""
        self.training = True
        if self.told_to_end:
            raise KeyboardInterrupt

    def end(self, number: int, frame: Any) -> None:
        """Ends the process: at once, or after the step that it is in."""
        self.told_to_end = True
        if not self.training:
            os._exit(_TERMINATED)


_worker = _Worker()


def follow(line: Connection) -> None:
    """Called in a new process, which then ends when the other end of the line is closed: by hand, or by a kill.

    Args:
        line: The end that is read from. Nothing ever comes.
    """
    signal.signal(signal.SIGTERM, _worker.end)
    threading.Thread(target=_listen, args=(line,), daemon=True).start()


def _listen(line: Connection) -> None:
    try:
        line.poll(None)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def saving_at_the_end() -> Iterator[Callable[[float, int, float | None], None]]:
    """Around a run in such a process; gives what the run must call after every step."""
    try:
        yield _worker.watch
    finally:
        _worker.training = False
        if _worker.told_to_end:
            os._exit(_TERMINATED)  # or it would wait for more work, which nobody is there to give it
