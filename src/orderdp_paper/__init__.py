"""The paper's tables and figures: the runs of each at each scale, and the output built from their records."""

from __future__ import annotations

from orderdp_paper.suite import SCALES, Method, Part, Scale, Suite, Table
from orderdp_paper.suites import SUITES

__all__ = ["SCALES", "SUITES", "Method", "Part", "Scale", "Suite", "Table"]
