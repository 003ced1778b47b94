"""Synchronization of key filters: what ranks tell each other about keys when an epoch begins."""

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
    """What one rank has to tell.

    Attributes:
        marks: Fingerprints of keys it has trained on or observed, each once.
        scores: Their scores.
        times: How often it has trained on them; 0 where it has only observed.
        epochs: In which epoch that was.
        known: One flag for each key that all ranks knew when the epoch began, in order: whether it was looked at.
        new: Fingerprints of other keys it has looked at, each once.
        numbers: Counts that are added up: samples looked at, samples trained on, losses that were not finite.
        looked: Whether it has come to the end of its stream since the ranks met.
        whole: Whether all passes through the stream that began also ended.
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
        """Fixed-size facts, among them how long the rest is."""
        return [len(self.marks), len(self.new), *self.numbers, self.looked, self.whole]

    def encode(self, trained: int, new: int) -> np.ndarray:
        """As bytes, filled up to so many keys."""
        arrays = [
            _padded(self.marks, trained),
            _padded(self.scores, trained),
            _padded(self.times, trained),
            _padded(self.epochs, trained),
            _padded(self.new, new),
            np.append(np.packbits(self.known), np.uint8(0)),  # a tensor of nothing cannot be sent
        ]
        return np.concatenate([values.view(np.uint8) for values in arrays])

    @classmethod
    def decode(cls, data: np.ndarray, head: Sequence[int], trained: int, new: int, known: int) -> Part:
        """The part that was encoded."""
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
    """What must be the same everywhere.

    Attributes:
        action: What is being done, `ITER` or `SYNC`.
        options: Policy, seed and the like, in words.
        epoch: Where the rank stands.
        known: The sorted fingerprints that all ranks knew when the epoch began.
    """

    action: int
    options: str
    epoch: int
    known: np.ndarray

    def numbers(self) -> list[int]:
        """The same in a fixed size."""
        return [self.action, _digest(self.options.encode()), self.epoch, _digest(self.known.tobytes())]


def exchange_parts(exchange: Any, part: Part, setup: Setup) -> tuple[list[Part], int]:
    """What every rank has to tell, in order of rank, and how many bytes came in. Two collectives.

    Args:
        exchange: The way to the other ranks.
        part: What this one has to tell.
        setup: What must be the same everywhere.
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
    """Makes sure that all ranks have decided the same. One collective."""
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
    state = blake2b(digest_size=7)  # fits into a signed word
    for part in parts:
        state.update(part)
    return int.from_bytes(state.digest(), "little")


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros(length, values.dtype)
    padded[: len(values)] = values
    return padded
