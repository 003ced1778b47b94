"""What must be said below a table for its numbers not to mislead."""

from __future__ import annotations

from orderdp.workbench.suites.measured import PartResults, Result

__all__ = ["fewer_seeds", "really_saved"]


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
