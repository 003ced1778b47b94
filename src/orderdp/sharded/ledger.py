"""What ranks of a sharded table agree on: counters, and who has heard what about guests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orderdp.distributed.ledger import Changes
from orderdp.distributed.tally import Tally
from orderdp.sharded.table import ShardTable

__all__ = ["GuestLedger"]


class GuestLedger(Tally):
    """Nobody knows the table of another, so only what concerns guests can differ from what was agreed on.

    Args:
        table: This rank's part.
        fingerprint: Which checkpoint it came out of; 0 for none.
    """

    def __init__(self, table: ShardTable, fingerprint: int) -> None:
        super().__init__(table, as_it_is=bool(fingerprint))
        self._table = table
        self._fingerprint = fingerprint

    def changes(self) -> Changes:
        """What other ranks have to hear."""
        index, scores, uses = self._table.learnt_of_guests()
        return Changes(index, {"score": scores, "usage": uses})

    def agreed(self, name: str) -> np.ndarray:
        """Nobody has a column of all."""
        raise NotImplementedError

    def before(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Nobody has a column of all."""
        raise NotImplementedError

    def settle(self, parts: Sequence[Changes], counted: Sequence[Sequence[int]]) -> None:
        """Takes over what other ranks have learnt about this rank's samples, and what all have counted."""
        for part in parts:
            self._table.hear(part.index, part.columns["score"], part.columns["usage"])
        self._table.guests_are_settled()
        self._add_up(counted)

    def fingerprint(self) -> int:
        """Which checkpoint this part came out of, until that has been compared; then 0."""
        return self._fingerprint

    def compared(self) -> None:
        """All ranks came out of the same."""
        self._fingerprint = 0
