"""Prune ratios that change over training, for any policy that has one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from orderdp._validation import check_ratio, checked_name, is_count
from orderdp.errors import ConfigError
from orderdp.policies._selection import has_ratio, with_ratio
from orderdp.policies.baselines import FullData
from orderdp.policies.wrappers import PolicyWrapper
from orderdp.policy import Context, Policy, Selection, Table, describe, nominal_ratio, size_bounds

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
    "build_schedule",
    "schedule_config",
]


@runtime_checkable
class Schedule(Protocol):
    """Says how much is pruned in an epoch."""

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """The prune ratio of `epoch`, of so many planned; None where nobody said."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same ratio in every epoch."""

    prune_ratio: float

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Always the same."""
        return self.prune_ratio


@dataclass(frozen=True)
class WarmUp:
    """All data in the first epochs, then a ratio."""

    prune_ratio: float
    epochs: int

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        if not is_count(self.epochs, least=0):
            raise ConfigError(f"epochs must be a whole number, at least 0, got {self.epochs!r}.")

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Nothing at first."""
        return 0.0 if epoch < self.epochs else self.prune_ratio


@dataclass(frozen=True)
class Linear:
    """From one ratio in the first epoch to another in the last, in a straight line."""

    start: float
    end: float

    def __post_init__(self) -> None:
        check_ratio("start", self.start)
        check_ratio("end", self.end)

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """On the line."""
        return self.start + (self.end - self.start) * _done(epoch, epochs)


@dataclass(frozen=True)
class Cosine(Linear):
    """From one ratio to another along half a cosine: slowly, fast, slowly."""

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """On the curve."""
        return self.start + (self.end - self.start) * (1 - math.cos(math.pi * _done(epoch, epochs))) / 2


@dataclass(frozen=True)
class Tail:
    """A ratio, and all data in the last share of the epochs."""

    prune_ratio: float
    share: float = 0.125

    def __post_init__(self) -> None:
        check_ratio("prune_ratio", self.prune_ratio)
        check_ratio("share", self.share, one_allowed=True)

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """Nothing at the end; the start of the end is counted in whole epochs."""
        planned = _planned(epochs)
        return 0.0 if epoch >= planned - round(self.share * planned) else self.prune_ratio


@dataclass(frozen=True)
class Exponential:
    """Epoch e, counted from 0, keeps decay ** e of the data; the last epochs keep all of it.

    With `DynamicRandom` this is the random form of progressive data dropout.

    >>> [round(Exponential(0.8).ratio(epoch, epochs=4), 3) for epoch in range(4)]
    [0.0, 0.2, 0.36, 0.0]

    Args:
        decay: Share of an epoch's data that the next one keeps, in (0, 1].
        full_last: How many epochs at the end use all data.
    """

    decay: float
    full_last: int = 1

    def __post_init__(self) -> None:
        check_ratio("decay", self.decay, zero_allowed=False, one_allowed=True)
        if not is_count(self.full_last, least=0):
            raise ConfigError(f"full_last must be a whole number, at least 0, got {self.full_last!r}.")

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """What the powers leave out; nothing at the end."""
        is_last = self.full_last > 0 and epoch >= _planned(epochs) - self.full_last
        return 0.0 if is_last else 1 - self.decay**epoch


@dataclass(frozen=True)
class RatioFunction:
    """Any function of the epoch and the number of epochs. Checkpoints know it by its name."""

    function: Callable[[int, int | None], float] = field(repr=False)
    name: str = "function"

    def ratio(self, epoch: int, epochs: int | None) -> float:
        """What the function says, checked."""
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
        policy: Any policy with a prune ratio; the schedule's takes its place.
        schedule: How much is pruned when.
    """

    policy: Policy
    schedule: Schedule

    def __post_init__(self) -> None:
        if not has_ratio(self.policy):
            raise ConfigError(f"a schedule needs a policy with a prune ratio, got {describe(self.policy)}.")
        if not isinstance(self.schedule, Schedule):
            raise ConfigError(f"schedule must have a method ratio(epoch, epochs), got {type(self.schedule).__name__}.")
        if getattr(self.policy, "every", "epoch") == "batch":
            raise ConfigError('a schedule needs a policy that draws once an epoch, got every="batch".')

    @property
    def needs_feedback(self) -> bool:
        """As the policy does at a ratio that leaves something out: its own, which may be 0, is not used."""
        return bool(getattr(with_ratio(self.policy, 0.5), "needs_feedback", True))

    def at(self, context: Context) -> Policy:
        """The policy of one epoch."""
        ratio = self.schedule.ratio(context.epoch, context.epochs)
        return FullData() if ratio == 0 else with_ratio(self.policy, ratio)

    def size(self, n: int, context: Context) -> int | None:
        """That of the epoch's policy."""
        return self.at(context).size(n, context)

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Those of the epoch's policy."""
        return size_bounds(self.at(context), n, context)

    def nominal_ratio(self, context: Context) -> float | None:
        """That of the epoch's policy."""
        return nominal_ratio(self.at(context), context.n, context)

    def select(self, table: Table, context: Context) -> Selection:
        """As the epoch's policy does, which is told how much its predecessors kept."""
        policy = self.at(context)
        earlier = None if policy.size(context.n, context) is None else partial(self._kept, context)
        return policy.select(table, replace(context, earlier=earlier))

    def _kept(self, context: Context, epoch: int) -> int:
        size = self.size(context.n, replace(context, epoch=epoch))
        assert size is not None  # a policy has one in every epoch, or in none
        return size


#: Schedules by name, for the command line and config files.
SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "warm-up": WarmUp,
    "linear": Linear,
    "cosine": Cosine,
    "tail": Tail,
    "exponential": Exponential,
}


def build_schedule(name: str, **parameters: Any) -> Schedule:
    """The schedule called `name` with these parameters.

    >>> build_schedule("tail", prune_ratio=0.5)
    Tail(prune_ratio=0.5, share=0.125)
    """
    checked_name(name, SCHEDULES, "schedule")
    try:
        return SCHEDULES[name](**parameters)
    except TypeError as error:
        raise ConfigError(f"schedule {name!r} cannot be made: {error}.") from None


def schedule_config(schedule: Schedule) -> dict[str, Any]:
    """What `build_schedule` needs to make an equal schedule, in plain values."""
    for name, kind in SCHEDULES.items():
        if type(schedule) is kind:
            return {"name": name, **vars(schedule)}
    raise ConfigError(f"{type(schedule).__name__} is no schedule with a name; there are {', '.join(SCHEDULES)}.")


def _planned(epochs: int | None) -> int:
    if epochs is None:
        raise ConfigError("this schedule needs to know how many epochs are planned. Give Pruner(..., epochs=...).")
    return epochs


def _done(epoch: int, epochs: int | None) -> float:
    return min(1.0, epoch / max(1, _planned(epochs) - 1))
