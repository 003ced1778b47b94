"""The results in one table: at each ratio full data, OrderDP, the two controls and the lead over the best rival."""

from __future__ import annotations

from collections.abc import Sequence

from orderdp.experiments.records import Run
from orderdp.experiments.statistics import Difference, Row, between, compare

__all__ = ["glance"]

_CONTROLS = ("full", "reduced", "random")
_HEADER = (
    "data, left out",
    "full data",
    "OrderDP",
    "to full data",
    "fewer epochs",
    "random share",
    "to the best rival",
)
_SAME_SAVINGS = 0.01  # who leaves out less is no rival at this ratio


def glance(studies: Sequence[Sequence[Run]]) -> str:
    """A line for each data set and ratio.

    Args:
        studies: The runs of each, all of them on one data set.
    """
    lines = [_HEADER, ("---", *["---:"] * (len(_HEADER) - 1))]
    for runs in studies:
        rows = compare(runs)
        for ratio in sorted({row.prune_ratio for row in rows if row.prune_ratio is not None}):
            lines.append(_line(ratio, rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(ratio: float, all_rows: list[Row]) -> tuple[str, ...]:
    rows = [row for row in all_rows if row.prune_ratio in (None, ratio)]
    full, orderdp, reduced, random = (_plain(rows, policy) for policy in ("full", "orderdp", "reduced", "random"))
    others = [row for row in rows if row.policy not in (*_CONTROLS, "orderdp")]
    rivals = [row for row in others if row.saved is not None and row.saved > ratio - _SAME_SAVINGS]
    found = between(all_rows, [(orderdp, row) for row in rivals])
    leads = [(row.policy, lead) for row, lead in zip(rivals, found, strict=True) if lead is not None]
    name, smallest = min(leads, key=lambda entry: entry[1].mean, default=("none saved as much", None))
    data = dict(full.task)["data"]
    return (
        f"{data}, {100 * ratio:g} %",
        _accuracy(full),
        _accuracy(orderdp),
        _difference(orderdp.against_full),
        _accuracy(reduced),
        _accuracy(random),
        f"{name} {_difference(smallest)}".strip(),
    )


def _plain(rows: list[Row], policy: str) -> Row:
    """The row of a policy as it is by default."""
    return next(row for row in rows if row.policy == policy and not row.parameters)


def _accuracy(row: Row) -> str:
    if row.metric is None:
        return ""
    spread = "" if row.deviation is None else f" ± {row.deviation:.2f}"
    return f"{row.metric:.2f}{spread} ({len(row.runs)})"


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    if difference.low is None:
        return f"{difference.mean:+.2f}"
    return f"{difference.mean:+.2f} ({difference.low:.2f} to {difference.high:.2f})"
