"""UCB: the largest upper confidence bounds of the loss."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.averages import mean_and_variance
from orderdp.policies.kit import count_kept, shuffled, top
from orderdp.policy import Column, Context, Rows, Selection, Table

if TYPE_CHECKING:
    import torch

__all__ = ["UCB"]


@dataclass(frozen=True)
class UCB:
    """The largest mean + c * variance of the loss, both exponential averages.

    Args:
        prune_ratio: Share left out each epoch, in [0, 1).
        c: How much the variance counts.
        alpha: Weight of the newest loss in the averages.
    """

    prune_ratio: float
    _: KW_ONLY
    c: float = 1.0
    alpha: float = 0.2

    columns = (Column("variance", initial=0.0),)

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("alpha", self.alpha, zero_allowed=False, one_allowed=True)
        if not (isinstance(self.c, int | float) and 0 <= self.c < float("inf")):
            raise ConfigError(f"c must be a number, at least 0, got {self.c!r}.")

    def size(self, n: int, context: Context) -> int:
        """The nearest whole number to the share kept."""
        return count_kept(n, self.prune_ratio)

    def remember(self, rows: Rows, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """Exponential averages of the loss and of its variance."""
        return mean_and_variance(rows, losses, self.alpha)

    def select(self, table: Table, context: Context) -> Selection:
        """The largest bounds; a sample that was never seen has none above it."""
        bounds = table["score"] + self.c * table["variance"]
        return Selection(shuffled(top(bounds, self.size(context.n, context), context), context))
