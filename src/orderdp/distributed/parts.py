"""Checkpoints that ranks wrote without meeting before: each holds what the others do not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from orderdp.distributed.ledger import Changes, merged, wire_dtype
from orderdp.errors import StateError
from orderdp.policy import Column

__all__ = ["joined"]


def joined(states: Sequence[Mapping[str, Any]], declared: Mapping[str, Column]) -> dict[str, Any]:
    """One state out of those of all ranks, as if they had met before writing them.

    Args:
        states: What ``Pruner.state_dict()`` gave on each rank, in any order.
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
    counters = [np.array([*state["table"]["strays"].tolist(), state["table"]["writes"]]) - before for state in states]
    nonfinite, outside, writes = (int(count) for count in before + np.sum(counters, axis=0))
    table = {"columns": together, "strays": torch.tensor([nonfinite, outside]), "writes": writes}
    clock = dict(states[0]["timeline"]["clock"])
    clock["kept_before"] = groups[0]["kept"] + sum(group["fed"] for group in groups) - clock["trained"]
    return {**states[0], "table": table, "timeline": {**states[0]["timeline"], "clock": clock}, "group": None}


def _rank(state: Mapping[str, Any]) -> int:
    group = state.get("group") if isinstance(state, Mapping) else None
    if group is None:
        raise StateError(
            "parts of a checkpoint must be what state_dict() gave on each rank without sync(), got one that is whole. "
            "Load that one alone."
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
            raise StateError("the parts are of different runs or moments. Use parts of one checkpoint.")


def _changes(state: Mapping[str, Any], declared: Mapping[str, Column]) -> Changes:
    index = state["group"]["index"].cpu().numpy()
    columns = state["table"]["columns"]
    return Changes(
        index,
        {name: columns[name].cpu().numpy()[index].astype(wire_dtype(column)) for name, column in declared.items()},
    )
