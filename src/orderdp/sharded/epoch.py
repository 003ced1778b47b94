"""ShardEpoch: what one rank visits in an epoch, in positions that count the samples of all ranks."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orderdp.distributed.share import Share
from orderdp.errors import StateError
from orderdp.sharded.bits import Bits
from orderdp.sharded.order import TwoLevelOrder

if TYPE_CHECKING:
    from orderdp.epochs import Epoch

__all__ = ["OwnShare", "ShardEpoch", "UndealtEpoch"]


class ShardEpoch:
    """An epoch in which every rank visits an order of its own, all of them equally many samples.

    Position ``base + k * world + r`` is the k-th sample of rank r. So what has been visited is a prefix, and a step of
    all ranks moves the position by what all of them have visited.

    Args:
        order: What this rank visits.
        each: How many samples a rank visits, repeating its first ones where it has fewer.
        total: How many samples all ranks have, without repeats; some of them may not be visited.
        base: The position at which it starts: what was visited before it was dealt out anew.
        world: How many ranks there are.
        arrangement: Who put it in this order; None for one out of a checkpoint.
    """

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
        """Samples of the whole epoch, of all ranks."""
        return self.base + self.total

    def mine(self, position: int, count: int) -> np.ndarray:
        """This rank's next `count` samples from a position on."""
        if position < self.base:
            raise StateError(
                f"this epoch was dealt out anew to {self.world} processes after {self.base} of its samples, so it "
                "cannot be served from its start. Leave out rewind()."
            )
        start = (position - self.base) // self.world
        stop = min(start + count, self.each)
        there = self.order.samples(start, stop)
        missing = stop - start - len(there)
        return np.concatenate((there, self.order.samples(0, missing))) if missing > 0 else there

    def batch(self, position: int, batch_size: int) -> list[int]:
        """The batch that starts at `position`."""
        indices: list[int] = self.mine(position, batch_size).tolist()
        return indices

    def samples(self, start: int, stop: int) -> np.ndarray:
        """What this rank visits between two positions."""
        return self.mine(start, -(-(stop - start) // self.world))

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """The position at which batches from `start` on end."""
        last = self.base + self.each * self.world
        return start + (last - start) // batch_size * batch_size if drop_last else last

    def visited(self, position: int) -> int:
        """How many samples this rank has visited at a position."""
        return (position - self.base) // self.world

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers; what is left of it is added by whoever knows the position."""
        return {
            "kind": "shard",
            "selected": torch.from_numpy(self.order.own.words.view(np.int64)),
            "guests": torch.from_numpy(self.order.guests),
            "each": self.each,
            "total": self.total,
            "base": self.base,
        }


class UndealtEpoch:
    """What is left of an epoch that another number of ranks has begun; it must be dealt out before it is visited.

    Args:
        own: What is left of this rank's samples.
        left: How many samples are left on all ranks.
        base: How many have been visited.
    """

    arrangement: Hashable | None = "not dealt out"

    def __init__(self, own: Bits, left: int, base: int) -> None:
        self.own = own
        self.left = left
        self.base = base

    def __len__(self) -> int:
        return self.base + self.left

    def batch(self, position: int, batch_size: int) -> list[int]:
        """Nothing yet."""
        return []

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Nothing yet."""
        return np.empty(0, dtype=np.int64)

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """The position at which batches from `start` on would end."""
        return start + self.left // batch_size * batch_size if drop_last else len(self)

    def state_dict(self) -> dict[str, Any]:
        """What is left."""
        return {
            "kind": "undealt",
            "selected": torch.from_numpy(self.own.words.view(np.int64)),
            "guests": torch.empty(0, dtype=torch.int64),
            "left": self.left,
            "base": self.base,
        }


@dataclass(frozen=True)
class OwnShare(Share):
    """The share of a rank that visits an order of its own."""

    def batch(self, epoch: Epoch, position: int, batch_size: int) -> list[int]:
        """This rank's part of the step that starts at `position`."""
        return epoch.batch(position, batch_size)
