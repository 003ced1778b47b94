"""How much can be pruned before it shows: a search for the largest ratio without a measurable loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from orderdp.errors import ConfigError
from orderdp.workbench.grid import Contender, takes_ratio
from orderdp.workbench.records import Run
from orderdp.workbench.running import check
from orderdp.workbench.settings import Settings
from orderdp.workbench.statistics import Row, compare
from orderdp.workbench.verdicts import shows_no_loss

__all__ = ["Probe", "find_lossless", "possible_ratios"]


class Probe(NamedTuple):
    """One ratio that was tried.

    Attributes:
        prune_ratio: The ratio.
        lossless: Whether no run failed and no loss could be measured.
        row: What was measured.
    """

    prune_ratio: float
    lossless: bool
    row: Row

    @property
    def said(self) -> str:
        """What was measured, in words, and how many runs failed."""
        failed = len(self.row.failed)
        return f"{self.row.verdict}; {failed} of its runs failed" if failed and self.row.runs else self.row.verdict


def find_lossless(
    base: Settings,
    contender: Contender,
    seeds: Sequence[int],
    train: Callable[[list[Settings]], list[Run]],
    *,
    high: float = 0.9,
    resolution: float = 0.05,
) -> Iterator[Probe]:
    """Tries ratios by bisection; the last probe that is lossless has the largest one found.

    "Without a measurable loss" means that the interval of the paired differences to full data reaches up to 0, and not
    further down than a point. What counts as measurable depends on the number of seeds: the row says within how many
    points. A ratio about which nothing can be said counts as one with a loss, and so does one at which a run failed.

    Args:
        base: What the runs have in common.
        contender: The policy.
        seeds: At least two.
        train: Runs what is not finished and returns the records of all.
        high: The largest ratio that is tried.
        resolution: The ratios tried are multiples of this.
    """
    seeds = list(dict.fromkeys(seeds))  # a run that is named twice would be trained twice at the same time
    if len(seeds) < 2:
        raise ConfigError(f"a loss can only be measured with at least two seeds, got {seeds}.")
    full = [replace(base, policy="full", policy_parameters={}, prune_ratio=None, seed=seed) for seed in seeds]
    own = replace(base, policy=contender.policy, policy_parameters=contender.parameters)
    ratios = possible_ratios(base, contender, high=high, resolution=resolution)
    good, bad = -1, len(ratios)
    while bad - good > 1:
        place = (good + bad) // 2
        runs = [replace(own, prune_ratio=ratios[place], seed=seed) for seed in seeds]
        row = next(row for row in compare(train(full + runs)) if row.policy == contender.policy)
        lossless = shows_no_loss(row.against_full) and not row.failed
        yield Probe(ratios[place], lossless, row)
        good, bad = (place, bad) if lossless else (good, place)


def possible_ratios(
    base: Settings, contender: Contender, *, high: float = 0.9, resolution: float = 0.05
) -> list[float]:
    """The ratios that can be tried, in rising order: those that the contender can be made for.

    Args:
        base: What the runs have in common.
        contender: The policy.
        high: The largest ratio that is tried.
        resolution: The ratios tried are multiples of this.
    """
    if not 0 < resolution <= high:
        raise ConfigError(f"resolution must be above 0 and at most {high}, the largest ratio tried, got {resolution}.")
    if not takes_ratio(contender):
        raise ConfigError(f"{contender.policy!r} decides by itself how much it leaves out: there is no ratio to find.")
    own = replace(base, policy=contender.policy, policy_parameters=contender.parameters)
    found, reason = [], None
    for step in range(1, math.floor(high / resolution + 1e-9) + 1):
        ratio = round(step * resolution, 6)
        try:
            check(replace(own, prune_ratio=ratio))
            found.append(ratio)
        except ConfigError as error:
            reason = error
    if reason is not None and not found:
        raise reason
    return found
