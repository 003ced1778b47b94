"""Synchronization of ranks: messages, the check that ranks agree, and the changed rows of their tables.

At the start of an epoch the ranks exchange a message each, from which every rank derives the same result; then the
changed rows; then, after a draw, its digest. These are all collectives of a replicated table, at most three, in one
place, so that no rank waits for another. Every error is raised by all ranks at the same point.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from orderdp.distributed.collectives import Collectives
from orderdp.errors import GroupError
from orderdp.policy import Column
from orderdp.score_table import ScoreTable

if TYPE_CHECKING:
    from orderdp.distributed.collectives import Exchange

__all__ = [
    "Changes",
    "SyncMessage",
    "SyncResult",
    "SyncedRows",
    "SyncedTable",
    "Synchronizer",
    "TableCounters",
    "check_alike",
    "check_ranks_in_sync",
    "check_same_draw",
    "check_sharding",
    "digest",
    "digest_of",
    "merged",
    "wire_dtype",
]


def digest(*parts: bytes) -> int:
    """Return a digest of 60 bits."""
    state = blake2b(digest_size=8)
    for part in parts:
        state.update(part)
    return int.from_bytes(state.digest(), "little") >> 4


# -- checks that ranks agree ---------------------------------------------------------------------------------------


def digest_of(settings: Mapping[str, object]) -> int:
    """Return a digest of settings, equal on ranks with equal settings."""
    return digest(_as_text(settings).encode())


def check_alike(
    settings: Mapping[str, object], digests: Sequence[int], collectives: Collectives, epoch: int, advice: str
) -> None:
    """Raise if the settings of the ranks differ, and name those that do.

    The ranks have exchanged digests. Only if these differ, the settings themselves are gathered for the error.

    Args:
        settings: The settings of this rank, by the names that errors use. Under the first name is what the rank does:
            while that differs, the rest need not be comparable.
        digests: `digest_of` the settings of every rank.
        collectives: Collectives between the ranks.
        epoch: The current epoch.
        advice: What to do, for the error.
    """
    if len(set(digests)) == 1:
        return
    found = []
    ranks = [json.loads(text) for text in collectives.gather_texts(_as_text(settings))]
    for place, name in enumerate(settings):
        ranks_of: dict[str, list[int]] = {}
        for rank, values in enumerate(ranks):
            ranks_of.setdefault(str(values.get(name)), []).append(rank)
        if len(ranks_of) > 1:
            found.append(f"{name}: {', '.join(f'{value} on {_named(here)}' for value, here in ranks_of.items())}")
            if place == 0:
                break
    raise GroupError(
        f"all processes must have the same settings, but at epoch {epoch} they differ in {'; '.join(found)}. {advice}"
    )


def _as_text(settings: Mapping[str, object]) -> str:
    return json.dumps({name: str(value) for name, value in settings.items()})


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"


class _DrawMessage(NamedTuple):
    failed: int
    drawn: int


def check_same_draw(
    collectives: Collectives, epoch: int, drawn: int, advice: str, failure: Exception | None = None
) -> None:
    """Raise if a rank has failed to draw, or if the ranks have drawn differently. One collective.

    Args:
        collectives: Collectives between the ranks.
        epoch: The epoch that was drawn.
        drawn: Digest of what this rank has drawn.
        advice: What to do, for the error.
        failure: The error that this rank raises instead.
    """
    answers = collectives.gather_messages(_DrawMessage(failure is not None, drawn))
    if failure is not None:
        raise failure
    _raise_for_failed([bool(answer.failed) for answer in answers], epoch)
    if len({answer.drawn for answer in answers}) > 1:
        raise GroupError(f"all processes must select the same samples for epoch {epoch}, but they have not. {advice}")


def _raise_for_failed(failed: Sequence[bool], epoch: int) -> None:
    if any(failed):
        ranks = ", ".join(str(rank) for rank, has in enumerate(failed) if has)
        raise GroupError(f"epoch {epoch} cannot begin because rank {ranks} failed. See the error of that rank.")


class SyncMessage(NamedTuple):
    """Where a rank stands when it enters a sync.

    Attributes:
        epoch: The epoch that the rank is about to serve.
        is_open: Whether that epoch has been drawn.
        trained: The rank's position in it.
        arranging: Whether the rank has to order samples.
        fed: Samples whose losses came back since the last sync.
        expected: Samples of the epoch that ends, over all ranks.
        got: Samples of that epoch whose losses came back on this rank.
        overran: Whether that epoch was served to its end.
        batch_size: Batch size of the iterating loader, 0 if unknown.
        shard: Whether this library shards the samples.
        failed: 1 if the rank cannot continue, so that the other ranks do not wait for it.
        settings: Digest of what must be equal on all ranks.
        rows: Number of changed rows of the rank's table.
        nonfinite: Non-finite losses since the last sync.
        outside: Indices out of range since the last sync.
        writes: Steps written to the table since the last sync.
    """

    epoch: int
    is_open: int = 0
    trained: int = 0
    arranging: int = 0
    fed: int = 0
    expected: int = 0
    got: int = 0
    overran: int = 0
    batch_size: int = 0
    shard: int = 0
    failed: int = 0
    settings: int = 0
    rows: int = 0
    nonfinite: int = 0
    outside: int = 0
    writes: int = 0


def check_ranks_in_sync(messages: Sequence[SyncMessage], syncing: bool) -> None:
    """Raise if the positions of the ranks cannot belong to one training.

    A rank may be behind by the end of an epoch if a framework shards the samples: a rank with fewer samples, or none,
    has not seen that the epoch is over.

    Args:
        messages: The messages of all ranks.
        syncing: Whether ``sync()`` was called; otherwise an epoch is about to be iterated.
    """
    target = max(message.epoch for message in messages)
    ahead = [message for message in messages if message.epoch == target]
    behind = [message for message in messages if message.epoch < target]
    places = {(message.is_open, message.trained) for message in ahead}
    sharded = messages[0].shard
    if not syncing:
        _check_looks(messages, target)
    apart = len(places) > 1 and (sharded or not syncing)
    lost = any(message.epoch < target - 1 for message in behind) or (behind and any(here.is_open for here in ahead))
    if apart or lost or (behind and syncing and sharded):
        shown = "; ".join(
            f"rank {rank}: epoch {message.epoch}, {message.trained} samples trained"
            for rank, message in list(enumerate(messages))[:8]
        )
        raise GroupError(
            f"all processes must be at the same step, but they are not: {shown}. Load the same checkpoint on every "
            "rank, and call sync() after the same step."
        )


def _check_looks(messages: Sequence[SyncMessage], target: int) -> None:
    """Raise if a rank has called ``iter()`` once more than the others: it has no losses of an epoch they have ended.

    If a framework shards the samples, a rank may get no batch, but not where every other rank gets two.
    """
    behind = [rank for rank, message in enumerate(messages) if message.epoch == target - 1]
    ahead = [message for message in messages if message.epoch == target]
    dealt = all(message.got > message.batch_size > 0 for message in ahead) and not any(
        messages[rank].fed or messages[rank].got for rank in behind
    )
    if behind and (messages[0].shard or dealt) and not any(message.is_open for message in ahead):
        raise GroupError(
            f"{_named(behind)} called iter(loader) once more than the other processes, and trained on nothing of epoch "
            f"{target - 1}, which they have ended. iter(loader) is a collective: look at a batch on all ranks or on "
            "none."
        )


def check_sharding(messages: Sequence[SyncMessage]) -> None:
    """Raise if a framework has sharded the rank's shard once more.

    Then every rank has iterated over its whole shard, but only one in `world` losses came back.
    """
    world, first = len(messages), messages[0]
    if not first.shard or not all(message.overran for message in messages):
        return
    expected, got = first.expected, sum(message.got for message in messages)
    possible = world * max(1, first.batch_size)
    # A framework may pad the last batches of each rank, so slightly more than one in `world` losses can come back.
    if got and expected - got > possible and got * world <= expected + world * possible:
        raise GroupError(
            f"update() received losses for {got} of the {expected} samples of epoch {first.epoch - 1}; with {world} "
            f"processes and whole batches at most {possible} can be left over. A framework seems to shard the samples "
            "a second time. Use Pruner(..., shard=False)."
        )


# -- the rows of a table -------------------------------------------------------------------------------------------


class TableCounters:
    """Counts of non-finite losses, indices out of range, and writes, relative to the last sync.

    Args:
        table: The table that counts.
        as_it_is: Whether its current counts are equal on all ranks (a checkpoint); otherwise the synced counts are 0.
    """

    def __init__(self, table: ScoreTable, as_it_is: bool) -> None:
        self._counting = table
        self._counters = table.counters() if as_it_is else (0, 0, 0)

    @property
    def counters(self) -> tuple[int, int, int]:
        """Counts at the last sync."""
        return self._counters

    def counted(self) -> tuple[int, int, int]:
        """Increments since the last sync."""
        now = self._counting.counters()
        return now[0] - self._counters[0], now[1] - self._counters[1], now[2] - self._counters[2]

    def note_counters(self) -> None:
        """Store the table's current counts as synced."""
        self._counters = self._counting.counters()

    def add_counts(self, messages: Sequence[SyncMessage]) -> None:
        """Add the increments of all ranks to the synced counts."""
        counted = [(message.nonfinite, message.outside, message.writes) for message in messages]
        nonfinite, outside, writes = (sum(counts) for counts in zip(self._counters, *counted, strict=True))
        self._counting.set_counters(nonfinite, outside, writes)
        self.note_counters()


@dataclass(frozen=True, eq=False)
class Changes:
    """Changed rows of a table.

    Attributes:
        index: Row numbers, int64, unique.
        columns: Values of every column in these rows, in the dtype that is sent.
    """

    index: np.ndarray
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.index)

    def encode(self, rows: int) -> np.ndarray:
        """Encode as bytes, padded to `rows` rows."""
        parts = [np.resize(part, rows) if len(part) else np.zeros(rows, part.dtype) for part in self._parts()]
        return np.concatenate([part.view(np.uint8) for part in parts])

    @classmethod
    def decode(cls, data: np.ndarray, rows: int, count: int, declared: Mapping[str, Column]) -> Changes:
        """Decode the first `count` of `rows` encoded rows."""
        arrays, start = [], 0
        for dtype in (np.dtype(np.int64), *(wire_dtype(column) for column in declared.values())):
            stop = start + rows * dtype.itemsize
            arrays.append(data[start:stop].view(dtype)[:count])
            start = stop
        return cls(arrays[0], dict(zip(declared, arrays[1:], strict=True)))

    def _parts(self) -> list[np.ndarray]:
        return [self.index, *self.columns.values()]


class SyncedRows(Protocol):
    """What ranks exchange of their tables: `SyncedTable` if every rank has all rows, otherwise `RemoteSampleTable`."""

    @property
    def counters(self) -> tuple[int, int, int]:
        """Counts at the last sync."""
        ...

    def changes(self) -> Changes:
        """Rows that other ranks do not have yet."""
        ...

    def counted(self) -> tuple[int, int, int]:
        """Increments of the counts since the last sync."""
        ...

    def note_counters(self) -> None:
        """Store the current counts as synced."""
        ...

    def exchange(self, changes: Changes, messages: Sequence[SyncMessage], collectives: Collectives) -> None:
        """Exchange the changed rows, and merge the rows and counts of all ranks. A collective if any row changed."""
        ...

    def synced_scores(self) -> np.ndarray:
        """The scores as of the last sync."""
        ...

    def unsynced(self) -> dict[str, Any] | None:
        """What other ranks do not have yet, for a checkpoint; None if the table's own state has it."""
        ...

    def fingerprint(self) -> int:
        """Digest of the initial table until it has been compared, then 0."""
        ...

    def compared(self) -> None:
        """Note that all ranks started from the same table."""
        ...


class SyncedTable(TableCounters):
    """Copy of a table as of the last sync, when it was equal on all ranks.

    Args:
        table: The table that changes.
        as_it_is: Whether its current content is equal on all ranks (a checkpoint); otherwise the initial content is.
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
        """Return the rows that differ from the last sync."""
        touched = np.zeros(self._table.n, dtype=np.bool_)
        now = {name: self._now(name) for name in self._table.declared}
        for name, values in now.items():
            touched |= _bits(values) != _bits(self._base[name])
        index = np.flatnonzero(touched)
        return Changes(index, {name: values[index] for name, values in now.items()})

    def synced_scores(self) -> np.ndarray:
        """Return a copy of the scores as of the last sync."""
        values: np.ndarray = self._base["score"].copy()
        return values

    def unsynced(self) -> dict[str, Any] | None:
        """Return the rows that differ from the last sync, as they were then."""
        index = self.changes().index
        return {
            "index": torch.from_numpy(index),
            "before": {name: torch.from_numpy(values[index]) for name, values in self._base.items()},
            "counters": list(self.counters),
        }

    def exchange(self, changes: Changes, messages: Sequence[SyncMessage], collectives: Collectives) -> None:
        """Gather the changes of all ranks, merge them into the table, and store the result as synced."""
        most = max(message.rows for message in messages)
        if most:
            parts = [
                Changes.decode(data, most, message.rows, self._table.declared)
                for data, message in zip(collectives.gather_all(changes.encode(most)), messages, strict=True)
            ]
            rows = merged(parts, self._base, self._table.declared)
            self._table.put(rows.index, rows.columns)
            for name, values in rows.columns.items():
                self._base[name][rows.index] = values
        self.add_counts(messages)

    def fingerprint(self) -> int:
        """Digest of the content assumed equal on all ranks until it has been compared, then 0."""
        if not self._unchecked:
            return 0
        return digest(*(values.tobytes() for values in self._base.values()))

    def compared(self) -> None:
        """Note that all ranks started from the same table."""
        self._unchecked = False

    def _now(self, name: str) -> np.ndarray:
        return self._table[name].astype(wire_dtype(self._table.declared[name]), copy=False)


def merged(parts: Sequence[Changes], base: Mapping[str, np.ndarray], declared: Mapping[str, Column]) -> Changes:
    """Merge the changes of all ranks, in order of rank.

    A row that one rank has changed is copied. If several ranks have changed a row, columns with ``merge="sum"`` add
    the increments to the old value; the other columns come from the rank that has trained on the sample more often, and
    from the lowest rank on a tie.
    """
    index = np.concatenate([part.index for part in parts])
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in declared}
    taken = np.zeros(len(base["usage"]), dtype=np.bool_)
    taken[index] = True
    if np.count_nonzero(taken) == len(index):  # the usual case: nothing has to be sorted
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
    """Dtype in which a column is sent. Integers take four bytes, since ranks may widen counters at different times."""
    dtype = np.dtype(column.dtype)
    if dtype.kind == "f":
        return np.dtype(np.float64 if dtype.itemsize > 4 else np.float32)
    return np.dtype(np.int64 if dtype.itemsize > 4 else np.int32)


def _wide(values: np.ndarray) -> np.dtype:
    return np.dtype(np.float64 if values.dtype.kind == "f" else np.int64)


def _bits(values: np.ndarray) -> np.ndarray:
    # Compare bits: a NaN is not equal to itself and would always look changed.
    return values.view(np.int64 if values.dtype.itemsize == 8 else np.int32)


class SyncResult(NamedTuple):
    """Where all ranks continue and, if they exchanged rows, how many samples all have trained on."""

    epoch: int
    trained: int
    kept: int | None


class Synchronizer:
    """Synchronize one pruner with those of the other ranks.

    Args:
        rows: The rank's table, as ranks exchange it.
        kept: Samples that all ranks have trained on so far.

    Attributes:
        exchange: The process group; None without one.
        exchanged_bytes: Bytes received in the last sync.
        drawing: Whether the last sync requires samples to be ordered.
    """

    def __init__(self, rows: SyncedRows, kept: int) -> None:
        self.exchange: Exchange | None = None
        self.exchanged_bytes = 0
        self.drawing = False
        self._rows = rows
        self._kept = kept

    def decide(
        self,
        epoch: int,
        action: str,
        message: SyncMessage,
        settings: Mapping[str, object],
        failure: Exception | None = None,
    ) -> SyncResult:
        """Exchange messages, merge changed rows, and return where to continue. At most two collectives.

        Args:
            epoch: The current epoch, for errors.
            action: What the rank does: "iter()" or "sync()".
            message: Where this rank stands.
            settings: What must be equal on all ranks, by the name that errors use for it.
            failure: The error that this rank raises instead; all ranks raise then.
        """
        collectives, changes = Collectives(self.exchange, epoch), self._rows.changes()
        scores = f"digest {self._rows.fingerprint():x}"
        settings = {
            "what they do": action,
            **settings,
            "initial scores (were different checkpoints loaded?)": scores,
        }
        nonfinite, outside, writes = self._rows.counted()
        message = message._replace(
            failed=failure is not None,
            settings=digest_of(settings),
            rows=len(changes),
            nonfinite=nonfinite,
            outside=outside,
            writes=writes,
        )
        messages = collectives.gather_messages(message)
        self.exchanged_bytes = collectives.received
        if failure is not None:
            raise failure
        _raise_for_failed([bool(heard.failed) for heard in messages], epoch)
        digests = [heard.settings for heard in messages]
        check_alike(settings, digests, collectives, epoch, "Use the same settings in every process.")
        self._rows.compared()
        check_ranks_in_sync(messages, syncing=action == "sync()")
        check_sharding(messages)
        merging = action == "sync()" or not all(heard.is_open for heard in messages)
        if merging:
            self._rows.exchange(changes, messages, collectives)
            self._kept += sum(heard.fed for heard in messages)
            self.exchanged_bytes = collectives.received
        self.drawing = any(heard.arranging for heard in messages)
        target = max(heard.epoch for heard in messages)
        trained = max(heard.trained for heard in messages if heard.epoch == target)
        return SyncResult(target, trained, self._kept if merging else None)

    def agree(self, epoch: int, drawn: int, failure: Exception | None) -> None:
        """Check that all ranks have drawn the same samples. One collective.

        Args:
            epoch: The epoch that was drawn.
            drawn: Digest of what this rank has drawn.
            failure: The error that this rank raises instead; all ranks raise then.
        """
        self._rows.note_counters()
        collectives = Collectives(self.exchange, epoch)
        advice = (
            "A policy may use only the table and its context, and a sampler given to filter must have the same seed in "
            "every process."
        )
        try:
            check_same_draw(collectives, epoch, drawn, advice, failure)
        finally:
            self.exchanged_bytes += collectives.received

    def synced_scores(self) -> np.ndarray:
        """Return a copy of the scores as of the last sync."""
        return self._rows.synced_scores()

    def unsynced(self, fed: int) -> dict[str, Any] | None:
        """Return the unsynced changes of this rank for a checkpoint; None if there are none."""
        rows = None if self.exchange is None else self._rows.unsynced()
        if self.exchange is None or rows is None or not (len(rows["index"]) or fed or any(self._rows.counted())):
            return None
        return {"rank": self.exchange.rank, "world_size": self.exchange.world, **rows, "fed": fed, "kept": self._kept}
