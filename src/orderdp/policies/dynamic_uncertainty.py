"""Dynamic uncertainty: samples whose predicted probability keeps moving."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio, is_count
from orderdp.policies.kit import count_kept, shuffled, top
from orderdp.policy import Column, Context, Rows, Selection, Table

if TYPE_CHECKING:
    import torch

__all__ = ["DynamicUncertainty"]


@dataclass(frozen=True)
class DynamicUncertainty:
    """The largest mean, over all windows so far, of the standard deviation of p(y given x) within a window.

    The first epochs train on all data, to fill the windows; after them a new choice is made every epoch. A sample
    whose window is not full yet comes first.

    ``update`` needs one more argument: ``probability``, the predicted probability of each sample's own class.
    `orderdp.losses.predictions` makes it from logits.

    Args:
        prune_ratio: Share left out each epoch after the first ones, in [0, 1).
        window: How many of a sample's probabilities a window holds.
        warm_up: How many epochs train on all data; None for as many as fill a window.
    """

    prune_ratio: float
    _: KW_ONLY
    window: int = 10
    warm_up: int | None = None

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        if not is_count(self.window, least=2):
            raise ConfigError(f"window must be a whole number, at least 2, got {self.window!r}.")
        if self.warm_up is not None and not is_count(self.warm_up, least=0):
            raise ConfigError(f"warm_up must be a whole number, at least 0, or None, got {self.warm_up!r}.")

    @property
    def columns(self) -> tuple[Column, ...]:
        """The last probabilities in a ring, how many there have been, and the sum of the windows' deviations."""
        ring = tuple(Column(name, initial=0.0) for name in self._ring)
        return (*ring, Column("history", initial=0, dtype="int16"), Column("deviations", initial=0.0))

    @property
    def _ring(self) -> list[str]:
        return [f"probability_{place}" for place in range(self.window)]

    def size(self, n: int, context: Context) -> int:
        """All at first, then the nearest whole number to the share kept."""
        first = self.window if self.warm_up is None else self.warm_up
        return n if context.epoch < first else count_kept(n, self.prune_ratio)

    def remember(self, rows: Rows, losses: torch.Tensor, *, probability: torch.Tensor) -> dict[str, torch.Tensor]:
        """The probability in its place of the ring; a full ring adds its deviation to the sum."""
        history = rows["history"]
        new: dict[str, torch.Tensor] = {"score": losses, "history": history + 1}
        total = squares = probability.new_zeros(len(losses))
        for place, name in enumerate(self._ring):
            new[name] = probability.where(history % self.window == place, rows[name])
            total = total + new[name]
        for name in self._ring:
            squares = squares + (new[name] - total / self.window).square()
        deviation = (squares / (self.window - 1)).sqrt()
        new["deviations"] = rows["deviations"] + deviation * (new["history"] >= self.window)
        return new

    def select(self, table: Table, context: Context) -> Selection:
        """The most uncertain."""
        windows = table["history"].astype(np.float32) - (self.window - 1)
        uncertainty = np.where(windows > 0, table["deviations"] / np.maximum(windows, 1), np.inf)
        return Selection(shuffled(top(uncertainty, self.size(context.n, context), context), context))
