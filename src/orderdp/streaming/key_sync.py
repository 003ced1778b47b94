"""Synchronization of key filters: what ranks exchange about keys at the start of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch

from orderdp.errors import GroupError

__all__ = ["ITER", "SYNC", "Part", "Setup", "exchange_parts", "same_everywhere"]


ITER, SYNC = 1, 2


@dataclass(frozen=True, eq=False)
class Part:
    """Data that one rank sends.

    Attributes:
        marks: Fingerprints of keys that the rank has trained on or observed, unique.
        scores: Their scores.
        times: How often the rank has trained on them; 0 if it has only observed them.
        epochs: The epoch in which it did.
        known: One flag per key that all ranks knew at the start of the epoch, in order: whether it was scanned.
        new: Fingerprints of the other scanned keys, unique.
        numbers: Counts to be summed: samples scanned, samples trained on, non-finite losses.
        looked: Whether the rank has reached the end of its stream since the last sync.
        whole: Whether every pass through the stream that began has also ended.
    """

    marks: np.ndarray
    scores: np.ndarray
    times: np.ndarray
    epochs: np.ndarray
    known: np.ndarray
    new: np.ndarray
    numbers: tuple[int, int, int]
    looked: bool
    whole: bool

    def head(self) -> list[int]:
        """Values of fixed size, including the lengths of the arrays."""
        return [len(self.marks), len(self.new), *self.numbers, self.looked, self.whole]

    def encode(self, trained: int, new: int) -> np.ndarray:
        """Encode as bytes, padded to `trained` and `new` keys."""
        arrays = [
            _padded(self.marks, trained),
            _padded(self.scores, trained),
            _padded(self.times, trained),
            _padded(self.epochs, trained),
            _padded(self.new, new),
            np.append(np.packbits(self.known), np.uint8(0)),  # an empty tensor cannot be sent
        ]
        return np.concatenate([values.view(np.uint8) for values in arrays])

    @classmethod
    def decode(cls, data: np.ndarray, head: Sequence[int], trained: int, new: int, known: int) -> Part:
        """Decode the result of `encode`."""
        kinds = (
            (np.uint64, trained),
            (np.float32, trained),
            (np.int32, trained),
            (np.int32, trained),
            (np.uint64, new),
        )
        arrays: list[np.ndarray] = []
        start = 0
        for dtype, room in kinds:
            stop = start + room * np.dtype(dtype).itemsize
            arrays.append(data[start:stop].view(dtype)[: head[0] if len(arrays) < 4 else head[1]])
            start = stop
        bits = np.unpackbits(data[start:], count=known).astype(np.bool_)
        marks, scores, times, epochs, others = arrays
        numbers = (head[2], head[3], head[4])
        return cls(marks, scores, times, epochs, bits, others, numbers, bool(head[5]), bool(head[6]))


class Setup(NamedTuple):
    """Settings that must be equal on all ranks.

    Attributes:
        action: `ITER` or `SYNC`.
        options: Description of policy, seed and other options.
        epoch: The rank's epoch.
        known: Sorted fingerprints that all ranks knew at the start of the epoch.
    """

    action: int
    options: str
    epoch: int
    known: np.ndarray

    def numbers(self) -> list[int]:
        """The settings in a fixed size."""
        return [self.action, _digest(self.options.encode()), self.epoch, _digest(self.known.tobytes())]


def exchange_parts(exchange: Any, part: Part, setup: Setup) -> tuple[list[Part], int]:
    """Return the parts of all ranks, in order of rank, and the number of bytes received. Two collectives.

    Args:
        exchange: The process group.
        part: This rank's part.
        setup: Settings that must be equal on all ranks.
    """
    epoch, numbers = setup.epoch, setup.numbers()
    heads = [values.tolist() for values in _gather(exchange, torch.tensor([*numbers, *part.head()]), epoch)]
    _check_setup([head[: len(numbers)] for head in heads], epoch)
    heads = [head[len(numbers) :] for head in heads]
    trained, new = max(head[0] for head in heads), max(head[1] for head in heads)
    received = 8 * (len(numbers) + len(heads[0])) * len(heads)
    data = [values.numpy() for values in _gather(exchange, torch.from_numpy(part.encode(trained, new)), epoch)]
    received += sum(values.nbytes for values in data)
    known = len(part.known)
    return [Part.decode(values, head, trained, new, known) for values, head in zip(data, heads, strict=True)], received


def same_everywhere(exchange: Any, drawn: Sequence[np.ndarray], epoch: int) -> None:
    """Check that all ranks have selected the same keys. One collective."""
    own = torch.tensor([_digest(*(values.tobytes() for values in drawn))])
    answers = {int(values[0]) for values in _gather(exchange, own, epoch)}
    if len(answers) > 1:
        raise GroupError(
            f"all processes must keep the same keys in epoch {epoch}, and they would not. A policy may use nothing but "
            "the table and its context; and all must load the same checkpoint."
        )


def _check_setup(setups: Sequence[Sequence[int]], epoch: int) -> None:
    titles = ("what they do (one_epoch or sync)", "policy, seed or options", "epoch", "known keys (other checkpoints?)")
    different = [title for title, values in zip(titles, zip(*setups, strict=True), strict=True) if len(set(values)) > 1]
    if different:
        raise GroupError(
            f"all processes must be set up alike and stand at the same place, and at epoch {epoch} they differ in "
            f"{', '.join(different)}. Give every process the same; where each has a stream of its own and is to decide "
            "by itself, use KeyFilter(..., exchange=False)."
        )


def _gather(exchange: Any, values: torch.Tensor, epoch: int) -> list[torch.Tensor]:
    try:
        gathered: list[torch.Tensor] = exchange.gather_all(values)
    except RuntimeError as error:
        raise GroupError(
            f"rank {exchange.rank} of {exchange.world} has not heard from all others at epoch {epoch}: {error}. "
            "Another process has failed, or does not call one_epoch or sync where this one does."
        ) from error
    return gathered


def _digest(*parts: bytes) -> int:
    state = blake2b(digest_size=7)  # fits into a signed 64-bit integer
    for part in parts:
        state.update(part)
    return int.from_bytes(state.digest(), "little")


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros(length, values.dtype)
    padded[: len(values)] = values
    return padded
