"""From records to cells: the runs of a part, compared with each other, by method and ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderdp.errors import RecordError
from orderdp.workbench.reading import Run, read_run
from orderdp.workbench.statistics import Row, compare
from orderdp.workbench.suites.suite import Method, Part

__all__ = ["PartResults", "Result", "measure", "read_part"]


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
    """The results of a part from the folder its runs were written to."""
    runs = []
    for planned in part.runs():
        folder = out / "runs" / planned.settings.run_id
        if not (folder / "records.jsonl").exists():
            raise RecordError(f"there are no records of {planned.settings.label} in {str(folder)!r}. Run it first.")
        runs.append(read_run(folder))
    return measure(part, runs)


def measure(part: Part, runs: Sequence[Run]) -> PartResults:
    """The results of a part whose runs have these records, in the order of `Part.runs`."""
    rows = {run.id: row for row in compare(runs) for run in (*row.runs, *row.failed, *row.unfinished)}
    results: dict[tuple[str, float | None], Result] = {}
    for planned, run in zip(part.runs(), runs, strict=True):
        key = (planned.method.name, planned.ratio)
        results.setdefault(key, Result(planned.method, planned.ratio, rows[run.id]))
    return PartResults(part, tuple(results.values()))
