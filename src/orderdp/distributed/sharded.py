"""A pruner with a sharded table: its epoch manager, its synchronizer, and how they are built."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orderdp._epochs import EpochManager, OpenEpoch, Order, SamplerView, TrainingProgress
from orderdp._process_group import DistributedContext, DistributedOptions, SyncCounters
from orderdp._validation import checked_name
from orderdp.distributed.bit_set import BitSet, Shard, shard_size
from orderdp.distributed.checkpoint import checkpoint_id, resharded, with_what_is_left
from orderdp.distributed.collectives import Collectives, find_exchange
from orderdp.distributed.sharded_epoch import (
    OwnShard,
    PendingEpoch,
    ShardedOrder,
    TwoLevelOrder,
    pack,
    rebalance,
    transfer_plan,
    unpack,
)
from orderdp.distributed.sharded_table import RemoteSampleTable, ShardedTable
from orderdp.distributed.sharded_topk import Sharding, checked_for_shards, order_streams, select_shard
from orderdp.distributed.sync import Changes, SharedConfig, Synchronizer, SyncMessage, digest
from orderdp.errors import ConfigError, GroupError, StateError
from orderdp.policy import Context, Policy, Selection, describe, size_bounds, total_samples

if TYPE_CHECKING:
    from orderdp.distributed.collectives import Exchange
    from orderdp.distributed.rank_shard import RankShard

__all__ = ["ShardedContext", "ShardedEpochManager", "ShardedSynchronizer", "build_sharded"]


# Bytes per row: a score and a count.
_ROW = 5


class ShardedSynchronizer(Synchronizer):
    """Synchronize one rank of a sharded table with the others.

    Args:
        table: This rank's table.
        setup: Settings that must be equal on all ranks.
        kept: Samples that all ranks have trained on so far.
        fingerprint: Digest of the checkpoint that the table came from; 0 for none.

    Attributes:
        returned_bytes: Bytes of losses of remote samples that this rank sent or received at the last sync.
    """

    def __init__(self, table: ShardedTable, setup: SharedConfig, kept: int, fingerprint: int) -> None:
        super().__init__(table, setup, kept, as_it_is=False, ledger=RemoteSampleTable(table, fingerprint))
        self.returned_bytes = 0
        self._shard = table.shard

    @property
    def counters(self) -> tuple[int, int, int]:
        """Counts at the last sync."""
        return self._ledger.counters

    def unsynced(self, fed: int) -> None:
        """None: the table's own state has the unsynced rows of remote samples."""

    def _settle(self, headers: Sequence[SyncMessage], changes: Changes, epoch: int) -> None:
        parts: list[Changes] = []
        self.returned_bytes = 0
        if any(heard.rows for heard in headers):
            wires = Collectives(self.exchange, epoch)
            parts = [self._returned(changes, wires)]
            self.returned_bytes = wires.sent + wires.received
            self.exchanged_bytes += wires.received
        self._ledger.flush(parts, [(heard.nonfinite, heard.outside, heard.writes) for heard in headers])
        self._kept += sum(heard.fed for heard in headers)

    def _returned(self, changes: Changes, wires: Collectives) -> Changes:
        """Send the rows of remote samples to their owners; return the rows that other ranks send here."""
        owners = np.searchsorted(np.array(self._shard.starts()), changes.index, side="right") - 1
        counts = np.bincount(owners, minlength=wires.world)
        data = pack(changes.index, changes.columns["score"], changes.columns["usage"]).reshape(-1, 8 + _ROW)
        # Remote samples are in ascending order, so those of each owner are adjacent.
        parts = [part.reshape(-1) for part in np.split(data, np.cumsum(counts)[:-1])]
        told = wires.swap(list(counts.astype(np.int64).view(np.uint8).reshape(-1, 8)), [8] * wires.world)
        to_here = [int(count.view(np.int64)[0]) for count in told]
        index, columns = unpack(np.concatenate(wires.swap(parts, [(8 + _ROW) * count for count in to_here])), _ROW)
        rows = columns.reshape(-1, _ROW)
        scores = np.ascontiguousarray(rows[:, :4]).view(np.float32).reshape(-1)
        return Changes(index, {"score": scores, "usage": rows[:, 4].copy()})


class ShardedContext(DistributedContext):
    """Distributed context of ranks that hold one shard of the table each.

    Args:
        policy: The policy.
        table: This rank's table.
        sharding: "exact" or "stratified".
        epochs: Planned epochs, or None.
        labels: One class per sample, or None.
        strict: Whether a non-finite loss is an error.
        options: Distributed options.
    """

    def __init__(
        self,
        policy: Policy,
        table: ShardedTable,
        sharding: Sharding,
        epochs: int | None,
        labels: np.ndarray | None,
        strict: bool,
        options: DistributedOptions,
    ) -> None:
        super().__init__(policy, table, epochs, labels, strict, options)
        self._setup = (f"{describe(policy)}, {sharding} shards", *self._setup[1:])
        self._part = table
        self._fingerprint = 0
        self.drawn: dict[str, float] = {}
        self.drew(0, 0, 0)

    def exchange(self) -> Exchange | None:
        """Return the exchange with the other ranks; None for one process."""
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

    def share(self) -> RankShard | None:
        """This rank's shard of an epoch; None for all of it."""
        shard = self._part.shard
        return None if self.exchange() is None else OwnShard(shard.rank, shard.world, self._options.pad)

    def each(self, samples: int) -> int:
        """Number of samples, of `samples`, that each rank trains on."""
        world = self._part.shard.world
        return -(-samples // world) if self._options.pad else samples // world

    def targets(self, samples: int) -> np.ndarray:
        """Minimum number of distinct samples, of `samples`, per rank."""
        world = self._part.shard.world
        if not self._options.pad:
            return np.full(world, samples // world)
        return np.array([shard_size(samples, rank, world) for rank in range(world)])  # a rank repeats at most one

    def _new_meeting(self, kept: int) -> ShardedSynchronizer:
        return ShardedSynchronizer(self._part, SharedConfig(*self._setup), kept, self._fingerprint)

    def restored_from(self, fingerprint: int, kept: int) -> None:
        """Note that the table was loaded from the checkpoint with this digest."""
        self._meeting, self._fingerprint, self.tally = None, fingerprint, SyncCounters()
        self.meeting(kept)

    def unsynced(self) -> dict[str, Any] | None:
        """None: the table's own state has the unsynced rows of remote samples."""
        return None

    def drew(self, selecting: int, picks: int, moving: int) -> None:
        """Store the costs of a draw: bytes to select, remote samples received, bytes to rebalance."""
        self.drawn = {"selection_bytes": selecting, "moved_picks": picks, "moved_bytes": moving}
        if self._meeting is not None:
            self._meeting.exchanged_bytes += selecting + moving

    @property
    def counters(self) -> tuple[int, int, int]:
        """Counts at the last sync."""
        return self._meeting.counters if isinstance(self._meeting, ShardedSynchronizer) else (0, 0, 0)

    @property
    def traffic(self) -> dict[str, float]:
        """Bytes received and samples moved."""
        returned = self._meeting.returned_bytes if isinstance(self._meeting, ShardedSynchronizer) else 0
        return {**super().traffic, **self.drawn, "returned_bytes": returned}


class ShardedEpochManager(EpochManager):
    """Epoch manager of one rank with a sharded table.

    Args:
        policy: The policy.
        table: This rank's table.
        team: Distributed context.
        sharding: "exact" or "stratified".
        **options: Passed to `EpochManager`.
    """

    def __init__(
        self, policy: Policy, table: ShardedTable, team: ShardedContext, sharding: Sharding, **options: Any
    ) -> None:
        super().__init__(policy, table, team=team, **options)
        self._part = table
        self._group = team
        self._sharding: Sharding = sharding
        self._undealt: PendingEpoch | None = None  # the rest of an epoch that another number of ranks has begun
        self._common = 0  # digest of what all ranks know about the draw

    # -- iteration -----------------------------------------------------------------------------------------------

    def open(self, view: SamplerView) -> OpenEpoch:
        """Open an epoch for a new iterator; return its order and its start and end offsets."""
        if self._epoch is None:
            self._epoch = self._undealt  # an attempt to rebalance it may have failed
        return super().open(view)

    def rewind(self) -> None:
        """Serve the open epoch from its start until it is over; trained samples stay counted."""
        if getattr(self._epoch, "base", 0):
            raise StateError(
                "rewind() needs as many processes as the checkpoint was written by: what was trained on before is not "
                "known to others. Leave it out, and let the loader skip nothing."
            )
        super().rewind()

    def _ends_at(self, end: int) -> bool:
        # A rank that gets none of the remaining samples has none to pad with either.
        too_few = self._undealt is not None and self._undealt.left < self._part.shard.world
        return too_few or super()._ends_at(end)

    def _next_epoch(self) -> None:
        self._undealt = None
        super()._next_epoch()

    def _drawn(self, view: SamplerView) -> int:
        self._arrange(view)
        return self._common

    # -- selection -----------------------------------------------------------------------------------------------

    def select(self) -> Selection:
        """Not available: no rank has the whole selection."""
        raise ConfigError(
            'filter needs the whole selection, and with table="sharded" each process has its own part. Use '
            "pruner.loader(...), pruner.sampler or pruner.batch_sampler(...)."
        )

    def preview(self) -> Selection:
        """Not available: no rank has the whole selection, and a preview must not block the other ranks."""
        raise ConfigError(
            'preview() shows a whole selection, and with table="sharded" each process has its own part. Use '
            'table="replicated" to look at it.'
        )

    @property
    def _must_meet(self) -> bool:
        return True

    def drawn_order(self, arrangement: Hashable) -> Order:
        """Draw and rebalance this rank's part of the current epoch. A collective with several ranks."""
        wires = Collectives(self._group.exchange(), self.clock.epoch)
        context, shard = self.context(self.clock.epoch), self._part.shard
        rng = order_streams(context, shard)
        picks, base = self._picks(context, wires)
        selecting = wires.received
        counts = self._counts(picks, context, wires)
        total = int(counts.sum())
        table = transfer_plan(counts, self._group.targets(total), turn=context.epoch)
        picks, guests = rebalance(picks, self._part.scores_of, table, rng, wires)
        self._part.set_remote_rows(guests)
        self._undealt = None
        self._common = digest(str(total).encode())
        self._group.drew(selecting, len(guests.samples), wires.received - selecting)
        order = TwoLevelOrder(picks, guests.samples, rng)
        return ShardedOrder(order, self._group.each(total), total, base, shard.world, arrangement)

    @property
    def _gathers(self) -> bool:
        """Whether the number of selected samples per rank must be gathered."""
        return self._sharding == "exact" or self._undealt is not None

    def _picks(self, context: Context, wires: Collectives) -> tuple[BitSet, int]:
        """Selected samples of this rank's shard, and the position at which they begin."""
        if self._undealt is not None:
            return self._undealt.own.copy(), self._undealt.base
        self.selector.prepare(context.epoch)
        scores = self._part.scores_between
        return select_shard(self._policy, self._part.shard, scores, context, wires, self._sharding), 0

    def _counts(self, picks: BitSet, context: Context, wires: Collectives) -> np.ndarray:
        """Number of selected samples per rank."""
        q = self._policy.size(context.n, context)
        if self._gathers or q is None:
            return wires.gather(np.array([len(picks)]))[:, 0]
        return np.array([shard_size(q, rank, wires.world) for rank in range(wires.world)])

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values: this rank's part of the epoch manager."""
        shard, epoch = self._part.shard, self._epoch
        assert epoch is None or isinstance(epoch, ShardedOrder | PendingEpoch)
        return {
            "seed": self.seed,
            "clock": self.clock.state_dict(),
            "nonfinite": self.complaints.nonfinite,
            "repeated": self.repeated,
            "epoch": None if epoch is None else with_what_is_left(epoch, self.clock.trained),
            "shard": {
                "rank": shard.rank,
                "world_size": shard.world,
                "sharding": self._sharding,
                "counters": list(self._group.counters),
            },
        }

    def whole(self, state: Any) -> Mapping[str, Any]:
        """Build this rank's state from the parts that any number of ranks have written."""
        parts = state if isinstance(state, list | tuple) else [state]
        return resharded(parts, self._part.shard, self._sharding)

    def restorer(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Read and check `state`; return a function that applies it, so that nothing is half restored."""
        clock, seed, nonfinite = (
            TrainingProgress.from_state(state["clock"]),
            int(state["seed"]),
            int(state["nonfinite"]),
        )
        repeated, epoch = int(state["repeated"]), None
        if state["epoch"] is not None:
            epoch = self._restored_epoch(state["epoch"], Context(self.n, clock.epoch, seed))

        def restore() -> None:
            self.clock, self.seed, self.complaints.nonfinite = clock, seed, nonfinite
            self._epoch, self._rewound, self._share = epoch, False, None
            self._undealt = epoch if isinstance(epoch, PendingEpoch) else None
            self._repeated_before = repeated
            self._group.restored_from(
                digest(describe(self._policy).encode(), repr(checkpoint_id(state)).encode()), clock.kept
            )

        return restore

    def _restored_epoch(self, state: Mapping[str, Any], context: Context) -> ShardedOrder | PendingEpoch:
        shard = self._part.shard
        own = BitSet(shard.start, shard.stop, state["selected"].numpy().view(np.uint64).copy())
        if own.words.shape != BitSet(shard.start, shard.stop).words.shape:
            raise StateError(
                f"the checkpoint's draw must have a bit for each of the {shard.size} samples of rank {shard.rank}, it "
                "has not. Use parts that were written to their end."
            )
        if state["kind"] == "undealt":
            return PendingEpoch(own, int(state["left"]), int(state["base"]))
        order = TwoLevelOrder(own, state["guests"].numpy().copy(), order_streams(context, shard))
        return ShardedOrder(order, int(state["each"]), int(state["total"]), int(state["base"]), shard.world)


def build_sharded(
    policy: Policy,
    n: int,
    sharding: str,
    *,
    seed: int,
    epochs: int | None,
    labels: np.ndarray | None,
    raise_on_nan: bool,
    options: DistributedOptions,
) -> tuple[ShardedTable, ShardedEpochManager]:
    """Build this rank's table and epoch manager.

    Args:
        policy: The policy.
        n: Samples in the whole data set.
        sharding: "exact" or "stratified".
        seed: Seed of the training.
        epochs: Planned epochs, or None.
        labels: One class per sample, or None.
        raise_on_nan: Whether a non-finite loss is an error.
        options: Distributed options.
    """
    mode: Any = checked_name(sharding, ("exact", "stratified"), "sharding")
    kind: Sharding = mode
    policy = checked_for_shards(policy)
    if not options.shard:
        raise ConfigError(
            'table="sharded" deals out the samples itself, so that most are trained on where their scores are; got '
            'shard=False. Leave it out, or use table="replicated" where a framework deals them out.'
        )
    exchange = find_exchange(options.process_group)
    shard = Shard(n) if exchange is None else Shard(n, exchange.rank, exchange.world)
    context = Context(n=n, epoch=0, epochs=epochs, total=total_samples(policy, n, epochs))
    q, _ = size_bounds(policy, n, context)
    if q < shard.world:
        raise ConfigError(
            f"{policy} keeps {q} of {n} samples, too few for {shard.world} processes. Prune less or use fewer."
        )
    table = ShardedTable(shard)
    team = ShardedContext(policy, table, kind, epochs, labels, raise_on_nan, options)
    timeline = ShardedEpochManager(
        policy, table, team, kind, seed=seed, epochs=epochs, labels=labels, raise_on_nan=raise_on_nan
    )
    return table, timeline
