"""Roster: which samples of a data set are there, where some come later and some go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from orderdp.errors import StateError
from orderdp.policy import Table

__all__ = ["LiveTable", "Roster"]


class Roster:
    """Who is there.

    Args:
        n: Samples in the data set, removed ones included.

    Attributes:
        removed: One flag for each.
        live: How many are there.
    """

    def __init__(self, n: int) -> None:
        self._flags = np.zeros(n, np.bool_)
        self.n = self.live = n
        self._history: list[list[int]] = []  # from which epoch on how many were there

    @property
    def removed(self) -> np.ndarray:
        """One flag for each sample."""
        return self._flags[: self.n]

    def grow(self, n: int) -> None:
        """There are more, `n` in all."""
        if n > len(self._flags):
            larger = np.zeros(max(n, len(self._flags) * 3 // 2), np.bool_)
            larger[: self.n] = self.removed
            self._flags = larger
        self.live += n - self.n
        self.n = n

    def remove(self, gone: np.ndarray) -> None:
        """These are gone."""
        self.removed[gone] = True
        self.live = self.n - int(np.count_nonzero(self.removed))

    def put_back(self, removed: np.ndarray) -> None:
        """Those that are gone are these, and no others."""
        self.removed[:] = removed
        self.live = self.n - int(np.count_nonzero(removed))

    def places(self) -> np.ndarray | None:
        """The indices of those that are there; None for all."""
        return None if self.live == self.n else np.flatnonzero(~self.removed)

    # -- how many there were -----------------------------------------------------------------------------------

    def note(self, epoch: int) -> None:
        """That epoch is drawn from those that are there now."""
        self._history = [entry for entry in self._history if entry[0] < epoch]
        if not self._history or self._history[-1][1] != self.live:
            self._history.append([epoch, self.live])

    def offered(self, epochs: float) -> float:
        """How many samples so many epochs would have trained on, had they left out none."""
        total, last = 0.0, epochs
        for start, live in reversed(self._history):
            total += max(0.0, last - start) * live
            last = min(last, start)
        return total

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """A tensor and plain numbers."""
        gone = torch.from_numpy(np.flatnonzero(self.removed))
        return {"n": self.n, "removed": gone, "history": [list(entry) for entry in self._history]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> Roster:
        """The roster that `state` describes, for a data set that may have grown to `n` since."""
        gone = state["removed"].cpu().numpy()
        if len(gone) and not (gone.min() >= 0 and gone.max() < n):
            raise StateError(
                f"the checkpoint says that samples beyond the {n} of the data set were removed. Use another."
            )
        roster = cls(n)
        roster.remove(gone)
        roster._history = [[int(epoch), int(live)] for epoch, live in state["history"]]
        return roster

    def take_over(self, other: Roster) -> None:
        """Becomes as the other is."""
        self._flags, self.n, self.live, self._history = other._flags, other.n, other.live, other._history


class LiveTable:
    """A table that shows the rows of the samples that are there.

    Args:
        table: All rows.
        places: Which of them.
    """

    def __init__(self, table: Table, places: np.ndarray) -> None:
        self.n = len(places)
        self._table, self._places = table, places

    def __getitem__(self, name: str) -> np.ndarray:
        """The column called `name`, read-only."""
        values: np.ndarray = self._table[name][self._places]
        values.flags.writeable = False
        return values
