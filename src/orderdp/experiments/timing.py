"""Time spent by part, and interrupts that wait until a step is whole."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["NOT_COUNTED", "PARTS", "Stopwatch", "uninterrupted"]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds Ctrl-C back until the block is over. A second one does not wait."""
    before = signal.getsignal(signal.SIGINT)
    # Handlers can be set by the main thread alone; where there is none to set again, or it is to be ignored, so be it.
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return
    pressed = False

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


PARTS = ("training", "selection", "evaluation", "diagnosis", "overhead")


#: What is looked at and not paid for: it is no part of what training costs.
NOT_COUNTED = ("evaluation", "diagnosis")


class Stopwatch:
    """Adds up seconds by what they were spent on; whatever is not claimed while it runs is overhead.

    On a device that computes by itself the host's clock is told the truth only where the host waits; the totals of an
    epoch are right, because its end is waited for, the parts within a step are not.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._settled: tuple[float, float] | None = None  # when, and how much was counted by then; while it runs

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts everything inside; what no part claims is overhead."""
        self._settled = (time.perf_counter(), sum(self.seconds.values()))
        try:
            yield
        finally:
            self.flush()
            self._settled = None

    def flush(self) -> None:
        """Counts as overhead what no part has claimed so far: before `seconds` is read while it runs."""
        if self._settled is None:
            return
        now = time.perf_counter()
        then, counted = self._settled
        self.seconds["overhead"] += (now - then) - (sum(self.seconds.values()) - counted)
        self._settled = (now, sum(self.seconds.values()))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Claims the time inside for `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def since(self, before: dict[str, float]) -> dict[str, float]:
        """Seconds of each part since a copy of `seconds` was taken, by the names that records have for them."""
        return {f"{name}_seconds": self.seconds[name] - before[name] for name in PARTS}
