"""ShardMeeting: as other meetings, but what was learnt about guests goes to the ranks that hold them alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orderdp.distributed.header import Header
from orderdp.distributed.ledger import Changes
from orderdp.distributed.meeting import Meeting, Setup
from orderdp.sharded.dealing import pack, unpack
from orderdp.sharded.ledger import GuestLedger
from orderdp.sharded.table import ShardTable
from orderdp.sharded.wires import Wires

__all__ = ["ShardMeeting"]

# A score and a count.
_ROW = 5


class ShardMeeting(Meeting):
    """The meetings of one rank with the others.

    Args:
        table: This rank's part of the table.
        setup: What must be the same everywhere.
        kept: How many samples all ranks have trained on until now.
        fingerprint: Which checkpoint the part came out of; 0 for none.

    Attributes:
        returned_bytes: Bytes of losses of guests that this rank has sent or got at its last meeting.
    """

    def __init__(self, table: ShardTable, setup: Setup, kept: int, fingerprint: int) -> None:
        super().__init__(table, setup, kept, as_it_is=False, ledger=GuestLedger(table, fingerprint))
        self.returned_bytes = 0
        self._shard = table.shard

    @property
    def counters(self) -> tuple[int, int, int]:
        """What was counted when all ranks last met."""
        return self._ledger.counters

    def unsynced(self, fed: int) -> None:
        """A part says itself what it knows about samples that others hold."""

    def _settle(self, headers: Sequence[Header], changes: Changes, epoch: int) -> None:
        parts: list[Changes] = []
        self.returned_bytes = 0
        if any(heard.rows for heard in headers):
            wires = Wires(self.exchange, epoch)
            parts = [self._returned(changes, wires)]
            self.returned_bytes = wires.sent + wires.received
            self.exchanged_bytes += wires.received
        self._ledger.settle(parts, [(heard.nonfinite, heard.outside, heard.writes) for heard in headers])
        self._kept += sum(heard.fed for heard in headers)

    def _returned(self, changes: Changes, wires: Wires) -> Changes:
        """Sends what was learnt about guests home; gives what others send here."""
        owners = np.searchsorted(np.array(self._shard.starts()), changes.index, side="right") - 1
        counts = np.bincount(owners, minlength=wires.world)
        data = pack(changes.index, changes.columns["score"], changes.columns["usage"]).reshape(-1, 8 + _ROW)
        # Guests are in ascending order, so those of each owner lie together.
        parts = [part.reshape(-1) for part in np.split(data, np.cumsum(counts)[:-1])]
        told = wires.swap(list(counts.astype(np.int64).view(np.uint8).reshape(-1, 8)), [8] * wires.world)
        to_here = [int(count.view(np.int64)[0]) for count in told]
        index, columns = unpack(np.concatenate(wires.swap(parts, [(8 + _ROW) * count for count in to_here])), _ROW)
        rows = columns.reshape(-1, _ROW)
        scores = np.ascontiguousarray(rows[:, :4]).view(np.float32).reshape(-1)
        return Changes(index, {"score": scores, "usage": rows[:, 4].copy()})
