"""What a rank holds of a sharded table: `Shard`, `BitSet` and `ShardedTable`, with five bytes per sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from orderdp.distributed.collectives import Collectives
from orderdp.distributed.sync import Changes, SyncMessage, TableCounters
from orderdp.errors import IndexRangeError, StateError
from orderdp.policy import Column
from orderdp.score_table import SCORE, ScoreTable

__all__ = [
    "MOST_USES",
    "PIECE",
    "WORD",
    "BitSet",
    "RemoteSampleTable",
    "RemoteSamples",
    "Shard",
    "ShardedTable",
    "ones_in",
    "pack",
    "shard_size",
    "unpack",
]


#: Samples per word. Words are counted from sample 0, so ranks that share a word agree on its bits.
WORD = 64


#: Samples processed together: whole words, and few enough for the CPU cache.
PIECE = 1 << 16


_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def ones_in(words: np.ndarray) -> np.ndarray:
    """Number of set bits per word."""
    ones: np.ndarray = _ONES[words.view(np.uint8).reshape(len(words), WORD // 8)].sum(axis=1, dtype=np.int64)
    return ones


class BitSet:
    """Subset of the samples from `start` to `stop`, one bit per sample.

    >>> bits = BitSet(3, 70)
    >>> bits.add(np.array([5, 64, 69]))
    >>> bits.mask(60, 70).astype(int).tolist(), len(bits)
    ([0, 0, 0, 0, 1, 0, 0, 0, 0, 1], 3)

    Args:
        start: The first sample that the set can hold.
        stop: The first sample after it that the set cannot hold.
        words: Content, as in the `words` of another set; None for an empty set.
    """

    def __init__(self, start: int, stop: int, words: np.ndarray | None = None) -> None:
        self.start, self.stop = start, max(start, stop)
        self.first_word = start // WORD
        n_words = -(-self.stop // WORD) - self.first_word if self.stop > start else 0
        self.words: np.ndarray = np.zeros(n_words, dtype=np.uint64) if words is None else words
        self._bytes = self.words.view(np.uint8)

    def __len__(self) -> int:
        return sum(
            int(_ONES[self._bytes[at : at + PIECE]].sum(dtype=np.int64)) for at in range(0, self.words.nbytes, PIECE)
        )

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the range in pieces that share no word."""
        for start in range(self.start // PIECE * PIECE, self.stop, PIECE):
            yield max(start, self.start), min(start + PIECE, self.stop)

    def mask(self, start: int, stop: int) -> np.ndarray:
        """Boolean mask of the samples from `start` to `stop`."""
        first = start // WORD
        packed = self._bytes[(first - self.first_word) * 8 : (-(-stop // WORD) - self.first_word) * 8]
        offset = first * WORD
        return np.unpackbits(packed, bitorder="little").view(np.bool_)[start - offset : stop - offset]

    def put(self, start: int, mask: np.ndarray) -> None:
        """Replace the piece that starts at `start` and is as long as `mask`."""
        first, stop = start // WORD, start + len(mask)
        last = -(-stop // WORD)
        if start % WORD or stop % WORD:
            padded = np.zeros((last - first) * WORD, dtype=np.bool_)
            padded[start - first * WORD : stop - first * WORD] = mask
            mask = padded
        at = (first - self.first_word) * 8
        self._bytes[at : at + len(mask) // 8] = np.packbits(mask, bitorder="little")

    def add(self, samples: np.ndarray) -> None:
        """Add samples."""
        np.bitwise_or.at(self.words, samples // WORD - self.first_word, _bit_of(samples))

    def remove(self, samples: np.ndarray) -> None:
        """Remove samples."""
        np.bitwise_and.at(self.words, samples // WORD - self.first_word, ~_bit_of(samples))

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Members from `start` to `stop`, ascending."""
        return np.flatnonzero(self.mask(start, stop)) + start

    def __ior__(self, other: BitSet) -> BitSet:
        self.words |= other.words
        return self

    def copy(self) -> BitSet:
        """Return a copy."""
        return BitSet(self.start, self.stop, self.words.copy())


def _bit_of(samples: np.ndarray) -> np.ndarray:
    bit: np.ndarray = np.uint64(1) << (samples % WORD).astype(np.uint64)
    return bit


def shard_size(total: int, rank: int, world: int) -> int:
    """Number of samples of `total` that a rank gets: an equal part, and one more on the first ranks.

    Monotone in `total`, so on every rank the parts of q <= s <= n are in the same order.

    >>> [shard_size(8, rank, 3) for rank in range(3)]
    [3, 3, 2]
    """
    return total // world + (rank < total % world)


@dataclass(frozen=True)
class Shard:
    """The samples from `start` to `stop`, of `n` that `world` ranks hold together.

    >>> [(Shard(8, rank, 3).start, Shard(8, rank, 3).stop) for rank in range(3)]
    [(0, 3), (3, 6), (6, 8)]

    Attributes:
        n: Samples in the whole data set.
        rank: The rank that holds this shard.
        world: Number of shards.
    """

    n: int
    rank: int = 0
    world: int = 1

    @property
    def start(self) -> int:
        """First sample of the shard."""
        return self.rank * (self.n // self.world) + min(self.rank, self.n % self.world)

    @property
    def stop(self) -> int:
        """First sample after the shard."""
        return self.start + shard_size(self.n, self.rank, self.world)

    @property
    def size(self) -> int:
        """Number of samples."""
        return shard_size(self.n, self.rank, self.world)

    def starts(self) -> list[int]:
        """First sample of the shard of every rank."""
        return [Shard(self.n, rank, self.world).start for rank in range(self.world)]


class RemoteSamples(NamedTuple):
    """Samples that another rank holds.

    Attributes:
        samples: Their indices, int64, ascending.
        scores: Their scores, float32.
    """

    samples: np.ndarray
    scores: np.ndarray


def pack(index: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """Rows as consecutive bytes: the index, then each column."""
    parts = [index, *columns]
    rows = [np.ascontiguousarray(part).view(np.uint8).reshape(len(index), part.dtype.itemsize) for part in parts]
    return np.concatenate(rows, axis=1).reshape(-1)


def unpack(data: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of packed rows, and the bytes of their columns, `width` per row."""
    rows = data.reshape(-1, 8 + width)
    index = np.ascontiguousarray(rows[:, :8]).view(np.int64).reshape(-1)
    return index, np.ascontiguousarray(rows[:, 8:]).reshape(-1)


#: Maximum of the usage count. It fits one byte, with room for the repeats of one epoch.
MOST_USES = 200


_USAGE = Column("usage", initial=0, dtype="uint8", merge="sum")


class ShardedTable(ScoreTable):
    """Rows of the samples that a rank holds, followed by rows of remote samples, which another rank holds.

    A row has a score and a one-byte usage count. The epoch in which a sample was last seen is not stored.

    Args:
        shard: The samples that the rank holds.
    """

    built_in = (SCORE, _USAGE)

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.remote = np.empty(0, dtype=np.int64)
        self._remote = torch.empty(0, dtype=torch.int64)  # the same, on the table's device
        # Room for the number of remote samples to expect if samples are in no order; columns grow if there are more.
        self._room = 0 if shard.world == 1 else min(shard.n - shard.size, 64 + shard.size // 64)
        self._before = RemoteSamples(self.remote, np.empty(0, dtype=np.float32))
        self._set_up(shard.n, range(shard.start, shard.stop), self._room, ())

    # -- reading -------------------------------------------------------------------------------------------------

    def scores_between(self, start: int, stop: int) -> np.ndarray:
        """Scores of this rank's samples from `start` to `stop`, on the host."""
        values: np.ndarray = self._columns["score"][start - self.first : stop - self.first].cpu().numpy()
        return values

    def scores_of(self, indices: np.ndarray) -> np.ndarray:
        """Scores of some of this rank's samples, on the host."""
        return super().scores_of(indices - self.first)

    def summary(self, epoch: int) -> dict[str, float]:
        """Fraction of this rank's samples trained on at least once."""
        used = int(torch.count_nonzero(self.column("usage")[: self.size]))
        return {"coverage": used / max(1, self.size)}

    # -- writing -------------------------------------------------------------------------------------------------

    def _checked(self, index: torch.Tensor) -> torch.Tensor:
        """Rows of these samples. A sample without a row is an error on the CPU; on a device it gets the last row."""
        index = index.to(self.device, non_blocking=not self._on_host)
        rows = index - self.first
        elsewhere = (rows < 0) | (rows >= self.size)
        if self._on_host and not elsewhere.any():
            return rows
        last = self._columns["score"].shape[0] - 1
        found = torch.full_like(rows, last)
        if len(self._remote):
            places = torch.searchsorted(self._remote, index).clamp(max=len(self._remote) - 1)
            found = torch.where(self._remote[places] == index, places + self.size, last)
        rows = torch.where(elsewhere, found, rows)
        if self._on_host:
            self._refuse(index[rows == last], len(index))
        else:
            self._invalid[1] += (rows == last).sum()
        return rows

    def _refuse(self, wrong: torch.Tensor, total: int) -> None:
        if not len(wrong):
            return
        example = int(wrong[0])
        if 0 <= example < self.n:
            raise IndexRangeError(
                f"rank {self.shard.rank} holds the samples from {self.first} to {self.first + self.size - 1} and those "
                f"it was given to train on; got {example} ({len(wrong)} of {total} in this batch are others). Pass the "
                "index that came with the batch, and call observe() on each rank for the samples it holds: "
                "pruner.local_indices."
            )
        raise IndexRangeError(
            f"indices must be in [0, {self.n}), the length of the data set; got {example} "
            f"({len(wrong)} of {total} in this batch are outside). Pass the index that came with the batch, unchanged."
        )

    def _stamp(self, rows: torch.Tensor, epoch: int) -> None:
        """The last epoch seen is not stored."""

    def begin_epoch(self, epoch: int) -> tuple[int, int]:
        """Clamp counts before they can overflow; return the counts of invalid values and set them to 0."""
        self.flush()
        self._columns["usage"].clamp_(max=MOST_USES)
        return self.take_invalid_counts()

    # -- remote samples ------------------------------------------------------------------------------------------

    def set_remote_rows(self, remote: RemoteSamples) -> None:
        """Replace the rows of remote samples by those of a new epoch."""
        self.flush()
        self.remote, self._before = remote.samples, remote
        self._remote = torch.from_numpy(remote.samples).to(self.device)
        if len(remote.samples) > self._room:
            self._room = len(remote.samples)
            self._columns = {name: self._grown(name) for name in self._columns}
        here = slice(self.size, self.size + len(remote.samples))
        self._columns["score"][here] = torch.from_numpy(remote.scores).to(self.device)
        self._columns["usage"][here] = 0

    def _grown(self, name: str) -> torch.Tensor:
        old = self._columns[name]
        new = torch.full(
            (self.size + self._room + 1,), self.declared[name].initial, dtype=old.dtype, device=self.device
        )
        new[: self.size] = old[: self.size]
        return new

    def changed_remote_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Remote samples changed since the last sync or since they were set; their scores and usage counts."""
        here = slice(self.size, self.size + len(self.remote))
        scores = self.column("score")[here].cpu().numpy()
        uses = self._columns["usage"][here].cpu().numpy()
        changed = np.flatnonzero((scores.view(np.int32) != self._before.scores.view(np.int32)) | (uses > 0))
        return self.remote[changed], scores[changed], uses[changed]

    def mark_synced(self) -> None:
        """Mark remote rows as synced: their owners have them."""
        here = slice(self.size, self.size + len(self.remote))
        self._before = RemoteSamples(self.remote, self._columns["score"][here].cpu().numpy().copy())
        self._columns["usage"][here] = 0

    def receive_rows(self, index: np.ndarray, scores: np.ndarray, uses: np.ndarray) -> None:
        """Write what other ranks have learned about this rank's samples."""
        rows = torch.from_numpy(index - self.first).to(self.device)
        self.column("score").index_copy_(0, rows, torch.from_numpy(scores).to(self.device))
        self._columns["usage"].index_add_(0, rows, torch.from_numpy(uses).to(self.device))

    def move(self, device: torch.device) -> None:
        """Move the table to `device`."""
        super().move(device)
        self._remote = self._remote.to(device)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return the rows of this rank and of remote samples; `copy=False` if the state is written at once."""
        self.flush()
        columns = {name: column[: self.size].to("cpu", copy=copy) for name, column in self._columns.items()}
        index, scores, uses = self.changed_remote_rows()
        here = slice(self.size, self.size + len(self.remote))
        return {
            "columns": columns,
            "invalid_counts": self._invalid.to("cpu", copy=True),
            "writes": self._writes,
            "guests": {"index": torch.tensor(self.remote), "score": self._columns["score"][here].to("cpu", copy=True)},
            "learnt": {"index": torch.tensor(index), "score": torch.tensor(scores), "usage": torch.tensor(uses)},
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if `load_state_dict` would fail; change nothing."""
        super().check_state(state)
        wanted = {"index": torch.int64, "score": torch.float32, "usage": torch.uint8}
        for part, names in (("guests", ("index", "score")), ("heard", ("index", "score", "usage"))):
            rows = state[part]
            lengths = {rows[name].shape for name in names if rows[name].dtype is wanted[name]}
            index = rows["index"]
            fits = len(lengths) == 1 and index.ndim == 1 and all(rows[name].dtype is wanted[name] for name in names)
            inside = (index >= self.first) & (index < self.first + self.size)
            if part == "guests" and fits:
                fits = bool((index[1:] > index[:-1]).all()) and not inside.any()
                fits = fits and bool(((index >= 0) & (index < self.n)).all())
            elif fits:
                fits = bool(inside.all())
            if not fits or torch.isnan(rows["score"]).any():
                raise StateError(
                    f"the rows of samples of other processes ({part}) in the checkpoint are damaged. Use another one."
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `resharded` built from the parts of all ranks, in place."""
        self.check_state(state)
        self._unflushed = []
        for name, values in state["columns"].items():
            self._columns[name][: self.size] = values.to(self.device)
        remote = state["guests"]
        self.set_remote_rows(RemoteSamples(remote["index"].numpy().copy(), remote["score"].numpy().copy()))
        received = state["heard"]
        self.receive_rows(received["index"].numpy(), received["score"].numpy(), received["usage"].numpy())
        self._invalid = state["invalid_counts"].to(self.device, copy=True)
        self._writes = int(state["writes"])


# Bytes per row: a score and a count.
_ROW = 5


class RemoteSampleTable(TableCounters):
    """Unsynced rows of a sharded table: no rank has the rows of another, so only remote samples can differ.

    Args:
        table: This rank's table.
        fingerprint: Digest of the checkpoint that it came from; 0 for none.

    Attributes:
        returned_bytes: Bytes of losses of remote samples that this rank sent or received at the last sync.
    """

    def __init__(self, table: ShardedTable, fingerprint: int) -> None:
        super().__init__(table, as_it_is=bool(fingerprint))
        self.returned_bytes = 0
        self._table = table
        self._fingerprint = fingerprint

    def changes(self) -> Changes:
        """Rows that the owners of the remote samples have to receive."""
        index, scores, uses = self._table.changed_remote_rows()
        return Changes(index, {"score": scores, "usage": uses})

    def synced_scores(self) -> np.ndarray:
        """Not available: no rank has a whole column."""
        raise NotImplementedError

    def unsynced(self) -> dict[str, Any] | None:
        """None: the table's own state has the unsynced rows of remote samples."""
        return None

    def exchange(self, changes: Changes, messages: Sequence[SyncMessage], collectives: Collectives) -> None:
        """Send the rows of remote samples to their owners, and write what other ranks send here."""
        self.returned_bytes = 0
        if any(message.rows for message in messages):
            before = collectives.sent + collectives.received
            rows = self._returned(changes, collectives)
            self._table.receive_rows(rows.index, rows.columns["score"], rows.columns["usage"])
            self.returned_bytes = collectives.sent + collectives.received - before
        self._table.mark_synced()
        self.add_counts(messages)

    def fingerprint(self) -> int:
        """Digest of the checkpoint until it has been compared, then 0."""
        return self._fingerprint

    def compared(self) -> None:
        """Note that all ranks have loaded the same checkpoint."""
        self._fingerprint = 0

    def _returned(self, changes: Changes, collectives: Collectives) -> Changes:
        """Send the rows of remote samples to their owners; return the rows that other ranks send here."""
        owners = np.searchsorted(np.array(self._table.shard.starts()), changes.index, side="right") - 1
        counts = np.bincount(owners, minlength=collectives.world)
        data = pack(changes.index, changes.columns["score"], changes.columns["usage"]).reshape(-1, 8 + _ROW)
        # Remote samples are in ascending order, so those of each owner are adjacent.
        parts = [part.reshape(-1) for part in np.split(data, np.cumsum(counts)[:-1])]
        announced = collectives.swap(
            list(counts.astype(np.int64).view(np.uint8).reshape(-1, 8)), [8] * collectives.world
        )
        to_here = [int(count.view(np.int64)[0]) for count in announced]
        index, columns = unpack(
            np.concatenate(collectives.swap(parts, [(8 + _ROW) * count for count in to_here])), _ROW
        )
        rows = columns.reshape(-1, _ROW)
        scores = np.ascontiguousarray(rows[:, :4]).view(np.float32).reshape(-1)
        return Changes(index, {"score": scores, "usage": rows[:, 4].copy()})
