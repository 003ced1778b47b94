"""What a proxy has recorded, in a folder: arrays, checkpoints, and what they cost. Written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from orderdp.errors import StateError
from orderdp.replacing import replacing, write_text
from orderdp.state import load_checkpoint, save_checkpoint

__all__ = ["Store"]

_VERSION = 2


class Store:
    """A folder of recordings.

    Args:
        folder: Where; None for a temporary one that goes when the store does.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = Path(mkdtemp(prefix="orderdp-proxy-") if folder is None else folder)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = {}

    def open(self, identity: Mapping[str, Any]) -> None:
        """Takes the folder over, or raises where it belongs to something else than `identity` says.

        Args:
            identity: What the recordings depend on, as plain values.
        """
        path = self.folder / "proxy.json"
        wanted = {"version": _VERSION, **identity}
        if not path.exists():
            self._identity = wanted
            self._write_index()
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            self._identity, self.seconds = found["identity"], found["seconds"]
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{path} is damaged ({error}). Use another folder, or remove this one.") from None
        for name, value in wanted.items():
            if self._identity.get(name) != value:
                raise StateError(
                    f"the recordings in {self.folder} are of another proxy: {name} must be {value!r}, it was "
                    f"{self._identity.get(name)!r}. Use another folder, or remove this one."
                )

    def has(self, name: str) -> bool:
        """Whether there is an array of that name."""
        return (self.folder / f"{name}.npy").exists()

    def load(self, name: str) -> np.ndarray:
        """An array, mapped from its file and not read as a whole."""
        array: np.ndarray = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return array

    @contextmanager
    def writing(self, name: str, shape: tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
        """An array that is its file, to be filled; it is kept where nothing goes wrong."""
        path = self.folder / f"{name}.npy"
        with replacing(path) as temporary:
            array = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
            yield array
            array.flush()

    def has_checkpoint(self, name: str) -> bool:
        """Whether there is a checkpoint of that name."""
        return (self.folder / f"{name}.pt").exists()

    def load_checkpoint(self, name: str) -> dict[str, Any]:
        """Tensors and plain values."""
        return load_checkpoint(self.folder / f"{name}.pt")

    def save_checkpoint(self, name: str, state: Mapping[str, Any]) -> None:
        """Tensors and plain values."""
        save_checkpoint(self.folder / f"{name}.pt", state)

    def spent(self, name: str, seconds: float) -> None:
        """Notes what something took."""
        self.seconds[name] = seconds
        self._write_index()

    def _write_index(self) -> None:
        text = json.dumps({"identity": self._identity, "seconds": self.seconds}, indent=1)
        write_text(self.folder / "proxy.json", text)
