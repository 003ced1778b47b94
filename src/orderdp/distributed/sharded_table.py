"""ShardedTable: the scores of the samples that a rank holds, in five bytes per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from orderdp.distributed.bit_set import Shard
from orderdp.distributed.sharded_epoch import RemoteSamples
from orderdp.distributed.sync import Changes, TableCounters
from orderdp.errors import IndexRangeError
from orderdp.policy import Column
from orderdp.score_table import SCORE, ScoreTable

__all__ = ["MOST_USES", "RemoteSampleTable", "ShardedTable"]


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
        self.guests = np.empty(0, dtype=np.int64)
        self._guests = torch.empty(0, dtype=torch.int64)  # the same, on the table's device
        # Room for the number of remote samples to expect if samples are in no order; columns grow if there are more.
        self._room = 0 if shard.world == 1 else min(shard.n - shard.size, 64 + shard.size // 64)
        self._before = RemoteSamples(self.guests, np.empty(0, dtype=np.float32))
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
        if len(self._guests):
            places = torch.searchsorted(self._guests, index).clamp(max=len(self._guests) - 1)
            found = torch.where(self._guests[places] == index, places + self.size, last)
        rows = torch.where(elsewhere, found, rows)
        if self._on_host:
            self._refuse(index[rows == last], len(index))
        else:
            self._strays[1] += (rows == last).sum()
        return rows

    def _refuse(self, wrong: torch.Tensor, total: int) -> None:
        if not len(wrong):
            return
        example = int(wrong[0])
        if 0 <= example < self.n:
            raise IndexRangeError(
                f"rank {self.shard.rank} holds the samples from {self.first} to {self.first + self.size - 1} and those "
                f"it was given to train on; got {example} ({len(wrong)} of {total} in this batch are others). Pass the "
                "index that came with the batch, and observe on each rank what it holds: pruner.local_indices."
            )
        raise IndexRangeError(
            f"indices must be in [0, {self.n}), the length of the data set; got {example} "
            f"({len(wrong)} of {total} in this batch are outside). Pass the index that came with the batch, unchanged."
        )

    def _stamp(self, rows: torch.Tensor, epoch: int) -> None:
        """The last epoch seen is not stored."""

    def widen_counters(self, epoch: int) -> None:
        """Clamp counts before they can overflow."""
        self.flush()
        self._columns["usage"].clamp_(max=MOST_USES)

    # -- remote samples ------------------------------------------------------------------------------------------

    def set_remote_rows(self, guests: RemoteSamples) -> None:
        """Replace the rows of remote samples by those of a new epoch."""
        self.flush()
        self.guests, self._before = guests.samples, guests
        self._guests = torch.from_numpy(guests.samples).to(self.device)
        if len(guests.samples) > self._room:
            self._room = len(guests.samples)
            self._columns = {name: self._grown(name) for name in self._columns}
        here = slice(self.size, self.size + len(guests.samples))
        self._columns["score"][here] = torch.from_numpy(guests.scores).to(self.device)
        self._columns["usage"][here] = 0

    def _grown(self, name: str) -> torch.Tensor:
        old = self._columns[name]
        new = torch.full(
            (self.size + self._room + 1,), self.declared[name].initial, dtype=old.dtype, device=self.device
        )
        new[: self.size] = old[: self.size]
        return new

    def learnt_of_guests(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Remote samples changed since the last sync or since they were set; their scores and usage counts."""
        here = slice(self.size, self.size + len(self.guests))
        scores = self.column("score")[here].cpu().numpy()
        uses = self._columns["usage"][here].cpu().numpy()
        changed = np.flatnonzero((scores.view(np.int32) != self._before.scores.view(np.int32)) | (uses > 0))
        return self.guests[changed], scores[changed], uses[changed]

    def guests_are_settled(self) -> None:
        """Mark remote rows as synced: their owners have them."""
        here = slice(self.size, self.size + len(self.guests))
        self._before = RemoteSamples(self.guests, self._columns["score"][here].cpu().numpy().copy())
        self._columns["usage"][here] = 0

    def receive_rows(self, index: np.ndarray, scores: np.ndarray, uses: np.ndarray) -> None:
        """Write what other ranks have learned about this rank's samples."""
        rows = torch.from_numpy(index - self.first).to(self.device)
        self.column("score").index_copy_(0, rows, torch.from_numpy(scores).to(self.device))
        self._columns["usage"].index_add_(0, rows, torch.from_numpy(uses).to(self.device))

    def move(self, device: torch.device) -> None:
        """Move the table to `device`."""
        super().move(device)
        self._guests = self._guests.to(device)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return the rows of this rank and of remote samples; `copy=False` if the state is written at once."""
        self.flush()
        columns = {name: column[: self.size].to("cpu", copy=copy) for name, column in self._columns.items()}
        index, scores, uses = self.learnt_of_guests()
        here = slice(self.size, self.size + len(self.guests))
        return {
            "columns": columns,
            "invalid_counts": self._strays.to("cpu", copy=True),
            "writes": self._writes,
            "guests": {"index": torch.tensor(self.guests), "score": self._columns["score"][here].to("cpu", copy=True)},
            "learnt": {"index": torch.tensor(index), "score": torch.tensor(scores), "usage": torch.tensor(uses)},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `resharded` built from the parts of all ranks, in place."""
        self.check_state(state)
        self._unsettled = []
        for name, values in state["columns"].items():
            self._columns[name][: self.size] = values.to(self.device)
        guests = state["guests"]
        self.set_remote_rows(RemoteSamples(guests["index"].numpy().copy(), guests["score"].numpy().copy()))
        heard = state["heard"]
        self.receive_rows(heard["index"].numpy(), heard["score"].numpy(), heard["usage"].numpy())
        self._strays = state["invalid_counts"].to(self.device, copy=True)
        self._writes = int(state["writes"])


class RemoteSampleTable(TableCounters):
    """Unsynced rows of a sharded table: no rank has the rows of another, so only remote samples can differ.

    Args:
        table: This rank's table.
        fingerprint: Digest of the checkpoint that it came from; 0 for none.
    """

    def __init__(self, table: ShardedTable, fingerprint: int) -> None:
        super().__init__(table, as_it_is=bool(fingerprint))
        self._table = table
        self._fingerprint = fingerprint

    def changes(self) -> Changes:
        """Rows that the owners of the remote samples have to receive."""
        index, scores, uses = self._table.learnt_of_guests()
        return Changes(index, {"score": scores, "usage": uses})

    def agreed(self, name: str) -> np.ndarray:
        """Not available: no rank has a whole column."""
        raise NotImplementedError

    def before(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Not available: no rank has a whole column."""
        raise NotImplementedError

    def flush(self, parts: Sequence[Changes], counted: Sequence[Sequence[int]]) -> None:
        """Write what other ranks have learned about this rank's samples, and add up the counts of all ranks."""
        for part in parts:
            self._table.receive_rows(part.index, part.columns["score"], part.columns["usage"])
        self._table.guests_are_settled()
        self._add_up(counted)

    def fingerprint(self) -> int:
        """Digest of the checkpoint until it has been compared, then 0."""
        return self._fingerprint

    def compared(self) -> None:
        """Note that all ranks have loaded the same checkpoint."""
        self._fingerprint = 0
