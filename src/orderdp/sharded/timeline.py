"""ShardTimeline: the epochs of one rank that holds a part of the table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from orderdp.clock import Clock
from orderdp.distributed.header import digest
from orderdp.epochs import Epoch
from orderdp.errors import ConfigError, StateError
from orderdp.policy import Context, Policy, Selection, describe
from orderdp.sampling import Serving, View
from orderdp.sharded.bits import Bits
from orderdp.sharded.dealing import dealt, moves
from orderdp.sharded.drawing import Sharding, drawn, order_streams
from orderdp.sharded.epoch import ShardEpoch, UndealtEpoch
from orderdp.sharded.order import TwoLevelOrder
from orderdp.sharded.ownership import share_of
from orderdp.sharded.parts import moment, resharded, with_what_is_left
from orderdp.sharded.table import ShardTable
from orderdp.sharded.team import ShardTeam
from orderdp.sharded.wires import Wires
from orderdp.timeline import Timeline

__all__ = ["ShardTimeline"]


class ShardTimeline(Timeline):
    """The epochs of one training, as far as one rank goes through them.

    Args:
        policy: Who draws them.
        table: This rank's part of what it draws by.
        team: The other ranks.
        sharding: How they draw together.
        **options: What any timeline takes.
    """

    def __init__(self, policy: Policy, table: ShardTable, team: ShardTeam, sharding: Sharding, **options: Any) -> None:
        super().__init__(policy, table, team=team, **options)
        self._part = table
        self._group = team
        self._sharding: Sharding = sharding
        self._undealt: UndealtEpoch | None = None  # what is left of an epoch that other ranks have begun
        self._common = 0  # a digest of what all ranks know about the draw

    # -- going through an epoch ----------------------------------------------------------------------------------

    def open(self, view: View) -> Serving:
        """The epoch that is served to somebody who starts going through the data now, and from where."""
        if self._epoch is None:
            self._epoch = self._undealt  # an attempt to deal it out may have failed
        return super().open(view)

    def rewind(self) -> None:
        """Serves the open epoch from its start until it is over; what has been trained on stays counted."""
        if getattr(self._epoch, "base", 0):
            raise StateError(
                "rewind() needs as many processes as the checkpoint was written by: what was trained on before is not "
                "known to others. Leave it out, and let the loader skip nothing."
            )
        super().rewind()

    def _ends_at(self, end: int) -> bool:
        # A rank that is dealt nothing of what is left has nothing to fill up with either.
        too_few = self._undealt is not None and self._undealt.left < self._part.shard.world
        return too_few or super()._ends_at(end)

    def _next_epoch(self) -> None:
        self._undealt = None
        super()._next_epoch()

    def _drawn(self, view: View) -> int:
        self._arrange(view)
        return self._common

    # -- what an epoch holds -------------------------------------------------------------------------------------

    def select(self) -> Selection:
        """Nobody has all of it."""
        raise ConfigError(
            'filter needs the whole selection, and with table="sharded" each process has its own part. Use '
            "pruner.loader(...), pruner.sampler or pruner.batch_sampler(...)."
        )

    def preview(self) -> Selection:
        """Nobody has all of it, and a look must not make ranks wait for each other."""
        raise ConfigError(
            'preview() shows a whole selection, and with table="sharded" each process has its own part. Use '
            'table="replicated" to look at it.'
        )

    @property
    def _must_meet(self) -> bool:
        return True

    def as_drawn(self, arrangement: Hashable) -> Epoch:
        """This rank's part of the current epoch, drawn and dealt out. A collective where there are others."""
        wires = Wires(self._group.exchange(), self.clock.epoch)
        context, shard = self.context(self.clock.epoch), self._part.shard
        rng = order_streams(context, shard)
        picks, base = self._picks(context, wires)
        selecting = wires.received
        counts = self._counts(picks, context, wires)
        total = int(counts.sum())
        table = moves(counts, self._group.targets(total), turn=context.epoch)
        picks, guests = dealt(picks, self._part.scores_of, table, rng, wires)
        self._part.welcome(guests)
        self._undealt = None
        self._common = digest(str(total).encode())
        self._group.drew(selecting, len(guests.samples), wires.received - selecting)
        order = TwoLevelOrder(picks, guests.samples, rng)
        return ShardEpoch(order, self._group.each(total), total, base, shard.world, arrangement)

    @property
    def _gathers(self) -> bool:
        """Whether ranks must be asked how many picks they have."""
        return self._sharding == "exact" or self._undealt is not None

    def _picks(self, context: Context, wires: Wires) -> tuple[Bits, int]:
        """What is selected of this rank's samples, and at which position that begins."""
        if self._undealt is not None:
            return self._undealt.own.copy(), self._undealt.base
        self.selector.prepare(context.epoch)
        scores = self._part.scores_between
        return drawn(self._policy, self._part.shard, scores, context, wires, self._sharding), 0

    def _counts(self, picks: Bits, context: Context, wires: Wires) -> np.ndarray:
        """How many picks each rank has."""
        q = self._policy.size(context.n, context)
        if self._gathers or q is None:
            return wires.gather(np.array([len(picks)]))[:, 0]
        return np.array([share_of(q, rank, wires.world) for rank in range(wires.world)])

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values: this rank's part of the timeline."""
        shard, epoch = self._part.shard, self._epoch
        assert epoch is None or isinstance(epoch, ShardEpoch | UndealtEpoch)
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
        """This rank's state, out of the parts that any number of ranks have written."""
        parts = state if isinstance(state, list | tuple) else [state]
        return resharded(parts, self._part.shard, self._sharding)

    def restorer(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Reads and checks `state` and returns what puts it in place, so that nothing is half restored."""
        clock, seed, nonfinite = Clock.from_state(state["clock"]), int(state["seed"]), int(state["nonfinite"])
        repeated, epoch = int(state["repeated"]), None
        if state["epoch"] is not None:
            epoch = self._restored_epoch(state["epoch"], Context(self.n, clock.epoch, seed))

        def restore() -> None:
            self.clock, self.seed, self.complaints.nonfinite = clock, seed, nonfinite
            self._epoch, self._rewound, self._share = epoch, False, None
            self._undealt = epoch if isinstance(epoch, UndealtEpoch) else None
            self._repeated_before = repeated
            self._group.restored_from(digest(describe(self._policy).encode(), repr(moment(state)).encode()), clock.kept)

        return restore

    def _restored_epoch(self, state: Mapping[str, Any], context: Context) -> ShardEpoch | UndealtEpoch:
        shard = self._part.shard
        own = Bits(shard.start, shard.stop, state["selected"].numpy().view(np.uint64).copy())
        if own.words.shape != Bits(shard.start, shard.stop).words.shape:
            raise StateError(
                f"the checkpoint's draw must have a bit for each of the {shard.size} samples of rank {shard.rank}, it "
                "has not. Use parts that were written to their end."
            )
        if state["kind"] == "undealt":
            return UndealtEpoch(own, int(state["left"]), int(state["base"]))
        order = TwoLevelOrder(own, state["guests"].numpy().copy(), order_streams(context, shard))
        return ShardEpoch(order, int(state["each"]), int(state["total"]), int(state["base"]), shard.world)
