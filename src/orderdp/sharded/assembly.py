"""Puts together what a Pruner with a sharded table is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from orderdp.distributed.exchange import find_exchange
from orderdp.errors import ConfigError
from orderdp.naming import checked_name
from orderdp.policy import Context, Policy, size_bounds, total_samples
from orderdp.sharded.drawing import Sharding
from orderdp.sharded.ownership import Shard
from orderdp.sharded.rules import checked_for_shards
from orderdp.sharded.table import ShardTable
from orderdp.sharded.team import ShardTeam
from orderdp.sharded.timeline import ShardTimeline
from orderdp.team import TeamOptions

__all__ = ["assembled"]


def assembled(
    policy: Policy,
    n: int,
    sharding: str,
    *,
    seed: int,
    epochs: int | None,
    labels: np.ndarray | None,
    raise_on_nan: bool,
    options: TeamOptions,
) -> tuple[ShardTable, ShardTimeline]:
    """This rank's table and timeline.

    Args:
        policy: Who draws.
        n: Samples in the whole data set.
        sharding: "exact" or "stratified".
        seed: The training's seed.
        epochs: How many are planned, or None.
        labels: One class for each sample, or None.
        raise_on_nan: Whether losses that are not finite are an error.
        options: How it works together with other processes.
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
    table = ShardTable(shard)
    team = ShardTeam(policy, table, kind, epochs, labels, raise_on_nan, options)
    timeline = ShardTimeline(
        policy, table, team, kind, seed=seed, epochs=epochs, labels=labels, raise_on_nan=raise_on_nan
    )
    return table, timeline
