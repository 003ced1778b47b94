"""Times two or more things in turns, so that a busy moment of the machine meets all of them.

Every contestant runs once unmeasured. The garbage collector rests while the clock runs.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Seconds = list[float]


@dataclass(frozen=True)
class Goal:
    """What a measured number should be: ``Goal(">=", 20)``."""

    sign: str
    value: float

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"

    def is_reached_by(self, measured: float) -> bool:
        return measured >= self.value if self.sign == ">=" else measured <= self.value


def take_turns(
    contestants: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: bool = True
) -> dict[str, Seconds]:
    """How long each contestant took in each round."""
    if warm_up:
        for run in contestants.values():
            run()
    seconds: dict[str, Seconds] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            seconds[name].append(_timed(run))
    return seconds


def speedup(ours: Seconds, theirs: Seconds, goal: Goal | None) -> dict[str, Any]:
    """How many times faster we are."""
    return _compared(ours, theirs, "theirs / ours", statistics.median(theirs) / statistics.median(ours), goal)


def overhead(ours: Seconds, theirs: Seconds, goal: Goal) -> dict[str, Any]:
    """How many times as long we take."""
    return _compared(ours, theirs, "ours / theirs", statistics.median(ours) / statistics.median(theirs), goal)


def judged(measured: float, goal: Goal | None) -> dict[str, Any]:
    """A goal and whether it is reached; neither where there is no goal."""
    return {} if goal is None else {"goal": str(goal), "reached": goal.is_reached_by(measured)}


def _compared(ours: Seconds, theirs: Seconds, ratio_of: str, ratio: float, goal: Goal | None) -> dict[str, Any]:
    return {
        "ours_ms": _milliseconds(statistics.median(ours)),
        "theirs_ms": _milliseconds(statistics.median(theirs)),
        "ours_range_ms": [_milliseconds(min(ours)), _milliseconds(max(ours))],
        "theirs_range_ms": [_milliseconds(min(theirs)), _milliseconds(max(theirs))],
        "ratio_of": ratio_of,
        "ratio": round(ratio, 3),
        **judged(ratio, goal),
        "rounds": len(ours),
    }


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _timed(run: Callable[[], object]) -> float:
    with _without_collector():
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
