"""The paper's tables and figures: the runs of each at each scale, and the output built from their records."""

from __future__ import annotations

from orderdp_paper import accuracy, architectures, curves, dynamics
from orderdp_paper import optimizers as optimizers
from orderdp_paper.suite import SCALES, Method, Part, Scale, Suite, Table

__all__ = ["SCALES", "SUITES", "Method", "Part", "Scale", "Suite", "Table"]


SUITES: dict[str, Suite] = {
    suite.id: suite for room in (accuracy, architectures, optimizers, dynamics, curves) for suite in room.SUITES
}
