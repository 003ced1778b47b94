"""Whether ranks stand where they can go on together, by what they have said in their headers."""

from __future__ import annotations

from collections.abc import Sequence

from orderdp.distributed.header import SYNC, Header
from orderdp.errors import GroupError

__all__ = ["check_places", "check_sharding"]


def check_places(headers: Sequence[Header]) -> None:
    """Raises where ranks stand at places that one training cannot lead to.

    A rank may be behind by the end of an epoch where a framework deals out the samples: if it got none, or fewer,
    it has not seen that the epoch is over.
    """
    target = max(header.epoch for header in headers)
    ahead = [header for header in headers if header.epoch == target]
    behind = [header for header in headers if header.epoch < target]
    places = {(header.is_open, header.trained) for header in ahead}
    syncing, sharded = headers[0].action == SYNC, headers[0].shard
    apart = len(places) > 1 and (sharded or not syncing)
    lost = any(header.epoch < target - 1 for header in behind) or (behind and any(header.is_open for header in ahead))
    if apart or lost or (behind and syncing and sharded):
        shown = "; ".join(
            f"rank {rank}: epoch {header.epoch}, {header.trained} samples trained"
            for rank, header in list(enumerate(headers))[:8]
        )
        raise GroupError(
            f"all processes must stand at the same place, they do not: {shown}. Load the same checkpoint everywhere, "
            "and call sync() after the same step."
        )


def check_sharding(headers: Sequence[Header]) -> None:
    """Raises where somebody else has dealt out our shares once more.

    Then every rank has gone through all of its share, and the losses of only a part of it came back, one in as many
    as there are ranks.
    """
    world, first = len(headers), headers[0]
    if not first.shard or not all(header.ran_dry for header in headers):
        return
    expected, got = first.expected, sum(header.got for header in headers)
    possible = world * max(1, first.batch_size)
    # Whoever deals them out may fill up each rank's last batches, so a little more than one in `world` can come back.
    if got and expected - got > possible and got * world <= expected + world * possible:
        raise GroupError(
            f"of the {expected} samples of epoch {first.epoch - 1}, losses came back for {got}; with {world} "
            f"processes and whole batches at most {possible} can be left over. A framework seems to deal out the "
            "samples once more. Give Pruner(..., shard=False) there."
        )
