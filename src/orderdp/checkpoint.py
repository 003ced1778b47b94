"""Checkpoint files, and the check that a state fits the pruner that loads it."""

from __future__ import annotations

import os
import pickle
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from orderdp._files import flushed
from orderdp.errors import StateError
from orderdp.policy import Column, Policy, describe

__all__ = [
    "FORMAT",
    "VERSION",
    "check_origin",
    "load_checkpoint",
    "on_host",
    "save_checkpoint",
    "whole_state",
    "with_current_keys",
    "with_origin",
]


FORMAT = "orderdp.Pruner"


VERSION = 1


def with_origin(policy: Policy, n: int, table: Mapping[str, Any], timeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a pruner, assembled from the states of its parts.

    Args:
        policy: The pruner's policy.
        n: Number of samples in its data set.
        table: The state of its score table.
        timeline: The state of its epoch manager.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "policy": describe(policy),
        "n": n,
        "table": table,
        "timeline": timeline,
    }


def with_current_keys(state: Any) -> Any:
    """Return the state of a pruner, or the list of states, with the keys that earlier versions named otherwise."""
    if isinstance(state, list | tuple):
        return [with_current_keys(part) for part in state]
    table = state.get("table") if isinstance(state, Mapping) else None
    if not isinstance(table, Mapping) or "strays" not in table:
        return state
    renamed = {("invalid_counts" if name == "strays" else name): value for name, value in table.items()}
    return {**state, "table": renamed}


def check_origin(state: Any, policy: Policy, n: int) -> None:
    """Raise if `state`, or one of the states in a list, does not belong to such a pruner.

    Args:
        state: What ``Pruner.state_dict()`` returned; or a list of what it returned on each rank.
        policy: The policy it must have been written with.
        n: The number of samples its data set must have.
    """
    in_parts = isinstance(state, list | tuple) and all(isinstance(part, Mapping) for part in state) and state
    for part in state if in_parts else [state]:
        _check_part(part, policy, n)


def _check_part(state: Any, policy: Policy, n: int) -> None:
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        came = f"keys {sorted(map(str, state))[:6]}" if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"this must be what Pruner.state_dict() gave, got {came}. Pass that part of the checkpoint.")
    if state.get("version") != VERSION:
        raise StateError(
            f"the checkpoint must be of version {VERSION}, it is of {state.get('version')!r}. "
            "Load it with the version of orderdp that wrote it."
        )
    if state.get("policy") != describe(policy):
        raise StateError(
            f"the checkpoint was written with {state.get('policy')}, this pruner has {describe(policy)}. "
            'Make the pruner with the same policy; to take over scores alone, observe(index, state["table"]...).'
        )
    roster = state.get("roster")
    if roster is not None and len(roster["removed"]):
        raise StateError(
            f"the checkpoint is of a GrowingPruner, from which {len(roster['removed'])} samples were removed; this "
            "pruner would draw them again. Load it into a GrowingPruner."
        )
    if state.get("n") != n:
        raise StateError(
            f"the checkpoint is of a data set of {state.get('n')} samples, this one has {n}. "
            "Resume with the data set it was written for."
        )


def whole_state(state: Any, declared: Mapping[str, Column]) -> Mapping[str, Any]:
    """Return one state of a pruner with a replicated table, from a single state or from the states of all ranks.

    Args:
        state: The state, or the list of states.
        declared: The columns of the table.
    """
    in_parts = isinstance(state, list | tuple)
    if any("shard" in part["timeline"] for part in (state if in_parts else [state])):
        raise StateError(
            'the checkpoint is of a sharded table. Load it into Pruner(..., table="sharded"), at any number of '
            "processes."
        )
    if in_parts:
        from orderdp.distributed.checkpoint import merge_rank_states

        state = merge_rank_states(state, declared)
    group = state.get("group")
    if group is not None:
        raise StateError(
            f"the checkpoint was written by rank {group['rank']} of {group['world_size']} without sync(): it lacks "
            "what the others had learnt. Call pruner.sync() on all ranks before state_dict(), or load the parts of "
            "all ranks together: load_state_dict([part_0, part_1, ...])."
        )
    whole: Mapping[str, Any] = state
    return whole


# Exceptions from reading a file that is not a checkpoint, or a damaged one.
_UNREADABLE = (
    OSError,
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    struct.error,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def save_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write tensors, numbers, strings and containers of them to `path`.

    The file is written under a temporary name and renamed, so `path` holds the old checkpoint or the new one and
    never half of either. Values that `load_checkpoint` would reject raise an error here.

    Args:
        path: The file. Its folder must exist.
        state: The values, for example ``{"model": model.state_dict(), "pruner": pruner.state_dict()}``.
    """
    with flushed(Path(path)) as file:
        torch.save(dict(state), file)
        file.flush()
        try:
            torch.load(file.name, map_location="cpu", weights_only=True, mmap=True)  # reads no tensor data
        except pickle.UnpicklingError as error:
            raise StateError(
                "a checkpoint must hold tensors, numbers, strings and containers of them, this one holds "
                f"{_kind(error)} as well, and could not be loaded. Make tensors and plain values of it."
            ) from None


def load_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu", *, mmap: bool = False) -> dict[str, Any]:
    """Read a file written by `save_checkpoint`; only tensors and plain values, never code.

    Args:
        path: The file.
        map_location: Device of the tensors, as in `torch.load`.
        mmap: Whether tensors stay in the file until they are accessed.
    """
    if not Path(path).exists():
        raise StateError(f"there is no checkpoint at {os.fspath(path)!r}.")
    try:
        state = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except _UNREADABLE as error:
        reason = _kind(error) if isinstance(error, pickle.UnpicklingError) else str(error).strip().partition("\n")[0]
        raise StateError(
            f"{os.fspath(path)!r} is no checkpoint that can be read ({reason or type(error).__name__}). It is "
            "damaged, was not written to its end, or holds more than tensors and plain values. Use another one."
        ) from error
    if not isinstance(state, dict):
        raise StateError(f"{os.fspath(path)!r} must hold a dict, it holds {type(state).__name__}. Use another one.")
    return state


def on_host(state: Any) -> Any:
    """Return the state with all tensors on the host: a checkpoint may have been loaded to a device."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, Mapping):
        return {name: on_host(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)([on_host(value) for value in state])
    return state


def _kind(error: pickle.UnpicklingError) -> str:
    """Return what torch refused to load; torch's own message suggests unsafe options."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return f"something of {found[1]}" if found else str(error).strip().partition("\n")[0]
