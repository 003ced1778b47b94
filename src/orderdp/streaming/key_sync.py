"""Synchronization of key filters: what ranks exchange about keys at the start of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from orderdp.distributed.collectives import Exchange

__all__ = ["KeyMessage", "Part", "check_same_keys", "exchange_parts"]


class KeyMessage(NamedTuple):
    """What ranks tell each other before they exchange keys.

    Attributes:
        settings: Digest of what must be equal on all ranks.
        marks: Number of keys trained on or observed.
        new: Number of scanned keys that were not known.
        scanned: Samples scanned.
        kept: Samples trained on.
        nonfinite: Non-finite losses.
        at_end: Whether the rank has reached the end of its stream since the last sync.
        whole: Whether every pass through the stream that began has also ended.
    """

    settings: int
    marks: int
    new: int
    scanned: int
    kept: int
    nonfinite: int
    at_end: int
    whole: int


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
        at_end: Whether the rank has reached the end of its stream since the last sync.
        whole: Whether every pass through the stream that began has also ended.
    """

    marks: np.ndarray
    scores: np.ndarray
    times: np.ndarray
    epochs: np.ndarray
    known: np.ndarray
    new: np.ndarray
    numbers: tuple[int, int, int]
    at_end: bool
    whole: bool

    def message(self, settings: int) -> KeyMessage:
        """Values of fixed size, including the lengths of the arrays."""
        return KeyMessage(settings, len(self.marks), len(self.new), *self.numbers, self.at_end, self.whole)

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
    def decode(cls, data: np.ndarray, message: KeyMessage, trained: int, new: int, known: int) -> Part:
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
            arrays.append(data[start:stop].view(dtype)[: message.marks if len(arrays) < 4 else message.new])
            start = stop
        bits = np.unpackbits(data[start:], count=known).astype(np.bool_)
        marks, scores, times, epochs, others = arrays
        numbers = (message.scanned, message.kept, message.nonfinite)
        return cls(marks, scores, times, epochs, bits, others, numbers, bool(message.at_end), bool(message.whole))


def exchange_parts(
    exchange: Exchange, part: Part, settings: Mapping[str, object], epoch: int
) -> tuple[list[Part], int]:
    """Return the parts of all ranks, in order of rank, and the number of bytes received. Two collectives.

    Args:
        exchange: The process group.
        part: This rank's part.
        settings: What must be equal on all ranks, by the name that errors use for it.
        epoch: The current epoch, for errors.
    """
    from orderdp.distributed.collectives import Collectives
    from orderdp.distributed.sync import check_alike, digest_of

    collectives = Collectives(exchange, epoch)
    messages = collectives.gather_messages(part.message(digest_of(settings)))
    advice = (
        "Use the same settings in every process. If each process has its own stream and decides alone, use "
        "KeyFilter(..., exchange=False)."
    )
    check_alike(settings, [message.settings for message in messages], collectives, epoch, advice)
    trained, new = max(message.marks for message in messages), max(message.new for message in messages)
    parts = [
        Part.decode(data, message, trained, new, len(part.known))
        for data, message in zip(collectives.gather_all(part.encode(trained, new)), messages, strict=True)
    ]
    return parts, collectives.received


def check_same_keys(exchange: Exchange, columns: tuple[np.ndarray, ...], epoch: int) -> None:
    """Check that all ranks have selected the same keys. One collective.

    Args:
        exchange: The process group.
        columns: The keys of this rank's table, and which of them it keeps.
        epoch: The epoch that was drawn.
    """
    from orderdp.distributed.collectives import Collectives
    from orderdp.distributed.sync import check_same_draw, digest

    advice = "A policy may use only the table and its context, and all processes must load the same checkpoint."
    drawn = digest(*(values.tobytes() for values in columns))
    check_same_draw(Collectives(exchange, epoch), epoch, drawn, advice)


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros(length, values.dtype)
    padded[: len(values)] = values
    return padded
