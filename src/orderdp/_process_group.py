"""DistributedContext: the process group of a training, as one rank sees it.

The group is looked up on every call, because it may be created after the pruner. Without a group, nothing of
`orderdp.distributed` is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orderdp._draw import key64
from orderdp.errors import ConfigError
from orderdp.policy import Policy, describe
from orderdp.score_table import ScoreTable

if TYPE_CHECKING:
    from orderdp._epochs import Order
    from orderdp.distributed.collectives import Exchange
    from orderdp.distributed.rank_shard import RankShard
    from orderdp.distributed.sync import Synchronizer

__all__ = ["DistributedContext", "DistributedOptions", "SyncCounters", "checked_group"]


def checked_group(process_group: Any) -> Any:
    """Return a process group, a substitute for one, or None, or raise an error."""
    distributed = torch.distributed
    is_group = distributed.is_available() and isinstance(process_group, distributed.ProcessGroup)
    if process_group is None or is_group or hasattr(process_group, "gather_all"):
        return process_group
    outsider = distributed.is_available() and process_group is distributed.GroupMember.NON_GROUP_MEMBER
    if outsider:
        raise ConfigError(
            "process_group must be a group that this process belongs to, and it does not. "
            "Give each process the data-parallel group it is in."
        )
    raise ConfigError(
        f"process_group must be a torch.distributed process group or None, got {type(process_group).__name__}. "
        "For a dimension of a device mesh pass mesh.get_group(name)."
    )


@dataclass(frozen=True)
class DistributedOptions:
    """How ranks work together.

    Attributes:
        process_group: The ranks that share the data; None for all.
        shard: Whether each rank takes its own shard; otherwise a framework distributes the samples.
        pad: Whether shards are padded with repeats; otherwise samples that do not divide evenly are left out.
    """

    process_group: Any = None
    shard: bool = True
    pad: bool = False


@dataclass
class SyncCounters:
    """What this rank has done since the last sync, for the message to the other ranks.

    Attributes:
        fed: Samples whose losses came back since the last sync.
        start: Position from which the open epoch is served.
        got: Samples of the open epoch whose losses came back since it was opened.
        overran: Whether an iterator asked for more of the epoch than there is.
    """

    fed: int = 0
    start: int = 0
    got: int = 0
    overran: bool = False

    def opened(self, start: int) -> None:
        """Reset the counters of the epoch, which is served from `start` on."""
        self.start, self.got, self.overran = start, 0, False

    def came_back(self, samples: int) -> None:
        """Count samples whose losses have come back."""
        self.fed += samples
        self.got += samples


class DistributedContext:
    """The ranks that train one model, as one pruner sees them.

    Args:
        policy: Selects the samples of an epoch.
        table: The score table of this rank.
        epochs: Number of planned epochs, or None.
        labels: One class per sample, or None.
        strict: Whether non-finite losses are an error.
        options: How the ranks work together.
    """

    def __init__(
        self,
        policy: Policy,
        table: ScoreTable,
        epochs: int | None,
        labels: np.ndarray | None,
        strict: bool,
        options: DistributedOptions,
    ) -> None:
        self.tally = SyncCounters()
        self._setup = (describe(policy), epochs, labels, options.shard, options.pad, strict)
        self._table = table
        self._options = options
        self._meeting: Synchronizer | None = None
        self._restored = False

    def exchange(self) -> Exchange | None:
        """Return the collectives of the process group; None without one."""
        distributed = torch.distributed
        is_there = distributed.is_available() and distributed.is_initialized()
        if self._options.process_group is None and not is_there:
            return None
        from orderdp.distributed.collectives import find_exchange

        return find_exchange(self._options.process_group)

    def share(self) -> RankShard | None:
        """Return the shard of this rank; None if it takes the whole epoch."""
        exchange = self.exchange() if self._options.shard else None
        if exchange is None:
            return None
        from orderdp.distributed.rank_shard import RankShard

        return RankShard(exchange.rank, exchange.world, self._options.pad)

    @property
    def sharded(self) -> bool:
        """Whether each rank takes its own shard."""
        return self.share() is not None

    def share_of(self, samples: int) -> int:
        """Return how many of `samples` samples this rank gets."""
        share = self.share()
        return samples if share is None else share.size(samples)

    def step_size(self, batch_size: int) -> int:
        """Return the number of samples that all ranks take in one step."""
        share = self.share()
        return batch_size if share is None else batch_size * share.world

    def smallest_step(self, batch_size: int, drop_last: bool) -> int:
        """Return the fewest samples that all ranks can take in one step, with these batches."""
        if drop_last:
            return self.step_size(batch_size)
        return 1 if self._options.pad else self.step_size(1)

    def end_of(self, epoch: Order, start: int, batch_size: int, drop_last: bool) -> int:
        """Return the position at which the batches of this rank from `start` on end."""
        share = self.share()
        if share is None:
            return epoch.end(start, batch_size, drop_last)
        return share.end(epoch, start, batch_size, drop_last)

    def worker_seed(self, seed: int, epoch: int) -> int:
        """Return a seed for a loader's workers. It differs between ranks, or all ranks would augment alike."""
        exchange = self.exchange()
        others = () if exchange is None or exchange.rank == 0 else ("rank", exchange.rank)
        return key64(seed, "workers", epoch, *others) >> 1

    def meeting(self, kept: int) -> Synchronizer | None:
        """Return the synchronizer of the process group; None without other ranks.

        Args:
            kept: Samples trained on until now, for the first sync.
        """
        exchange = self.exchange()
        if exchange is None:
            return None
        if self._meeting is None:
            self._meeting = self._new_meeting(kept)
            self.tally.fed = 0  # already counted in `kept`
        self._meeting.exchange = exchange
        return self._meeting

    def _new_meeting(self, kept: int) -> Synchronizer:
        from orderdp.distributed.sync import SharedConfig, Synchronizer

        return Synchronizer(self._table, SharedConfig(*self._setup), kept, as_it_is=self._restored)

    def detach_group(self) -> None:
        """Drop the collectives: this epoch begins without a process group, even if there was one before."""
        if self._meeting is not None:
            self._meeting.exchange = None

    def restored(self, kept: int) -> None:
        """Reset the sync state after the same checkpoint was loaded on every rank."""
        self._meeting, self._restored, self.tally = None, True, SyncCounters()
        self.meeting(kept)

    def unsynced(self) -> dict[str, Any] | None:
        """Return what the other ranks do not know yet, for a checkpoint; None if there is nothing."""
        return None if self._meeting is None else self._meeting.unsynced(self.tally.fed)

    @property
    def exchanged_bytes(self) -> int:
        """Bytes received in the last sync."""
        return 0 if self._meeting is None else self._meeting.exchanged_bytes

    @property
    def traffic(self) -> dict[str, float]:
        """Bytes received, for reports."""
        return {"exchanged_bytes": self.exchanged_bytes}
