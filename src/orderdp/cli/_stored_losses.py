"""Losses from a file: a checkpoint that contains a pruner's state at any depth, or arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orderdp.advice import StoredLosses
from orderdp.checkpoint import FORMAT, VERSION, load_checkpoint
from orderdp.errors import DatasetError, StateError
from orderdp.score_table import mean_age

__all__ = ["refuse_parts", "stored_losses"]


def stored_losses(path: Path) -> StoredLosses | np.ndarray:
    """Read the losses in a file.

    Args:
        path: An .npy or .npz file of losses; any other file is read as a checkpoint.
    """
    if path.suffix in (".npy", ".npz"):
        return _array(path)
    states = list(_states(_loaded(path)))
    if not states:
        raise StateError(
            f"{str(path)!r} holds no state of a Pruner. Save one with it: save_checkpoint(path, "
            '{"pruner": pruner.state_dict()}).'
        )
    if len(states) > 1:
        raise StateError(
            f"{str(path)!r} holds the states of {len(states)} pruners or processes, and advice is about one. Save one, "
            "after pruner.sync(), in a file of its own."
        )
    try:
        return _losses(states[0], path)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"the state of the pruner in {str(path)!r} is damaged ({error!r}). Use another one."
        ) from error


def refuse_parts(folder: Path) -> None:
    """Raise if `orderdp.distributed.save_parts` wrote the folder."""
    parts = sorted(folder.glob("pruner-*-of-*.pt"))
    if parts:
        raise _in_parts(folder, len(parts))


def _array(path: Path) -> np.ndarray:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = loaded.files
            name = "losses" if "losses" in names else names[0] if len(names) == 1 else None
            if name is not None:
                array: np.ndarray = loaded[name]
                return array
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DatasetError(
            f"{str(path)!r} cannot be read ({reason}). It must hold numbers, written by numpy.save or numpy.savez."
        ) from error
    raise DatasetError(
        f"{str(path)!r} must hold an array 'losses', or one array alone, it holds {', '.join(names) or 'none'}."
    )


def _loaded(path: Path) -> dict[str, Any]:
    try:
        return load_checkpoint(path, mmap=True)  # of a large model only the names are read
    except StateError:
        return load_checkpoint(path)  # files in the old format cannot be mapped


def _states(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the states of pruners, at any depth."""
    if isinstance(value, Mapping):
        if value.get("format") == FORMAT:
            yield value
            return
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _states(part)


def _losses(state: Mapping[str, Any], path: Path) -> StoredLosses:
    if state["version"] != VERSION:
        raise StateError(
            f"{str(path)!r} must be of version {VERSION}, it is of version {state['version']!r}. Ask with the version "
            "of orderdp that wrote it."
        )
    if state.get("group") is not None:
        raise StateError(
            f"{str(path)!r} was written by rank {state['group']['rank']} of {state['group']['world_size']} and lacks "
            "what the others have learned. Call pruner.sync() on all ranks before state_dict()."
        )
    timeline = state["timeline"]
    if "shard" in timeline and timeline["shard"]["world_size"] > 1:
        raise _in_parts(path, timeline["shard"]["world_size"])
    columns = {name: values.numpy() for name, values in state["table"]["columns"].items()}
    there = np.ones(int(state["n"]), dtype=np.bool_)
    if state.get("roster") is not None:
        there[state["roster"]["removed"].numpy()] = False
    columns = {name: values[there] for name, values in columns.items()}
    age = mean_age(columns["seen"], int(timeline["clock"]["epoch"])) if "seen" in columns else None
    return StoredLosses({"score": columns["score"], **columns}, age, str(state["policy"]))


def _in_parts(path: Path, parts: int) -> StateError:
    return StateError(
        f"{str(path)!r} holds a sharded table, or one of {parts} parts of it, and advice needs all losses. Gather "
        "pruner.scores of all processes, save them with numpy.save, and give that file."
    )
