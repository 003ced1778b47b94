"""Progress of a comparison: bars with the time left on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from orderdp.experiments.config import Settings
from orderdp.experiments.records import seconds_of

__all__ = ["Progress", "result", "show_progress"]


_EVERY = 10.0  # seconds between plain lines


class Progress:
    """Shows nothing, as `--quiet` asks for; the base class of the other displays."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""

    def watch(self, run: Settings, done: float, epochs: int, metric: float | None) -> None:
        """Show that `done` of `epochs` epochs of a run are done."""

    def ended(self, run: Settings, summary: dict[str, Any]) -> None:
        """Show that a run has ended."""


class _Lines(Progress):
    def __init__(self, n_runs: int, n_done: int, say: Callable[[str], None]) -> None:
        self._n_runs = n_runs
        self._n_done = n_done
        self._say = say
        self._start = self._said = time.monotonic()
        self._n_before = n_done

    def watch(self, run: Settings, done: float, epochs: int, metric: float | None) -> None:
        if time.monotonic() - self._said < _EVERY:
            return
        self._said = time.monotonic()
        so_far = "" if metric is None else f", {metric:.2f} %"
        self._say(f"  {run.label}, seed {run.seed}: epoch {done:.1f} of {epochs}{so_far}")

    def ended(self, run: Settings, summary: dict[str, Any]) -> None:
        self._n_done += 1
        self._said = time.monotonic()
        each = (time.monotonic() - self._start) / (self._n_done - self._n_before)
        n_left = self._n_runs - self._n_done
        left = f"; about {_duration(each * n_left)} left" if n_left else ""
        self._say(f"[{self._n_done}/{self._n_runs}] {_outcome(run, summary)}{left}")


class _Bars(Progress):
    def __init__(self, n_runs: int, n_done: int) -> None:
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._all = self._bars.add_task(f"all {n_runs} runs", total=n_runs, completed=n_done)
        self._own: dict[str, Any] = {}
        self._share: dict[str, float] = {}
        self._n_done = n_done

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def watch(self, run: Settings, done: float, epochs: int, metric: float | None) -> None:
        if run.run_id not in self._own:
            self._own[run.run_id] = self._bars.add_task("", total=epochs)
        so_far = "" if metric is None else f"  {metric:.2f} %"
        text = f"{run.label}, seed {run.seed}{so_far}"
        self._bars.update(self._own[run.run_id], completed=done, description=text)
        self._share[run.run_id] = done / epochs
        self._bars.update(self._all, completed=self._n_done + sum(self._share.values()))

    def ended(self, run: Settings, summary: dict[str, Any]) -> None:
        self._n_done += 1
        self._share.pop(run.run_id, None)
        own = self._own.pop(run.run_id, None)
        if own is not None:
            self._bars.remove_task(own)
        self._bars.update(self._all, completed=self._n_done + sum(self._share.values()))
        self._bars.console.print(_outcome(run, summary), highlight=False)


def show_progress(n_runs: int, n_done: int, *, quiet: bool, say: Callable[[str], None]) -> Progress:
    """Return the display that suits the output: a terminal, a file, or none."""
    if quiet:
        return Progress()
    if sys.stdout.isatty():
        try:
            return _Bars(n_runs, n_done)
        except ImportError:  # bars need an optional package
            pass
    return _Lines(n_runs, n_done, say)


def _outcome(run: Settings, summary: dict[str, Any]) -> str:
    name = f"{run.label}, seed {run.seed}"
    if summary["status"] != "done":
        return f"{name}: failed, {summary.get('reason')}"
    return f"{name}: {result(summary)}, {_duration(seconds_of(summary))}"


def result(summary: Mapping[str, Any]) -> str:
    """Format the result of a finished run: its metric, which may be missing, and what it saved."""
    metric = "its metric is no number" if summary["metric"] is None else f"{summary['metric']:.2f} %"
    proxy = summary.get("proxy_samples")
    told = f", and {proxy['forward']:,} through a proxy, {proxy['backward']:,} of them back" if proxy else ""
    return f"{metric}, {summary['saved']:.1%} fewer samples{told}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
