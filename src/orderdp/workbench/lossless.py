"""How much can be pruned before it shows: a search for the largest ratio without a measurable loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from orderdp.errors import ConfigError
from orderdp.workbench.grid import Contender
from orderdp.workbench.records import Run
from orderdp.workbench.settings import Settings
from orderdp.workbench.statistics import Row, compare
from orderdp.workbench.verdicts import shows_no_loss

__all__ = ["Probe", "find_lossless"]


class Probe(NamedTuple):
    """One ratio that was tried.

    Attributes:
        prune_ratio: The ratio.
        lossless: Whether no loss could be measured.
        row: What was measured.
    """

    prune_ratio: float
    lossless: bool
    row: Row


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
    points. A ratio about which nothing can be said counts as one with a loss.

    Args:
        base: What the runs have in common.
        contender: The policy.
        seeds: At least two.
        train: Runs what is not finished and returns the records of all.
        high: The largest ratio that is tried.
        resolution: The ratios tried are multiples of this.
    """
    if len(set(seeds)) < 2:
        raise ConfigError(f"a loss can only be measured with at least two seeds, got {list(seeds)}.")
    full = [replace(base, policy="full", policy_parameters={}, prune_ratio=None, seed=seed) for seed in seeds]
    good, bad = 0, round(high / resolution) + 1
    while bad - good > 1:
        step = (good + bad) // 2
        ratio = round(step * resolution, 6)
        runs = [
            replace(base, policy=contender.policy, policy_parameters=contender.parameters, prune_ratio=ratio, seed=seed)
            for seed in seeds
        ]
        row = next(row for row in compare(train(full + runs)) if row.policy == contender.policy)
        lossless = shows_no_loss(row.against_full)
        yield Probe(ratio, lossless, row)
        good, bad = (step, bad) if lossless else (good, step)
