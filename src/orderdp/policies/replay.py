"""Replay: what a proxy marked, in the order of its recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orderdp.errors import ConfigError
from orderdp.policy import Context, Selection, Table

if TYPE_CHECKING:
    from orderdp.plans import Plan

__all__ = ["Replay"]


@dataclass(frozen=True, eq=False)
class Replay:
    """Trains on what a plan marks, in the order of the plan.

    With batches of ``plan.kept`` samples, every batch is the marked part of one recorded batch. The order is that of
    the plan, whatever the seed of the pruner: one plan serves many trainings.

    Args:
        plan: Of this data set, with at least as many epochs as are trained.
    """

    plan: Plan = field(repr=False)

    needs_feedback = False

    def __post_init__(self) -> None:
        from orderdp.plans.plan import Plan

        if not isinstance(self.plan, Plan):
            raise ConfigError(
                f"plan must be an orderdp.plans.Plan, got {type(self.plan).__name__}. Take recorder.plan, or "
                "Plan.load(path)."
            )

    def __repr__(self) -> str:
        # By its fingerprint, so that a checkpoint can tell two plans of the same shape apart.
        return f"Replay({self.plan.epochs} epochs of {self.plan.size} samples, {self.plan.fingerprint})"

    def size(self, n: int, context: Context) -> int:
        """As many as are marked in an epoch, the same in every one."""
        if n != self.plan.n:
            raise ConfigError(
                f"the plan is of a data set of {self.plan.n} samples, this one has {n}. Record a plan with this one."
            )
        # When training is over, the epoch after the last is asked about.
        if (context.epochs or 0) > self.plan.epochs or context.epoch > self.plan.epochs:
            planned = context.epoch + 1 if context.epochs is None else context.epochs
            raise ConfigError(
                f"the plan has {self.plan.epochs} epochs, and {planned} are to be trained. Record a plan of as many."
            )
        return self.plan.size

    def select(self, table: Table, context: Context) -> Selection:
        """The marked samples of the epoch, in the order of the recording."""
        self.size(context.n, context)
        return self.plan.selection(context.epoch)
