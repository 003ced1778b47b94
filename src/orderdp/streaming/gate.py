"""Gate: the part of a filter that goes where the stream is read, worker processes included.

It looks at a sample's key and lets the sample through or not, before anybody has decoded it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from orderdp.errors import DatasetError
from orderdp.streaming.fingerprints import fingerprint
from orderdp.streaming.noticeboard import Noticeboard
from orderdp.streaming.places import has_place

__all__ = ["Gate", "KeptStream", "KeyOf"]

KeyOf = str | int | Callable[[Any], Any]


class Gate:
    """A stage of a pipeline: takes an iterable of samples, gives those that are kept this epoch.

    Args:
        board: Where the decisions are.
        key: Where a sample's key is: the name of an entry, a position in a tuple, or a function of the sample.
    """

    def __init__(self, board: Noticeboard, key: KeyOf) -> None:
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


class KeptStream(IterableDataset[Any]):
    """What is kept of a stream, as a data set that a DataLoader takes. It can be gone through again and again.

    Args:
        stream: Any iterable that can be, itself.
        gate: Lets samples through.
    """

    def __init__(self, stream: Iterable[Any], gate: Gate) -> None:
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
