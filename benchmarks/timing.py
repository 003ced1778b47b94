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
        """Whether `measured` is on the right side of it, or on it."""
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
    return {"ratio_of": "theirs / ours", **_milliseconds(ours, theirs), **_ratio(theirs, ours, goal)}


def overhead(ours: Seconds, theirs: Seconds, goal: Goal | None = None) -> dict[str, Any]:
    """How many times as long we take."""
    return {"ratio_of": "ours / theirs", **_milliseconds(ours, theirs), **_ratio(ours, theirs, goal)}


def judged(measured: float, goal: Goal | None) -> dict[str, Any]:
    """A goal and whether it is reached; neither where there is no goal."""
    return {} if goal is None else {"goal": str(goal), "reached": goal.is_reached_by(measured)}


def _milliseconds(ours: Seconds, theirs: Seconds) -> dict[str, float]:
    return {
        "ours_ms": round(1000 * statistics.median(ours), 3),
        "theirs_ms": round(1000 * statistics.median(theirs), 3),
    }


def _ratio(upper: Seconds, lower: Seconds, goal: Goal | None) -> dict[str, Any]:
    """The ratio of the medians, and the quartiles of the single rounds' ratios: how far noise moves it."""
    ratio = statistics.median(upper) / statistics.median(lower)
    first, _, third = statistics.quantiles([u / v for u, v in zip(upper, lower, strict=True)], method="inclusive")
    return {
        "ratio": round(ratio, 3),
        "ratio_quartiles": [round(first, 3), round(third, 3)],
        **judged(ratio, goal),
        "rounds": len(upper),
    }


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
