"""Time per part of a run, and interrupts that wait for the end of a step."""

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
    """Delay Ctrl-C until the block ends. A second Ctrl-C does not wait."""
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread can set handlers. If Python cannot restore the handler, or SIGINT is ignored, do nothing.
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


#: Parts that are measured but are not part of the cost of training.
NOT_COUNTED = ("evaluation", "diagnosis")


class Stopwatch:
    """Sums seconds by part; time that no part claims while the stopwatch runs is overhead.

    On an asynchronous device the host's clock is right only where the host waits: the totals of an epoch are right,
    because the host waits for its end; the parts within a step are not.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._settled: tuple[float, float] | None = None  # time and seconds counted at the last flush; None if stopped

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time inside; time that no part claims is overhead."""
        self._settled = (time.perf_counter(), sum(self.seconds.values()))
        try:
            yield
        finally:
            self.flush()
            self._settled = None

    def flush(self) -> None:
        """Count unclaimed time so far as overhead; call before `seconds` is read while the stopwatch runs."""
        if self._settled is None:
            return
        now = time.perf_counter()
        then, counted = self._settled
        self.seconds["overhead"] += (now - then) - (sum(self.seconds.values()) - counted)
        self._settled = (now, sum(self.seconds.values()))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside for the part `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def since(self, before: dict[str, float]) -> dict[str, float]:
        """Return the seconds of each part since `before`, a copy of `seconds`, under the names that records use."""
        return {f"{name}_seconds": self.seconds[name] - before[name] for name in PARTS}
