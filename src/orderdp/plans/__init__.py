"""Plans from a proxy: a small network says which part of every batch is hard, the main training replays it."""

from __future__ import annotations

from orderdp.plans.plan import Plan, PlanCost
from orderdp.plans.recorder import PlanRecorder

__all__ = ["Plan", "PlanCost", "PlanRecorder"]
