"""The first steps of a suite's runs: whether the recipe starts at all, before days are spent on it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from orderdp.errors import ConfigError
from orderdp.planning import is_count
from orderdp.workbench.comparing import Place
from orderdp.workbench.proxy_plan import is_recorded
from orderdp.workbench.settings import Settings
from orderdp.workbench.static import is_static
from orderdp.workbench.suites.suite import Part, Planned

__all__ = ["Trial", "try_out"]


class Trial(NamedTuple):
    """What the first steps of a run took, and why it failed if it did."""

    part: Part
    planned: Planned
    steps: int
    seconds_a_step: float
    reason: str | None = None


class _EnoughError(Exception):
    """As many steps as were asked for."""


def try_out(parts: Sequence[Part], place: Place, steps: int) -> Iterator[Trial]:
    """Trains every method of every part for a few steps, in a folder that is then removed.

    Static methods that need a proxy are left out: training it takes longer than a few steps. Nothing is tested.

    Args:
        parts: What to try.
        place: Where data are, and which device.
        steps: How many of each.
    """
    if not is_count(steps):
        raise ConfigError(f"the number of steps must be at least 1, got {steps}.")
    with tempfile.TemporaryDirectory(prefix="orderdp-trial-") as folder:
        runner = place._replace(out=Path(folder)).runner()
        for part in parts:
            for planned in _one_of_each(part):
                clock, reason = _Clock(steps), None
                with suppress(_EnoughError):
                    reason = runner.run(planned.settings, clock.watch).get("reason")  # of a run that failed
                yield Trial(part, planned, len(clock.times), clock.seconds_a_step, reason)


def _one_of_each(part: Part) -> list[Planned]:
    first: dict[str, Planned] = {}
    for planned in part.runs():
        if not _needs_proxy(planned.settings):
            first.setdefault(planned.method.name, planned)
    return list(first.values())


def _needs_proxy(settings: Settings) -> bool:
    return is_recorded(settings.policy) or (is_static(settings.policy) and settings.policy != "static-random")


class _Clock:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._start = time.perf_counter()
        self.times: list[float] = []

    def watch(self, done: float, epochs: int, metric: float | None) -> None:
        self.times.append(time.perf_counter())
        if len(self.times) >= self._steps:
            raise _EnoughError

    @property
    def seconds_a_step(self) -> float:
        """Without the first one, which also makes things ready, where there are others."""
        if len(self.times) > 1:
            return (self.times[-1] - self.times[0]) / (len(self.times) - 1)
        return self.times[-1] - self._start if self.times else 0.0
