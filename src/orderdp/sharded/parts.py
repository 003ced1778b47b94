"""Checkpoints of a sharded table: each rank has a part, and any number of ranks can go on from all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from orderdp.errors import StateError
from orderdp.sharded.bits import Bits
from orderdp.sharded.epoch import ShardEpoch, UndealtEpoch
from orderdp.sharded.ownership import Shard

__all__ = ["moment", "resharded", "with_what_is_left"]

Part = Mapping[str, Any]


def with_what_is_left(epoch: ShardEpoch | UndealtEpoch, position: int) -> dict[str, Any]:
    """The state of an open epoch, with what has not been visited of it at a position."""
    if isinstance(epoch, UndealtEpoch):
        own, guests = epoch.own, np.empty(0, dtype=np.int64)
    else:
        own, guests = epoch.order.after(min(epoch.visited(position), len(epoch.order)))
    left = {"todo": torch.from_numpy(own.words.view(np.int64)), "todo_guests": torch.from_numpy(guests)}
    return {**epoch.state_dict(), **left, "n_todo": len(own) + len(guests)}


def moment(timeline: Part) -> tuple[int, ...]:
    """Where a run stood when a part of it was written; equal for the parts of one checkpoint."""
    clock = timeline["clock"]
    return int(timeline["seed"]), int(clock["epoch"]), int(clock["trained"]), int(clock["kept_before"])


def resharded(parts: Sequence[Part], shard: Shard, sharding: str) -> dict[str, Any]:
    """The state of one rank, out of the parts that all ranks have written.

    Args:
        parts: What ``Pruner.state_dict()`` gave on each rank, in any order.
        shard: Which samples the rank holds that goes on.
        sharding: How its pruner draws.
    """
    parts = _checked(parts, shard, sharding)
    first = parts[0]
    timeline = {**first["timeline"], "epoch": _epoch(parts, shard)}
    return {**first, "table": _table(parts, shard), "timeline": timeline}


def _checked(parts: Sequence[Part], shard: Shard, sharding: str) -> list[Part]:
    """The parts in order of rank, or an error that says what is wrong with them."""
    for part in parts:
        if "shard" not in part["timeline"]:
            raise StateError(
                "the checkpoint is of a table that every process had whole. Load it into "
                'Pruner(..., table="replicated"), or take over its scores with observe(...).'
            )
    parts = sorted(parts, key=_rank)
    about = parts[0]["timeline"]["shard"]
    world, ranks = about["world_size"], [_rank(part) for part in parts]
    if any(part["timeline"]["shard"]["world_size"] != world for part in parts):
        raise StateError("the parts are of checkpoints by different numbers of processes. Use parts of one checkpoint.")
    if ranks != list(range(world)):
        missing = sorted(set(range(world)) - set(ranks))
        raise StateError(
            f"parts of all {world} processes are needed, got those of {ranks}"
            f"{f'; missing: {missing}' if missing else ''}. Load all of them together."
        )
    for part in parts[1:]:
        for what, mine, other in zip(
            ("seed", "epoch", "samples trained on in it", "samples trained on before"),
            moment(parts[0]["timeline"]),
            moment(part["timeline"]),
            strict=True,
        ):
            if mine != other:
                raise StateError(
                    f"the parts must be of one checkpoint; they differ in {what}: {mine} on rank 0, {other} on rank "
                    f"{_rank(part)}. Use parts that were written after the same step of the same run."
                )
    if about["sharding"] != sharding:
        raise StateError(
            f"the checkpoint was written with sharding={about['sharding']!r}, this pruner has {sharding!r}. "
            "Make the pruner with the same."
        )
    return parts


def _rank(part: Part) -> int:
    return int(part["timeline"]["shard"]["rank"])


def _shard_of(part: Part) -> Shard:
    about = part["timeline"]["shard"]
    return Shard(int(part["n"]), int(about["rank"]), int(about["world_size"]))


def _table(parts: Sequence[Part], shard: Shard) -> dict[str, Any]:
    """The rows of the rank's samples, and what other ranks have learnt about them."""
    learnt = [part["table"]["learnt"] for part in parts]
    heard = {name: torch.cat([rows[name] for rows in learnt]) for name in ("index", "score", "usage")}
    here = (heard["index"] >= shard.start) & (heard["index"] < shard.stop)
    agreed = np.array(parts[0]["timeline"]["shard"]["counters"])
    counted = [np.array([*part["table"]["strays"].tolist(), part["table"]["writes"]]) for part in parts]
    nonfinite, outside, writes = (int(c) for c in agreed + sum(count - agreed for count in counted))
    same = parts[0]["timeline"]["shard"]["world_size"] == shard.world
    guests = parts[shard.rank]["table"]["guests"] if same else _no_guests()
    return {
        "columns": {name: _rows(parts, name, shard) for name in parts[0]["table"]["columns"]},
        "strays": torch.tensor([nonfinite, outside]),
        "writes": writes,
        "guests": guests,
        "heard": {name: values[here] for name, values in heard.items()},
    }


def _no_guests() -> dict[str, torch.Tensor]:
    return {"index": torch.empty(0, dtype=torch.int64), "score": torch.empty(0)}


def _rows(parts: Sequence[Part], name: str, shard: Shard) -> torch.Tensor:
    """One column for the rank's samples; without a copy where they are all in one part."""
    found = []
    for part in parts:
        there = _shard_of(part)
        low, high = max(shard.start, there.start), min(shard.stop, there.stop)
        if low < high:
            values = part["table"]["columns"][name]
            if values.shape != (there.size,):
                raise StateError(
                    f"column {name!r} of the part of rank {there.rank} must hold {there.size} values, got shape "
                    f"{tuple(values.shape)}. Use parts that were written to their end."
                )
            found.append(values[low - there.start : high - there.start])
    return found[0] if len(found) == 1 else torch.cat(found) if found else torch.empty(0)


def _epoch(parts: Sequence[Part], shard: Shard) -> dict[str, Any] | None:
    """The open epoch: as it was for as many ranks; for another number, what is left of it."""
    epochs = [part["timeline"]["epoch"] for part in parts]
    if any(epoch is None for epoch in epochs):
        return None
    if len(parts) == shard.world:
        own: dict[str, Any] = dict(epochs[shard.rank])
        return own
    todo = Bits(shard.start, shard.stop)
    for part, epoch in zip(parts, epochs, strict=True):
        there = _shard_of(part)
        theirs = Bits(there.start, there.stop, epoch["todo"].numpy().view(np.uint64))
        for start, stop in Bits(max(shard.start, there.start), min(shard.stop, there.stop)).pieces():
            todo.add(theirs.samples(start, stop))
        guests = epoch["todo_guests"].numpy()
        todo.add(guests[(guests >= shard.start) & (guests < shard.stop)])
    return {
        "kind": "undealt",
        "selected": torch.from_numpy(todo.words.view(np.int64)),
        "left": sum(int(epoch["n_todo"]) for epoch in epochs),
        "base": int(parts[0]["timeline"]["clock"]["trained"]),
    }
