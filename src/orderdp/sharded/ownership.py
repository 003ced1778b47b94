"""Shard: which samples a rank holds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Shard", "share_of"]


def share_of(total: int, rank: int, world: int) -> int:
    """How many of `total` a rank gets: equally many, the first ranks one more.

    Smaller totals never get more than larger ones on the same rank, so shares of q <= s <= n are in the same order.

    >>> [share_of(8, rank, 3) for rank in range(3)]
    [3, 3, 2]
    """
    return total // world + (rank < total % world)


@dataclass(frozen=True)
class Shard:
    """The samples from `start` to `stop`, of `n` that `world` ranks hold together.

    >>> [(Shard(8, rank, 3).start, Shard(8, rank, 3).stop) for rank in range(3)]
    [(0, 3), (3, 6), (6, 8)]

    Attributes:
        n: Samples in the whole data set.
        rank: Who holds this part.
        world: How many parts there are.
    """

    n: int
    rank: int = 0
    world: int = 1

    @property
    def start(self) -> int:
        """The first sample of it."""
        return self.rank * (self.n // self.world) + min(self.rank, self.n % self.world)

    @property
    def stop(self) -> int:
        """The first sample after it."""
        return self.start + share_of(self.n, self.rank, self.world)

    @property
    def size(self) -> int:
        """How many samples it has."""
        return share_of(self.n, self.rank, self.world)

    def starts(self) -> list[int]:
        """Where the parts of all ranks start."""
        return [Shard(self.n, rank, self.world).start for rank in range(self.world)]
