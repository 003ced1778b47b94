"""The paper's theory figures, drawn from the library's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from orderdp.report.charts import altair
from orderdp.theory import limit_weights, weights, weights_at

__all__ = ["FIGURES", "weights_against_uniform"]


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
