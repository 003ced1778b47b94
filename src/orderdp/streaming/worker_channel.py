"""How decisions about keys reach the worker processes of a loader, and what workers do with them."""

from __future__ import annotations

import json
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset

from orderdp._files import replacing
from orderdp.errors import DatasetError, StateError
from orderdp.streaming.fingerprints import fingerprint, is_drawn

__all__ = [
    "NO_DECISIONS",
    "FilteredIterableDataset",
    "KeepMask",
    "KeyFilterStage",
    "KeyOf",
    "ScannedKeys",
    "WorkerChannel",
    "check_nothing_is_skipped",
    "has_place",
]


def has_place(stream: Any) -> bool:
    """Whether a stream or data set can say where it is and be put back there."""
    return all(callable(getattr(stream, name, None)) for name in ("state_dict", "load_state_dict"))


def check_nothing_is_skipped(loader: Any) -> None:
    """Refuses a loader that is about to throw batches away because its state was loaded."""
    state = getattr(loader, "next_iter_state", None)
    if not isinstance(state, Mapping):
        return
    if not has_place(getattr(loader, "dataset", None)):
        raise StateError(
            f"a {type(loader).__name__} whose state was loaded skips batches, and the filter leaves out what was "
            "trained on by itself: samples would be lost. Do not load the loader's state; the filter's is enough. Or "
            "wrap the stream in keys.only(stream), which gives the loader nothing to skip."
        )
    if state.get("_steps_since_snapshot"):
        raise StateError(
            f"the state of this {type(loader).__name__} is {state['_steps_since_snapshot']} batches old, and it would "
            "skip as many that nobody has trained on. Make it with snapshot_every_n_steps=1, or do not load its state; "
            "the filter's is enough."
        )


#: The opening of decisions that were made before the first epoch: what is looked at by them is not reported.
NO_DECISIONS = 0


_MASK = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class KeepMask:
    """What is kept.

    Attributes:
        opening: A number for each time that somebody goes through the stream.
        hash_key: Key of the hash that decides about unknown keys.
        threshold: Those with smaller hashes are kept.
        known: Fingerprints, sorted.
        kept: 1 for those of them that are kept, 0 for those that are not.
    """

    opening: int
    hash_key: int
    threshold: int
    known: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64), repr=False)
    kept: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8), repr=False)

    def keeps(self, mark: int) -> bool:
        """Whether the sample with this fingerprint is kept."""
        place = int(self.known.searchsorted(np.uint64(mark)))
        if place < len(self.known) and int(self.known[place]) == mark:
            return bool(self.kept[place])
        return _hash(mark, self.hash_key) < self.threshold

    def keep_all_of(self, marks: np.ndarray) -> np.ndarray:
        """The same for many at once."""
        answer = is_drawn(marks, self.hash_key, self.threshold)
        if len(self.known):
            places = np.minimum(self.known.searchsorted(marks), len(self.known) - 1)
            answer = np.where(self.known[places] == marks, self.kept[places] == 1, answer)
        return answer


def _hash(mark: int, key: int) -> int:
    """`orderdp._draw.fair_hash` of one number; for one, numpy takes ten times as long."""
    h = (mark * 0x9E3779B97F4A7C15 + key) & _MASK
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK
    return h ^ (h >> 31)


class ScannedKeys(NamedTuple):
    """What the passes through a stream have looked at, and whether all that began came to their end."""

    marks: np.ndarray
    whole: bool


class WorkerChannel:
    """The folder, from either side.

    Args:
        folder: Where it is. Belongs to one filter.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # -- the filter's side -------------------------------------------------------------------------------------

    def post(self, decisions: KeepMask) -> None:
        """Makes these the decisions that hold; what was there before is removed."""
        old = [path for path in self._folder.iterdir() if path.name != "current.json"]
        for name, values in (("known", decisions.known), ("kept", decisions.kept)):
            np.save(self._path(name, decisions.opening), values)
        head = {name: getattr(decisions, name) for name in ("opening", "hash_key", "threshold")}
        self._write("current.json", json.dumps(head).encode())
        for path in old:
            if path not in (self._path("known", decisions.opening), self._path("kept", decisions.opening)):
                path.unlink(missing_ok=True)

    def collect(self, opening: int) -> ScannedKeys:
        """What was looked at under these decisions until now."""
        parts = [np.load(path) for path in sorted(self._folder.glob(f"looked-{opening}-*.npy"))]
        unfinished = any(self._folder.glob(f"begun-{opening}-*"))
        return ScannedKeys(np.concatenate([np.empty(0, np.uint64), *parts]), bool(parts) and not unfinished)

    # -- the workers' side -------------------------------------------------------------------------------------

    def read(self) -> KeepMask:
        """The decisions that hold now."""
        head = json.loads((self._folder / "current.json").read_text())
        known, kept = (np.load(self._path(name, head["opening"]), mmap_mode="r") for name in ("known", "kept"))
        return KeepMask(**head, known=known.view(np.ndarray), kept=kept.view(np.ndarray))

    def begin(self, opening: int) -> str:
        """Somebody begins to go through their part of the stream; returns a name for it."""
        name = f"{opening}-{uuid.uuid4().hex}"
        if opening != NO_DECISIONS:
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


KeyOf = str | int | Callable[[Any], Any]


class KeyFilterStage:
    """A stage of a pipeline: takes an iterable of samples, gives those that are kept this epoch.

    Args:
        board: Where the decisions are.
        key: Where a sample's key is: the name of an entry, a position in a tuple, or a function of the sample.
    """

    def __init__(self, board: WorkerChannel, key: KeyOf) -> None:
        self._board = board
        self._key = key

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        """What is kept of `samples`, in their order."""
        decisions = self._board.read()
        pass_name, looked = self._board.begin(decisions.opening), array("Q")
        for sample in samples:
            mark = fingerprint(self.key_of(sample))
            looked.append(mark)
            if decisions.keeps(mark):
                yield sample
        # Not in a `finally`: of a pass that is broken off nobody knows what it would have met.
        self._board.end(pass_name, np.frombuffer(looked, dtype=np.uint64))

    def key_of(self, sample: Any) -> Any:
        """The key of a sample."""
        if callable(self._key):
            return self._key(sample)
        try:
            return sample[self._key]
        except (KeyError, IndexError, TypeError):
            came = f"entries {sorted(map(str, sample))[:8]}" if isinstance(sample, Mapping) else type(sample).__name__
            raise DatasetError(
                f"every sample must have its key under {self._key!r}, got {came}. Say where it is with "
                "KeyFilter(..., key=...): the name of an entry, a position, or a function of the sample."
            ) from None


class FilteredIterableDataset(IterableDataset[Any]):
    """What is kept of a stream, as a data set that a DataLoader takes. It can be gone through again and again.

    Args:
        stream: Any iterable that can be, itself.
        gate: Lets samples through.
    """

    def __init__(self, stream: Iterable[Any], gate: KeyFilterStage) -> None:
        if isinstance(stream, Iterator):
            raise DatasetError(
                f"the stream must be one that can be gone through in every epoch, got the iterator "
                f"{type(stream).__name__}, which is used up after one. For data that are seen once there is OnePass."
            )
        self.stream = stream
        self.gate = gate

    def __iter__(self) -> Iterator[Any]:
        return self.gate(self.stream)

    # A loader that remembers its place asks for these, and skips batches where they are missing (see places.py).

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, if it knows; nothing otherwise, since the gate drops what was trained on."""
        return {"stream": self.stream.state_dict()} if has_place(self.stream) else {}  # type: ignore[attr-defined]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the stream back where it was, if it knew."""
        if "stream" in state and has_place(self.stream):
            self.stream.load_state_dict(state["stream"])  # type: ignore[attr-defined]
