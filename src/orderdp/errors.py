"""All errors and warnings of this library.

::

    OrderDPError
    ├── ConfigError (ValueError)         a parameter is out of range or contradicts another
    │   └── UnknownSizeError             the number of samples kept is not known in advance
    ├── DatasetError (ValueError)        the data set has no length, is empty, missing, damaged, or has changed
    ├── FeedbackError (ValueError)       index, losses or scores of a step do not fit together
    │   └── IndexRangeError (IndexError) an index outside the data set
    ├── GroupError (RuntimeError)        the ranks of a group do not agree, or one does not answer
    ├── NonFiniteLossError               NaN or infinite losses, with ``on_nan="raise"``
    ├── RecordError (ValueError)         a run's records cannot be written, are damaged or missing
    └── StateError (ValueError)          a checkpoint is damaged or belongs to something else

    OrderDPWarning (UserWarning)
    ├── BeyondPlanWarning                more epochs are trained than were planned
    ├── FeedbackMismatchWarning          losses came back for other samples than were served, or twice
    ├── NoFeedbackWarning                an epoch was exhausted and no loss came back
    ├── NonFiniteLossWarning             NaN or infinite losses were left out of the scores
    ├── NoOpenEpochWarning               losses came back while no epoch was open
    ├── RealRatioWarning                 the real prune ratio differs from the nominal one
    ├── RestartedEpochWarning            the loader was iterated again in the middle of an epoch
    ├── UnreachableRatioWarning          a policy cannot reach the given prune ratio
    └── UnsyncedStateWarning             a checkpoint lacks the feedback of other ranks

Messages say what is required, what was given, and what to do.
"""

from __future__ import annotations

__all__ = [
    "BeyondPlanWarning",
    "ConfigError",
    "DatasetError",
    "FeedbackError",
    "FeedbackMismatchWarning",
    "GroupError",
    "IndexRangeError",
    "NoFeedbackWarning",
    "NoOpenEpochWarning",
    "NonFiniteLossError",
    "NonFiniteLossWarning",
    "OrderDPError",
    "OrderDPWarning",
    "RealRatioWarning",
    "RecordError",
    "RestartedEpochWarning",
    "StateError",
    "UnknownSizeError",
    "UnreachableRatioWarning",
    "UnsyncedStateWarning",
]


class OrderDPError(Exception):
    """Base class of all errors of this library."""


class ConfigError(OrderDPError, ValueError):
    """A parameter is out of range or contradicts another."""


class UnknownSizeError(ConfigError):
    """The number depends on losses that are not known yet; its bounds are known, and `message` says what to do.

    Attributes:
        lower: The smallest value it can have.
        upper: The largest value it can have.
    """

    def __init__(self, message: str, lower: int, upper: int) -> None:
        super().__init__(message)
        self.lower = lower
        self.upper = upper

    def __reduce__(self) -> tuple[type[UnknownSizeError], tuple[str, int, int]]:
        # Exceptions pickle through their args alone, which would lose the bounds.
        return type(self), (str(self), self.lower, self.upper)


class DatasetError(OrderDPError, ValueError):
    """The data set has no length, is empty, missing or damaged, or is not the one the pruner was made for."""


class FeedbackError(OrderDPError, ValueError):
    """The index, losses or scores of a training step do not fit together."""


class IndexRangeError(FeedbackError, IndexError):
    """An index points outside the data set."""


class GroupError(OrderDPError, RuntimeError):
    """The ranks of a group have different settings or positions, or one does not answer."""


class NonFiniteLossError(OrderDPError):
    """NaN or infinite losses came back with ``on_nan="raise"``."""


class RecordError(OrderDPError, ValueError):
    """The records of a run cannot be written, are damaged, or are missing."""


class StateError(OrderDPError, ValueError):
    """A checkpoint is damaged or belongs to another policy, data set or library."""


class OrderDPWarning(UserWarning):
    """Base class of this library's warnings."""


class BeyondPlanWarning(OrderDPWarning):
    """More epochs are trained than ``epochs=`` planned."""


class FeedbackMismatchWarning(OrderDPWarning):
    """Losses came back for samples that were not served, or for the same samples more than once."""


class NoFeedbackWarning(OrderDPWarning):
    """An epoch was exhausted and no loss came back through ``Pruner.update``."""


class NoOpenEpochWarning(OrderDPWarning):
    """Losses came back while no epoch was open."""


class NonFiniteLossWarning(OrderDPWarning):
    """NaN or infinite losses were left out of the scores."""


class RealRatioWarning(OrderDPWarning):
    """The real prune ratio of a policy differs from its nominal one."""


class RestartedEpochWarning(OrderDPWarning):
    """The loader was iterated again in the middle of an epoch, and the loop around it goes on."""


class UnreachableRatioWarning(OrderDPWarning):
    """A policy cannot reach the given prune ratio."""


class UnsyncedStateWarning(OrderDPWarning):
    """A checkpoint of one rank lacks the feedback of the others since the last sync."""
