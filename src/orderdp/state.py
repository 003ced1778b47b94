"""Checkpoint files: written whole or not at all, and read without running anything that is in them."""

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

from orderdp.errors import StateError
from orderdp.replacing import flushed

__all__ = ["load_checkpoint", "on_host", "save_checkpoint"]

# What reading bytes that are no checkpoint, or a damaged one, ends in.
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
    """Writes tensors, numbers, strings and containers of them to `path`.

    The file is written under a temporary name and renamed, so `path` holds the old checkpoint or the new one and
    never half of either. What `load_checkpoint` would refuse is refused here.

    Args:
        path: Where to. Its folder must exist.
        state: What, for example ``{"model": model.state_dict(), "pruner": pruner.state_dict()}``.
    """
    with flushed(Path(path)) as file:
        torch.save(dict(state), file)
        file.flush()
        try:
            torch.load(file.name, map_location="cpu", weights_only=True, mmap=True)  # reads no tensor
        except pickle.UnpicklingError as error:
            raise StateError(
                "a checkpoint must hold tensors, numbers, strings and containers of them, this one holds "
                f"{_kind(error)} as well, and could not be loaded. Make tensors and plain values of it."
            ) from None


def load_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu", *, mmap: bool = False) -> dict[str, Any]:
    """Reads what `save_checkpoint` wrote; only tensors and plain values, never code.

    Args:
        path: Where from.
        map_location: Where tensors go, as in `torch.load`.
        mmap: Whether tensors stay in the file until they are looked at.
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
    """The same, with all tensors in the memory of the host: a checkpoint may have been loaded to a device."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, Mapping):
        return {name: on_host(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)([on_host(value) for value in state])
    return state


def _kind(error: pickle.UnpicklingError) -> str:
    """What it was that torch would not load; its own message is about options that nobody should take."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return f"something of {found[1]}" if found else str(error).strip().partition("\n")[0]
