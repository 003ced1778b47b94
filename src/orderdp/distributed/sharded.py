"""ShardedDraw: how a pruner with a sharded table selects, rebalances and restores its epochs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orderdp._draw import Streams
from orderdp._validation import checked_name, stored_count
from orderdp.distributed.checkpoint import checkpoint_id, resharded
from orderdp.distributed.collectives import Collectives, find_exchange
from orderdp.distributed.sharded_table import (
    WORD,
    BitSet,
    RemoteSamples,
    RemoteSampleTable,
    Shard,
    ShardedTable,
    ones_in,
    pack,
    shard_size,
    unpack,
)
from orderdp.distributed.sharded_topk import Sharding, checked_for_shards, chosen_among, order_streams, select_shard
from orderdp.distributed.sync import digest
from orderdp.errors import ConfigError, GroupError, StateError
from orderdp.policy import Context, Policy, describe, size_bounds, total_samples

if TYPE_CHECKING:
    from orderdp._epochs import DistributedOptions
    from orderdp.distributed.collectives import Exchange
    from orderdp.samplers import Order

__all__ = [
    "WINDOW",
    "PendingEpoch",
    "ShardedDraw",
    "ShardedOrder",
    "TwoLevelOrder",
    "build_sharded",
    "rebalance",
    "transfer_plan",
]


#: Words per window. Changing it changes the order in which a seed visits samples.
WINDOW = 1 << 12


_PLACES = np.arange(WORD, dtype=np.int64)


class TwoLevelOrder:
    """Random order of `own` and `remote`, of which any range can be read.

    Args:
        own: Selected samples of this rank's shard.
        remote: Samples held by other ranks and trained on here, ascending.
        rng: Random streams of the order.
    """

    def __init__(self, own: BitSet, remote: np.ndarray, rng: Streams) -> None:
        self.own = own
        self.remote = remote
        self._rng = rng
        self._words = np.arange(len(own.words), dtype=np.uint32 if len(own.words) < 1 << 32 else np.int64)
        rng("words").shuffle(self._words)
        mixed = remote.copy()
        rng("guests").shuffle(mixed)
        n_windows = max(1, -(-len(self._words) // WINDOW))
        # Remote samples are spread over all windows.
        self._remote = np.array_split(mixed, n_windows)
        counts = [self._n_own(window) + len(part) for window, part in enumerate(self._remote)]
        self._ends = np.cumsum(counts)
        self._opened: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Samples between two positions."""
        stop = min(stop, len(self))
        if start >= stop:
            return np.empty(0, dtype=np.int64)
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        parts = []
        for window in range(first, last + 1):
            first = int(self._ends[window - 1]) if window else 0
            parts.append(self._window(window)[max(0, start - first) : stop - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def after(self, position: int) -> tuple[BitSet, np.ndarray]:
        """Samples not visited at `position`: those of this rank's shard, and the remote ones, ascending."""
        own = self.own.copy()
        whole = int(np.searchsorted(self._ends, position, side="right"))  # windows visited to their end
        own.words[self._words[: whole * WINDOW]] = 0
        last = self.samples(int(self._ends[whole - 1]) if whole else 0, position)
        is_remote = np.isin(last, self.remote)
        own.remove(last[~is_remote])
        return own, np.setdiff1d(self.remote, np.concatenate((*self._remote[:whole], last[is_remote])))

    def _n_own(self, window: int) -> int:
        return int(ones_in(self.own.words[self._words_of(window)]).sum())

    def _words_of(self, window: int) -> np.ndarray:
        return self._words[window * WINDOW : (window + 1) * WINDOW]

    def _window(self, window: int) -> np.ndarray:
        """Samples of a window in visiting order; the last window is cached."""
        if self._opened is None or self._opened[0] != window:
            words = self._words_of(window)
            packed = self.own.words[words].view(np.uint8).reshape(len(words), WORD // 8)
            mask = np.unpackbits(packed, axis=1, bitorder="little").view(np.bool_)
            starts = (words.astype(np.int64) + self.own.first_word) * WORD
            samples = np.concatenate(((starts[:, None] + _PLACES)[mask], self._remote[window]))
            self._rng("window", window).shuffle(samples)
            self._opened = window, samples
        return self._opened[1]


class ShardedOrder:
    """Epoch in which every rank visits its own order, all with the same number of samples.

    Position ``base + k * world + r`` is the k-th sample of rank r. So the visited part is always a prefix, and one step
    of all ranks advances the position by the number of samples that all ranks have visited.

    Args:
        order: The order of this rank.
        each: Samples that each rank visits; a rank with fewer repeats its first ones.
        total: Samples of all ranks without repeats; some of them may not be visited.
        base: Start position: the number of samples visited before the rebalancing.
        world: Number of ranks.
        arrangement: What the order was made for; None for an epoch from a checkpoint.
    """

    per_rank = True

    def __init__(
        self,
        order: TwoLevelOrder,
        each: int,
        total: int,
        base: int = 0,
        world: int = 1,
        arrangement: Hashable | None = None,
    ) -> None:
        self.order = order
        self.each = each
        self.total = total
        self.base = base
        self.world = world
        self.arrangement = arrangement

    def __len__(self) -> int:
        """Samples of the whole epoch, over all ranks."""
        return self.base + self.total

    def mine(self, position: int, count: int) -> np.ndarray:
        """Next `count` samples of this rank from a position on."""
        if position < self.base:
            raise StateError(
                f"this epoch was redistributed to {self.world} processes after {self.base} of its samples, so it "
                "cannot restart from its beginning. Leave out rewind()."
            )
        start = (position - self.base) // self.world
        stop = min(start + count, self.each)
        there = self.order.samples(start, stop)
        missing = stop - start - len(there)
        return np.concatenate((there, self.order.samples(0, missing))) if missing > 0 else there

    def batch(self, position: int, batch_size: int) -> list[int]:
        """Return the batch that starts at `position`."""
        indices: list[int] = self.mine(position, batch_size).tolist()
        return indices

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Samples that this rank visits between two positions."""
        return self.mine(start, -(-(stop - start) // self.world))

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """Position at which batches from `start` on end."""
        last = self.base + self.each * self.world
        return start + (last - start) // batch_size * batch_size if drop_last else last

    def visited(self, position: int) -> int:
        """Number of samples that this rank has visited at a position."""
        return (position - self.base) // self.world

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers; the caller, which knows the position, adds the remaining samples."""
        return {
            "kind": "shard",
            "selected": torch.from_numpy(self.order.own.words.view(np.int64)),
            "guests": torch.from_numpy(self.order.remote),
            "each": self.each,
            "total": self.total,
            "base": self.base,
        }


class PendingEpoch:
    """Rest of an epoch that another number of ranks started; it must be rebalanced before it is served.

    Args:
        own: Remaining samples of this rank's shard.
        left: Remaining samples of all ranks.
        base: Samples that have been visited.
    """

    arrangement: Hashable | None = "not dealt out"
    per_rank = True

    def __init__(self, own: BitSet, left: int, base: int) -> None:
        self.own = own
        self.left = left
        self.base = base

    def __len__(self) -> int:
        return self.base + self.left

    def batch(self, position: int, batch_size: int) -> list[int]:
        """Empty until the epoch is rebalanced."""
        return []

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Empty until the epoch is rebalanced."""
        return np.empty(0, dtype=np.int64)

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """Position at which batches from `start` on would end."""
        return start + self.left // batch_size * batch_size if drop_last else len(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the remaining samples as tensors and numbers."""
        return {
            "kind": "undealt",
            "selected": torch.from_numpy(self.own.words.view(np.int64)),
            "guests": torch.empty(0, dtype=torch.int64),
            "left": self.left,
            "base": self.base,
        }


def transfer_plan(counts: np.ndarray, targets: np.ndarray, turn: int = 0) -> np.ndarray:
    """Number of selected samples that each rank (row) sends to each other rank (column) to reach its target.

    >>> transfer_plan(np.array([5, 1, 3]), np.array([3, 3, 3])).tolist()
    [[0, 2, 0], [0, 0, 0], [0, 0, 0]]

    Args:
        counts: Selected samples per rank.
        targets: Minimum number per rank; in sum at most the sum of `counts`.
        turn: The first rank that gives surplus; the last rank keeps the rest.
    """
    table = np.zeros((len(counts), len(counts)), dtype=np.int64)
    surplus, wanted = np.maximum(counts - targets, 0), np.maximum(targets - counts, 0)
    takers = [int(rank) for rank in np.flatnonzero(wanted)]
    for step in range(len(counts)):
        giver = (turn + step) % len(counts)
        while surplus[giver] and takers:
            moved = min(surplus[giver], wanted[takers[0]])
            table[giver, takers[0]] += moved
            surplus[giver] -= moved
            wanted[takers[0]] -= moved
            if not wanted[takers[0]]:
                takers.pop(0)
    return table


def rebalance(
    picks: BitSet,
    scores_of: Callable[[np.ndarray], np.ndarray],
    table: np.ndarray,
    rng: Streams,
    collectives: Collectives,
) -> tuple[BitSet, RemoteSamples]:
    """Return the selected samples that stay on this rank, and the remote samples it gets. A collective if any move.

    Args:
        picks: Selected samples of this rank's shard. Modified in place.
        scores_of: Returns the scores of given samples.
        table: Number of samples per sender and receiver, from `transfer_plan`.
        rng: Random streams that select the samples to send.
        collectives: Collectives between the ranks.
    """
    if not table.any():
        return picks, RemoteSamples(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
    to = table[collectives.rank]
    leaving = np.empty(0, dtype=np.int64)
    if to.any():
        gone = chosen_among(picks, 0, len(picks), int(to.sum()), rng)
        leaving = np.concatenate([gone.samples(*piece) for piece in gone.pieces()])
        picks.words &= ~gone.words
        rng("to whom").shuffle(leaving)
    cuts = np.cumsum(to)[:-1]
    parts = [pack(part, scores_of(part)) for part in np.split(leaving, cuts)]
    received = collectives.swap(parts, [12 * int(count) for count in table[:, collectives.rank]])
    index, values = unpack(np.concatenate(received), 4)
    order = np.argsort(index)
    return picks, RemoteSamples(index[order], values.view(np.float32)[order])


class ShardedDraw:
    """Strategy of an `EpochManager` whose ranks hold one shard of the table each.

    Args:
        policy: The policy.
        table: This rank's table.
        sharding: "exact" or "stratified".
        pad: Whether shards of an epoch are padded with repeats.

    Attributes:
        table: This rank's table.
        pending: The rest of a loaded epoch that another number of ranks started; None if it is rebalanced.
        digest: Digest of what all ranks know about the last draw.
    """

    def __init__(self, policy: Policy, table: ShardedTable, sharding: Sharding, pad: bool) -> None:
        self.table = table
        self.pending: PendingEpoch | None = None
        self.digest = 0
        self._policy = policy
        self._shard = table.shard
        self._sharding: Sharding = sharding
        self._pad = pad
        self._fingerprint = 0  # of the checkpoint that the table came from
        self._rows: RemoteSampleTable | None = None
        self._costs = {"selection_bytes": 0, "moved_picks": 0, "moved_bytes": 0}

    def describe(self, policy: Policy) -> str:
        """Describe the policy and how it selects from shards, for the comparison of ranks."""
        return f"{describe(policy)}, {self._sharding} shards"

    def check_group(self, group: Exchange | None) -> None:
        """Raise if the process group is not the one that the table was split for."""
        shard = self._shard
        here = (0, 1) if group is None else (group.rank, group.world)
        if here != (shard.rank, shard.world):
            raise GroupError(
                f"a sharded table is split when the pruner is made: then this was rank {shard.rank} of {shard.world}, "
                f"now it is rank {here[0]} of {here[1]}. Make the process group before the pruner, and a new pruner "
                "for a new group."
            )

    def synced_rows(self) -> RemoteSampleTable:
        """Return the rows of this table, as ranks exchange them."""
        self._rows = RemoteSampleTable(self.table, self._fingerprint)
        return self._rows

    @property
    def traffic(self) -> dict[str, float]:
        """Bytes received and samples moved, for reports."""
        return {**self._costs, "returned_bytes": 0 if self._rows is None else self._rows.returned_bytes}

    # -- selection -----------------------------------------------------------------------------------------------

    def order(self, context: Context, collectives: Collectives, arrangement: Hashable) -> ShardedOrder:
        """Select and rebalance this rank's part of an epoch. A collective with several ranks.

        Args:
            context: The epoch's context.
            collectives: Collectives between the ranks.
            arrangement: What the order is made for.
        """
        shard, table = self._shard, self.table
        rng = order_streams(context, shard)
        if self.pending is None:
            base = 0
            picks = select_shard(self._policy, shard, table.scores_between, context, collectives, self._sharding)
        else:
            base, picks = self.pending.base, self.pending.own.copy()
        selecting = collectives.received
        counts = self._counts(picks, context, collectives)
        total = int(counts.sum())
        plan = transfer_plan(counts, self._targets(total), turn=context.epoch)
        picks, remote = rebalance(picks, table.scores_of, plan, rng, collectives)
        table.set_remote_rows(remote)
        self.pending = None
        self.digest = digest(str(total).encode())
        moving = collectives.received - selecting
        self._costs = {"selection_bytes": selecting, "moved_picks": len(remote.samples), "moved_bytes": moving}
        order = TwoLevelOrder(picks, remote.samples, rng)
        each = -(-total // shard.world) if self._pad else total // shard.world
        return ShardedOrder(order, each, total, base, shard.world, arrangement)

    def _targets(self, samples: int) -> np.ndarray:
        """Return the fewest samples that each rank trains on, of `samples`."""
        world = self._shard.world
        if not self._pad:
            return np.full(world, samples // world)
        return np.array([shard_size(samples, rank, world) for rank in range(world)])  # a rank repeats at most one

    def _counts(self, picks: BitSet, context: Context, collectives: Collectives) -> np.ndarray:
        """Return the number of selected samples per rank."""
        q = self._policy.size(context.n, context)
        if self._sharding == "exact" or self.pending is not None or q is None:
            return collectives.gather(np.array([len(picks)]))[:, 0]
        return np.array([shard_size(q, rank, collectives.world) for rank in range(collectives.world)])

    # -- loaded epochs -------------------------------------------------------------------------------------------

    @property
    def has_too_few_left(self) -> bool:
        """Whether a loaded epoch has fewer samples left than there are ranks."""
        # A rank that gets none of the remaining samples has none to pad with either.
        return self.pending is not None and self.pending.left < self._shard.world

    def check_rewind(self, order: Order | None) -> None:
        """Raise if an epoch cannot be served from its start."""
        if getattr(order, "base", 0):
            raise StateError(
                "rewind() needs as many processes as wrote the checkpoint: other processes do not know what was "
                "trained on before. Leave it out, and let the loader skip nothing."
            )

    def state_dict(self, order: Order | None, position: int) -> dict[str, Any]:
        """Return this rank's part of an epoch manager's state, as tensors and plain values.

        Args:
            order: The open epoch, if any.
            position: Number of its samples that are trained on.
        """
        assert order is None or isinstance(order, ShardedOrder | PendingEpoch)
        return {
            "epoch": None if order is None else _with_what_is_left(order, position),
            "shard": {
                "rank": self._shard.rank,
                "world_size": self._shard.world,
                "sharding": self._sharding,
                "counters": list((0, 0, 0) if self._rows is None else self._rows.counters),
            },
        }

    def whole(self, state: Any) -> Mapping[str, Any]:
        """Build this rank's state from the parts that any number of ranks have written."""
        parts = state if isinstance(state, list | tuple) else [state]
        return resharded(parts, self._shard, self._sharding)

    def restore_order(self, state: Mapping[str, Any] | None, context: Context) -> ShardedOrder | PendingEpoch | None:
        """Restore the open epoch from `state`; None if none was open."""
        if state is None:
            return None
        shard = self._shard
        own = BitSet(shard.start, shard.stop, state["selected"].numpy().view(np.uint64).copy())
        if own.words.shape != BitSet(shard.start, shard.stop).words.shape:
            raise StateError(
                f"the checkpoint's selection must have one bit for each of the {shard.size} samples of rank "
                f"{shard.rank}, it does not. Use complete parts."
            )
        if len(own.words):  # bits of the first and the last word that belong to neighbors
            before, after = shard.start % WORD, shard.stop % WORD
            outside = int(own.words[0]) & ((1 << before) - 1) or (int(own.words[-1]) >> after if after else 0)
            if outside:
                raise ValueError("samples that the process does not hold are selected")
        base = stored_count(state, "base", most=context.n)
        if state["kind"] == "undealt":
            return PendingEpoch(own, stored_count(state, "left", most=context.n), base)
        remote = state["guests"].numpy().copy()
        if remote.ndim != 1 or remote.dtype != np.int64 or len(np.unique(remote)) != len(remote):
            raise ValueError("the samples of other processes are not different indices")
        if len(remote) and not (remote.min() >= 0 and remote.max() < context.n):
            raise ValueError(f"the samples of other processes must be below {context.n}")
        order = TwoLevelOrder(own, remote, order_streams(context, shard))
        total = stored_count(state, "total", most=context.n)
        each = stored_count(state, "each", most=len(order) + 1)  # padded, a rank repeats one sample
        if each not in (total // shard.world, -(-total // shard.world)):
            raise ValueError(f"{each} samples for each of {shard.world} processes, {total} in all")
        return ShardedOrder(order, each, total, base, shard.world)

    def restored(self, order: Order | None, state: Mapping[str, Any]) -> None:
        """Note that `order` and the table were loaded from this state of an epoch manager."""
        self.pending = order if isinstance(order, PendingEpoch) else None
        self._rows = None
        self._fingerprint = digest(describe(self._policy).encode(), repr(checkpoint_id(state)).encode())


def _with_what_is_left(order: ShardedOrder | PendingEpoch, position: int) -> dict[str, Any]:
    """Return the state of an open epoch, including the samples not visited at `position`."""
    if isinstance(order, PendingEpoch):
        own, remote = order.own, np.empty(0, dtype=np.int64)
    else:
        own, remote = order.order.after(min(order.visited(position), len(order.order)))
    left = {"todo": torch.from_numpy(own.words.view(np.int64)), "todo_guests": torch.from_numpy(remote)}
    return {**order.state_dict(), **left, "n_todo": len(own) + len(remote)}


def build_sharded(
    policy: Policy, n: int, sharding: str, epochs: int | None, options: DistributedOptions
) -> ShardedDraw:
    """Build this rank's table, and the strategy that selects from it.

    Args:
        policy: The policy.
        n: Samples in the whole data set.
        sharding: "exact" or "stratified".
        epochs: Planned epochs, or None.
        options: How the ranks work together.
    """
    mode: Any = checked_name(sharding, ("exact", "stratified"), "sharding")
    policy = checked_for_shards(policy)
    if not options.shard:
        raise ConfigError(
            'table="sharded" shards the samples itself, so that most are trained on where their scores are; got '
            'shard=False. Leave it out, or use table="replicated" if a framework shards them.'
        )
    exchange = find_exchange(options.process_group)
    shard = Shard(n) if exchange is None else Shard(n, exchange.rank, exchange.world)
    context = Context(n=n, epoch=0, epochs=epochs, total=total_samples(policy, n, epochs))
    q, _ = size_bounds(policy, n, context)
    if q < shard.world:
        raise ConfigError(
            f"{policy} keeps {q} of {n} samples, too few for {shard.world} processes. Prune less or use fewer."
        )
    return ShardedDraw(policy, ShardedTable(shard), mode, options.pad)
