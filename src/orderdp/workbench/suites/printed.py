"""The paper's own numbers, as it prints them.

Each table is written as in the paper: the name of a row, then its numbers, group by group. ``-`` is a cell that the
paper leaves empty, ``a±b`` a mean and its deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Number", "Printed", "read_grid"]


class Number(NamedTuple):
    """A printed number, and the deviation printed with it."""

    value: float
    deviation: float | None = None


Cells = Mapping[str, Mapping[str, Mapping[str, Number]]]


@dataclass(frozen=True)
class Printed:
    """What the paper says.

    Attributes:
        source: Which table or figure.
        setting: How it was measured.
        values: Number by group, row and column; empty for figures that are printed without numbers.
        claim: What the text says about it.
    """

    source: str
    setting: str
    values: Cells = field(default_factory=dict)
    claim: str = ""

    def number(self, group: str, row: str, column: str) -> Number | None:
        """What is printed there, if anything is."""
        return self.values.get(group, {}).get(row, {}).get(column)


def read_grid(groups: Sequence[str], columns: Sequence[str], text: str) -> Cells:
    """Numbers by group, row and column.

    >>> read_grid(["A", "B"], ["30", "50"], "Some Method  94.6 93.3±0.1  73.8 -")["A"]["Some Method"]["50"]
    Number(value=93.3, deviation=0.1)
    """
    values: dict[str, dict[str, dict[str, Number]]] = {group: {} for group in groups}
    places = [(group, column) for group in groups for column in columns]
    for line in text.strip().splitlines():
        name, _, rest = line.strip().partition("  ")
        for (group, column), cell in zip(places, rest.split(), strict=True):
            row = values[group].setdefault(name, {})
            if cell != "-":
                value, _, deviation = cell.partition("±")
                row[column] = Number(float(value), float(deviation) if deviation else None)
    return values
