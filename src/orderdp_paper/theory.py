"""What the paper shows without runs: its theory figures, and its toy example, computed exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from orderdp.report.charts import altair
from orderdp.theory import limit_weights, weights, weights_at

__all__ = [
    "FIGURES",
    "TOY",
    "expectation",
    "infobatch_outcomes",
    "orderdp_chances",
    "toy_tables",
    "weights_against_uniform",
]


_WIDTH, _HEIGHT = 520, 320


_POINTS = 400


def weights_against_uniform(n: int, s: int, q: int) -> Any:
    """Draw gamma_j of one (n, s, q) against q/n, the probability of every sample in a uniform selection."""
    ranks = np.unique(np.linspace(1, n, min(n, _POINTS)).round().astype(np.int64))
    rows = _rows(ranks / n, weights_at(ranks, n, s, q), "OrderDP")
    rows += _rows(np.array([1 / n, 1.0]), np.full(2, q / n), "uniform", dashed=True)
    title = f"n = {n:,}, s = {s:,}, q = {q:,}"
    return _lines(rows, "rank of the loss, j/n (hardest first)", "chance to be trained on in an epoch", title)


def limit() -> Any:
    """Draw the curves n gamma_j for growing n, and their limit."""
    s, q = 100, 30
    rows = []
    for n in (125, 200, 500, 5000):
        z = np.arange(1, n + 1) / n
        rows += _rows(z, n * weights(n, s, q), f"n = {n:,}")
    z = np.linspace(0, 1, 201)
    rows += _rows(z, limit_weights(z, s, q), "limit", dashed=True)
    return _lines(
        rows, "z = j/n", "n gamma_j", f"s = {s}, q = {q}", order=["n = 125", "n = 200", "n = 500", "n = 5,000", "limit"]
    )


def against_uniform() -> Any:
    """Draw gamma_j as q grows to s, where it becomes uniform."""
    n, s = 200, 100
    rows, names = [], []
    for q in (20, 40, 60, 80, 95, 100):
        names.append(f"q = {q}" if q < s else "uniform (q = s)")
        rows += _rows(np.arange(1, n + 1), weights(n, s, q), names[-1], dashed=q == s)
    return _lines(rows, "rank j", "gamma_j", f"n = {n}, s = {s}", order=names)


def shape() -> Any:
    """Draw gamma_j / q, the weights of the surrogate risk."""
    n, s = 400, 100
    rows, names = [], []
    for q in (10, 25, 50, 75, 100):
        names.append(f"q = {q}")
        rows += _rows(np.arange(1, n + 1), weights(n, s, q) / q, names[-1])
    return _lines(rows, "rank j", "gamma_j / q", f"n = {n}, s = {s}", order=names)


def sums() -> Any:
    """Draw the floating-point error of the sum of gamma_j / q, which is exactly 1."""
    alt = altair()
    n, s = 400, 100
    rows = [{"q": q, "error": float(weights(n, s, q).sum() / q - 1)} for q in range(10, 101, 10)]
    scale = alt.Scale(domain=[-1e-14, 1e-14])
    chart = alt.Chart(alt.Data(values=rows)).mark_point(size=80, filled=True, opacity=1)
    return chart.encode(
        x=alt.X("q:Q", title="q", axis=alt.Axis(values=list(range(10, 101, 10)))),
        y=alt.Y("error:Q", title="sum of gamma_j / q, minus 1", scale=scale, axis=alt.Axis(format=".0e")),
    ).properties(width=_WIDTH, height=_HEIGHT, title=f"n = {n}, s = {s}")


FIGURES: dict[str, tuple[str, Callable[[], Any]]] = {
    "fig-weights-limit": ("n gamma_j for (s, q) = (100, 30) and growing n, with the limit", limit),
    "fig-weights-uniform": ("gamma_j for (n, s) = (200, 100) as q goes to 100, where it is uniform", against_uniform),
    "fig-weights-shape": ("gamma_j / q for (n, s) = (400, 100)", shape),
    "fig-weights-sum": ("the sums of gamma_j / q for q = 10..100, which are 1", sums),
}


def _rows(x: np.ndarray, y: np.ndarray, name: str, dashed: bool = False) -> list[dict[str, Any]]:
    return [{"x": float(a), "y": float(b), "line": name, "dashed": dashed} for a, b in zip(x, y, strict=True)]


def _lines(rows: list[dict[str, Any]], x: str, y: str, title: str, order: list[str] | None = None) -> Any:
    alt = altair()
    names = order or list(dict.fromkeys(row["line"] for row in rows))
    chart = alt.Chart(alt.Data(values=rows)).mark_line(clip=True)
    return chart.encode(
        x=alt.X("x:Q", title=x, scale=alt.Scale(nice=False)),
        y=alt.Y("y:Q", title=y, scale=alt.Scale(domainMax=1.06 * max(row["y"] for row in rows))),
        color=alt.Color("line:N", title=None, sort=names, scale=alt.Scale(scheme="tableau10")),
        strokeDash=alt.condition("datum.dashed", alt.value([5, 4]), alt.value([1, 0])),
        tooltip=["line:N", alt.Tooltip("x:Q", title=x), alt.Tooltip("y:Q", title=y)],
    ).properties(width=_WIDTH, height=_HEIGHT, title=title)


TOY = "the toy example: InfoBatch and OrderDP on five gradients, exactly, beside the printed numbers"


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


def toy_tables() -> Iterator[Table]:
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
