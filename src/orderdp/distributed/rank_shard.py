"""RankShard: which samples of an epoch a rank trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from orderdp._epochs import Order

__all__ = ["RankShard"]


@dataclass(frozen=True)
class RankShard:
    """Shard of a rank: rank r of w gets positions r, r + w, r + 2w, ... counted from the current position.

    Positions are those of the whole epoch. One step of all ranks with batches of B advances the epoch by B * w, so the
    consumed part is always a prefix, and another number of ranks can resume from it.

    All ranks get the same number of samples, because a rank with one more batch would wait forever for the gradients of
    the others. So at most w - 1 samples at the end of the (shuffled) epoch are left out or, with `pad`, up to w - 1 of
    its first samples are repeated.

    >>> from orderdp._epochs import EpochOrder
    >>> epoch = EpochOrder(np.array([10, 11, 12, 13, 14, 15, 16]))
    >>> [RankShard(rank, 2).batch(epoch, 0, 2) for rank in (0, 1)]
    [[10, 12], [11, 13]]
    >>> [RankShard(rank, 2).batch(epoch, 4, 2) for rank in (0, 1)]
    [[14], [15]]
    >>> [RankShard(rank, 2, pad=True).batch(epoch, 4, 2) for rank in (0, 1)]
    [[14, 16], [15, 10]]

    Attributes:
        rank: The rank.
        world: Number of ranks.
        pad: Whether to repeat samples instead of leaving some out.
    """

    rank: int
    world: int
    pad: bool = False

    def size(self, samples: int) -> int:
        """Number of samples that each rank gets of `samples`."""
        return -(-samples // self.world) if self.pad else samples // self.world

    def batch(self, epoch: Order, position: int, batch_size: int) -> list[int]:
        """Return this rank's part of the step that starts at `position`."""
        step = epoch.samples(position, position + batch_size * self.world)
        spare = len(step) % self.world
        if spare and self.pad:
            missing = self.world - spare
            step = np.concatenate((step, np.resize(epoch.samples(0, missing), missing)))
        elif spare:
            step = step[:-spare]
        mine: list[int] = step[self.rank :: self.world].tolist()
        return mine

    def end(self, epoch: Order, start: int, batch_size: int, drop_last: bool) -> int:
        """Position at which this rank's batches from `start` on end; beyond the epoch's length if it pads."""
        left = epoch.end(start, batch_size * self.world, drop_last=False) - start
        each = self.size(max(0, left))
        if drop_last:
            each -= each % batch_size
        return start + each * self.world
