"""The paper's tables and figures: which runs each takes at each scale, and what is made of their records."""

from __future__ import annotations

from orderdp.workbench.suites import accuracy, architectures, curves, dynamics, optimisers
from orderdp.workbench.suites.suite import SCALES, Method, Part, Scale, Suite, Table

__all__ = ["SCALES", "SUITES", "Method", "Part", "Scale", "Suite", "Table"]

SUITES: dict[str, Suite] = {
    suite.id: suite for room in (accuracy, architectures, optimisers, dynamics, curves) for suite in room.SUITES
}
