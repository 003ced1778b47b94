"""KeyMemory: a table of keys, and how losses, passes through the stream and other ranks change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from orderdp.errors import DatasetError, StateError
from orderdp.streaming.fingerprints import collision_bound, listed
from orderdp.streaming.keymeeting import Part
from orderdp.streaming.keytable import KeyTable
from orderdp.streaming.noticeboard import Looked

__all__ = ["KeyMemory", "named", "raise_for_repeats"]

# Losses on a device are fetched so many steps at a time, because each fetch waits for the device.
_SETTLE_EVERY = 64

_NUMBERS = ("alive_from", "kept", "kept_before", "offered", "used", "nonfinite")


class KeyMemory:
    """What is known about the keys of a stream.

    Attributes:
        table: A row for each key.
        alive_from: Keys met in this epoch or later are taken to be in the stream.
        kept: Samples trained on.
        kept_before: The same when the current epoch was drawn.
        offered: Samples in all epochs in which the stream was gone through to its end.
        used: Samples trained on in those epochs.
        nonfinite: Losses that were NaN or infinite.
    """

    def __init__(self) -> None:
        self.table = KeyTable()
        self.alive_from = 0
        self.kept = self.kept_before = self.offered = self.used = self.nonfinite = 0
        self._waiting: list[tuple[np.ndarray, torch.Tensor]] = []  # losses that are still on a device
        self._trained: list[np.ndarray] = []  # fingerprints trained on since the ranks met
        self._observed: list[np.ndarray] = []  # others whose scores were written since then
        self._told = (0, 0)  # kept and nonfinite, as of then
        self._counted = -1  # the last epoch that is in `offered` and `used`

    # -- what training says ------------------------------------------------------------------------------------

    def trained_on(self, marks: np.ndarray, rows: np.ndarray, scores: torch.Tensor, epoch: int) -> np.ndarray:
        """Remembers a batch; returns its rows. The `rows` given are those that the table has for it before."""
        rows = self.table.add(marks, rows)
        self.table["seen"][rows] = epoch
        self.table["met"][rows] = epoch
        self.table.count_use(rows)
        self._write_soon(rows, scores)
        self._trained.append(marks)
        self.kept += len(marks)
        self.used += len(marks) if epoch == self._counted else 0
        return rows

    def observed(self, marks: np.ndarray, scores: torch.Tensor, epoch: int) -> None:
        """Remembers scores of samples that were not trained on."""
        rows = self.table.add(marks)
        self.table["met"][rows] = epoch
        self._write_soon(rows, scores)
        self._observed.append(marks)

    def repeated(self, marks: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Which keys of a batch have come before in this epoch, in the batch or earlier."""
        again = rows >= 0
        again[again] = self.table["seen"][rows[again]] == epoch
        if len(set(marks.tolist())) < len(marks):
            again[np.setdiff1d(np.arange(len(marks)), np.unique(marks, return_index=True)[1])] = True
        return again

    def _write_soon(self, rows: np.ndarray, scores: torch.Tensor) -> None:
        if scores.device.type == "cpu":
            self.settle()
            self._write(rows, scores.to(torch.float32).numpy())
            return
        self._waiting.append((rows, scores.clone()))  # its owner may use the memory again
        if len(self._waiting) >= _SETTLE_EVERY:
            self.settle()

    def settle(self) -> None:
        """Writes the losses that were left on a device."""
        waiting, self._waiting = self._waiting, []
        for rows, scores in waiting:
            self._write(rows, scores.to("cpu", torch.float32).numpy())

    def _write(self, rows: np.ndarray, scores: np.ndarray) -> None:
        """A loss that is not finite leaves a known score alone; for an unseen sample the batch's mean stands in.

        Where no loss of the batch is finite nothing is known, and unseen samples stay unseen.
        """
        finite = np.isfinite(scores)
        column = self.table["score"]
        if not finite.all():
            self.nonfinite += int(len(scores) - finite.sum())
            mean = float(scores[finite].mean()) if finite.any() else 0.0
            scores = np.where(finite, scores, np.float32(mean))
            written = finite | (np.isinf(column[rows]) & finite.any())
            rows, scores = rows[written], scores[written]
        column[rows] = scores

    # -- what has been met -------------------------------------------------------------------------------------

    def population(self) -> np.ndarray:
        """The rows of the keys that are taken to be in the stream, in the order of their fingerprints."""
        rows = np.flatnonzero(self.table["met"] >= max(self.alive_from, 0))
        order: np.ndarray = rows[np.argsort(self.table["key"][rows])]
        return order

    def summary(self) -> dict[str, float]:
        """What has been saved so far, as flat numbers."""
        rows, table = self.population(), self.table
        return {
            "keys": len(table),
            "samples": len(rows),
            "kept": self.kept,
            "offered": self.offered,
            "saved": 1 - self.used / self.offered if self.offered else 0.0,
            "coverage": float((table["usage"][rows] > 0).mean()) if len(rows) else 0.0,
            "nonfinite": self.nonfinite,
            "collision_bound": collision_bound(len(table)),
            "bytes_per_key": table.nbytes / max(1, len(table)),
        }

    def part(self, looked: Looked | None, known: np.ndarray) -> Part:
        """What this rank has to tell the others.

        Args:
            looked: What it has looked at, if it has come to the end of its stream.
            known: The sorted fingerprints that all ranks knew when the epoch began.
        """
        self.settle()
        trained = np.concatenate([np.empty(0, np.uint64), *self._trained])
        marks, places = np.unique(np.concatenate([trained, *self._observed]), return_inverse=True)
        times = np.bincount(places[: len(trained)], minlength=len(marks))
        rows = self.table.find(marks)
        seen = np.zeros(len(known), np.bool_)
        new = np.empty(0, np.uint64)
        if looked is not None:
            places, is_known = _places(looked.marks, known)
            seen[places[is_known]] = True
            new = np.unique(looked.marks[~is_known])
        numbers = (
            0 if looked is None else len(looked.marks),
            self.kept - self._told[0],
            self.nonfinite - self._told[1],
        )
        columns = (self.table["score"][rows], times.astype(np.int32), self.table["met"][rows].astype(np.int32))
        return Part(marks, *columns, seen, new, numbers, looked is not None, looked is not None and looked.whole)

    def take_over(self, parts: Sequence[Part], own: int) -> int:
        """Takes over what the other ranks have learnt; returns how many keys more than one of them has trained on."""
        for rank, part in enumerate(parts):
            if rank != own and len(part.marks):
                rows = self.table.add(part.marks)
                self.table["score"][rows] = part.scores
                self.table["met"][rows] = np.maximum(self.table["met"][rows], part.epochs)
                trained = part.times > 0
                self.table["seen"][rows[trained]] = part.epochs[trained]
                self.table.count_use(rows, part.times)
        # Where several ranks have one key, all of them must go on with the same score: the lowest rank's.
        for part in reversed(parts):
            self.table["score"][self.table.find(part.marks)] = part.scores
        self.kept = self._told[0] + sum(part.numbers[1] for part in parts)
        self.nonfinite = self._told[1] + sum(part.numbers[2] for part in parts)
        self.told()
        everything = np.concatenate([part.marks[part.times > 0] for part in parts])
        return len(everything) - len(np.unique(everything))

    def told(self) -> None:
        """All ranks know what this one knows."""
        self._trained, self._observed, self._told = [], [], (self.kept, self.nonfinite)

    @property
    def has_news(self) -> bool:
        """Whether this rank knows something that the others do not."""
        return bool(self._trained or self._observed) or self._told != (self.kept, self.nonfinite)

    def met(self, parts: Sequence[Part], known: np.ndarray, epoch: int, done: np.ndarray, *, loaded: bool) -> int:
        """An epoch's stream has come to its end on all ranks; returns how many samples came more than once.

        Args:
            parts: What the ranks have looked at.
            known: The fingerprints that all ranks knew when it began.
            epoch: Which epoch it was.
            done: Fingerprints that had been trained on before the epoch was resumed.
            loaded: Whether what was known came from a checkpoint, which may be of another data set.
        """
        seen = np.logical_or.reduce([part.known for part in parts])
        new = np.unique(np.concatenate([part.new for part in parts]))
        marks = np.concatenate([known[seen], new])
        offered = sum(part.numbers[0] for part in parts)
        if loaded and len(known) and not seen.any() and offered > len(done):
            raise DatasetError(
                f"of the {len(known)} keys that are known none was among the {offered} that came in epoch {epoch}: "
                "they are of another data set. Load the state that belongs to this one, or make a new KeyFilter for it."
            )
        rows = self.table.add(marks)
        self.table["met"][rows] = epoch
        # A loader that was put back into the middle of a stream has not looked at what lies before.
        if all(part.whole for part in parts) and np.isin(done, marks).all():
            self.alive_from = self._counted = epoch
            self.offered += offered
            self.used += self.kept - self.kept_before
        return offered - len(marks)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers."""
        self.settle()
        arrays = self.table.arrays()
        columns = {name: torch.from_numpy(_signed(values)) for name, values in arrays.items()}
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"columns": columns, **numbers}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> KeyMemory:
        """What `state` describes, checked."""
        arrays = {name: values.cpu().numpy() for name, values in state["columns"].items()}
        if "key" not in arrays or arrays["key"].dtype != np.int64:
            raise StateError("the checkpoint must hold fingerprints as int64. Use another checkpoint.")
        arrays["key"] = arrays["key"].view(np.uint64)
        memory = cls()
        memory.table = KeyTable.from_arrays(arrays)
        for name in _NUMBERS:
            setattr(memory, name, int(state[name]))
        memory.told()
        return memory


def named(keys: Any, which: np.ndarray) -> str:
    """The first of the keys that are marked, for a message."""
    return repr(listed(keys)[int(np.flatnonzero(which)[0])])


def raise_for_repeats(times: int, where: str, example: str = "") -> None:
    """Says that keys are not unique."""
    raise DatasetError(
        f"keys must be unique within an epoch, and {times} came more than once{example} {where}. Make keys that "
        "differ, for example from the shard and the name within it; split the stream between workers and ranks; go "
        "through it with one_epoch(loader). Where repeats are meant, use "
        'KeyFilter(..., duplicates="allow").'
    )


def _places(marks: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where fingerprints stand among sorted ones, and whether they do."""
    if not len(known):
        return np.zeros(len(marks), np.int64), np.zeros(len(marks), np.bool_)
    places = np.minimum(known.searchsorted(marks), len(known) - 1)
    return places, known[places] == marks


def _signed(values: np.ndarray) -> np.ndarray:
    return values.view(np.int64) if values.dtype == np.uint64 else values
