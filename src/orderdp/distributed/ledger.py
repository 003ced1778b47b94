"""Ledger: what all ranks agreed on last, so that each can say what it has changed since.

What travels are the values of the rows that changed, of all columns and not scores alone: a policy that keeps averages
has computed them where the loss was. Everybody knows what was there before, so increments need not be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from orderdp.distributed.header import digest
from orderdp.distributed.tally import Tally
from orderdp.policy import Column
from orderdp.scores import ScoreTable

__all__ = ["Agreements", "Changes", "Ledger", "merged", "wire_dtype"]


@dataclass(frozen=True, eq=False)
class Changes:
    """Rows of a table and what is in them.

    Attributes:
        index: Which rows, int64, each once.
        columns: The values of every column there, as they travel.
    """

    index: np.ndarray
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.index)

    def encode(self, rows: int) -> np.ndarray:
        """As bytes, filled up to so many rows."""
        parts = [np.resize(part, rows) if len(part) else np.zeros(rows, part.dtype) for part in self._parts()]
        return np.concatenate([part.view(np.uint8) for part in parts])

    @classmethod
    def decode(cls, data: np.ndarray, rows: int, count: int, declared: Mapping[str, Column]) -> Changes:
        """The first `count` of the rows that were encoded."""
        arrays, start = [], 0
        for dtype in (np.dtype(np.int64), *(wire_dtype(column) for column in declared.values())):
            stop = start + rows * dtype.itemsize
            arrays.append(data[start:stop].view(dtype)[:count])
            start = stop
        return cls(arrays[0], dict(zip(declared, arrays[1:], strict=True)))

    def _parts(self) -> list[np.ndarray]:
        return [self.index, *self.columns.values()]


class Agreements(Protocol):
    """What a meeting must know about what was agreed on; `Ledger` says what each does."""

    @property
    def counters(self) -> tuple[int, int, int]:
        """What was counted."""
        ...

    def changes(self) -> Changes:
        """What the others do not know."""
        ...

    def agreed(self, name: str) -> np.ndarray:
        """A column as it was agreed on."""
        ...

    def before(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Rows as they were agreed on."""
        ...

    def counted(self) -> tuple[int, int, int]:
        """What was counted since."""
        ...

    def settle(self, parts: Sequence[Changes], counted: Sequence[Sequence[int]]) -> None:
        """Takes over what others have changed and counted."""
        ...

    def note_counters(self) -> None:
        """The counters are the same everywhere."""
        ...

    def fingerprint(self) -> int:
        """What this started from, until that has been compared."""
        ...

    def compared(self) -> None:
        """All started from the same."""
        ...


class Ledger(Tally):
    """What a table was when all ranks had the same.

    Args:
        table: The table that changes.
        as_it_is: Whether what it holds now is the same everywhere (a checkpoint); otherwise what it held when new.
    """

    def __init__(self, table: ScoreTable, as_it_is: bool = False) -> None:
        super().__init__(table, as_it_is)
        self._table = table
        self._unchecked = as_it_is
        self._base: dict[str, np.ndarray]
        if as_it_is:
            self._base = {name: self._now(name).copy() for name in table.declared}
        else:
            self._base = {
                name: np.full(table.n, column.initial, wire_dtype(column)) for name, column in table.declared.items()
            }

    def changes(self) -> Changes:
        """The rows that are not what was agreed on."""
        touched = np.zeros(self._table.n, dtype=np.bool_)
        now = {name: self._now(name) for name in self._table.declared}
        for name, values in now.items():
            touched |= _bits(values) != _bits(self._base[name])
        index = np.flatnonzero(touched)
        return Changes(index, {name: values[index] for name, values in now.items()})

    def agreed(self, name: str) -> np.ndarray:
        """A copy of the column as it was agreed on."""
        values: np.ndarray = self._base[name].copy()
        return values

    def before(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """What was agreed on for these rows."""
        return {name: values[index] for name, values in self._base.items()}

    def settle(self, parts: Sequence[Changes], counted: Sequence[Sequence[int]]) -> None:
        """Takes over what all ranks have changed, and makes that the agreement."""
        if any(len(part) for part in parts):
            rows = merged(parts, self._base, self._table.declared)
            self._table.put(rows.index, rows.columns)
            for name, values in rows.columns.items():
                self._base[name][rows.index] = values
        self._add_up(counted)

    def fingerprint(self) -> int:
        """A digest of what is taken to be the same everywhere, until it has been compared; then 0."""
        if not self._unchecked:
            return 0
        return digest(*(values.tobytes() for values in self._base.values()))

    def compared(self) -> None:
        """All ranks have said that they started from the same."""
        self._unchecked = False

    def _now(self, name: str) -> np.ndarray:
        return self._table[name].astype(wire_dtype(self._table.declared[name]), copy=False)


def merged(parts: Sequence[Changes], base: Mapping[str, np.ndarray], declared: Mapping[str, Column]) -> Changes:
    """One set of changes out of those of all ranks, in order of rank.

    A row that one rank has changed is taken over as it is. Where several have, increments of columns that add up are
    added to what was there; of the others, those of the rank that has trained on the sample more often win, and
    those of the lowest rank among equals.
    """
    index = np.concatenate([part.index for part in parts])
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in declared}
    taken = np.zeros(len(base["usage"]), dtype=np.bool_)
    taken[index] = True
    if np.count_nonzero(taken) == len(index):  # as it mostly is, and nothing has to be sorted
        return Changes(index, columns)
    rank = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    trained = columns["usage"] - base["usage"][index]
    order = np.lexsort((rank, -trained, index))
    index = index[order]
    first = np.flatnonzero(np.concatenate(([True], index[1:] != index[:-1])))
    alone = np.diff(np.append(first, len(index))) == 1
    for name, column in declared.items():
        values = columns[name][order]
        columns[name] = values[first]
        if column.merge == "sum":
            old = base[name][index]
            total = old[first] + np.add.reduceat(values.astype(_wide(values)) - old, first)
            columns[name] = np.where(alone, columns[name], total).astype(values.dtype)
    return Changes(index[first], columns)


def wire_dtype(column: Column) -> np.dtype:
    """How a column travels: integers in four bytes, since counts may be widened on one rank before another."""
    dtype = np.dtype(column.dtype)
    if dtype.kind == "f":
        return np.dtype(np.float64 if dtype.itemsize > 4 else np.float32)
    return np.dtype(np.int64 if dtype.itemsize > 4 else np.int32)


def _wide(values: np.ndarray) -> np.dtype:
    return np.dtype(np.float64 if values.dtype.kind == "f" else np.int64)


def _bits(values: np.ndarray) -> np.ndarray:
    # Compared as bits: a NaN is not equal to itself and would look changed for ever.
    return values.view(np.int64 if values.dtype.itemsize == 8 else np.int32)
