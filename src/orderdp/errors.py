"""All errors and warnings of this library.

::

    OrderDPError
    ├── ConfigError (ValueError)         a parameter is out of range or contradicts another
    │   ├── SmallEpochError              an epoch has no full batch, and incomplete ones are dropped
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

import sys
import warnings

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
    "SmallEpochError",
    "StateError",
    "UnknownSizeError",
    "UnreachableRatioWarning",
    "UnsyncedStateWarning",
]

_SOURCE = "."
"""What pip installs: a clone of the repository. Becomes the name of the package once that is registered."""


def install_command(extras: str) -> str:
    """Return the command that installs the library with extras, for messages about what is missing.

    >>> install_command("plot")
    "pip install '.[plot]'"
    """
    return f"pip install '{_SOURCE}[{extras}]'"


class OrderDPError(Exception):
    """Base class of all errors of this library."""


class ConfigError(OrderDPError, ValueError):
    """A parameter is out of range or contradicts another."""


class SmallEpochError(ConfigError):
    """An epoch has no full batch, and incomplete ones are dropped."""


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
    """The loader was iterated again in the middle of an epoch, and the loop around it continues."""


class UnreachableRatioWarning(OrderDPWarning):
    """A policy cannot reach the given prune ratio."""


class UnsyncedStateWarning(OrderDPWarning):
    """A checkpoint of one rank lacks the feedback of the others since the last sync."""


# -- warnings that name the user's line --------------------------------------------------------------------------------


# Packages whose frames lie between a user's line and a warning; frames of Python's own library do, too.
_BETWEEN = {
    *("orderdp", "orderdp_paper", "torch", "torchdata", "lightning", "pytorch_lightning", "lightning_fabric"),
    *("accelerate", "transformers", "composer", "ray", "timm"),
}


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the user's line: the innermost frame outside this library, torch and the frameworks.

    If there is no such frame (the program is a framework's own command), the warning names the innermost frame outside
    this library.

    Args:
        message: What is wrong, and what to do.
        category: The class of the warning.
    """
    level, outside = 1, 0
    frame = sys._getframe(1)
    while True:
        level += 1
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        outside = outside or (0 if package.startswith("orderdp") else level)
        if package not in _BETWEEN and package not in sys.stdlib_module_names:
            break
        if frame.f_back is None:
            level = outside or level
            break
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warn_nonfinite(count: int, *, as_error: bool) -> None:
    """Warn, or raise, if losses of the last epoch were not finite.

    Args:
        count: Number of non-finite losses.
        as_error: Whether to raise an error in place of a warning.
    """
    if not count:
        return
    message = (
        f"{count} losses of the last epoch were NaN or infinite; their samples keep their previous scores. Check the "
        "learning rate and the data."
    )
    if as_error:
        raise NonFiniteLossError(message + ' With on_nan="warn" training continues.')
    warn(message, NonFiniteLossWarning)
