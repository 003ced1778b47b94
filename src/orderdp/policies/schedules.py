"""Schedules: prune ratios that change over training, for any policy with a ratio."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from orderdp._validation import check_ratio, is_count
from orderdp.errors import ConfigError
from orderdp.policies.baselines import FullData
from orderdp.policies.wrappers import PolicyWrapper
from orderdp.policy import Context, Policy, Selection, Table, describe, nominal_ratio, size_bounds
from orderdp.registry import Registry

__all__ = [
    "SCHEDULES",
    "Constant",
    "Cosine",
    "Exponential",
    "Linear",
    "RatioFunction",
    "Schedule",
    "Scheduled",
    "Tail",
    "WarmUp",
]


class Schedule(ABC):
    """Defines the prune ratio of every epoch."""

    @abstractmethod
    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Return the prune ratio of `epoch`.

        Args:
            epoch: The epoch, from 0.
            epochs: Number of planned epochs; None if not given.
        """


@dataclass(frozen=True)
class Constant(Schedule):
    """The same ratio in every epoch.

    Args:
        prune_ratio: Fraction of the samples left out per epoch, in [0, 1).
    """

    prune_ratio: float

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Return the same ratio for every epoch."""
        return self.prune_ratio


@dataclass(frozen=True)
class WarmUp(Schedule):
    """All data in the first epochs, then a ratio.

    Args:
        prune_ratio: Fraction of the samples left out after the warm-up, in [0, 1).
        epochs: Number of epochs that use all data.
    """

    prune_ratio: float
    epochs: int

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        if not is_count(self.epochs, least=0):
            raise ConfigError(f"epochs must be a whole number, at least 0, got {self.epochs!r}.")

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Return 0 in the first epochs, then the ratio."""
        return 0.0 if epoch < self.epochs else self.prune_ratio


@dataclass(frozen=True)
class Linear(Schedule):
    """From one ratio in the first epoch to another in the last, in a straight line.

    Args:
        start: Ratio of the first epoch, in [0, 1).
        end: Ratio of the last epoch, in [0, 1).
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        check_ratio("start", self.start)
        check_ratio("end", self.end)

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Return the ratio on the line."""
        return self.start + (self.end - self.start) * _done(epoch, epochs)


@dataclass(frozen=True)
class Cosine(Linear):
    """From one ratio in the first epoch to another in the last, along half a cosine: slowly, fast, slowly."""

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Return the ratio on the curve."""
        return self.start + (self.end - self.start) * (1 - math.cos(math.pi * _done(epoch, epochs))) / 2


@dataclass(frozen=True)
class Tail(Schedule):
    """A ratio, and all data in the last fraction of the epochs.

    Args:
        prune_ratio: Fraction of the samples left out before the tail, in [0, 1).
        share: Fraction of the epochs that use all data, in [0, 1].
    """

    prune_ratio: float
    share: float = 0.125

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("share", self.share, one_allowed=True)

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Return 0 in the tail, whose length is rounded to whole epochs."""
        planned = _planned(epochs)
        return 0.0 if epoch >= planned - round(self.share * planned) else self.prune_ratio


@dataclass(frozen=True)
class Exponential(Schedule):
    """Epoch e, counted from 0, keeps decay ** e of the data; the last epochs keep all of it.

    With `DynamicRandom` this is the random form of progressive data dropout.

    >>> [round(Exponential(0.8).ratio(epoch, epochs=4), 3) for epoch in range(4)]
    [0.0, 0.2, 0.36, 0.0]

    Args:
        decay: Fraction of an epoch's data that the next epoch keeps, in (0, 1].
        full_last: Number of epochs at the end that use all data.
    """

    decay: float
    full_last: int = 1

    def __post_init__(self) -> None:
        check_ratio("decay", self.decay, zero_allowed=False, one_allowed=True)
        if not is_count(self.full_last, least=0):
            raise ConfigError(f"full_last must be a whole number, at least 0, got {self.full_last!r}.")

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Return 1 - decay ** epoch; 0 in the last epochs."""
        is_last = self.full_last > 0 and epoch >= _planned(epochs) - self.full_last
        return 0.0 if is_last else 1 - self.decay**epoch


@dataclass(frozen=True)
class RatioFunction(Schedule):
    """Any function of the epoch and the number of epochs. Checkpoints store its name.

    Args:
        function: Takes the epoch and the number of planned epochs (or None); returns the ratio.
        name: The name in checkpoints: change it when the function changes.
    """

    function: Callable[[int, int | None], float] = field(repr=False)
    name: str = "function"

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Return the value of the function, checked."""
        value = self.function(epoch, epochs)
        check_ratio(f"the ratio of epoch {epoch}", value)
        return float(value)


@dataclass(frozen=True)
class Scheduled(PolicyWrapper):
    """A policy whose prune ratio follows a schedule. Its sizes, and so its steps, stay exact.

    >>> from orderdp.policies.orderdp import OrderDP
    >>> policy = Scheduled(OrderDP(0.5), WarmUp(0.5, epochs=2))
    >>> [policy.size(100, Context(n=100, epoch=epoch)) for epoch in range(4)]
    [100, 100, 50, 50]

    Args:
        policy: Any policy with a prune ratio; the schedule replaces the ratio.
        schedule: The prune ratio of every epoch.
    """

    policy: Policy
    schedule: Schedule

    def __post_init__(self) -> None:
        if not self.policy.has_ratio:
            raise ConfigError(f"a schedule needs a policy with a prune ratio, got {describe(self.policy)}.")
        if not isinstance(self.schedule, Schedule):
            raise ConfigError(
                f"schedule must be a schedule of orderdp.policies, got {type(self.schedule).__name__}. For a function "
                "of the epoch use RatioFunction(function)."
            )
        if self.policy.every == "batch":
            raise ConfigError('a schedule needs a policy that selects once per epoch, got every="batch".')

    @property
    def needs_feedback(self) -> bool:
        """Whether the policy needs feedback at a ratio above 0: its own ratio, which may be 0, is not used."""
        return self.policy.with_ratio(0.5).needs_feedback

    @property
    def has_ratio(self) -> bool:
        """False: the schedule decides the ratio."""
        return False

    def with_ratio(self, prune_ratio: float) -> Policy:
        """Raise: see `has_ratio`."""
        raise ConfigError(f"{describe(self)} has no prune ratio that could be changed.")

    def at(self, context: Context) -> Policy:
        """Return the policy of one epoch.

        Args:
            context: The epoch's context.
        """
        ratio = self.schedule.ratio(context.epoch, context.epochs)
        return FullData() if ratio == 0 else self.policy.with_ratio(ratio)

    def size(self, n: int, context: Context) -> int | None:
        """Return the size of the epoch's policy."""
        return self.at(context).size(n, context)

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Return the bounds of the epoch's policy."""
        return size_bounds(self.at(context), n, context)

    def nominal_ratio(self, context: Context) -> float | None:
        """Return the nominal ratio of the epoch's policy."""
        return nominal_ratio(self.at(context), context.n, context)

    def select(self, table: Table, context: Context) -> Selection:
        """Select as the epoch's policy does, given the sizes of the earlier epochs."""
        policy = self.at(context)
        earlier = None if policy.size(context.n, context) is None else partial(self._kept, context)
        return policy.select(table, replace(context, earlier=earlier))

    def _kept(self, context: Context, epoch: int) -> int:
        size = self.size(context.n, replace(context, epoch=epoch))
        assert size is not None  # a policy has one in every epoch, or in none
        return size


#: Schedules by name, for the command line and config files.
SCHEDULES: Registry[Schedule] = Registry(
    Schedule,
    "schedule",
    {
        "constant": Constant,
        "warm-up": WarmUp,
        "linear": Linear,
        "cosine": Cosine,
        "tail": Tail,
        "exponential": Exponential,
    },
)


def _planned(epochs: int | None) -> int:
    if epochs is None:
        raise ConfigError("this schedule needs to know how many epochs are planned. Use Pruner(..., epochs=...).")
    return epochs


def _done(epoch: int, epochs: int | None) -> float:
    return min(1.0, epoch / max(1, _planned(epochs) - 1))
