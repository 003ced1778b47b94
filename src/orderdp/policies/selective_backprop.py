"""Selective backpropagation: the harder a sample among those seen, the likelier it is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.kit import at_least_one, shuffled
from orderdp.policy import Context, Selection, Table

__all__ = ["SelectiveBackprop"]


@dataclass(frozen=True)
class SelectiveBackprop:
    """Keeps a sample with probability (share of the seen losses that are no larger than its own) ** beta.

    This is the form that goes by stored losses and costs no extra pass; `orderdp.losses.SelectiveMean` is the one
    that goes by fresh ones.

    Args:
        beta: How much hard samples are preferred; about beta / (1 + beta) of the samples are left out.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        number = isinstance(self.beta, int | float) and not isinstance(self.beta, bool)
        if not (number and 0 <= self.beta < float("inf")):
            raise ConfigError(f"beta must be a number, at least 0, got {self.beta!r}.")

    @staticmethod
    def parameters_at(prune_ratio: float) -> dict[str, float]:
        """With which about this share is left out: beta = r / (1 - r)."""
        check_ratio("prune_ratio", prune_ratio)
        return {"beta": prune_ratio / (1 - prune_ratio)}

    def size(self, n: int, context: Context) -> None:
        """It depends on chance."""
        return

    def nominal_ratio(self, context: Context) -> float:
        """What is left out on average of many different losses."""
        return self.beta / (1 + self.beta)

    def with_ratio(self, prune_ratio: float) -> SelectiveBackprop:
        """The one that leaves out about this share."""
        return SelectiveBackprop(**self.parameters_at(prune_ratio))

    def select(self, table: Table, context: Context) -> Selection:
        """Each sample by itself, and those nobody has seen."""
        scores = table["score"]
        ordered = np.sort(scores[np.isfinite(scores)])
        luck = context.rng("epoch", context.epoch, "luck").random(context.n)
        kept = np.isinf(scores)
        if len(ordered):
            # u < rank ** beta is rank > u ** (1 / beta): so one look-up by rank replaces a search for every sample.
            wanted = luck ** (1 / self.beta) if self.beta else np.zeros(context.n)
            places = np.minimum((wanted * len(ordered)).astype(np.int64), len(ordered) - 1)
            kept |= scores >= ordered[places]
        return Selection(shuffled(np.flatnonzero(at_least_one(kept, scores)), context))
