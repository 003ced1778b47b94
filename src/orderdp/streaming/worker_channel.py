"""Worker channel: sends keep masks to the worker processes of a loader, and receives the scanned keys.

A key of any length is represented by its fingerprint, 64 bits.
"""

from __future__ import annotations

import json
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from orderdp._draw import fair_hash
from orderdp._files import in_turn, replacing
from orderdp.errors import DatasetError, StateError

__all__ = [
    "NO_DECISIONS",
    "FilteredIterableDataset",
    "KeepMask",
    "KeyFilterStage",
    "KeyOf",
    "ScannedKeys",
    "WorkerChannel",
    "check_nothing_is_skipped",
    "collision_bound",
    "fingerprint",
    "fingerprints",
    "has_place",
    "is_drawn",
    "listed",
    "share_threshold",
]


# -- fingerprints ------------------------------------------------------------------------------------------------------


_ALL = 1 << 64


def fingerprint(key: Any) -> int:
    """Return the fingerprint of one key. 1, "1" and b"1" are different keys.

    >>> fingerprint("shard-3/0017") == fingerprint("shard-3/0017"), fingerprint("1") == fingerprint(1)
    (True, False)
    """
    if isinstance(key, str):
        text = b"s" + key.encode("utf-8", "surrogatepass")
    elif isinstance(key, bytes):
        text = b"b" + key
    elif isinstance(key, int | np.integer) and not isinstance(key, bool):
        text = b"i%d" % int(key)
    else:
        number = _as_number(key)
        if number is None:
            raise DatasetError(
                f"the key of a sample must be bytes, a str or an int, got {type(key).__name__}: {str(key)[:60]!r}. "
                "Give every sample a name that is the same in every epoch."
            )
        text = b"i%d" % number
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def listed(keys: Any) -> list[Any]:
    """Keys of a batch as a list, from a list, a tensor, an array or a single key."""
    if hasattr(keys, "tolist"):
        flat: list[Any] = keys.reshape(-1).tolist()
        return flat
    return [keys] if isinstance(keys, str | bytes) or not isinstance(keys, Iterable) else list(keys)


def fingerprints(keys: Any) -> np.ndarray:
    """Fingerprints of a batch of keys, uint64."""
    return np.array([fingerprint(key) for key in listed(keys)], dtype=np.uint64)


def collision_bound(keys: int) -> float:
    """Upper bound on the probability that any two of `keys` keys have the same fingerprint: pairs over 2**64.

    >>> f"{collision_bound(10**6):.1e} {collision_bound(10**9):.1e}"
    '2.7e-08 2.7e-02'
    """
    return min(1.0, keys * (keys - 1) / 2 / _ALL)


def share_threshold(share: float) -> int:
    """Number below which a fraction `share` of all 64-bit hashes lie."""
    return min(_ALL, max(0, round(share * _ALL)))


def is_drawn(marks: np.ndarray, hash_key: int, threshold: int) -> np.ndarray:
    """Whether the keyed hash of each fingerprint is below the threshold: independent, with equal probability."""
    if threshold >= _ALL:
        return np.ones(len(marks), dtype=np.bool_)
    drawn: np.ndarray = fair_hash(marks, hash_key) < np.uint64(threshold)
    return drawn


def _as_number(key: Any) -> int | None:
    """Value of a tensor or array with one integer, as collating may leave; None for anything else."""
    if getattr(key, "ndim", None) == 0 and hasattr(key, "item"):
        number = key.item()
        return number if isinstance(number, int) and not isinstance(number, bool) else None
    return None


# -- the channel -------------------------------------------------------------------------------------------------------


def has_place(stream: Any) -> bool:
    """Whether a stream or data set is stateful: has `state_dict` and `load_state_dict`."""
    return all(callable(getattr(stream, name, None)) for name in ("state_dict", "load_state_dict"))


def check_nothing_is_skipped(loader: Any) -> None:
    """Raise if a loader is about to skip batches because its state was loaded."""
    state = getattr(loader, "next_iter_state", None)
    if not isinstance(state, Mapping):
        return
    if not has_place(getattr(loader, "dataset", None)):
        raise StateError(
            f"a {type(loader).__name__} whose state was loaded skips batches, and the filter itself skips what was "
            "trained on: samples would be lost. Do not load the loader's state; the filter's is enough. Or wrap the "
            "stream in keys.only(stream), which gives the loader nothing to skip."
        )
    if state.get("_steps_since_snapshot"):
        raise StateError(
            f"the state of this {type(loader).__name__} is {state['_steps_since_snapshot']} batches old, and the "
            "loader would skip as many batches that were not trained on. Create it with snapshot_every_n_steps=1, or "
            "do not load its state; the filter's is enough."
        )


#: `opening` of the keep mask before the first epoch: keys scanned under it are not reported.
NO_DECISIONS = 0


_MASK = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class KeepMask:
    """Which samples are kept.

    Attributes:
        opening: Number of the pass through the stream.
        hash_key: Key of the hash that decides on unknown keys.
        threshold: Unknown keys with a smaller hash are kept.
        known: Fingerprints, sorted.
        kept: For each of them 1 if it is kept, else 0.
        done: For each of them how many occurrences were trained on before the epoch was resumed; empty if none, or if
            keys do not repeat. So many are passed over.
    """

    opening: int
    hash_key: int
    threshold: int
    known: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64), repr=False)
    kept: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8), repr=False)
    done: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32), repr=False)

    def keeps(self, mark: int) -> bool:
        """Whether the sample with this fingerprint is kept."""
        place = self.place(mark)
        return _hash(mark, self.hash_key) < self.threshold if place is None else bool(self.kept[place])

    def place(self, mark: int) -> int | None:
        """Where a fingerprint is among the known ones; None if it is not."""
        place = int(self.known.searchsorted(np.uint64(mark)))
        return place if place < len(self.known) and int(self.known[place]) == mark else None

    def keep_all_of(self, marks: np.ndarray) -> np.ndarray:
        """Vectorized `keeps`."""
        answer = is_drawn(marks, self.hash_key, self.threshold)
        if len(self.known):
            places = np.minimum(self.known.searchsorted(marks), len(self.known) - 1)
            answer = np.where(self.known[places] == marks, self.kept[places] == 1, answer)
        return answer


def _hash(mark: int, key: int) -> int:
    """`orderdp._draw.fair_hash` of one number in plain Python, because numpy takes ten times as long for one."""
    h = (mark * 0x9E3779B97F4A7C15 + key) & _MASK
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK
    return h ^ (h >> 31)


class ScannedKeys(NamedTuple):
    """Keys scanned by the passes through a stream, and whether every pass that began has ended."""

    marks: np.ndarray
    whole: bool


class WorkerChannel:
    """Folder through which a filter and the workers of its loader exchange files.

    Args:
        folder: Path of the folder, which belongs to one filter.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # -- filter side -------------------------------------------------------------------------------------------

    def post(self, decisions: KeepMask) -> None:
        """Publish a keep mask and delete the files of the previous one."""
        old = [path for path in self._folder.iterdir() if path.name != "current.json"]
        new = {self._path(name, decisions.opening): getattr(decisions, name) for name in _ARRAYS}
        for path, values in new.items():
            np.save(path, values)
        head = {name: getattr(decisions, name) for name in ("opening", "hash_key", "threshold")}
        self._write("current.json", json.dumps(head).encode())
        for path in old:
            if path not in new:
                path.unlink(missing_ok=True)

    def collect(self, opening: int) -> ScannedKeys:
        """Return the keys scanned so far under this keep mask."""
        parts = [np.load(path) for path in sorted(self._folder.glob(f"looked-{opening}-*.npy"))]
        unfinished = any(self._folder.glob(f"begun-{opening}-*"))
        return ScannedKeys(np.concatenate([np.empty(0, np.uint64), *parts]), bool(parts) and not unfinished)

    # -- worker side -------------------------------------------------------------------------------------------

    def read(self) -> KeepMask:
        """Return the current keep mask."""
        head = json.loads((self._folder / "current.json").read_text())
        # The workers of a loader share `done`: which of them meets an occurrence is not known in advance.
        shared = get_worker_info() is not None
        modes: dict[str, Any] = {"known": "r", "kept": "r", "done": "r+" if shared else "c"}
        arrays = {name: np.load(self._path(name, head["opening"]), mmap_mode=mode) for name, mode in modes.items()}
        return KeepMask(**head, **{name: values.view(np.ndarray) for name, values in arrays.items()})

    def pass_over(self, decisions: KeepMask, mark: int) -> bool:
        """Whether this occurrence counts as one that was trained on before the epoch was resumed."""
        place = decisions.place(mark) if len(decisions.done) else None
        if place is None or decisions.done[place] < 1:
            return False
        with in_turn(self._folder):
            passed = bool(decisions.done[place] > 0)
            decisions.done[place] -= passed
        return passed

    def begin(self, opening: int) -> str:
        """Note that a worker begins a pass through its part of the stream; return the name of the pass."""
        name = f"{opening}-{uuid.uuid4().hex}"
        if opening != NO_DECISIONS:
            (self._folder / f"begun-{name}").touch()
        return name

    def end(self, name: str, marks: np.ndarray) -> None:
        """Note that the pass has ended, with the fingerprints it has scanned."""
        begun = self._folder / f"begun-{name}"
        if begun.exists():  # missing before the first epoch, or after another epoch has begun
            np.save(self._folder / f".{name}.npy", marks)
            (self._folder / f".{name}.npy").replace(self._folder / f"looked-{name}.npy")
            begun.unlink(missing_ok=True)

    def _path(self, name: str, opening: int) -> Path:
        return self._folder / f"{name}-{opening}.npy"

    def _write(self, name: str, data: bytes) -> None:
        with replacing(self._folder / name) as temporary:
            temporary.write_bytes(data)


_ARRAYS = ("known", "kept", "done")


KeyOf = str | int | Callable[[Any], Any]


class KeyFilterStage:
    """Filter stage of a pipeline: maps an iterable of samples to those kept in this epoch.

    Args:
        channel: Worker channel with the keep mask.
        key: Where a sample's key is: the name of an entry, a position in a tuple, or a function of the sample.
    """

    def __init__(self, channel: WorkerChannel, key: KeyOf) -> None:
        self._channel = channel
        self._key = key

    def __call__(self, samples: Iterable[Any], *, behind: Callable[[], bool] = lambda: False) -> Iterator[Any]:
        """Yield the kept samples of `samples`, in their order.

        Args:
            samples: The samples.
            behind: Says, when the first sample is asked for, whether those trained on do not come again, because the
                stream continues where it was.
        """
        decisions, passed = self._channel.read(), behind()
        pass_name, scanned = self._channel.begin(decisions.opening), array("Q")
        for sample in samples:
            mark = fingerprint(self.key_of(sample))
            scanned.append(mark)
            if decisions.keeps(mark) and (passed or not self._channel.pass_over(decisions, mark)):
                yield sample
        # Not in a `finally`: the keys that an interrupted pass would have scanned are unknown.
        self._channel.end(pass_name, np.frombuffer(scanned, dtype=np.uint64))

    def key_of(self, sample: Any) -> Any:
        """Return the key of `sample`."""
        if callable(self._key):
            return self._key(sample)
        try:
            return sample[self._key]
        except (KeyError, IndexError, TypeError):
            came = f"entries {sorted(map(str, sample))[:8]}" if isinstance(sample, Mapping) else type(sample).__name__
            raise DatasetError(
                f"every sample must have its key under {self._key!r}, got {came}. Set its location with KeyFilter(..., "
                "key=...): the name of an entry, a position, or a function of the sample."
            ) from None


class FilteredIterableDataset(IterableDataset[Any]):
    """Kept samples of a stream, as an iterable data set for a DataLoader. It can be iterated repeatedly.

    Args:
        stream: Any iterable that can be iterated repeatedly.
        gate: The filter stage.
    """

    def __init__(self, stream: Iterable[Any], gate: KeyFilterStage) -> None:
        if isinstance(stream, Iterator):
            raise DatasetError(
                f"the stream must be iterable in every epoch, got the iterator {type(stream).__name__}, which can be "
                "iterated once. For data that are seen once use OnePass."
            )
        self.stream = stream
        self.gate = gate
        self._placed = False  # whether the stream continues where it was

    def __iter__(self) -> Iterator[Any]:
        return self.gate(self.stream, behind=self._take_place)

    def _take_place(self) -> bool:
        placed, self._placed = self._placed, False
        return placed

    # A stateful loader calls these, and skips batches if they are missing (see `check_nothing_is_skipped`).

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state if it has one, else nothing, because the filter drops trained samples by itself."""
        return {"stream": self.stream.state_dict()} if has_place(self.stream) else {}  # type: ignore[attr-defined]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the stream's state from `state`, if it had one."""
        if "stream" in state and has_place(self.stream):
            self.stream.load_state_dict(state["stream"])  # type: ignore[attr-defined]
            self._placed = True
