"""Checkpoints of several ranks: for torch.distributed.checkpoint, merged, and resharded to another world size."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orderdp._validation import is_count
from orderdp.checkpoint import load_checkpoint, save_checkpoint
from orderdp.distributed.sharded_table import BitSet, Shard, ShardedTable
from orderdp.distributed.sync import Changes, merged, wire_dtype
from orderdp.errors import StateError
from orderdp.policy import Column

if TYPE_CHECKING:
    from orderdp.pruner import Pruner

__all__ = [
    "DCPState",
    "checkpoint_id",
    "load_parts",
    "merge_rank_states",
    "resharded",
    "save_parts",
]


class DCPState:
    """Wrap a pruner for ``torch.distributed.checkpoint``: its state is a single byte string.

    ``torch.distributed.checkpoint`` loads into a state with the same keys and shapes. The state of a pruner has
    different ones within an epoch and between epochs, so it is packed::

        from orderdp.distributed import DCPState

        pruner.sync()
        dcp.save({"model": model.state_dict(), "pruner": DCPState(pruner)}, checkpoint_id=...)
        dcp.load({"model": model.state_dict(), "pruner": DCPState(pruner)}, checkpoint_id=...)

    Args:
        pruner: The pruner to save or load.
    """

    def __init__(self, pruner: Pruner) -> None:
        self._pruner = pruner

    def state_dict(self) -> dict[str, Any]:
        """Return the pruner's state in one entry."""
        file = io.BytesIO()
        torch.save(self._pruner.state_dict(), file)
        return {"packed": file.getvalue()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the pruner from `state`; only tensors and plain values are read."""
        packed = state.get("packed") if isinstance(state, Mapping) else None
        if not isinstance(packed, bytes):
            raise StateError(
                f"a packed state must come from DCPState(pruner).state_dict(), got {type(packed).__name__}."
            )
        try:
            unpacked = torch.load(io.BytesIO(packed), weights_only=True)
        except Exception as error:  # torch raises many kinds
            raise StateError(f"the packed state is damaged ({error!r}). Use another checkpoint.") from error
        self._pruner.load_state_dict(unpacked)


def merge_rank_states(states: Sequence[Mapping[str, Any]], declared: Mapping[str, Column]) -> dict[str, Any]:
    """Merge the states of all ranks into one, as if the ranks had synced before writing them.

    Args:
        states: ``Pruner.state_dict()`` of every rank, in any order.
        declared: The table's columns.
    """
    states = sorted(states, key=_rank)
    _check_complete(states)
    groups = [state["group"] for state in states]
    columns = states[0]["table"]["columns"]
    first = _changes(states[0], declared)
    base = {name: columns[name].cpu().numpy().astype(wire_dtype(column)) for name, column in declared.items()}
    for name in declared:
        base[name][first.index] = groups[0]["before"][name].numpy()
    rows = merged([first, *(_changes(state, declared) for state in states[1:])], base, declared)
    together = {}
    for name, old in base.items():
        old[rows.index] = rows.columns[name]
        small = columns[name].dtype
        fits = old.dtype.kind == "f" or not len(old) or int(old.max()) <= torch.iinfo(small).max
        together[name] = torch.from_numpy(old).to(small if fits else torch.int32)
    before = groups[0]["counters"]
    counters = [
        np.array([*state["table"]["invalid_counts"].tolist(), state["table"]["writes"]]) - before for state in states
    ]
    nonfinite, outside, writes = (int(count) for count in before + np.sum(counters, axis=0))
    table = {"columns": together, "invalid_counts": torch.tensor([nonfinite, outside]), "writes": writes}
    clock = dict(states[0]["timeline"]["clock"])
    clock["kept_before"] = groups[0]["kept"] + sum(group["fed"] for group in groups) - clock["trained"]
    return {**states[0], "table": table, "timeline": {**states[0]["timeline"], "clock": clock}, "group": None}


def _rank(state: Mapping[str, Any]) -> int:
    group = state.get("group") if isinstance(state, Mapping) else None
    if group is None:
        raise StateError(
            "parts of a checkpoint must come from state_dict() on each rank without sync(), got a complete state. Load "
            "that one alone."
        )
    return int(group["rank"])


def _check_complete(states: Sequence[Mapping[str, Any]]) -> None:
    world, ranks = states[0]["group"]["world_size"], [_rank(state) for state in states]
    if ranks != list(range(world)):
        raise StateError(f"parts of all {world} ranks are needed, got those of {ranks}. Load them together.")
    for state in states[1:]:
        for name, of in (("epoch", "clock"), ("trained", "clock")):
            here, there = (part["timeline"][of][name] for part in (states[0], state))
            if here != there:
                raise StateError(
                    f"the parts must have been written after the same step; rank 0 has {name} {here}, rank "
                    f"{_rank(state)} has {there}. Use parts of one checkpoint."
                )
        if state["group"]["kept"] != states[0]["group"]["kept"]:
            raise StateError("the parts are from different runs or steps. Use parts of one checkpoint.")


def _changes(state: Mapping[str, Any], declared: Mapping[str, Column]) -> Changes:
    index = state["group"]["index"].cpu().numpy()
    columns = state["table"]["columns"]
    return Changes(
        index,
        {name: columns[name].cpu().numpy()[index].astype(wire_dtype(column)) for name, column in declared.items()},
    )


Part = Mapping[str, Any]


def checkpoint_id(timeline: Part) -> tuple[int, ...]:
    """Position of a run when a part was written; equal for all parts of one checkpoint."""
    clock = timeline["clock"]
    return int(timeline["seed"]), int(clock["epoch"]), int(clock["trained"]), int(clock["kept_before"])


def resharded(parts: Sequence[Part], shard: Shard, sharding: str) -> dict[str, Any]:
    """Build the state of one rank from the parts of all ranks.

    Args:
        parts: ``Pruner.state_dict()`` of every rank, in any order.
        shard: The samples that the restored rank holds.
        sharding: "exact" or "stratified", as in its pruner.
    """
    parts = _checked(parts, shard, sharding)
    first = parts[0]
    timeline = {**first["timeline"], "epoch": _epoch(parts, shard)}
    return {**first, "table": _table(parts, shard), "timeline": timeline}


def _checked(parts: Sequence[Part], shard: Shard, sharding: str) -> list[Part]:
    """Return the parts in order of rank; raise if they do not fit."""
    for part in parts:
        if "shard" not in part["timeline"]:
            raise StateError(
                'the checkpoint holds a replicated table. Load it into Pruner(..., table="replicated"), or reuse its '
                "scores with observe(...)."
            )
    parts = sorted(parts, key=_rank_of_part)
    about = parts[0]["timeline"]["shard"]
    world, ranks = about["world_size"], [_rank_of_part(part) for part in parts]
    if any(part["timeline"]["shard"]["world_size"] != world for part in parts):
        raise StateError(
            "the parts are from checkpoints of different numbers of processes. Use parts of one checkpoint."
        )
    if not is_count(world) or world > max(64 * len(parts), 1 << 20):
        raise StateError(f"the number of processes of the checkpoint is damaged: {world!r}. Use another checkpoint.")
    if ranks != list(range(world)):
        missing = sorted(set(range(world)) - set(ranks))
        raise StateError(
            f"parts of all {world} processes are needed, got those of {ranks}"
            f"{f'; missing: {missing}' if missing else ''}. Load all of them together."
        )
    for part in parts[1:]:
        for what, mine, other in zip(
            ("seed", "epoch", "samples trained on in it", "samples trained on before"),
            checkpoint_id(parts[0]["timeline"]),
            checkpoint_id(part["timeline"]),
            strict=True,
        ):
            if mine != other:
                raise StateError(
                    f"the parts must come from one checkpoint; they differ in {what}: {mine} on rank 0, {other} on "
                    f"rank {_rank_of_part(part)}. Use parts that were written after the same step of the same run."
                )
    if about["sharding"] != sharding:
        raise StateError(
            f"the checkpoint was written with sharding={about['sharding']!r}, this pruner has {sharding!r}. Create the "
            "pruner with the same sharding."
        )
    return parts


def _rank_of_part(part: Part) -> int:
    return int(part["timeline"]["shard"]["rank"])


def _shard_of(part: Part) -> Shard:
    about = part["timeline"]["shard"]
    return Shard(int(part["n"]), int(about["rank"]), int(about["world_size"]))


def _table(parts: Sequence[Part], shard: Shard) -> dict[str, Any]:
    """Rows of the rank's samples, and what other ranks have learned about them."""
    changed = [part["table"]["learnt"] for part in parts]
    received = {name: torch.cat([rows[name] for rows in changed]) for name in ("index", "score", "usage")}
    here = (received["index"] >= shard.start) & (received["index"] < shard.stop)
    agreed = np.array(parts[0]["timeline"]["shard"]["counters"])
    counted = [np.array([*part["table"]["invalid_counts"].tolist(), part["table"]["writes"]]) for part in parts]
    nonfinite, outside, writes = (int(c) for c in agreed + sum(count - agreed for count in counted))
    same = parts[0]["timeline"]["shard"]["world_size"] == shard.world
    remote = parts[shard.rank]["table"]["guests"] if same else _no_remote()
    return {
        "columns": {name: _rows(parts, name, shard) for name in parts[0]["table"]["columns"]},
        "invalid_counts": torch.tensor([nonfinite, outside]),
        "writes": writes,
        "guests": remote,
        "heard": {name: values[here] for name, values in received.items()},
    }


def _no_remote() -> dict[str, torch.Tensor]:
    return {"index": torch.empty(0, dtype=torch.int64), "score": torch.empty(0)}


def _rows(parts: Sequence[Part], name: str, shard: Shard) -> torch.Tensor:
    """One column for the rank's samples; not copied if all are in one part."""
    found = []
    for part in parts:
        there = _shard_of(part)
        low, high = max(shard.start, there.start), min(shard.stop, there.stop)
        if low < high:
            values = part["table"]["columns"][name]
            if values.shape != (there.size,):
                raise StateError(
                    f"column {name!r} of the part of rank {there.rank} must hold {there.size} values, got shape "
                    f"{tuple(values.shape)}. Use complete parts."
                )
            found.append(values[low - there.start : high - there.start])
    return found[0] if len(found) == 1 else torch.cat(found) if found else torch.empty(0)


def _epoch(parts: Sequence[Part], shard: Shard) -> dict[str, Any] | None:
    """Return the open epoch: unchanged for the same world size, otherwise its remaining samples."""
    epochs = [part["timeline"]["epoch"] for part in parts]
    if any(epoch is None for epoch in epochs):
        return None
    if len(parts) == shard.world:
        own: dict[str, Any] = dict(epochs[shard.rank])
        return own
    todo = BitSet(shard.start, shard.stop)
    for part, epoch in zip(parts, epochs, strict=True):
        there = _shard_of(part)
        theirs = BitSet(there.start, there.stop, epoch["todo"].numpy().view(np.uint64))
        for start, stop in BitSet(max(shard.start, there.start), min(shard.stop, there.stop)).pieces():
            todo.add(theirs.samples(start, stop))
        remote = epoch["todo_guests"].numpy()
        todo.add(remote[(remote >= shard.start) & (remote < shard.stop)])
    return {
        "kind": "undealt",
        "selected": torch.from_numpy(todo.words.view(np.int64)),
        "left": sum(int(epoch["n_todo"]) for epoch in epochs),
        "base": int(parts[0]["timeline"]["clock"]["trained"]),
    }


_NAME = "pruner-{rank:05d}-of-{world:05d}.pt"


_PATTERN = re.compile(r"pruner-(\d{5})-of-(\d{5})\.pt")


def save_parts(pruner: Pruner, folder: str | os.PathLike[str], *, dataset: str = "") -> Path:
    """Save this rank's part of a checkpoint to a folder. Every rank calls it after the same step.

    The file is written under a temporary name first.

    Args:
        pruner: A pruner with ``table="sharded"``.
        folder: Folder of this checkpoint only, the same on all ranks. Created if missing.
        dataset: Name or version of the data set, compared on load.

    Returns:
        Path of this rank's file.
    """
    _check_sharded(pruner)
    table = pruner._table
    assert isinstance(table, ShardedTable)
    state = pruner._state_around(table.state_dict(copy=False))
    about = state["timeline"]["shard"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / _NAME.format(rank=about["rank"], world=about["world_size"])
    save_checkpoint(path, {"dataset": dataset, "pruner": state})
    return path


def load_parts(pruner: Pruner, folder: str | os.PathLike[str], *, dataset: str = "") -> None:
    """Restore a pruner from a folder written by `save_parts`, with the same or another number of processes.

    Raises, and changes nothing, if a part is missing or does not belong to the checkpoint. Not a collective.

    Args:
        pruner: A pruner with ``table="sharded"``, for the same data set and policy.
        folder: Folder with the parts. Every rank must be able to read all of them.
        dataset: The `dataset` given to `save_parts`.
    """
    _check_sharded(pruner)
    parts = []
    for path in _paths(Path(folder)):
        part: dict[str, Any] = load_checkpoint(path, mmap=True)
        if set(part) != {"dataset", "pruner"}:
            raise StateError(f"{os.fspath(path)!r} is not a part written by save_parts. Use another checkpoint.")
        if part["dataset"] != dataset:
            raise StateError(
                f"{os.fspath(path)!r} belongs to the data set {part['dataset']!r}, not {dataset!r}. Resume with the "
                "original data set."
            )
        parts.append(part["pruner"])
    pruner.load_state_dict(parts)


def _paths(folder: Path) -> list[Path]:
    """Paths of the parts of all ranks; raise if any is missing."""
    found = {match.groups(): path for path in folder.glob("*.pt") if (match := _PATTERN.fullmatch(path.name))}
    if not found:
        raise StateError(f"there are no parts of a checkpoint in {os.fspath(folder)!r}.")
    worlds = sorted({int(world) for _, world in found})
    if len(worlds) > 1:
        raise StateError(
            f"{os.fspath(folder)!r} holds parts of checkpoints of {' and '.join(map(str, worlds))} processes. Use a "
            "separate folder for each checkpoint."
        )
    names = [_NAME.format(rank=rank, world=worlds[0]) for rank in range(worlds[0])]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise StateError(
            f"{os.fspath(folder)!r} must hold the parts of all {worlds[0]} processes; missing: "
            f"{', '.join(missing[:8])}. A process died before it wrote its part, or its disk is not mounted: use an "
            "earlier checkpoint, or copy the file here."
        )
    return [folder / name for name in names]


def _check_sharded(pruner: Pruner) -> None:
    if pruner.table != "sharded":
        raise StateError(
            'parts are written and read by pruners with table="sharded". Use save_checkpoint(path, '
            '{"pruner": pruner.state_dict()}) and load_checkpoint(path).'
        )
