"""Everything this library raises or warns about.

::

    OrderDPError
    ├── ConfigError (ValueError)         a parameter is out of range or contradicts another
    │   └── UnknownSizeError             the policy cannot say in advance how much it keeps
    ├── DatasetError (ValueError)        the data set has no length, is empty, missing, damaged, or has changed
    ├── FeedbackError (ValueError)       index, losses or scores of a step do not fit together
    │   └── IndexRangeError (IndexError) an index outside the data set
    ├── GroupError (RuntimeError)        the processes of a group do not agree, or one does not answer
    ├── NonFiniteLossError               NaN or infinite losses, with ``on_nan="raise"``
    ├── RecordError (ValueError)         a run's records cannot be written, are damaged or not there
    └── StateError (ValueError)          a checkpoint is damaged or belongs to something else

    OrderDPWarning (UserWarning)
    ├── BeyondPlanWarning                more epochs are trained than were planned
    ├── NoFeedbackWarning                an epoch was used up and no loss came back
    ├── NonFiniteLossWarning             NaN or infinite losses were left out of the scores
    ├── RealRatioWarning                 a policy leaves out another share than its nominal one
    ├── UnreachableRatioWarning          a policy could not prune as much as it was asked to
    └── UnsyncedStateWarning             a checkpoint lacks what other processes have learnt

Messages say what must be, what came, and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "BeyondPlanWarning",
    "ConfigError",
    "DatasetError",
    "FeedbackError",
    "GroupError",
    "IndexRangeError",
    "NoFeedbackWarning",
    "NonFiniteLossError",
    "NonFiniteLossWarning",
    "OrderDPError",
    "OrderDPWarning",
    "RealRatioWarning",
    "RecordError",
    "StateError",
    "UnknownSizeError",
    "UnreachableRatioWarning",
    "UnsyncedStateWarning",
]


class OrderDPError(Exception):
    """Root of everything raised on purpose by this library."""


class ConfigError(OrderDPError, ValueError):
    """A parameter is out of range or contradicts another."""


class UnknownSizeError(ConfigError):
    """The number asked for depends on losses nobody has seen yet; its bounds are known.

    Attributes:
        lower: The smallest value it can take.
        upper: The largest value it can take.
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
    """What a training step handed back (index, losses, scores) does not fit together."""


class IndexRangeError(FeedbackError, IndexError):
    """An index points outside the data set."""


class GroupError(OrderDPError, RuntimeError):
    """The processes of a group were set up differently, stand at different places, or one does not answer."""


class NonFiniteLossError(OrderDPError):
    """NaN or infinite losses came back and ``on_nan="raise"`` was asked for."""


class RecordError(OrderDPError, ValueError):
    """The records of a run cannot be written, are damaged, or are not there."""


class StateError(OrderDPError, ValueError):
    """A checkpoint is damaged or belongs to another policy, data set or library."""


class OrderDPWarning(UserWarning):
    """Root of this library's warnings."""


class BeyondPlanWarning(OrderDPWarning):
    """More epochs are trained than ``epochs=`` said."""


class NoFeedbackWarning(OrderDPWarning):
    """An epoch was used up and no loss came back through ``Pruner.update``."""


class NonFiniteLossWarning(OrderDPWarning):
    """NaN or infinite losses were left out of the scores."""


class RealRatioWarning(OrderDPWarning):
    """A policy leaves out another share of the samples than its nominal one."""


class UnreachableRatioWarning(OrderDPWarning):
    """A policy could not prune as much as it was asked to."""


class UnsyncedStateWarning(OrderDPWarning):
    """A checkpoint of one process lacks what the others have learnt since they met."""
