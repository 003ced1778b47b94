"""Checkpoint files, and the check that a state fits the pruner that loads it."""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    "under_policy",
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


#: Up to where `in_turn` stands in an `Unlearned` that does not name it: it drew uniformly.
_NO_IN_TURN = re.compile(r"(\bUnlearned\((?:(?!in_turn=|Unlearned\().)*?refresh=[^,)]+, )(?=unbiased=)")
#: The same for `until_pass`: it skipped learned samples to the end.
_NO_UNTIL_PASS = re.compile(r"(\bUnlearned\((?:(?!until_pass=|Unlearned\().)*?in_turn=[^,)]+, )(?=unbiased=)")


def with_current_keys(state: Any) -> Any:
    """Return the state of a pruner, or the list of states, under the names of this version: earlier ones differed."""
    if isinstance(state, list | tuple):
        return [with_current_keys(part) for part in state]
    if not isinstance(state, Mapping):
        return state
    changed: dict[str, Any] = {}
    table, policy = state.get("table"), state.get("policy")
    if isinstance(table, Mapping) and "strays" in table:
        changed["table"] = {("invalid_counts" if name == "strays" else name): value for name, value in table.items()}
    if isinstance(policy, str):
        policy = _NO_IN_TURN.sub(r"\1in_turn=False, ", policy.replace("normalise=", "normalize="))
        policy = _NO_UNTIL_PASS.sub(r"\1until_pass=None, ", policy)
        if policy != state["policy"]:
            changed["policy"] = policy
    return {**state, **changed} if changed else state


def under_policy(state: Any, policy: Policy, declared: Mapping[str, Column]) -> Any:
    """Return a state, or a list of states, as if it had been written with another policy.

    Columns that this policy has and the other had not start as for unseen samples. An open epoch stays as it was drawn.

    Args:
        state: What ``Pruner.state_dict()`` returned; or a list of what it returned on each rank.
        policy: The policy to continue with.
        declared: The columns of its table.
    """
    if isinstance(state, list | tuple):
        return [under_policy(part, policy, declared) for part in state]
    if not isinstance(state, Mapping) or state.get("format") != FORMAT or state.get("policy") == describe(policy):
        return state
    if state.get("group") is not None:
        raise StateError(
            f"the checkpoint is the part of rank {state['group']['rank']} and was written without sync(): the policy "
            "cannot be replaced in it. Call pruner.sync() on all ranks before state_dict()."
        )
    table, epoch = state["table"], state["timeline"]["epoch"]
    if isinstance(epoch, Mapping) and epoch.get("kind") == "stepwise" and policy.every != "batch":
        raise StateError(
            f"the checkpoint was written inside an epoch of {state['policy']}, which selects at every step; "
            f"{describe(policy)} cannot continue it. Use a checkpoint from between two epochs."
        )
    stored = table["columns"]
    columns = {
        name: stored[name] if name in stored else torch.full_like(stored["score"], column.initial).to(_dtype(column))
        for name, column in declared.items()
    }
    return {**state, "policy": describe(policy), "table": {**table, "columns": columns}}


def _dtype(column: Column) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, column.dtype)
    return dtype


def check_origin(state: Any, policy: Policy, n: int, fingerprint: str | None = None) -> None:
    """Raise if `state`, or one of the states in a list, does not belong to such a pruner.

    Args:
        state: What ``Pruner.state_dict()`` returned; or a list of what it returned on each rank.
        policy: The policy it must have been written with.
        n: The number of samples its data set must have.
        fingerprint: The fingerprint its data set must have; None for any.
    """
    in_parts = isinstance(state, list | tuple) and all(isinstance(part, Mapping) for part in state) and state
    for part in state if in_parts else [state]:
        _check_part(part, policy, n)
        if fingerprint is not None and part.get("fingerprint", fingerprint) != fingerprint:
            raise StateError(
                f"the checkpoint was written for the data set {part['fingerprint']!r}, this pruner has "
                f"{fingerprint!r}: its scores belong to other samples. Load the checkpoint of this data set, or start "
                "from scratch."
            )


def _check_part(state: Any, policy: Policy, n: int) -> None:
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        came = f"keys {sorted(map(str, state))[:6]}" if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"the state must come from Pruner.state_dict(), got {came}. Pass that part of the checkpoint.")
    if state.get("version") != VERSION:
        raise StateError(
            f"the checkpoint must have version {VERSION}, got {state.get('version')!r}. Load it with the version of "
            "orderdp that wrote it."
        )
    if state.get("policy") != describe(policy):
        raise StateError(
            f"the checkpoint was written with {state.get('policy')}, this pruner has {describe(policy)}. Create the "
            'pruner with the same policy, or continue with this one: load_state_dict(state, policy="replace").'
        )
    roster = state.get("roster")
    if roster is not None and len(roster["removed"]):
        raise StateError(
            f"the checkpoint was written by a GrowingPruner, from which {len(roster['removed'])} samples were removed; "
            "this pruner would select them again. Load it into a GrowingPruner."
        )
    if state.get("n") != n:
        raise StateError(
            f"the checkpoint was written for a data set of {state.get('n')} samples, this one has {n}. Resume with the "
            "original data set."
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
            'the checkpoint holds a sharded table. Load it into Pruner(..., table="sharded"), with any number of '
            "processes."
        )
    if in_parts:
        from orderdp.distributed.checkpoint import merge_rank_states

        state = merge_rank_states(state, declared)
    group = state.get("group")
    if group is not None:
        raise StateError(
            f"the checkpoint was written by rank {group['rank']} of {group['world_size']} without sync(): it lacks the "
            "losses of the other ranks. Call pruner.sync() on all ranks before state_dict(), or load the parts of all "
            "ranks together: load_state_dict([part_0, part_1, ...])."
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
    zlib.error,
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
    path = Path(path)
    try:
        with flushed(path) as file:
            torch.save(dict(state), file)
            file.flush()
            torch.load(file.name, map_location="cpu", weights_only=True, mmap=True)  # reads no tensor data
    except pickle.UnpicklingError as error:
        raise StateError(
            f"a checkpoint must hold tensors, numbers, strings and containers of them, this one holds {_kind(error)} "
            "as well, and could not be loaded. Convert it to tensors and plain values."
        ) from None
    except (OSError, RuntimeError) as error:
        # Torch reports a failed write as a RuntimeError without the cause.
        raise StateError(_why_not_written(path, state, error)) from error


def _why_not_written(path: Path, state: Mapping[str, Any], error: Exception) -> str:
    folder = path.parent
    stands = " The previous checkpoint is unchanged." if path.is_file() else ""
    if not folder.is_dir():
        return f"the folder of a checkpoint must exist, {str(folder)!r} does not. Create it first."
    reason = str(error).strip().partition("\n")[0]
    needed = tensor_bytes(state)
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or free < needed:
            return (
                f"the disk is full: the checkpoint {str(path)!r} needs about {needed / 2**20:,.1f} MiB, and the disk "
                f"of {str(folder)!r} has {free / 2**20:,.1f} MiB free.{stands} Free some space, or save to another "
                "disk."
            )
    return (
        f"the checkpoint {str(path)!r} of about {needed / 2**20:,.1f} MiB could not be written ({reason}).{stands} "
        "Check the disk, its quota and its permissions."
    )


def tensor_bytes(state: Any) -> int:
    """Return the bytes of all tensors in a state; tensors that share a storage count once."""
    storages: dict[int, int] = {}

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, Mapping):
            for each in value.values():
                walk(each)
        elif isinstance(value, list | tuple):
            for each in value:
                walk(each)

    walk(state)
    return sum(storages.values())


def load_checkpoint(
    path: str | os.PathLike[str], map_location: Any = "cpu", *, mmap: bool = False, verify: bool = True
) -> dict[str, Any]:
    """Read a file written by `save_checkpoint`; only tensors and plain values, never code.

    Args:
        path: The file.
        map_location: Device of the tensors, as in `torch.load`.
        mmap: Whether tensors stay in the file until they are accessed.
        verify: Whether to compare all contents with the checksums that the file holds. It reads the file a second
            time, beside the loading; a flipped bit would otherwise go unnoticed. Files in torch's format from before
            1.6 have no checksums.
    """
    if not Path(path).exists():
        raise StateError(f"there is no checkpoint at {os.fspath(path)!r}.")
    odd = _odd_entry(path)
    if odd is not None:
        raise StateError(
            f"{os.fspath(path)!r} is damaged: its list of contents calls {odd} compressed or a folder, which it was "
            "not when it was written. Use another checkpoint."
        )
    with ThreadPoolExecutor(1) as beside:
        damaged = beside.submit(_damaged_part, path) if verify else None
        try:
            state = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
        except _UNREADABLE as error:
            raise StateError(_why_not_read(path, error)) from error
    part = damaged.result() if damaged else None
    if part is not None:
        raise StateError(
            f"{os.fspath(path)!r} is damaged: {part} differs from what was written. Use another checkpoint."
        )
    if not isinstance(state, dict):
        raise StateError(f"{os.fspath(path)!r} must hold a dict, it holds {type(state).__name__}. Use another one.")
    return state


def _why_not_read(path: str | os.PathLike[str], error: Exception) -> str:
    reason = _kind(error) if isinstance(error, pickle.UnpicklingError) else str(error).strip().partition("\n")[0]
    return (
        f"{os.fspath(path)!r} is not a readable checkpoint ({reason or type(error).__name__}). It is damaged, "
        "incomplete, or holds more than tensors and plain values. Use another one."
    )


def _odd_entry(path: str | os.PathLike[str]) -> str | None:
    """Return the name of a part that is marked as a folder or as compressed; None if there is none, or no list.

    Torch writes neither. It takes such a part for empty or shorter, and reads memory that was never written.
    """
    with suppress(*_UNREADABLE):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for info in archive.infolist():
                    if info.external_attr & 0x10 or info.compress_type != zipfile.ZIP_STORED:
                        return info.filename
    return None


def _damaged_part(path: str | os.PathLike[str]) -> str | None:
    """Return the name of a part whose checksum does not fit; None if all fit, or if the file has none."""
    try:
        if not zipfile.is_zipfile(path):
            return None
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
            if part is None:
                return None
            folder, _, name = part.partition("/")
            if name.startswith("data/"):
                with suppress(*_UNREADABLE):
                    return _StorageNames.in_archive(archive.read(f"{folder}/data.pkl")).get(name[5:], name)
            return "its list of contents" if name == "data.pkl" else name
    except _UNREADABLE as error:
        return f"its structure ({str(error).strip() or type(error).__name__})"


class _StorageNames(pickle.Unpickler):
    """Finds where in a state each stored tensor belongs. Builds no objects: all classes are replaced."""

    @classmethod
    def in_archive(cls, pickled: bytes) -> dict[str, str]:
        """Return the place in the state, such as ``pruner.table.columns.score``, by the name of the tensor's data."""
        names: dict[str, str] = {}

        def walk(value: Any, place: str) -> None:
            if isinstance(value, str) and value.startswith("\0"):
                names.setdefault(value[1:], place)
            elif isinstance(value, dict):
                for name, each in value.items():
                    walk(each, f"{place}.{name}".lstrip("."))
            elif isinstance(value, list | tuple):
                for number, each in enumerate(value):
                    walk(each, f"{place}.{number}".lstrip("."))

        walk(cls(io.BytesIO(pickled)).load(), "")
        return names

    def find_class(self, module: str, name: str) -> Any:
        """Return dict for the containers, and a function that returns its first argument for tensors."""
        return dict if name == "OrderedDict" else lambda *arguments: arguments[0] if arguments else None

    def persistent_load(self, saved: Any) -> str:
        """Return the name of the data, marked."""
        return f"\0{saved[2]}"


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
