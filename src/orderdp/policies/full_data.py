"""FullData: nothing is left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.policies.kit import shuffled
from orderdp.policy import Context, Selection, Table

__all__ = ["FullData"]


@dataclass(frozen=True)
class FullData:
    """All samples, shuffled: what every other policy is compared with.

    >>> FullData().size(10, Context(n=10, epoch=0))
    10
    """

    needs_feedback = False

    def size(self, n: int, context: Context) -> int:
        """All of them."""
        return n

    def select(self, table: Table, context: Context) -> Selection:
        """All samples in a random order."""
        return Selection(shuffled(np.arange(context.n), context))
