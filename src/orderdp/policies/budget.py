"""Budget: fixes what a training costs, and lets another policy decide what it is spent on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.kit import uniform
from orderdp.policies.learned import SkipLearned, threshold_config
from orderdp.policies.wrapping import Wrapping
from orderdp.policy import Context, Policy, Selection, Table, describe, size_bounds

__all__ = ["Budget", "refuse_budget"]


@dataclass(frozen=True, init=False, repr=False)
class Budget(Wrapping):
    """Training ends when a share of the samples of full training is spent, however many epochs that takes.

    ::

        pruner = orderdp.Pruner(orderdp.Budget(0.5), train_set, epochs=10)  # as much as five epochs of all data
        loader = pruner.loader(train_set, batch_size=128, drop_last=True)
        for epoch in pruner.remaining_epochs():
            for index, (x, y) in loader:
                ...

    By default each epoch takes everything that is not learned and a tenth of the rest: fewer epochs of all data where
    nothing is learned, more and shorter epochs where much is.

    >>> Budget(0.5, learned=0.95)
    Budget(0.5, learned=0.95)
    >>> Budget(0.5).total(n=50_000, epochs=10)
    250000

    Args:
        share: Share of ``epochs`` epochs of all data that is spent, in (0, 1].
        learned: When a sample is learned, as in `SkipLearned`.
        refresh: Share of the learned samples that an epoch trains on, as in `SkipLearned`.
        policy: Another policy that says what an epoch trains on. With `FullData` the budget is fewer epochs, to the
            sample.
    """

    share: float
    policy: Policy

    def __init__(
        self, share: float, *, learned: Any = None, refresh: float | None = None, policy: Policy | None = None
    ) -> None:
        check_ratio("share", share, zero_allowed=False, one_allowed=True)
        given: dict[str, Any] = {
            name: value for name, value in (("learned", learned), ("refresh", refresh)) if value is not None
        }
        if policy is None:
            policy = SkipLearned(**given)
        elif given:
            raise ConfigError(
                f"{' and '.join(given)} belong to the policy that a budget has by default, and another one was given: "
                f"{describe(policy)}. Leave one out."
            )
        if getattr(policy, "every", "epoch") == "batch":
            raise ConfigError('a budget needs a policy that draws once per epoch, got every="batch".')
        if isinstance(policy, Budget):
            raise ConfigError(f"a budget within a budget has no meaning, got {describe(policy)}. Leave one out.")
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "policy", policy)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the constructor needs to make an equal policy, without what it would take by itself."""
        chosen: dict[str, Any] = {"share": self.share}
        default = SkipLearned()
        if type(self.policy) is not SkipLearned or self.policy.unbiased:
            return {**chosen, "policy": self.policy}
        for name in ("learned", "refresh"):
            if getattr(self.policy, name) != getattr(default, name):
                chosen[name] = getattr(self.policy, name)
        return chosen

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.parameters.items() if name != "share"}
        if "learned" in shown and threshold_config(shown["learned"]) == getattr(shown["learned"], "value", None):
            shown["learned"] = shown["learned"].value
        return f"Budget({', '.join([f'{self.share!r}', *(f'{name}={value!r}' for name, value in shown.items())])})"

    @staticmethod
    def parameters_at(prune_ratio: float) -> dict[str, Any]:
        """With which this share of full training is left out."""
        check_ratio("prune_ratio", prune_ratio)
        return {"share": round(1 - prune_ratio, 12)}

    def total(self, n: int, epochs: int | None) -> int:
        """How many samples the whole training is trained on, repeats included."""
        if epochs is None:
            raise ConfigError(
                "a budget is a share of full training and needs to know how many epochs that has. Give Pruner(..., "
                "epochs=...)."
            )
        total = round(self.share * epochs * n)
        if total < 1:
            raise ConfigError(f"{self} of {epochs} epochs of {n} samples is nothing. Spend more.")
        return total

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int] | None:
        """The size of every epoch, where that is known in advance and no sample is left out by batching; else None."""
        left = self.total(n, epochs)
        sizes: list[int] = []
        while left > 0:
            size = self.policy.size(n, Context(n=n, epoch=len(sizes), epochs=epochs))
            if size is None:
                return None
            sizes.append(min(size, left))
            left -= sizes[-1]
        return sizes

    def size(self, n: int, context: Context) -> None:
        """It depends on what is left."""
        return

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """What the policy may take, and no more than is left."""
        fewest, most = size_bounds(self.policy, n, context)
        left = self.left(context)
        return min(fewest, left), min(most, left)

    def nominal_ratio(self, context: Context) -> float:
        """The share of full training that is left out."""
        return 1 - self.share

    def select(self, table: Table, context: Context) -> Selection:
        """As the policy does; in the last epoch as many as are left."""
        selection = self.policy.select(table, context)
        left = self.left(context)
        if len(selection) <= left:
            return selection
        # By index and not by place in the order: so ranks that each hold a part of the samples draw the same.
        kept = np.zeros(context.n, dtype=np.bool_)
        kept[uniform(np.sort(selection.indices), left, context, "budget")] = True
        places = kept[selection.indices]
        weights = selection.weights
        return Selection(selection.indices[places], None if weights is None else weights[places])

    def left(self, context: Context) -> int:
        """Samples that may still be trained on; one at least, so that an epoch is never empty."""
        return max(1, self.total(context.n, context.epochs) - context.trained)


def refuse_budget(policy: object, reason: str) -> None:
    """Raises where the policy, or one inside it, is a budget."""
    inside = policy
    while inside is not None:
        if isinstance(inside, Budget):
            raise ConfigError(
                f"a budget is a share of full training, and {reason}, got {describe(inside)}. Use its policy without "
                "the budget, for example orderdp.policies.SkipLearned()."
            )
        inside = getattr(inside, "policy", None)
