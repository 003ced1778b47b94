"""KeyTable: statistics per key, found by fingerprint.

Rows are in order of arrival, 19 bytes each. Beside them is an index of row numbers, a hash table with open addressing.
Both grow by a factor, so that a key is moved a bounded number of times on average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from orderdp._validation import stored_count
from orderdp.errors import DatasetError, StateError
from orderdp.streaming.worker_channel import ScannedKeys, collision_bound, listed

if TYPE_CHECKING:
    from orderdp.distributed.collectives import Exchange

__all__ = [
    "BY_RULE",
    "KeyMessage",
    "KeyStats",
    "KeyTable",
    "Part",
    "check_same_keys",
    "exchange_parts",
    "named",
    "raise_for_repeats",
]


#: Value of "kept" for keys that came after the draw: a hash decides on them.
BY_RULE = 2


_COLUMNS: dict[str, tuple[type[np.generic], float]] = {
    "key": (np.uint64, 0),
    "score": (np.float32, np.inf),
    "usage": (np.int16, 0),
    "seen": (np.int16, -1),  # the epoch in which the key was last trained on
    "met": (np.int16, -1),  # the last epoch in which the key was known to be in the stream
    "kept": (np.uint8, BY_RULE),
}


_OPTIONAL: dict[str, tuple[type[np.generic], float]] = {
    "weight": (np.float32, 1.0),
    "visits": (np.int32, 0),  # how often the key was trained on in the epoch `seen`, if keys may repeat
}


_COUNTS = ("usage", "seen", "met")


_FEWEST_ROWS, _FEWEST_SLOTS = 64, 128


_MOST_FULL = 0.75  # load factor of the index; above it, searches are slow


# Counts start in two bytes and move to four long before they could overflow.
_WIDEN_AT = 1 << 14


class KeyTable:
    """Table with one row per key, found by fingerprint.

    Attributes:
        copies: Number of rows and index entries that have been moved to grow since the table was made.
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
        """Memory in bytes, including room to grow."""
        return self._slots.nbytes + sum(column.nbytes for column in self._columns.values())

    def __getitem__(self, name: str) -> np.ndarray:
        """The column `name`, writable; valid until rows are added."""
        if name in _OPTIONAL and name not in self._columns:
            dtype, initial = _OPTIONAL[name]
            self._columns[name] = np.full(len(self._columns["key"]), initial, dtype)
        return self._columns[name][: self._n]

    def has(self, name: str) -> bool:
        """Whether the column exists: weights exist only if a policy gives some, visits only if keys may repeat."""
        return name in self._columns

    # -- lookup and insertion ----------------------------------------------------------------------------------

    def find(self, marks: np.ndarray) -> np.ndarray:
        """Row of each fingerprint, int64; -1 if it has none."""
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
        """Row of each fingerprint; a fingerprint without a row gets a new one, marked unseen.

        Args:
            marks: The fingerprints.
            rows: The result of `find`, if the caller has it already.
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
        """Widen counters before they can overflow."""
        if epoch >= _WIDEN_AT and self._columns["seen"].dtype == np.int16:
            for name in _COUNTS:
                self._columns[name] = self._columns[name].astype(np.int32)

    def count_use(self, rows: np.ndarray, times: np.ndarray | int = 1) -> None:
        """Add to the usage count of these rows. A count saturates at the maximum of its dtype."""
        usage = self._columns["usage"]
        most = np.iinfo(usage.dtype).max
        if isinstance(times, int) and times * len(rows) + int(usage[rows].max(initial=0)) <= most:
            np.add.at(usage, rows, usage.dtype.type(times))  # cannot overflow, even if all rows are the same
            return
        unique, places = np.unique(rows, return_inverse=True)
        more = np.bincount(places, weights=np.broadcast_to(times, len(rows)), minlength=len(unique))
        usage[unique] = np.minimum(usage[unique] + more.astype(np.int64), most)

    def count_visits(self, rows: np.ndarray, epochs: np.ndarray | int, times: np.ndarray | int = 1) -> None:
        """Add to the visits of these rows, if they are counted. Those of an epoch before `epochs` are forgotten."""
        if self.has("visits"):
            visits, seen = self["visits"], self["seen"]
            visits[rows[seen[rows] != epochs]] = 0
            np.add.at(visits, rows, times)

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
        """Insert rows into the index."""
        mask = len(self._slots) - 1
        slots = (self._columns["key"][rows] & np.uint64(mask)).astype(np.int64)
        while len(rows):
            free = self._slots[slots] < 0
            self._slots[slots[free]] = rows[free]  # if several rows want one slot, one of them gets it
            waiting = self._slots[slots] != rows
            rows, slots = rows[waiting], (slots[waiting] + 1) & mask

    # -- checkpoints -------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """Copy of all columns, sorted by fingerprint, so that the order of arrival does not matter."""
        order = np.argsort(self["key"])
        return {name: column[: self._n][order] for name, column in self._columns.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> KeyTable:
        """Build a table from `arrays`, after checking them."""
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


# Losses on a device are fetched this many steps at a time, because each fetch waits for the device.
_FLUSH_EVERY = 64


_NUMBERS = ("alive_from", "kept", "kept_before", "offered", "used", "nonfinite")


class KeyStats:
    """Statistics of the keys of a stream.

    Attributes:
        table: One row per key.
        alive_from: Keys scanned in this epoch or later count as part of the stream.
        kept: Samples trained on.
        kept_before: Value of `kept` when the current epoch was drawn.
        offered: Samples in all epochs that reached the end of the stream.
        used: Samples trained on in those epochs.
        nonfinite: Losses that were NaN or infinite.
    """

    def __init__(self) -> None:
        self.table = KeyTable()
        self.alive_from = 0
        self.kept = self.kept_before = self.offered = self.used = self.nonfinite = 0
        self._waiting: list[tuple[np.ndarray, torch.Tensor]] = []  # losses that are still on a device
        self._trained: list[np.ndarray] = []  # fingerprints trained on since the last sync
        self._observed: list[np.ndarray] = []  # other fingerprints whose scores were written since the last sync
        self._synced = (0, 0)  # kept and nonfinite at the last sync
        self._counted = -1  # the last epoch that is in `offered` and `used`

    # -- feedback ----------------------------------------------------------------------------------------------

    def trained_on(self, marks: np.ndarray, rows: np.ndarray, scores: torch.Tensor, epoch: int) -> np.ndarray:
        """Store the scores of a trained batch; return its rows. `rows` are its rows in the table before."""
        rows = self.table.add(marks, rows)
        self.table.count_visits(rows, epoch)
        self.table["seen"][rows] = epoch
        self.table["met"][rows] = epoch
        self.table.count_use(rows)
        self._write_soon(rows, scores)
        self._trained.append(marks)
        self.kept += len(marks)
        self.used += len(marks) if epoch == self._counted else 0
        return rows

    def observed(self, marks: np.ndarray, scores: torch.Tensor, epoch: int) -> None:
        """Store scores of samples that were not trained on."""
        rows = self.table.add(marks)
        self.table["met"][rows] = epoch
        self._write_soon(rows, scores)
        self._observed.append(marks)

    def repeated(self, marks: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Which keys of a batch came before in this epoch, in the batch or earlier."""
        again = rows >= 0
        again[again] = self.table["seen"][rows[again]] == epoch
        if len(set(marks.tolist())) < len(marks):
            again[np.setdiff1d(np.arange(len(marks)), np.unique(marks, return_index=True)[1])] = True
        return again

    def _write_soon(self, rows: np.ndarray, scores: torch.Tensor) -> None:
        if scores.device.type == "cpu":
            self.flush()
            self._write(rows, scores.to(torch.float32).numpy())
            return
        self._waiting.append((rows, scores.clone()))  # the caller may reuse the memory
        if len(self._waiting) >= _FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the losses that are still on a device."""
        waiting, self._waiting = self._waiting, []
        for rows, scores in waiting:
            self._write(rows, scores.to("cpu", torch.float32).numpy())

    def _write(self, rows: np.ndarray, scores: np.ndarray) -> None:
        """Write scores. A non-finite loss keeps a known score; an unseen sample gets the mean of the batch.

        If no loss of the batch is finite, unseen samples stay unseen.
        """
        finite = np.isfinite(scores)
        column = self.table["score"]
        if not finite.all():
            self.nonfinite += int(len(scores) - finite.sum())
            mean = float(scores[finite].mean(dtype=np.float64)) if finite.any() else 0.0
            scores = np.where(finite, scores, np.float32(mean))
            written = finite | (np.isinf(column[rows]) & finite.any())
            rows, scores = rows[written], scores[written]
        column[rows] = scores

    # -- scanned keys ------------------------------------------------------------------------------------------

    def population(self) -> np.ndarray:
        """Rows of the keys that count as part of the stream, in order of fingerprint."""
        rows = np.flatnonzero(self.table["met"] >= max(self.alive_from, 0))
        order: np.ndarray = rows[np.argsort(self.table["key"][rows])]
        return order

    def summary(self) -> dict[str, float]:
        """Savings so far, as flat numbers."""
        rows, table = self.population(), self.table
        return {
            "keys": len(table),
            "samples": len(rows),
            "kept": self.kept,
            "offered": self.offered,
            "saved": 1 - self.used / self.offered if self.offered else 0.0,
            "coverage": float((table["usage"][rows] > 0).mean()) if len(rows) else 0.0,
            "nonfinite": self.nonfinite,
            "collision_bound": collision_bound(len(table)),
            "bytes_per_key": table.nbytes / max(1, len(table)),
        }

    def part(self, scanned: ScannedKeys | None, known: np.ndarray) -> Part:
        """Build this rank's part of a sync.

        Args:
            scanned: The scanned keys, if the rank has reached the end of its stream.
            known: Sorted fingerprints that all ranks knew at the start of the epoch.
        """
        self.flush()
        trained = np.concatenate([np.empty(0, np.uint64), *self._trained])
        marks, places = np.unique(np.concatenate([trained, *self._observed]), return_inverse=True)
        times = np.bincount(places[: len(trained)], minlength=len(marks))
        rows = self.table.find(marks)
        seen = np.zeros(len(known), np.bool_)
        new = np.empty(0, np.uint64)
        if scanned is not None:
            places, is_known = _places(scanned.marks, known)
            seen[places[is_known]] = True
            new = np.unique(scanned.marks[~is_known])
        numbers = (
            0 if scanned is None else len(scanned.marks),
            self.kept - self._synced[0],
            self.nonfinite - self._synced[1],
        )
        columns = (self.table["score"][rows], times.astype(np.int32), self.table["met"][rows].astype(np.int32))
        return Part(marks, *columns, seen, new, numbers, scanned is not None, scanned is not None and scanned.whole)

    def merge(self, parts: Sequence[Part], own: int) -> int:
        """Merge the parts of all ranks; return the number of keys that more than one rank has trained on."""
        for rank, part in enumerate(parts):
            if rank != own and len(part.marks):
                rows = self.table.add(part.marks)
                self.table["score"][rows] = part.scores
                self.table["met"][rows] = np.maximum(self.table["met"][rows], part.epochs)
                trained = part.times > 0
                self.table.count_visits(rows[trained], part.epochs[trained], part.times[trained])
                self.table["seen"][rows[trained]] = part.epochs[trained]
                self.table.count_use(rows, part.times)
        # If several ranks have a key, all must continue with the same score: that of the lowest rank.
        for part in reversed(parts):
            self.table["score"][self.table.find(part.marks)] = part.scores
        self.kept = self._synced[0] + sum(part.numbers[1] for part in parts)
        self.nonfinite = self._synced[1] + sum(part.numbers[2] for part in parts)
        self.mark_synced()
        everything = np.concatenate([part.marks[part.times > 0] for part in parts])
        return len(everything) - len(np.unique(everything))

    def mark_synced(self) -> None:
        """Mark all data of this rank as synced."""
        self._trained, self._observed, self._synced = [], [], (self.kept, self.nonfinite)

    @property
    def has_news(self) -> bool:
        """Whether this rank has unsynced data."""
        return bool(self._trained or self._observed) or self._synced != (self.kept, self.nonfinite)

    def mark_scanned(
        self, parts: Sequence[Part], known: np.ndarray, epoch: int, done: np.ndarray, *, loaded: bool
    ) -> int:
        """Mark the keys of a stream that ended on all ranks as scanned; return how many samples came more than once.

        Args:
            parts: The parts of all ranks.
            known: Fingerprints that all ranks knew at the start of the epoch.
            epoch: The epoch that ended.
            done: Fingerprints that had been trained on before the epoch was resumed.
            loaded: Whether the known keys came from a checkpoint, which may be of another data set.
        """
        seen = np.logical_or.reduce([part.known for part in parts])
        new = np.unique(np.concatenate([part.new for part in parts]))
        marks = np.concatenate([known[seen], new])
        offered = sum(part.numbers[0] for part in parts)
        if loaded and len(known) and not seen.any() and offered > len(done):
            raise DatasetError(
                f"none of the {len(known)} known keys was among the {offered} keys of epoch {epoch}: they belong to "
                "another data set. Load the state of this data set, or create a new KeyFilter for it."
            )
        rows = self.table.add(marks)
        self.table["met"][rows] = epoch
        # A loader that resumed in the middle of a stream has not scanned the part before.
        if all(part.whole for part in parts) and np.isin(done, marks).all():
            self.alive_from = self._counted = epoch
            self.offered += offered
            self.used += self.kept - self.kept_before
        return offered - len(marks)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers."""
        self.flush()
        arrays = self.table.arrays()
        columns = {name: torch.from_numpy(_signed(values)) for name, values in arrays.items()}
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"columns": columns, **numbers}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], epoch: int) -> KeyStats:
        """Build from `state`, after checking it, for a filter at this epoch."""
        arrays = {name: values.cpu().numpy() for name, values in state["columns"].items()}
        if "key" not in arrays or arrays["key"].dtype != np.int64:
            raise StateError("the checkpoint must hold fingerprints as int64. Use another checkpoint.")
        arrays["key"] = arrays["key"].view(np.uint64)
        memory = cls()
        _check_ranges(arrays, epoch)
        memory.table = KeyTable.from_arrays(arrays)
        memory.table.make_room_for_epoch(epoch)
        for name in _NUMBERS:
            setattr(memory, name, stored_count(state, name))
        if memory.kept_before > memory.kept:
            raise ValueError(f"{memory.kept} samples kept, {memory.kept_before} of them before this epoch")
        memory.mark_synced()
        return memory


def _check_ranges(arrays: Mapping[str, np.ndarray], epoch: int) -> None:
    """Raise if columns of a checkpoint have other types or values than a table can have at this epoch."""
    ranges = {"usage": (0, 2**31 - 1), "seen": (-1, epoch), "met": (-1, epoch), "kept": (0, BY_RULE)}
    for name, values in arrays.items():
        wanted = "f" if name in ("score", "weight") else "iu"
        least, most = ranges.get(name, (0, 2**31 - 1))
        wrong = values.dtype.kind not in wanted or values.ndim != 1
        if not wrong and name in ranges and len(values):
            wrong = int(values.min()) < least or int(values.max()) > most
        if not wrong and name == "weight":
            wrong = not (np.isfinite(values) & (values >= 0)).all()
        if not wrong and name == "score":
            wrong = bool(np.isneginf(values).any())
        if wrong:
            raise StateError(f"column {name!r} of the checkpoint holds values that it cannot have. Use another one.")


def named(keys: Any, which: np.ndarray) -> str:
    """First of the marked keys, for a message."""
    return repr(listed(keys)[int(np.flatnonzero(which)[0])])


def raise_for_repeats(times: int, where: str, example: str = "") -> None:
    """Raise because keys are not unique."""
    raise DatasetError(
        f"keys must be unique within an epoch, and {times} came more than once{example} {where}. Make the keys "
        "distinct, for example from the shard and the name within it; split the stream between workers and ranks; "
        'iterate over it with one_epoch(loader). If repeats are intended, use KeyFilter(..., duplicates="allow").'
    )


def _places(marks: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of fingerprints among sorted ones, and whether each is there."""
    if not len(known):
        return np.zeros(len(marks), np.int64), np.zeros(len(marks), np.bool_)
    places = np.minimum(known.searchsorted(marks), len(known) - 1)
    return places, known[places] == marks


def _signed(values: np.ndarray) -> np.ndarray:
    return values.view(np.int64) if values.dtype == np.uint64 else values


# -- synchronization: what ranks exchange about keys at the start of an epoch ------------------------------------------


class KeyMessage(NamedTuple):
    """What ranks tell each other before they exchange keys.

    Attributes:
        settings: Digest of what must be equal on all ranks.
        marks: Number of keys trained on or observed.
        new: Number of scanned keys that were not known.
        scanned: Samples scanned.
        kept: Samples trained on.
        nonfinite: Non-finite losses.
        at_end: Whether the rank has reached the end of its stream since the last sync.
        whole: Whether every pass through the stream that began has also ended.
    """

    settings: int
    marks: int
    new: int
    scanned: int
    kept: int
    nonfinite: int
    at_end: int
    whole: int


@dataclass(frozen=True, eq=False)
class Part:
    """Data that one rank sends.

    Attributes:
        marks: Fingerprints of keys that the rank has trained on or observed, unique.
        scores: Their scores.
        times: How often the rank has trained on them; 0 if it has only observed them.
        epochs: The epoch in which it did.
        known: One flag per key that all ranks knew at the start of the epoch, in order: whether it was scanned.
        new: Fingerprints of the other scanned keys, unique.
        numbers: Counts to be summed: samples scanned, samples trained on, non-finite losses.
        at_end: Whether the rank has reached the end of its stream since the last sync.
        whole: Whether every pass through the stream that began has also ended.
    """

    marks: np.ndarray
    scores: np.ndarray
    times: np.ndarray
    epochs: np.ndarray
    known: np.ndarray
    new: np.ndarray
    numbers: tuple[int, int, int]
    at_end: bool
    whole: bool

    def message(self, settings: int) -> KeyMessage:
        """Values of fixed size, including the lengths of the arrays."""
        return KeyMessage(settings, len(self.marks), len(self.new), *self.numbers, self.at_end, self.whole)

    def encode(self, trained: int, new: int) -> np.ndarray:
        """Encode as bytes, padded to `trained` and `new` keys."""
        arrays = [
            _padded(self.marks, trained),
            _padded(self.scores, trained),
            _padded(self.times, trained),
            _padded(self.epochs, trained),
            _padded(self.new, new),
            np.append(np.packbits(self.known), np.uint8(0)),  # an empty tensor cannot be sent
        ]
        return np.concatenate([values.view(np.uint8) for values in arrays])

    @classmethod
    def decode(cls, data: np.ndarray, message: KeyMessage, trained: int, new: int, known: int) -> Part:
        """Decode the result of `encode`."""
        kinds = (
            (np.uint64, trained),
            (np.float32, trained),
            (np.int32, trained),
            (np.int32, trained),
            (np.uint64, new),
        )
        arrays: list[np.ndarray] = []
        start = 0
        for dtype, room in kinds:
            stop = start + room * np.dtype(dtype).itemsize
            arrays.append(data[start:stop].view(dtype)[: message.marks if len(arrays) < 4 else message.new])
            start = stop
        bits = np.unpackbits(data[start:], count=known).astype(np.bool_)
        marks, scores, times, epochs, others = arrays
        numbers = (message.scanned, message.kept, message.nonfinite)
        return cls(marks, scores, times, epochs, bits, others, numbers, bool(message.at_end), bool(message.whole))


def exchange_parts(
    exchange: Exchange, part: Part, settings: Mapping[str, object], epoch: int
) -> tuple[list[Part], int]:
    """Return the parts of all ranks, in order of rank, and the number of bytes received. Two collectives.

    Args:
        exchange: The process group.
        part: This rank's part.
        settings: What must be equal on all ranks, by the name that errors use for it.
        epoch: The current epoch, for errors.
    """
    from orderdp.distributed.collectives import Collectives
    from orderdp.distributed.sync import check_alike, digest_of

    collectives = Collectives(exchange, epoch)
    messages = collectives.gather_messages(part.message(digest_of(settings)))
    advice = (
        "Use the same settings in every process. If each process has its own stream and decides alone, use "
        "KeyFilter(..., exchange=False)."
    )
    check_alike(settings, [message.settings for message in messages], collectives, epoch, advice)
    trained, new = max(message.marks for message in messages), max(message.new for message in messages)
    parts = [
        Part.decode(data, message, trained, new, len(part.known))
        for data, message in zip(collectives.gather_all(part.encode(trained, new)), messages, strict=True)
    ]
    return parts, collectives.received


def check_same_keys(exchange: Exchange, columns: tuple[np.ndarray, ...], epoch: int) -> None:
    """Check that all ranks have selected the same keys. One collective.

    Args:
        exchange: The process group.
        columns: The keys of this rank's table, and which of them it keeps.
        epoch: The epoch that was drawn.
    """
    from orderdp.distributed.collectives import Collectives
    from orderdp.distributed.sync import check_same_draw, digest

    advice = "A policy may use only the table and its context, and all processes must load the same checkpoint."
    drawn = digest(*(values.tobytes() for values in columns))
    check_same_draw(Collectives(exchange, epoch), epoch, drawn, advice)


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros(length, values.dtype)
    padded[: len(values)] = values
    return padded
