"""Recorded values by stages of training: means over the epochs of a stage, then over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from orderdp.diagnostics.curves import value_of
from orderdp.experiments.records import Run
from orderdp.experiments.statistics import Row
from orderdp_paper.printed import Number
from orderdp_paper.suite import PartResults, Suite, Table, fewer_seeds, really_saved
from orderdp_paper.tables import NOTHING, paper_name, spread, title

__all__ = [
    "FIFTHS",
    "QUARTERS",
    "Stage",
    "StagePoint",
    "over_stages",
    "stability_points",
    "stability_tables",
    "stage_points",
    "stage_tables",
]


class Stage(NamedTuple):
    """A stage of training, from after one fraction of the epochs up to another; only the last epoch if both are 1."""

    name: str
    begin: float
    end: float

    def holds(self, epoch: int, epochs: int) -> bool:
        """Whether an epoch, counted from 1, is in the stage."""
        if self.begin == self.end:
            return epoch == epochs
        return self.begin * epochs + 1e-9 < epoch <= self.end * epochs + 1e-9


def _stages(*ends: int) -> tuple[Stage, ...]:
    pairs = zip((0, *ends), ends, strict=False)
    return (*(Stage(f"{a}-{b}%", a / 100, b / 100) for a, b in pairs), Stage("100%", 1.0, 1.0))


#: The paper's stages: for kept sets and directions, and for stability.
FIFTHS = _stages(20, 40, 60, 80, 100)


QUARTERS = _stages(30, 50, 70, 100)


def over_stages(row: Row, name: str, stages: Sequence[Stage]) -> list[Number | None]:
    """Return mean and standard deviation over seeds of each stage's mean; None if nothing was recorded.

    Args:
        row: Row whose runs are used.
        name: Name of the recorded value: "metric", or a diagnostic.
        stages: Stages of training.
    """
    means = [[mean for run in row.runs if (mean := _mean(run, name, stage)) is not None] for stage in stages]
    return [
        Number(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None) if found else None
        for found in means
    ]


def _mean(run: Run, name: str, stage: Stage) -> float | None:
    inside = [epoch for epoch in run.epochs if stage.holds(int(epoch["epoch"]), len(run.epochs))]
    numbers = [number for epoch in inside if (number := value_of(epoch, name)) is not None]
    return statistics.fmean(numbers) if numbers else None


class StagePoint(NamedTuple):
    """A cell of a stage table, measured or printed in the paper."""

    group: str
    method: str
    stage: str
    who: str
    number: Number


def stage_points(suite: Suite, part: PartResults, recorded: str) -> list[StagePoint]:
    """Return cells by ratio, method and fifth of training."""
    points = []
    for result in part.results:
        if result.ratio is None:
            continue
        name, group = result.method.name, f"{result.column} %"
        for stage, number in zip(FIFTHS, over_stages(result.row, recorded, FIFTHS), strict=True):
            points += [StagePoint(group, name, stage.name, "here", number)] if number else []
            printed = suite.printed.number(result.column, name, stage.name)
            points += [StagePoint(group, name, stage.name, "paper", printed)] if printed else []
    return points


def stage_tables(recorded: str) -> Callable[[Suite, Sequence[PartResults]], list[Table]]:
    """Return a function that builds tables of a value recorded per epoch, by ratio and method."""

    def tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
        return [_table(suite, part, stage_points(suite, part, recorded), FIFTHS, recorded, 3) for part in parts]

    return tables


def stability_points(suite: Suite, part: PartResults) -> list[StagePoint]:
    """Return cells of accuracy and gradient norm by method and stage."""
    points = []
    for group, recorded in (("accuracy", "metric"), ("gradient norm", "gradient_norm")):
        for result in part.results:
            for stage, number in zip(QUARTERS, over_stages(result.row, recorded, QUARTERS), strict=True):
                name = result.method.name
                points += [StagePoint(group, name, stage.name, "here", number)] if number else []
                printed = suite.printed.number(group, name, stage.name)
                points += [StagePoint(group, name, stage.name, "paper", printed)] if printed else []
    return points


def stability_tables(suite: Suite, parts: Sequence[PartResults]) -> list[Table]:
    """Return tables of accuracy and gradient norm by stage."""
    return [_table(suite, part, stability_points(suite, part), QUARTERS, "by stage", 2) for part in parts]


def _table(
    suite: Suite, part: PartResults, points: Sequence[StagePoint], stages: Sequence[Stage], what: str, digits: int
) -> Table:
    """Build a table of measured numbers above the paper's, with as many digits as the paper prints."""
    rows: list[tuple[str, ...]] = []
    for group in dict.fromkeys(point.group for point in points):
        rows.append((f"{group}:", *[""] * len(stages)))
        for name in dict.fromkeys(point.method for point in points if point.group == group):
            for who, label in (("here", name), ("paper", "  paper")):
                own = {
                    point.stage: point.number
                    for point in points
                    if (point.group, point.method, point.who) == (group, name, who)
                }
                if own or who == "here":
                    rows.append((label, *(_cell(own.get(stage.name), digits) for stage in stages)))
    header = (what, *(stage.name for stage in stages))
    notes = [paper_name(suite, part.part.beside), *fewer_seeds(part), *really_saved(part)]
    if any(result.row.runs for result in part.results) and not any(point.who == "here" for point in points):
        notes.append("Nothing was recorded here: the runs are older than these diagnostics. Use another --out.")
    return Table(title(suite, part), header, rows, tuple(notes))


def _cell(number: Number | None, digits: int) -> str:
    return NOTHING if number is None else spread(*number, digits)
