"""DistributedContext: whether other processes train the same model, and how to reach them.

It is asked anew each time, because the process group may be made after the pruner. Without a group, nothing of
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
    """A process group, what takes its place, None, or an error."""
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
    """How processes work together.

    Attributes:
        process_group: Which of them share the data; None for all.
        shard: Whether each takes its own share; otherwise a framework deals out the samples.
        pad: Whether shares are filled up with repeats; otherwise what does not go round is left out.
    """

    process_group: Any = None
    shard: bool = True
    pad: bool = False


@dataclass
class SyncCounters:
    """What this process has done that the others may want to hear of.

    Attributes:
        fed: Samples whose losses came back since the processes met.
        start: From where the open epoch is served.
        got: Samples of it whose losses came back since then.
        ran_dry: Whether somebody wanted more of it than there is.
    """

    fed: int = 0
    start: int = 0
    got: int = 0
    overran: bool = False

    def opened(self, start: int) -> None:
        """An epoch is served from a position on."""
        self.start, self.got, self.overran = start, 0, False

    def came_back(self, samples: int) -> None:
        """Losses of so many samples have."""
        self.fed += samples
        self.got += samples


class DistributedContext:
    """The processes that train one model, as one pruner sees them.

    Args:
        policy: Who draws.
        table: What is remembered here.
        epochs: How many are planned, or None.
        labels: One class for each sample, or None.
        strict: Whether losses that are not finite are an error.
        options: How they work together.
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
        """The way to the other processes; None where there are none."""
        distributed = torch.distributed
        is_there = distributed.is_available() and distributed.is_initialized()
        if self._options.process_group is None and not is_there:
            return None
        from orderdp.distributed.collectives import find_exchange

        return find_exchange(self._options.process_group)

    def share(self) -> RankShard | None:
        """What this process takes of an epoch; None for all of it."""
        exchange = self.exchange() if self._options.shard else None
        if exchange is None:
            return None
        from orderdp.distributed.rank_shard import RankShard

        return RankShard(exchange.rank, exchange.world, self._options.pad)

    @property
    def sharded(self) -> bool:
        """Whether each process takes a share of its own."""
        return self.share() is not None

    def share_of(self, samples: int) -> int:
        """How many of so many samples this process gets."""
        share = self.share()
        return samples if share is None else share.size(samples)

    def step_size(self, batch_size: int) -> int:
        """Samples that all processes take in one step."""
        share = self.share()
        return batch_size if share is None else batch_size * share.world

    def smallest_step(self, batch_size: int, drop_last: bool) -> int:
        """The fewest samples that all processes can take in one step, with batches cut like this."""
        if drop_last:
            return self.step_size(batch_size)
        return 1 if self._options.pad else self.step_size(1)

    def end_of(self, epoch: Order, start: int, batch_size: int, drop_last: bool) -> int:
        """The position at which this process's batches from `start` on end."""
        share = self.share()
        if share is None:
            return epoch.end(start, batch_size, drop_last)
        return share.end(epoch, start, batch_size, drop_last)

    def worker_seed(self, seed: int, epoch: int) -> int:
        """A seed for a loader's workers, another one in each process: or all would augment alike."""
        exchange = self.exchange()
        others = () if exchange is None or exchange.rank == 0 else ("rank", exchange.rank)
        return key64(seed, "workers", epoch, *others) >> 1

    def meeting(self, kept: int) -> Synchronizer | None:
        """Where the processes meet; None where there are no others.

        Args:
            kept: Samples trained on until now, for the first meeting.
        """
        exchange = self.exchange()
        if exchange is None:
            return None
        if self._meeting is None:
            self._meeting = self._new_meeting(kept)
            self.tally.fed = 0  # it is among those kept
        self._meeting.exchange = exchange
        return self._meeting

    def _new_meeting(self, kept: int) -> Synchronizer:
        from orderdp.distributed.sync import SharedConfig, Synchronizer

        return Synchronizer(self._table, SharedConfig(*self._setup), kept, as_it_is=self._restored)

    def detach_group(self) -> None:
        """An epoch begins without others, who may have been there before: there is nobody left to tell."""
        if self._meeting is not None:
            self._meeting.exchange = None

    def restored(self, kept: int) -> None:
        """The table was loaded, here and everywhere."""
        self._meeting, self._restored, self.tally = None, True, SyncCounters()
        self.meeting(kept)

    def unsynced(self) -> dict[str, Any] | None:
        """What other processes do not know yet, for a checkpoint; None where there is nothing."""
        return None if self._meeting is None else self._meeting.unsynced(self.tally.fed)

    @property
    def exchanged_bytes(self) -> int:
        """What came in at the last meeting."""
        return 0 if self._meeting is None else self._meeting.exchanged_bytes

    @property
    def traffic(self) -> dict[str, float]:
        """What came in, for reports."""
        return {"exchanged_bytes": self.exchanged_bytes}
