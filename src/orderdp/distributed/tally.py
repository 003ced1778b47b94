"""Tally: what ranks have agreed on about the counters of a table, and what each has counted since."""

from __future__ import annotations

from collections.abc import Sequence

from orderdp.scores import ScoreTable

__all__ = ["Tally"]


class Tally:
    """Losses that were not finite, impossible indices and writes.

    Args:
        table: The table that counts.
        as_it_is: Whether what it has counted is the same everywhere (a checkpoint); otherwise nothing is agreed on.
    """

    def __init__(self, table: ScoreTable, as_it_is: bool) -> None:
        self._counting = table
        self._counters = table.counters() if as_it_is else (0, 0, 0)

    @property
    def counters(self) -> tuple[int, int, int]:
        """As they were agreed on."""
        return self._counters

    def counted(self) -> tuple[int, int, int]:
        """Their growth since then."""
        now = self._counting.counters()
        return now[0] - self._counters[0], now[1] - self._counters[1], now[2] - self._counters[2]

    def note_counters(self) -> None:
        """What the table has counted is the same everywhere."""
        self._counters = self._counting.counters()

    def _add_up(self, counted: Sequence[Sequence[int]]) -> None:
        """Makes the sum of what all ranks have counted the agreement."""
        nonfinite, outside, writes = (sum(counts) for counts in zip(self._counters, *counted, strict=True))
        self._counting.set_counters(nonfinite, outside, writes)
        self.note_counters()
