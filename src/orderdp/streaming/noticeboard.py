"""Noticeboard: a folder through which a filter and the processes that read its stream talk to each other.

The filter posts its decisions there when an epoch begins; workers read them, mapped into memory, so that all of them
share one copy. What a worker has looked at it reports when it comes to the end of its part. A folder and not shared
memory, because it reaches workers however they were started and however long ago.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import NamedTuple

import numpy as np

from orderdp.replacing import replacing
from orderdp.streaming.decisions import NOBODY_ASKS, Decisions

__all__ = ["Looked", "Noticeboard"]


class Looked(NamedTuple):
    """What the passes through a stream have looked at, and whether all that began came to their end."""

    marks: np.ndarray
    whole: bool


class Noticeboard:
    """The folder, from either side.

    Args:
        folder: Where it is. Belongs to one filter.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # -- the filter's side -------------------------------------------------------------------------------------

    def post(self, decisions: Decisions) -> None:
        """Makes these the decisions that hold; what was there before is removed."""
        old = [path for path in self._folder.iterdir() if path.name != "current.json"]
        for name, values in (("known", decisions.known), ("kept", decisions.kept)):
            np.save(self._path(name, decisions.opening), values)
        head = {name: getattr(decisions, name) for name in ("opening", "hash_key", "threshold")}
        self._write("current.json", json.dumps(head).encode())
        for path in old:
            if path not in (self._path("known", decisions.opening), self._path("kept", decisions.opening)):
                path.unlink(missing_ok=True)

    def collect(self, opening: int) -> Looked:
        """What was looked at under these decisions until now."""
        parts = [np.load(path) for path in sorted(self._folder.glob(f"looked-{opening}-*.npy"))]
        unfinished = any(self._folder.glob(f"begun-{opening}-*"))
        return Looked(np.concatenate([np.empty(0, np.uint64), *parts]), bool(parts) and not unfinished)

    # -- the workers' side -------------------------------------------------------------------------------------

    def read(self) -> Decisions:
        """The decisions that hold now."""
        head = json.loads((self._folder / "current.json").read_text())
        known, kept = (np.load(self._path(name, head["opening"]), mmap_mode="r") for name in ("known", "kept"))
        return Decisions(**head, known=known.view(np.ndarray), kept=kept.view(np.ndarray))

    def begin(self, opening: int) -> str:
        """Somebody begins to go through their part of the stream; returns a name for it."""
        name = f"{opening}-{uuid.uuid4().hex}"
        if opening != NOBODY_ASKS:
            (self._folder / f"begun-{name}").touch()
        return name

    def end(self, name: str, marks: np.ndarray) -> None:
        """They have come to its end, having looked at these."""
        begun = self._folder / f"begun-{name}"
        if begun.exists():  # not so where nobody asks, or where another epoch has begun meanwhile
            np.save(self._folder / f".{name}.npy", marks)
            (self._folder / f".{name}.npy").replace(self._folder / f"looked-{name}.npy")
            begun.unlink(missing_ok=True)

    def _path(self, name: str, opening: int) -> Path:
        return self._folder / f"{name}-{opening}.npy"

    def _write(self, name: str, data: bytes) -> None:
        with replacing(self._folder / name) as temporary:
            temporary.write_bytes(data)
