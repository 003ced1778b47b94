"""Suites: one table or figure of the paper, with its runs at each scale and the output built from them."""

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
from orderdp.experiments.config import RunOptions, Settings
from orderdp.experiments.records import Run, read_runs
from orderdp.experiments.runner import Runner
from orderdp.experiments.static import is_recorded, is_static
from orderdp.experiments.statistics import Row, compare

if TYPE_CHECKING:
    from orderdp.experiments.config import DiagnosticLevel

__all__ = [
    "BROUGHT",
    "SCALES",
    "Method",
    "Number",
    "Part",
    "PartResults",
    "Planned",
    "Printed",
    "Result",
    "Scale",
    "Suite",
    "Table",
    "Trial",
    "fewer_seeds",
    "measure",
    "prepare",
    "read_grid",
    "read_part",
    "really_saved",
    "try_out",
]


class Number(NamedTuple):
    """A printed number, and the deviation printed with it."""

    value: float
    deviation: float | None = None


Cells = Mapping[str, Mapping[str, Mapping[str, Number]]]


@dataclass(frozen=True)
class Printed:
    """A table or figure of the paper.

    Attributes:
        source: Name of the table or figure.
        setting: Conditions of the measurement.
        values: Numbers by group, row and column; empty for figures printed without numbers.
        claim: Claim of the text about it.
    """

    source: str
    setting: str
    values: Cells = field(default_factory=dict)
    claim: str = ""

    def number(self, group: str, row: str, column: str) -> Number | None:
        """Return the number printed there, or None."""
        return self.values.get(group, {}).get(row, {}).get(column)


def read_grid(groups: Sequence[str], columns: Sequence[str], text: str) -> Cells:
    """Parse a printed table into numbers by group, row and column.

    >>> read_grid(["A", "B"], ["30", "50"], "Some Method  94.6 93.3±0.1  73.8 -")["A"]["Some Method"]["50"]
    Number(value=93.3, deviation=0.1)
    """
    values: dict[str, dict[str, dict[str, Number]]] = {group: {} for group in groups}
    cells = [(group, column) for group in groups for column in columns]
    for line in text.strip().splitlines():
        name, _, rest = line.strip().partition("  ")
        for (group, column), cell in zip(cells, rest.split(), strict=True):
            row = values[group].setdefault(name, {})
            if cell != "-":
                value, _, deviation = cell.partition("±")
                row[column] = Number(float(value), float(deviation) if deviation else None)
    return values


SCALES = ("smoke", "cpu", "paper")


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
        name: Name of the row in the paper, or the library's name if the paper has no such row.
        policy: Name of the policy, the control or the static method.
        parameters: Parameters of the policy.
        ratios: Prune ratios of this method, if they differ from those of the part.
        at_ratio: Further parameters at single ratios.
        settings: Further settings of this method's runs only.
        matched: Whether the method is InfoBatch, matched to the ratio over the whole run. Its first epoch uses all
            data, so the other epochs must leave out more.
    """

    name: str
    policy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ratios: tuple[float, ...] | None = None
    at_ratio: Mapping[float, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    matched: bool = False

    def parameters_for(self, ratio: float | None, epochs: int) -> dict[str, Any]:
        """Return the parameters at one ratio, in a run of `epochs` epochs."""
        parameters = {**self.parameters, **(self.at_ratio.get(ratio, {}) if ratio is not None else {})}
        if self.matched and ratio is not None:
            parameters["target_ratio"] = round(min(0.99, ratio * epochs / max(1, epochs - 1)), 4)
        return parameters


class Planned(NamedTuple):
    """One run of a part, and the cell of the table it belongs to."""

    method: Method
    ratio: float | None
    settings: Settings


@dataclass(frozen=True)
class Part:
    """Runs that are compared with each other: one data set, one model, one recipe.

    Attributes:
        beside: The part of the paper's table to compare with.
        base: Settings of the runs, without policy, ratio and seed.
        methods: Rows of the table.
        ratios: Prune ratios.
        seeds: Seeds; every method runs once per seed and ratio.
        full_run: Seconds that a run with all data takes on the scale's machine; for estimates.
        looks: Number of passes over all data and the kept set that a run makes to diagnose gradients; for estimates.
    """

    beside: str
    base: Mapping[str, Any]
    methods: tuple[Method, ...]
    ratios: tuple[float, ...]
    seeds: tuple[int, ...]
    full_run: float
    looks: int = 0

    def runs(self) -> Iterator[Planned]:
        """Yield all runs, seed by seed, so that the first finished runs are already comparable."""
        for seed in self.seeds:
            for method in self.methods:
                for ratio in (None,) if method.policy == "full" else method.ratios or self.ratios:
                    yield Planned(method, ratio, self._settings(method, ratio, seed))

    def _settings(self, method: Method, ratio: float | None, seed: int) -> Settings:
        parameters = method.parameters_for(ratio, self.base["epochs"])
        own = {"policy": method.policy, "policy_parameters": parameters, "prune_ratio": ratio, "seed": seed}
        # Incomplete batches are trained on, as by the paper's loaders.
        return Settings.from_dict({"drop_last": False, **self.base, **method.settings, **own})

    @property
    def seconds(self) -> float:
        """Estimated seconds of all runs."""
        kept = [1 - (planned.ratio or 0.0) for planned in self.runs()]
        looking = self.full_run * self.looks / self.base["epochs"]  # full data needs no such pass
        return sum(self.full_run * share + (looking * (1 + share) if share < 1 else 0.0) for share in kept)


@dataclass(frozen=True)
class Scale:
    """The runs of a suite at one scale.

    Attributes:
        parts: Parts to run.
        machine: Machine of the estimates.
        memory: Required memory, in words.
        differs: Differences from the paper's setup, in a sentence or two.
    """

    parts: tuple[Part, ...]
    machine: str
    memory: str
    differs: str

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets, without repetition."""
        return tuple(dict.fromkeys(str(part.base["data"]) for part in self.parts))

    @property
    def seconds(self) -> float:
        """Estimated seconds of all runs, one after the other."""
        return sum(part.seconds for part in self.parts)


class Table(NamedTuple):
    """Cells of a table, with a title above and notes below."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A table or figure of the paper.

    Attributes:
        id: Name on the command line.
        shows: Subject, in one sentence.
        printed: Numbers that the paper prints.
        scales: Scales, by name.
        tables: Builds tables from the results of all parts.
        figure: Name of the chart that shows the results.
        diagnose: Level of diagnostics that the suite needs.
    """

    id: str
    shows: str
    printed: Printed
    scales: Mapping[str, Scale]
    tables: Callable[[Suite, Sequence[PartResults]], list[Table]]
    figure: str
    diagnose: DiagnosticLevel = False

    def runs_in(self, out: Path) -> Path:
        """Return the folder of the runs, one per level of diagnostics: a finished run is not repeated for more."""
        return {False: out, "steps": out / "diagnosed-steps", True: out / "diagnosed"}[self.diagnose]


@dataclass(frozen=True)
class Result:
    """Results of one method at one ratio, over all seeds."""

    method: Method
    ratio: float | None
    row: Row

    @property
    def column(self) -> str:
        """The ratio in table headings: "30" for 0.3, "" for none."""
        return "" if self.ratio is None else f"{100 * self.ratio:g}"


@dataclass(frozen=True)
class PartResults:
    """Results of all methods of a part."""

    part: Part
    results: tuple[Result, ...]

    @property
    def title(self) -> str:
        """Data, model and number of epochs of the part, in words."""
        base = self.part.base
        width = f" of width {base['width']}" if base.get("width") else ""
        return f"{base['data']}, {base['model']}{width}, {base['epochs']} epochs"

    @property
    def seeds(self) -> int:
        """Number of requested seeds."""
        return len(self.part.seeds)

    @property
    def full(self) -> Row | None:
        """The row of full data, if it was run."""
        return next((result.row for result in self.results if result.method.policy == "full"), None)

    def find(self, method: str, ratio: float | None = None) -> Row | None:
        """Return the row of a method, at one of its ratios or at its only one."""
        found = [result for result in self.results if result.method.name == method]
        if ratio is not None:
            found = [result for result in found if result.ratio in (ratio, None)]
        return found[0].row if found else None

    def of(self, method: str) -> list[Result]:
        """Return the results of a method at all its ratios."""
        return [result for result in self.results if result.method.name == method]


def read_part(part: Part, out: Path) -> PartResults:
    """Read the results of a part from the output folder of its runs, or from a file of packed records."""
    there = out.is_file() or any(out.glob("runs/*"))
    known = {run.id: run for run in read_runs(out)} if there else {}
    runs = []
    for planned in part.runs():
        if planned.settings.run_id not in known:
            raise RecordError(f"there are no records of {planned.settings.label} in {str(out)!r}. Run it first.")
        runs.append(known[planned.settings.run_id])
    return measure(part, runs)


def measure(part: Part, runs: Sequence[Run]) -> PartResults:
    """Compute the results of a part from the records of its runs, in the order of `Part.runs`."""
    rows = {run.id: row for row in compare(runs) for run in (*row.runs, *row.failed, *row.unfinished)}
    results: dict[tuple[str, float | None], Result] = {}
    for planned, run in zip(part.runs(), runs, strict=True):
        key = (planned.method.name, planned.ratio)
        results.setdefault(key, Result(planned.method, planned.ratio, rows[run.id]))
    return PartResults(part, tuple(results.values()))


def fewer_seeds(part: PartResults, *, paired: bool = False) -> list[str]:
    """Return a sentence if not all seeds of the part count, because its means are then not over the same seeds.

    Args:
        part: Results of the part.
        paired: Whether the table has differences to full data, which are always over the same seeds.
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
    """Return a sentence if the measured fraction left out differs from the requested ratio by a point or more."""
    told = []
    for name in dict.fromkeys(result.method.name for result in part.results):
        found = [result for result in part.of(name) if result.ratio is not None and result.row.saved is not None]
        if any(abs((result.row.saved or 0.0) - (result.ratio or 0.0)) >= 0.01 for result in found):
            shares = ", ".join(f"{100 * (result.row.saved or 0.0):.1f}" for result in found)
            told.append(f"{name} {shares} %")
    return [f"Really left out: {'; '.join(told)}."] if told else []


#: Data that the user must provide, by the name in the suites.
BROUGHT = {"imagenet": "ImageNet as a folder with train/CLASS/ and val/CLASS/"}


def prepare(
    suite: Suite, scale: str, *, data: Sequence[str] = (), seeds: Sequence[int] | None = None
) -> tuple[Part, ...]:
    """Return the parts of a suite, ready to run.

    Args:
        suite: The suite.
        scale: One of `SCALES`.
        data: Replacements of the suite's data sets: one name or path for all data sets, or ``NAME=D`` for the data set
            called NAME.
        seeds: Replaces the suite's own seeds.
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
        # If one data set replaces several, parts may become equal.
        ready.setdefault(_identity(fitted), fitted)
    return tuple(ready.values())


def _chosen(name: str, names: Sequence[str], data: Sequence[str]) -> str:
    """Return the replacement of a data set: the one given by name, else the one for all, else the data set itself."""
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
    """Time of the first steps of a run, and the reason if it failed."""

    part: Part
    planned: Planned
    steps: int
    seconds_a_step: float
    reason: str | None = None


class _EnoughError(Exception):
    """The requested number of steps is done."""


def try_out(parts: Sequence[Part], options: RunOptions, steps: int) -> Iterator[Trial]:
    """Train every method of every part for a few steps, in a folder that is then removed.

    Static methods that need a proxy are left out, because training the proxy takes longer than a few steps. Nothing is
    tested.

    Args:
        parts: Parts to try.
        options: Run options; their data folder and device are used.
        steps: Number of steps per method.
    """
    if not is_count(steps):
        raise ConfigError(f"the number of steps must be at least 1, got {steps}.")
    with tempfile.TemporaryDirectory(prefix="orderdp-trial-") as folder:
        runner = Runner(replace(options, out=Path(folder)))
        for part in parts:
            for planned in _one_of_each(part):
                clock, reason = _Clock(steps), None
                with suppress(_EnoughError):
                    reason = runner.run(planned.settings, clock.watch).get("reason")  # set if the run failed
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
        """Seconds per step, without the first step if there are others, because it includes the setup."""
        if len(self.times) > 1:
            return (self.times[-1] - self.times[0]) / (len(self.times) - 1)
        return self.times[-1] - self._start if self.times else 0.0
