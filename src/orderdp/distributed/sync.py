"""Synchronization of ranks. All collectives are in one place, at most three, so that no rank waits for another.

The ranks exchange a message of fixed size, from which every rank derives the same result; then the changed rows;
then, after a draw, its digest. Every error is raised by all ranks at the same point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from orderdp.distributed.collectives import Exchange
from orderdp.errors import GroupError
from orderdp.policy import Column
from orderdp.score_table import ScoreTable

if TYPE_CHECKING:
    from orderdp._epochs import Order, SamplerView, TrainingProgress
    from orderdp._process_group import SyncCounters

__all__ = [
    "ITER",
    "SYNC",
    "Changes",
    "RankStatus",
    "SharedConfig",
    "SyncMessage",
    "SyncResult",
    "SyncedRows",
    "SyncedTable",
    "Synchronizer",
    "TableCounters",
    "check_ranks_in_sync",
    "check_sharding",
    "differences",
    "digest",
    "merged",
    "wire_dtype",
]


ITER, SYNC = 1, 2


# Bytes of the policy's description that are sent along, so that an error can show both policies.
_TEXT = 160


@dataclass(frozen=True)
class SyncMessage:
    """Configuration of a rank, its position in training, and the amount of data it sends.

    Attributes:
        action: `ITER` or `SYNC`.
        failed: 1 if the rank cannot continue, so that the other ranks do not wait for it.
        seed: The rank's seed; a digest of it if it is very large.
        n: Length of the data set.
        epochs: Planned epochs, -1 for none.
        policy: Digest of the policy and the columns.
        labels: Digest of the labels.
        shard: Whether this library shards the samples.
        pad: Whether shards are padded.
        strict: Whether a non-finite loss is an error.
        batch_size: Batch size of the iterating loader, 0 if unknown.
        drop_last: ``drop_last`` of the iterating loader.
        table: Digest of the table before this sync, 0 if it has been compared already.
        epoch: The epoch that the rank is about to serve.
        is_open: Whether that epoch has been drawn.
        trained: The rank's position in it.
        arranging: Whether the rank has to order samples.
        rows: Number of changed rows of the rank's table.
        fed: Samples whose losses came back since the last sync.
        nonfinite: Non-finite losses since the last sync.
        outside: Indices out of range since the last sync.
        writes: Steps written to the table since the last sync.
        expected: Samples of the epoch that ends, over all ranks.
        got: Samples of that epoch whose losses came back on this rank.
        overran: Whether that epoch was served to its end.
        rewound: Whether the open epoch is served from its start.
        policy_text: Description of the policy.
    """

    action: int
    failed: int
    seed: int
    n: int
    epochs: int
    policy: int
    labels: int
    shard: int
    pad: int
    strict: int
    batch_size: int
    drop_last: int
    table: int
    epoch: int
    is_open: int
    trained: int
    arranging: int
    rows: int
    fed: int
    nonfinite: int
    outside: int
    writes: int
    expected: int
    got: int
    overran: int
    rewound: int
    policy_text: str

    def encode(self) -> torch.Tensor:
        """Encode as an int64 tensor of fixed length."""
        *numbers, text = astuple(self)
        words = text.encode()[:_TEXT].ljust(_TEXT, b"\0")
        return torch.cat((torch.tensor(numbers), torch.frombuffer(bytearray(words), dtype=torch.int64)))

    @classmethod
    def decode(cls, values: torch.Tensor) -> SyncMessage:
        """Decode the result of `encode`."""
        names = [field.name for field in fields(cls)][:-1]
        text = values[len(names) :].numpy().tobytes().rstrip(b"\0").decode(errors="replace")
        given: dict[str, Any] = dict(zip(names, values[: len(names)].tolist(), strict=True))
        return cls(**given, policy_text=text)


# What must be equal on all ranks: the field, its title in errors, and the value to show. The action comes first: while
# it differs, the rest need not be comparable.
_SHARED: tuple[tuple[str, str, Callable[[SyncMessage], object]], ...] = (
    ("action", "what they do", lambda h: "sync()" if h.action == SYNC else "iter()"),
    ("seed", "seed", lambda h: h.seed),
    ("n", "length of the data set", lambda h: h.n),
    ("epochs", "epochs", lambda h: None if h.epochs < 0 else h.epochs),
    ("policy", "policy", lambda h: h.policy_text),
    ("labels", "labels", lambda h: f"digest {h.labels:x}"),
    ("shard", "shard", lambda h: bool(h.shard)),
    ("pad", "pad", lambda h: bool(h.pad)),
    ("strict", "on_nan", lambda h: "raise" if h.strict else "warn"),
    ("batch_size", "batch_size", lambda h: h.batch_size or None),
    ("drop_last", "drop_last", lambda h: bool(h.drop_last)),
    ("rewound", "whether rewind() was called", lambda h: bool(h.rewound)),
    ("table", "scores they start from (were different checkpoints loaded?)", lambda h: f"digest {h.table:x}"),
)


def differences(headers: Sequence[SyncMessage]) -> str | None:
    """Describe the settings that differ between ranks; None if all are equal."""
    found = []
    for name, title, show in _SHARED:
        ranks_of: dict[int, list[int]] = {}
        for rank, header in enumerate(headers):
            ranks_of.setdefault(getattr(header, name), []).append(rank)
        if len(ranks_of) > 1:
            parts = [f"{show(headers[ranks[0]])} on {_named(ranks)}" for ranks in ranks_of.values()]
            found.append(f"{title}: {', '.join(parts)}")
            if name == "action":
                break
    return "; ".join(found) or None


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"


def digest(*parts: bytes) -> int:
    """Return a digest of 60 bits."""
    state = blake2b(digest_size=8)
    for part in parts:
        state.update(part)
    return int.from_bytes(state.digest(), "little") >> 4


class RankStatus(NamedTuple):
    """Position of one rank when it enters a sync; the fields are those of `SyncMessage`."""

    epoch: int
    is_open: bool = False
    trained: int = 0
    arranging: bool = False
    batch_size: int = 0
    drop_last: bool = False
    fed: int = 0
    expected: int = 0
    got: int = 0
    overran: bool = False
    rewound: bool = False

    @classmethod
    def now(cls, clock: TrainingProgress, tally: SyncCounters, is_open: bool) -> RankStatus:
        """Status of a rank that calls ``sync()`` within or between epochs.

        Args:
            clock: Progress of the training.
            tally: The rank's counts since the last sync.
            is_open: Whether the current epoch is being iterated.
        """
        return cls(clock.epoch, is_open=is_open, trained=clock.trained, fed=tally.fed)

    @classmethod
    def before(
        cls,
        wanted: int,
        view: SamplerView,
        epoch: Order | None,
        clock: TrainingProgress,
        tally: SyncCounters,
        *,
        rewound: bool,
    ) -> RankStatus:
        """Status of a rank that is about to iterate over an epoch.

        Args:
            wanted: Number of the requested epoch.
            view: The sampler that iterates.
            epoch: The open epoch, if any.
            clock: Progress of the training.
            tally: The rank's counts since the last sync.
            rewound: Whether the open epoch is served from its start.
        """
        is_open = epoch is not None and wanted == clock.epoch
        is_left = clock.end is not None and clock.moved and not is_open
        return cls(
            epoch=wanted,
            is_open=is_open,
            trained=clock.trained if is_open else 0,
            arranging=epoch is None or not is_open or epoch.arrangement not in (None, view.arrangement),
            batch_size=int(getattr(view, "batch_size", None) or 0),
            drop_last=bool(getattr(view, "drop_last", False)),
            fed=tally.fed,
            expected=(clock.end or 0) - tally.start if is_left else 0,
            got=tally.got,
            overran=tally.overran,
            rewound=rewound,
        )


def check_ranks_in_sync(headers: Sequence[SyncMessage]) -> None:
    """Raise if the positions of the ranks cannot belong to one training.

    A rank may be behind by the end of an epoch if a framework shards the samples: a rank with fewer samples, or none,
    has not seen that the epoch is over.
    """
    target = max(header.epoch for header in headers)
    ahead = [header for header in headers if header.epoch == target]
    behind = [header for header in headers if header.epoch < target]
    places = {(header.is_open, header.trained) for header in ahead}
    syncing, sharded = headers[0].action == SYNC, headers[0].shard
    apart = len(places) > 1 and (sharded or not syncing)
    lost = any(header.epoch < target - 1 for header in behind) or (behind and any(header.is_open for header in ahead))
    if apart or lost or (behind and syncing and sharded):
        shown = "; ".join(
            f"rank {rank}: epoch {header.epoch}, {header.trained} samples trained"
            for rank, header in list(enumerate(headers))[:8]
        )
        raise GroupError(
            f"all processes must stand at the same place, they do not: {shown}. Load the same checkpoint everywhere, "
            "and call sync() after the same step."
        )


def check_sharding(headers: Sequence[SyncMessage]) -> None:
    """Raise if a framework has sharded the rank's shard once more.

    Then every rank has iterated over its whole shard, but only one in `world` losses came back.
    """
    world, first = len(headers), headers[0]
    if not first.shard or not all(header.overran for header in headers):
        return
    expected, got = first.expected, sum(header.got for header in headers)
    possible = world * max(1, first.batch_size)
    # A framework may pad the last batches of each rank, so slightly more than one in `world` losses can come back.
    if got and expected - got > possible and got * world <= expected + world * possible:
        raise GroupError(
            f"of the {expected} samples of epoch {first.epoch - 1}, losses came back for {got}; with {world} "
            f"processes and whole batches at most {possible} can be left over. A framework seems to deal out the "
            "samples once more. Give Pruner(..., shard=False) there."
        )


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

    def _add_up(self, counted: Sequence[Sequence[int]]) -> None:
        """Add the increments of all ranks to the synced counts."""
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
    """State of the last sync as the synchronizer reads it; see `SyncedTable`."""

    @property
    def counters(self) -> tuple[int, int, int]:
        """Counts at the last sync."""
        ...

    def changes(self) -> Changes:
        """Rows that the other ranks do not have yet."""
        ...

    def agreed(self, name: str) -> np.ndarray:
        """A column as of the last sync."""
        ...

    def before(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Rows as of the last sync."""
        ...

    def counted(self) -> tuple[int, int, int]:
        """Increments of the counts since the last sync."""
        ...

    def flush(self, parts: Sequence[Changes], counted: Sequence[Sequence[int]]) -> None:
        """Merge the changes and counts of all ranks."""
        ...

    def note_counters(self) -> None:
        """Store the current counts as synced."""
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

    def agreed(self, name: str) -> np.ndarray:
        """Copy of a column as of the last sync."""
        values: np.ndarray = self._base[name].copy()
        return values

    def before(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Rows as of the last sync."""
        return {name: values[index] for name, values in self._base.items()}

    def flush(self, parts: Sequence[Changes], counted: Sequence[Sequence[int]]) -> None:
        """Merge the changes of all ranks into the table and store the result as synced."""
        if any(len(part) for part in parts):
            rows = merged(parts, self._base, self._table.declared)
            self._table.put(rows.index, rows.columns)
            for name, values in rows.columns.items():
                self._base[name][rows.index] = values
        self._add_up(counted)

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


@dataclass(frozen=True)
class SharedConfig:
    """Settings that must be equal on all ranks.

    Attributes:
        policy: Description of the policy.
        epochs: Planned epochs, or None.
        labels: One class per sample, or None.
        shard: Whether this library shards the samples.
        pad: Whether shards are padded.
        strict: Whether a non-finite loss is an error.
    """

    policy: str
    epochs: int | None
    labels: np.ndarray | None
    shard: bool
    pad: bool
    strict: bool


class SyncResult(NamedTuple):
    """Where all ranks continue and, if they exchanged rows, how many samples all have trained on."""

    epoch: int
    trained: int
    kept: int | None


class Synchronizer:
    """Synchronize one pruner with those of the other ranks.

    Args:
        table: The rank's table.
        setup: Settings that must be equal on all ranks.
        kept: Samples that all ranks have trained on so far.
        as_it_is: Whether the table came from a checkpoint that all ranks have loaded.
        ledger: State of the last sync; by default a `SyncedTable` of the whole table.
    """

    def __init__(
        self, table: ScoreTable, setup: SharedConfig, kept: int, as_it_is: bool, ledger: SyncedRows | None = None
    ) -> None:
        self.exchange: Exchange | None = None
        self.exchanged_bytes = 0
        self.drawing = False  # whether the last sync requires samples to be ordered
        self._table = table
        self._setup = setup
        self._kept = kept
        self._ledger: SyncedRows = SyncedTable(table, as_it_is) if ledger is None else ledger
        columns = repr(sorted(table.declared.items())).encode()
        self._policy = digest(setup.policy.encode(), columns)
        labels = setup.labels
        self._labels = 0 if labels is None else digest(np.ascontiguousarray(labels, dtype=np.int64).tobytes())

    def decide(self, syncing: bool, epoch: int, seed: int, find: Callable[[], RankStatus]) -> SyncResult:
        """Exchange messages, merge changed rows, and return where to continue. At most two collectives.

        Args:
            syncing: Whether ``sync()`` was called; otherwise an epoch is about to be iterated.
            epoch: The current epoch, for messages.
            seed: The pruner's seed.
            find: Returns the status of this rank. If it raises, all ranks raise.
        """
        self.exchanged_bytes = 0
        failure, here = None, RankStatus(epoch)
        try:
            here = find()
        except Exception as error:
            failure = error
        changes = self._ledger.changes()
        header = self._header(SYNC if syncing else ITER, seed, here, len(changes), failed=failure is not None)
        headers = [SyncMessage.decode(values) for values in self._gather(header.encode(), epoch)]
        if failure is not None:
            raise failure
        self._check(headers, epoch)
        target = max(heard.epoch for heard in headers)
        settling = syncing or not all(heard.is_open for heard in headers)
        if settling:
            self._settle(headers, changes, epoch)
        self.drawing = any(heard.arranging for heard in headers)
        trained = max(heard.trained for heard in headers if heard.epoch == target)
        return SyncResult(target, trained, self._kept if settling else None)

    def agree(self, epoch: int, draw: Callable[[], int]) -> None:
        """Draw, and check that all ranks have drawn the same samples. One collective.

        Args:
            epoch: The epoch that is drawn.
            draw: Draws the samples and returns their digest. If it raises, all ranks raise.
        """
        failure, mine = None, 0
        try:
            mine = draw()
        except Exception as error:
            failure = error
        self._ledger.note_counters()
        answers = [values.tolist() for values in self._gather(torch.tensor([failure is not None, mine]), epoch)]
        if failure is not None:
            raise failure
        _raise_for_failed([bool(failed) for failed, _ in answers], epoch)
        if len({drawn for _, drawn in answers}) > 1:
            raise GroupError(
                f"all processes must draw the same samples for epoch {epoch}, and they have not. A policy may use "
                "nothing but the table and its context, and a sampler given to filter must be seeded alike everywhere."
            )

    def agreed_scores(self) -> np.ndarray:
        """Copy of the scores as of the last sync."""
        return self._ledger.agreed("score")

    def unsynced(self, fed: int) -> dict[str, Any] | None:
        """Return the unsynced changes of this rank for a checkpoint; None if there are none."""
        changes = self._ledger.changes()
        if self.exchange is None or not (len(changes) or fed or any(self._ledger.counted())):
            return None
        before = self._ledger.before(changes.index)
        return {
            "rank": self.exchange.rank,
            "world_size": self.exchange.world,
            "index": torch.from_numpy(changes.index),
            "before": {name: torch.from_numpy(values) for name, values in before.items()},
            "counters": list(self._ledger.counters),
            "fed": fed,
            "kept": self._kept,
        }

    # -- internals -----------------------------------------------------------------------------------------------

    def _header(self, action: int, seed: int, here: RankStatus, rows: int, *, failed: bool) -> SyncMessage:
        setup = self._setup
        nonfinite, outside, writes = self._ledger.counted()
        return SyncMessage(
            action=action,
            failed=failed,
            seed=seed if seed < 1 << 62 else (1 << 62) + digest(str(seed).encode()),
            n=self._table.n,
            epochs=-1 if setup.epochs is None else setup.epochs,
            policy=self._policy,
            labels=self._labels,
            shard=setup.shard,
            pad=setup.pad,
            strict=setup.strict,
            table=self._ledger.fingerprint(),
            rows=rows,
            nonfinite=nonfinite,
            outside=outside,
            writes=writes,
            policy_text=setup.policy,
            **here._asdict(),
        )

    def _check(self, headers: Sequence[SyncMessage], epoch: int) -> None:
        _raise_for_failed([bool(heard.failed) for heard in headers], epoch)
        different = differences(headers)
        if different is not None:
            raise GroupError(
                f"all processes must be set up alike, and at epoch {epoch} they differ in {different}. "
                "Give every process the same."
            )
        self._ledger.compared()
        check_ranks_in_sync(headers)
        check_sharding(headers)

    def _settle(self, headers: Sequence[SyncMessage], changes: Changes, epoch: int) -> None:
        parts: list[Changes] = []
        most = max(heard.rows for heard in headers)
        if most:
            gathered = self._gather(torch.from_numpy(changes.encode(most)), epoch)
            parts = [
                Changes.decode(data.numpy(), most, heard.rows, self._table.declared)
                for data, heard in zip(gathered, headers, strict=True)
            ]
        self._ledger.flush(parts, [(heard.nonfinite, heard.outside, heard.writes) for heard in headers])
        self._kept += sum(heard.fed for heard in headers)

    def _gather(self, values: torch.Tensor, epoch: int) -> list[torch.Tensor]:
        exchange = self.exchange
        assert exchange is not None
        try:
            gathered = exchange.gather_all(values)
        except RuntimeError as error:
            raise GroupError(
                f"rank {exchange.rank} of {exchange.world} has not heard from all others at epoch {epoch}: {error}. "
                "Another process has failed, or does not call iter(loader) or sync() where this one does."
            ) from error
        self.exchanged_bytes += sum(part.nbytes for part in gathered)
        return gathered


def _raise_for_failed(failed: Sequence[bool], epoch: int) -> None:
    if any(failed):
        ranks = ", ".join(str(rank) for rank, has in enumerate(failed) if has)
        raise GroupError(f"epoch {epoch} cannot begin, because rank {ranks} failed. Its own error says why.")
