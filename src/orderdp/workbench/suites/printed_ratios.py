"""Methods at the ratios at which the paper found no loss."""

from __future__ import annotations

from typing import Any

from orderdp.workbench.suites.printed import Printed
from orderdp.workbench.suites.recipes import FULL, INFOBATCH, ORDERDP, RANDOM, REDUCED, at
from orderdp.workbench.suites.suite import Method, Part

__all__ = ["printed_part"]


def printed_part(
    printed: Printed, group: str, base: dict[str, Any], seeds: int, full_run: float, controls: bool = True
) -> Part:
    """Full data, each method at the ratio printed for it in a group, and controls at that of OrderDP."""
    methods = _at_printed_ratios(printed, group, controls)
    return Part(group, base, methods, (), tuple(range(seeds)), full_run)


def _at_printed_ratios(printed: Printed, group: str, controls: bool) -> tuple[Method, ...]:
    """Full data and each method at the ratio printed for it; controls at that of OrderDP."""
    ratios = {
        method.name: round(number.value / 100, 4)
        for method in (INFOBATCH, ORDERDP)
        if (number := printed.number(group, method.name, "saved")) is not None
    }
    methods = tuple(at(method, ratios[method.name]) for method in (INFOBATCH, ORDERDP) if method.name in ratios)
    more = (at(REDUCED, ratios["OrderDP"]), at(RANDOM, ratios["OrderDP"])) if controls else ()
    return (FULL, *more, *methods)
