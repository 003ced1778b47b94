"""Warnings about a training, each given once or once per epoch."""

from __future__ import annotations

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

__all__ = ["TrainingWarnings", "warn_nonfinite"]


# A real ratio this far from the nominal one is worth a remark.
_NOTICEABLE = 0.005


class TrainingWarnings:
    """What there is to complain about, and what has been said already.

    Args:
        policy: Who draws.
        table: Where steps count what they may not look at.
        raise_on_nan: Whether losses that are not finite are an error.

    Attributes:
        nonfinite: Losses that were not finite, in all epochs before the last draw.
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
        """Once an epoch: says what the steps have only counted."""
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
        """Once: that an epoch was gone through and nothing came back."""
        if self._said_idle:
            return
        self._said_idle = True
        warnings.warn(
            "an epoch was used up and no loss came back, so the same samples are served again. Call "
            "loss = pruner.update(index, losses) in every step.",
            NoFeedbackWarning,
            stacklevel=3,
        )

    def warn_beyond_plan(self, epochs: int) -> None:
        """Once: that training goes on though all epochs that were planned are over."""
        if self._said_beyond:
            return
        self._said_beyond = True
        warnings.warn(
            f"epoch {epochs + 1} is being trained on, and Pruner(..., epochs={epochs}) planned {epochs}: schedules "
            "stay where their end was, and progress at 1. Give epochs= the number that you train.",
            BeyondPlanWarning,
            stacklevel=6,
        )

    def warn_real_ratio(self, epoch: int, real: float, nominal: float | None) -> None:
        """Once: that a policy leaves out another share than it was asked to. In the first epoch nothing is known."""
        if self._said_what_is_real or epoch == 0 or nominal is None or abs(real - nominal) <= _NOTICEABLE:
            return
        self._said_what_is_real = True
        warnings.warn(
            f"{describe(self._policy)} leaves out {real:.1%} of the samples in epoch {epoch}, not the "
            f"nominal {nominal:.1%}: how much it can leave out depends on the losses. Pruner.report() "
            "has what is really saved.",
            RealRatioWarning,
            stacklevel=2,
        )


def warn_nonfinite(count: int, *, as_error: bool) -> None:
    """That losses of the last epoch were not finite, if there were any.

    Args:
        count: How many.
        as_error: Whether training is to stop.
    """
    if not count:
        return
    message = (
        f"{count} losses of the last epoch were NaN or infinite; their samples keep the scores they had. "
        "Look at the learning rate and at the data."
    )
    if as_error:
        raise NonFiniteLossError(message + ' With on_nan="warn" training goes on.')
    warnings.warn(message, NonFiniteLossWarning, stacklevel=4)
