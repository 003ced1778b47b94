"""Where the time of a run goes: selection, training, evaluation, diagnosis, and everything else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["NOT_COUNTED", "PARTS", "Stopwatch"]

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

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts everything inside; what no part claims is overhead."""
        claimed = sum(self.seconds.values())
        start = time.perf_counter()
        try:
            yield
        finally:
            gone = time.perf_counter() - start
            self.seconds["overhead"] += gone - (sum(self.seconds.values()) - claimed)

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
