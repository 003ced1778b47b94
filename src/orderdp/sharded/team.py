"""ShardTeam: the processes among which one table is split. How many they are cannot change while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from orderdp.distributed.meeting import Setup
from orderdp.errors import GroupError
from orderdp.policy import Policy, describe
from orderdp.sharded.drawing import Sharding
from orderdp.sharded.epoch import OwnShare
from orderdp.sharded.meeting import ShardMeeting
from orderdp.sharded.ownership import share_of
from orderdp.sharded.table import ShardTable
from orderdp.team import Tally, Team, TeamOptions

if TYPE_CHECKING:
    from orderdp.distributed.exchange import Exchange
    from orderdp.distributed.share import Share

__all__ = ["ShardTeam"]


class ShardTeam(Team):
    """The processes that hold a part each.

    Args:
        policy: Who draws.
        table: This rank's part.
        sharding: How they draw together.
        epochs: How many are planned, or None.
        labels: One class for each sample, or None.
        strict: Whether losses that are not finite are an error.
        options: How they work together.
    """

    def __init__(
        self,
        policy: Policy,
        table: ShardTable,
        sharding: Sharding,
        epochs: int | None,
        labels: np.ndarray | None,
        strict: bool,
        options: TeamOptions,
    ) -> None:
        super().__init__(policy, table, epochs, labels, strict, options)
        self._setup = (f"{describe(policy)}, {sharding} shards", *self._setup[1:])
        self._part = table
        self._fingerprint = 0
        self.drawn: dict[str, float] = {}
        self.drew(0, 0, 0)

    def exchange(self) -> Exchange | None:
        """The way to the other processes; None where there are none."""
        exchange = super().exchange()
        here = (0, 1) if exchange is None else (exchange.rank, exchange.world)
        shard = self._part.shard
        if here != (shard.rank, shard.world):
            raise GroupError(
                f"a sharded table is split when the pruner is made: then this was rank {shard.rank} of {shard.world}, "
                f"now it is rank {here[0]} of {here[1]}. Make the process group before the pruner, and a new pruner "
                "for a new group."
            )
        return exchange

    def share(self) -> Share | None:
        """What this process takes of an epoch; None for all of it."""
        shard = self._part.shard
        return None if self.exchange() is None else OwnShare(shard.rank, shard.world, self._options.pad)

    def each(self, samples: int) -> int:
        """How many samples each process trains on, of so many."""
        world = self._part.shard.world
        return -(-samples // world) if self._options.pad else samples // world

    def targets(self, samples: int) -> np.ndarray:
        """How many different samples each process must have at least, of so many."""
        world = self._part.shard.world
        if not self._options.pad:
            return np.full(world, samples // world)
        return np.array([share_of(samples, rank, world) for rank in range(world)])  # then each repeats one at most

    def _new_meeting(self, kept: int) -> ShardMeeting:
        return ShardMeeting(self._part, Setup(*self._setup), kept, self._fingerprint)

    def restored_from(self, fingerprint: int, kept: int) -> None:
        """The part was loaded out of the checkpoint with this fingerprint."""
        self._meeting, self._fingerprint, self.tally = None, fingerprint, Tally()
        self.meeting(kept)

    def unsynced(self) -> dict[str, Any] | None:
        """A part says itself what it knows about samples that others hold."""
        return None

    def drew(self, selecting: int, picks: int, moving: int) -> None:
        """Notes what a draw took: bytes for the selection, guests that came, bytes for dealing out."""
        self.drawn = {"selection_bytes": selecting, "moved_picks": picks, "moved_bytes": moving}
        if self._meeting is not None:
            self._meeting.exchanged_bytes += selecting + moving

    @property
    def counters(self) -> tuple[int, int, int]:
        """What was counted when all ranks last met."""
        return self._meeting.counters if isinstance(self._meeting, ShardMeeting) else (0, 0, 0)

    @property
    def traffic(self) -> dict[str, float]:
        """What came in, and what moved."""
        returned = self._meeting.returned_bytes if isinstance(self._meeting, ShardMeeting) else 0
        return {**super().traffic, **self.drawn, "returned_bytes": returned}
