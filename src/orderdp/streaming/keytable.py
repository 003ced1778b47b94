"""KeyTable: what is remembered about each key, found by its fingerprint.

Rows stand in the order in which keys came, 19 bytes each; beside them is an index, a hash table with open addressing
that holds row numbers. Both grow by a factor, so that a key is moved a bounded number of times on average.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from orderdp.errors import StateError

__all__ = ["BY_RULE", "KeyTable"]

#: The value of "kept" for keys that came after the draw: a hash decides about them.
BY_RULE = 2

_COLUMNS: dict[str, tuple[type[np.generic], float]] = {
    "key": (np.uint64, 0),
    "score": (np.float32, np.inf),
    "usage": (np.int16, 0),
    "seen": (np.int16, -1),  # the epoch in which it was last trained on
    "met": (np.int16, -1),  # the epoch in which it was last known to be in the stream
    "kept": (np.uint8, BY_RULE),
}
_OPTIONAL: dict[str, tuple[type[np.generic], float]] = {"weight": (np.float32, 1.0)}
_COUNTS = ("usage", "seen", "met")

_FEWEST_ROWS, _FEWEST_SLOTS = 64, 128
_MOST_FULL = 0.75  # of the index; fuller, and searches take long

# Counts start in two bytes and move to four long before they could overflow.
_WIDEN_AT = 1 << 14


class KeyTable:
    """Rows for keys, found by fingerprint.

    Attributes:
        copies: How many rows, and entries of the index, have been moved to make room since the table was made.
    """

    def __init__(self) -> None:
        self._n = 0
        self._columns = {name: np.empty(_FEWEST_ROWS, dtype) for name, (dtype, _) in _COLUMNS.items()}
        self._slots = np.full(_FEWEST_SLOTS, -1, dtype=np.int32)
        self.copies = 0

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        """Memory taken, with the room there is to grow."""
        return self._slots.nbytes + sum(column.nbytes for column in self._columns.values())

    def __getitem__(self, name: str) -> np.ndarray:
        """The column called `name`, to be read and written; valid until rows are added."""
        if name in _OPTIONAL and name not in self._columns:
            dtype, initial = _OPTIONAL[name]
            self._columns[name] = np.full(len(self._columns["key"]), initial, dtype)
        return self._columns[name][: self._n]

    def has(self, name: str) -> bool:
        """Whether there is such a column: weights are there only where a policy gives some."""
        return name in self._columns

    # -- finding and adding ------------------------------------------------------------------------------------

    def find(self, marks: np.ndarray) -> np.ndarray:
        """The row of each fingerprint, int64; -1 where there is none."""
        rows = np.full(len(marks), -1, dtype=np.int64)
        keys, mask = self._columns["key"], np.uint64(len(self._slots) - 1)
        asking, slots = np.arange(len(marks)), (marks & mask).astype(np.int64)
        while len(asking):
            there = self._slots[slots]
            found = there >= 0
            going_on = found.copy()
            found[found] = keys[there[found]] == marks[asking[found]]
            rows[asking[found]] = there[found]
            going_on &= ~found
            asking, slots = asking[going_on], (slots[going_on] + 1) & int(mask)
        return rows

    def add(self, marks: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """The row of each fingerprint; those that had none get one, as nobody has seen them.

        Args:
            marks: The fingerprints.
            rows: What `find` says about them, where somebody has asked already.
        """
        rows = self.find(marks) if rows is None else rows
        missing = rows < 0
        if not missing.any():
            return rows
        new, places = np.unique(marks[missing], return_inverse=True)
        start, stop = self._n, self._n + len(new)
        self._make_room(stop)
        self._n = stop
        for name, column in self._columns.items():
            column[start:stop] = new if name == "key" else {**_COLUMNS, **_OPTIONAL}[name][1]
        self._place(np.arange(start, stop))
        rows[missing] = start + places
        return rows

    def make_room_for_epoch(self, epoch: int) -> None:
        """Widens the counts before they can overflow."""
        if epoch >= _WIDEN_AT and self._columns["seen"].dtype == np.int16:
            for name in _COUNTS:
                self._columns[name] = self._columns[name].astype(np.int32)

    def count_use(self, rows: np.ndarray, times: np.ndarray | int = 1) -> None:
        """Each of these rows was trained on once more. A count stops at the largest number it can hold."""
        usage = self._columns["usage"]
        most = np.iinfo(usage.dtype).max
        if isinstance(times, int) and times * len(rows) + int(usage[rows].max(initial=0)) <= most:
            np.add.at(usage, rows, usage.dtype.type(times))  # cannot overflow, even if all rows are the same
            return
        unique, places = np.unique(rows, return_inverse=True)
        more = np.bincount(places, weights=np.broadcast_to(times, len(rows)), minlength=len(unique))
        usage[unique] = np.minimum(usage[unique] + more.astype(np.int64), most)

    def _make_room(self, rows: int) -> None:
        room = len(self._columns["key"])
        if rows > room:
            room = max(rows, room + room // 2)
            for name, column in self._columns.items():
                larger = np.empty(room, column.dtype)
                larger[: self._n] = column[: self._n]
                self._columns[name] = larger
            self.copies += self._n
        if rows > _MOST_FULL * len(self._slots):
            slots = len(self._slots)
            while rows > _MOST_FULL * slots:
                slots *= 2
            self._slots = np.full(slots, -1, dtype=np.int32 if slots <= 1 << 31 else np.int64)
            self._place(np.arange(self._n))
            self.copies += self._n

    def _place(self, rows: np.ndarray) -> None:
        """Enters rows into the index."""
        mask = len(self._slots) - 1
        slots = (self._columns["key"][rows] & np.uint64(mask)).astype(np.int64)
        while len(rows):
            free = self._slots[slots] < 0
            self._slots[slots[free]] = rows[free]  # where several want the same place, one of them gets it
            waiting = self._slots[slots] != rows
            rows, slots = rows[waiting], (slots[waiting] + 1) & mask

    # -- checkpoints -------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """A copy of all columns, sorted by fingerprint: the same whatever the order in which keys came."""
        order = np.argsort(self["key"])
        return {name: column[: self._n][order] for name, column in self._columns.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> KeyTable:
        """The table that `arrays` describes, checked."""
        missing, unknown = set(_COLUMNS) - set(arrays), set(arrays) - set(_COLUMNS) - set(_OPTIONAL)
        if missing or unknown or len({values.shape for values in arrays.values()}) != 1:
            raise StateError(
                f"the checkpoint must have the columns {sorted(_COLUMNS)}, equally long, it has "
                f"{ {name: values.shape for name, values in sorted(arrays.items())} }. Use another checkpoint."
            )
        if len(np.unique(arrays["key"])) != len(arrays["key"]) or np.isnan(arrays["score"]).any():
            raise StateError("the checkpoint must have every key once, and no NaN. Use another checkpoint.")
        table = cls()
        rows = table.add(arrays["key"])
        for name, values in arrays.items():
            if name in _COUNTS and len(values) and int(values.max()) > np.iinfo(np.int16).max:
                table._columns[name] = table._columns[name].astype(np.int32)
            table[name][rows] = values
        return table
