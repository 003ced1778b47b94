"""What a suite is: one table or figure of the paper, as the runs it takes at each scale and what is made of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orderdp._validation import checked_name, is_count
from orderdp.errors import ConfigError, DatasetError, RecordError
from orderdp.experiments.config import Settings
from orderdp.experiments.proxy_plan import is_recorded
from orderdp.experiments.records import Run, read_runs
from orderdp.experiments.runner import RunOptions
from orderdp.experiments.selected_once import is_static
from orderdp.experiments.statistics import Row, compare
from orderdp_paper.printed import Printed

if TYPE_CHECKING:
    from orderdp.experiments.diagnosing import Closeness

__all__ = [
    "BROUGHT",
    "SCALES",
    "Method",
    "Part",
    "PartResults",
    "Planned",
    "Result",
    "Scale",
    "Suite",
    "Table",
    "Trial",
    "fewer_seeds",
    "measure",
    "prepare",
    "read_part",
    "really_saved",
    "try_out",
]


SCALES = ("smoke", "cpu", "paper")


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
        name: As the paper's row is called, or ours where it has none.
        policy: Name of the policy, the control or the static method.
        parameters: Its parameters.
        ratios: Its own prune ratios, where they are not those of the part.
        at_ratio: Further parameters at single ratios.
        settings: Further settings of its runs, which those of other methods do not have.
        matched: Whether it is InfoBatch, asked for the ratio that counts. Its first epoch uses all data, so the others
            must leave out more.
    """

    name: str
    policy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ratios: tuple[float, ...] | None = None
    at_ratio: Mapping[float, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    matched: bool = False

    def parameters_for(self, ratio: float | None, epochs: int) -> dict[str, Any]:
        """The parameters at one ratio, in a run of so many epochs."""
        parameters = {**self.parameters, **(self.at_ratio.get(ratio, {}) if ratio is not None else {})}
        if self.matched and ratio is not None:
            parameters["target_ratio"] = round(min(0.99, ratio * epochs / max(1, epochs - 1)), 4)
        return parameters


class Planned(NamedTuple):
    """One run of a part, and which cell of its table it belongs to."""

    method: Method
    ratio: float | None
    settings: Settings


@dataclass(frozen=True)
class Part:
    """Runs that are compared with each other: one data set, one model, one recipe.

    Attributes:
        beside: The part of the paper's table that they are shown beside.
        base: Their settings, without policy, ratio and seed.
        methods: The rows.
        ratios: Prune ratios.
        seeds: One run of each for every seed.
        full_run: Seconds that a run with all data takes, on the scale's machine; for estimates.
        looks: How often a run goes through all data and what it keeps to look at their gradients; for estimates.
    """

    beside: str
    base: Mapping[str, Any]
    methods: tuple[Method, ...]
    ratios: tuple[float, ...]
    seeds: tuple[int, ...]
    full_run: float
    looks: int = 0

    def runs(self) -> Iterator[Planned]:
        """All runs, seed by seed, so that what is finished first can be compared already."""
        for seed in self.seeds:
            for method in self.methods:
                for ratio in (None,) if method.policy == "full" else method.ratios or self.ratios:
                    yield Planned(method, ratio, self._settings(method, ratio, seed))

    def _settings(self, method: Method, ratio: float | None, seed: int) -> Settings:
        parameters = method.parameters_for(ratio, self.base["epochs"])
        own = {"policy": method.policy, "policy_parameters": parameters, "prune_ratio": ratio, "seed": seed}
        # As the paper's loaders do, incomplete batches are trained on.
        return Settings.from_dict({"drop_last": False, **self.base, **method.settings, **own})

    @property
    def seconds(self) -> float:
        """Roughly what all runs take."""
        kept = [1 - (planned.ratio or 0.0) for planned in self.runs()]
        looking = self.full_run * self.looks / self.base["epochs"]  # full data need no look
        return sum(self.full_run * share + (looking * (1 + share) if share < 1 else 0.0) for share in kept)


@dataclass(frozen=True)
class Scale:
    """How a suite is run at one scale.

    Attributes:
        parts: What is run.
        machine: What the estimates are for.
        memory: What it takes, in words.
        differs: How this is not what the paper did, in a sentence or two.
    """

    parts: tuple[Part, ...]
    machine: str
    memory: str
    differs: str

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets, each once."""
        return tuple(dict.fromkeys(str(part.base["data"]) for part in self.parts))

    @property
    def seconds(self) -> float:
        """Roughly what all runs take, one after the other."""
        return sum(part.seconds for part in self.parts)


class Table(NamedTuple):
    """Cells to show, with a title above and notes below."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A table or figure of the paper.

    Attributes:
        id: What it is called on the command line.
        shows: What it is about, in a sentence.
        printed: The paper's own numbers.
        scales: How it is run, by the name of the scale.
        tables: What makes tables of the results of all parts.
        figure: Which chart shows them.
        diagnose: Which of the costly diagnostics are needed.
    """

    id: str
    shows: str
    printed: Printed
    scales: Mapping[str, Scale]
    tables: Callable[[Suite, Sequence[PartResults]], list[Table]]
    figure: str
    diagnose: Closeness = False

    def runs_in(self, out: Path) -> Path:
        """The folder of its runs, by how closely they are looked at: a finished run is not run again for that."""
        return {False: out, "steps": out / "diagnosed-steps", True: out / "diagnosed"}[self.diagnose]


@dataclass(frozen=True)
class Result:
    """What one method did at one ratio, over all seeds."""

    method: Method
    ratio: float | None
    row: Row

    @property
    def column(self) -> str:
        """The ratio as tables have it: "30" for 0.3, "" for none."""
        return "" if self.ratio is None else f"{100 * self.ratio:g}"


@dataclass(frozen=True)
class PartResults:
    """All that a part measured."""

    part: Part
    results: tuple[Result, ...]

    @property
    def title(self) -> str:
        """What ran here, in words."""
        base = self.part.base
        width = f" of width {base['width']}" if base.get("width") else ""
        return f"{base['data']}, {base['model']}{width}, {base['epochs']} epochs"

    @property
    def seeds(self) -> int:
        """How many seeds were asked for."""
        return len(self.part.seeds)

    @property
    def full(self) -> Row | None:
        """Full data, if it was run."""
        return next((result.row for result in self.results if result.method.policy == "full"), None)

    def find(self, method: str, ratio: float | None = None) -> Row | None:
        """The row of a method, at one of its ratios or at its only one."""
        found = [result for result in self.results if result.method.name == method]
        if ratio is not None:
            found = [result for result in found if result.ratio in (ratio, None)]
        return found[0].row if found else None

    def of(self, method: str) -> list[Result]:
        """All ratios of a method."""
        return [result for result in self.results if result.method.name == method]


def read_part(part: Part, out: Path) -> PartResults:
    """The results of a part from the folder its runs were written to, or from a file of packed records."""
    there = out.is_file() or any(out.glob("runs/*"))
    known = {run.id: run for run in read_runs(out)} if there else {}
    runs = []
    for planned in part.runs():
        if planned.settings.run_id not in known:
            raise RecordError(f"there are no records of {planned.settings.label} in {str(out)!r}. Run it first.")
        runs.append(known[planned.settings.run_id])
    return measure(part, runs)


def measure(part: Part, runs: Sequence[Run]) -> PartResults:
    """The results of a part whose runs have these records, in the order of `Part.runs`."""
    rows = {run.id: row for row in compare(runs) for run in (*row.runs, *row.failed, *row.unfinished)}
    results: dict[tuple[str, float | None], Result] = {}
    for planned, run in zip(part.runs(), runs, strict=True):
        key = (planned.method.name, planned.ratio)
        results.setdefault(key, Result(planned.method, planned.ratio, rows[run.id]))
    return PartResults(part, tuple(results.values()))


def fewer_seeds(part: PartResults, *, paired: bool = False) -> list[str]:
    """A sentence where not all seeds of the part count: means that stand side by side are then not of the same seeds.

    Args:
        part: Whose runs.
        paired: Whether the table has differences to full data, which are of the same seeds all the same.
    """
    short = [result for result in part.results if len(result.row.runs) < part.seeds]
    if not short:
        return []
    all_failed = all(len(result.row.runs) + len(result.row.failed) >= part.seeds for result in short)
    why = "runs failed" if all_failed else "runs failed or are not finished"
    told = ", ".join(f"{_name(result)} ({len(result.row.runs)} of {part.seeds})" for result in short)
    same = " Differences to full data are over the seeds that both have." if paired else ""
    return [f"Means over fewer seeds, because {why}: {told}.{same}"]


def _name(result: Result) -> str:
    return result.method.name if result.ratio is None else f"{result.method.name} at {result.column} %"


def really_saved(part: PartResults) -> list[str]:
    """A sentence where something else was left out than was asked for, by a point or more."""
    told = []
    for name in dict.fromkeys(result.method.name for result in part.results):
        found = [result for result in part.of(name) if result.ratio is not None and result.row.saved is not None]
        if any(abs((result.row.saved or 0.0) - (result.ratio or 0.0)) >= 0.01 for result in found):
            shares = ", ".join(f"{100 * (result.row.saved or 0.0):.1f}" for result in found)
            told.append(f"{name} {shares} %")
    return [f"Really left out: {'; '.join(told)}."] if told else []


#: What the user has to bring, by the names that suites have for it.
BROUGHT = {"imagenet": "ImageNet as a folder with train/CLASS/ and val/CLASS/"}


def prepare(
    suite: Suite, scale: str, *, data: Sequence[str] = (), seeds: Sequence[int] | None = None
) -> tuple[Part, ...]:
    """The parts of a suite, ready to be run.

    Args:
        suite: Which.
        scale: One of `SCALES`.
        data: What to use in place of the suite's data sets: one name or path for all of them, or ``NAME=D`` for the one
            called NAME.
        seeds: In place of the suite's own.
    """
    checked_name(scale, suite.scales, "scale")
    parts = suite.scales[scale].parts
    names = [str(part.base["data"]) for part in parts]
    chosen = {name: _chosen(name, names, data) for name in names}
    missing = [name for name in chosen if chosen[name] in BROUGHT]
    if missing:
        what = " and ".join(BROUGHT[name] for name in missing)
        raise DatasetError(
            f"{suite.id} at scale {scale!r} needs {what}, which this library cannot fetch. "
            f"Name it with --data {missing[0]}=DIR."
        )
    ready: dict[tuple[str, ...], Part] = {}
    for part in parts:
        base = {**part.base, "data": chosen[str(part.base["data"])]}
        fitted = replace(part, base=base, seeds=part.seeds if seeds is None else tuple(dict.fromkeys(seeds)))
        # With one data set in place of several, parts may become the same.
        ready.setdefault(_identity(fitted), fitted)
    return tuple(ready.values())


def _chosen(name: str, names: Sequence[str], data: Sequence[str]) -> str:
    """What takes the place of a data set: what was given for it by name, else for all, else itself."""
    for_all = name
    for given in data:
        key, equals, rest = given.partition("=")
        if equals and key in names:
            if key == name:
                return rest
        else:
            for_all = given
    return for_all


def _identity(part: Part) -> tuple[str, ...]:
    runs = tuple(planned.settings.run_id for planned in part.runs())
    if not runs:
        raise ConfigError("a suite needs at least one seed.")
    return runs


class Trial(NamedTuple):
    """What the first steps of a run took, and why it failed if it did."""

    part: Part
    planned: Planned
    steps: int
    seconds_a_step: float
    reason: str | None = None


class _EnoughError(Exception):
    """As many steps as were asked for."""


def try_out(parts: Sequence[Part], place: RunOptions, steps: int) -> Iterator[Trial]:
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
