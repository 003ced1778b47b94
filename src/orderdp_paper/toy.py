"""The paper's toy example, computed exactly: five samples with gradients 1 to 5, of which one is kept."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from math import comb

__all__ = ["DESCRIPTION", "expectation", "infobatch_outcomes", "orderdp_chances", "tables"]


DESCRIPTION = "the toy example: InfoBatch and OrderDP on five gradients, exactly, beside the printed numbers"


_GRADIENTS = (1, 2, 3, 4, 5)


_PRINTED = ("1/25", "3/50", "3/25", "9/50", "3/5")


Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def orderdp_chances() -> list[Fraction]:
    """Return the probability that each of the five samples is kept, for pool sizes 1 to 5 with equal probability."""
    chances = [Fraction(0)] * 5
    for s in range(1, 6):
        for pool in combinations(range(5), s):
            chances[max(pool)] += Fraction(1, 5 * comb(5, s))
    return chances


def expectation(chances: list[Fraction]) -> Fraction:
    """Return the expected gradient of the kept sample."""
    return sum((g * p for g, p in zip(_GRADIENTS, chances, strict=True)), Fraction(0))


def infobatch_outcomes() -> list[tuple[tuple[int, ...], Fraction, Fraction, Fraction]]:
    """Return each kept set with its probability, and the gradient estimate divided by the number kept and by n.

    Samples 3, 4 and 5 are always kept; 1 and 2 each with probability 1/5, and then their gradients count five times.
    """
    outcomes = []
    for extra in ((), (1,), (2,), (1, 2)):
        chance = Fraction(1, 5) ** len(extra) * Fraction(4, 5) ** (2 - len(extra))
        total = Fraction(sum(5 * g for g in extra) + 3 + 4 + 5)
        kept = (*extra, 3, 4, 5)
        outcomes.append((kept, chance, total / len(kept), total / 5))
    return outcomes


def tables() -> Iterator[Table]:
    """Yield the two tables, each next to the paper's numbers."""
    outcomes = infobatch_outcomes()
    rows: list[tuple[str, ...]] = [
        (str(set(kept)), f"{float(p):.2f}", f"{float(by_kept):g}", f"{float(by_n):g}", f"{1 - len(kept) / 5:.1f}")
        for kept, p, by_kept, by_n in outcomes
    ]
    mean_kept = float(sum(p * g for _, p, g, _ in outcomes))
    mean_n = float(sum(p * g for _, p, _, g in outcomes))
    pruned = float(sum(p * (1 - Fraction(len(kept), 5)) for kept, p, _, _ in outcomes))
    rows.append(("expected", "", f"{mean_kept:g} (printed 4.336)", f"{mean_n:g}", f"{pruned:.2f}"))
    header = ("kept", "probability", "mean over the kept", "mean over n", "pruned")
    yield "InfoBatch: the printed prune rate of the first row, 0.60, should be 0.4", header, rows

    chances = orderdp_chances()
    rows = [
        (str(g), str(p), printed, "" if str(p) == printed else "differs")
        for g, p, printed in zip(_GRADIENTS, chances, _PRINTED, strict=True)
    ]
    rows.append(("expected", f"{float(expectation(chances)):g}", "4.06", "differs"))
    yield (
        "OrderDP: keep the largest of a pool of 1 to 5; full data: 3",
        ("gradient", "probability", "printed", ""),
        rows,
    )
