"""Warnings: `warn` names the line of the user; `TrainingWarnings` warns once, or once per epoch."""

from __future__ import annotations

import sys
import warnings

from orderdp.errors import (
    BeyondPlanWarning,
    IndexRangeError,
    NoFeedbackWarning,
    NonFiniteLossError,
    NonFiniteLossWarning,
    RealRatioWarning,
)
from orderdp.policy import Policy, describe
from orderdp.score_table import ScoreTable

__all__ = ["TrainingWarnings", "warn", "warn_nonfinite"]

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


# A real ratio further than this from the nominal one triggers a warning.
_NOTICEABLE = 0.005


class TrainingWarnings:
    """The warnings of one training, and which of them have been given.

    Args:
        policy: Selects the samples of an epoch.
        table: Counts the invalid values of steps, which may not wait for the device.
        raise_on_nan: Whether non-finite losses are an error.

    Attributes:
        nonfinite: Non-finite losses in all epochs before the last selection.
    """

    def __init__(self, policy: Policy, table: ScoreTable, raise_on_nan: bool) -> None:
        self.nonfinite = 0
        self._policy = policy
        self._table = table
        self._raise_on_nan = raise_on_nan
        self._said_idle = False
        self._said_beyond = False
        self._said_what_is_real = False

    def flush(self) -> None:
        """Report, once per epoch, the invalid values that the steps have only counted."""
        nonfinite, outside = self._table.invalid_counts()
        self._table.clear_invalid_counts()
        self.nonfinite += nonfinite
        if outside:
            raise IndexRangeError(
                f"indices must be in [0, {self._table.n}), the length of the data set; {outside} of the last epoch "
                "were not, and their losses were ignored. Pass the index that came with the batch, unchanged."
            )
        warn_nonfinite(nonfinite, as_error=self._raise_on_nan)

    def warn_no_feedback(self) -> None:
        """Warn once that an epoch was exhausted and no loss came back."""
        if self._said_idle:
            return
        self._said_idle = True
        warn(
            "an epoch was used up and no loss came back, so the same samples are served again. Call "
            "loss = pruner.update(index, losses) in every step.",
            NoFeedbackWarning,
        )

    def warn_beyond_plan(self, epochs: int) -> None:
        """Warn once that training continues after the last planned epoch."""
        if self._said_beyond:
            return
        self._said_beyond = True
        warn(
            f"epoch {epochs + 1} is being trained on, and Pruner(..., epochs={epochs}) planned {epochs}: schedules "
            "stay where their end was, and progress at 1. Give epochs= the number that you train.",
            BeyondPlanWarning,
        )

    def warn_real_ratio(self, epoch: int, real: float, nominal: float | None) -> None:
        """Warn once that the real prune ratio differs from the nominal one. Epoch 0 is exempt: it has no losses yet."""
        if self._said_what_is_real or epoch == 0 or nominal is None or abs(real - nominal) <= _NOTICEABLE:
            return
        self._said_what_is_real = True
        warn(
            f"{describe(self._policy)} leaves out {real:.1%} of the samples in epoch {epoch}, not the "
            f"nominal {nominal:.1%}: how much it can leave out depends on the losses. Pruner.report() "
            "has what is really saved.",
            RealRatioWarning,
        )


def warn_nonfinite(count: int, *, as_error: bool) -> None:
    """Warn, or raise, if losses of the last epoch were not finite.

    Args:
        count: Number of non-finite losses.
        as_error: Whether to raise an error in place of a warning.
    """
    if not count:
        return
    message = (
        f"{count} losses of the last epoch were NaN or infinite; their samples keep the scores they had. "
        "Look at the learning rate and at the data."
    )
    if as_error:
        raise NonFiniteLossError(message + ' With on_nan="warn" training goes on.')
    warn(message, NonFiniteLossWarning)
