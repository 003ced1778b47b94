"""SeTa: a random part, grouped by loss, and of the groups a window that slides from easy to hard."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from orderdp.errors import ConfigError
from orderdp.planning import check_ratio, is_count
from orderdp.policies.kit import count_kept, is_annealed, shuffled, uniform
from orderdp.policy import Context, Selection, Table

__all__ = ["SeTa", "group_edges"]

_MOST_ROUNDS = 100


@dataclass(frozen=True)
class SeTa:
    """A random share of the samples; of those, the groups of similar loss that lie in a window.

    The losses are put into groups by k-means, from easy to hard. The window moves by one group each epoch and starts
    again when it has reached the hardest.

    Args:
        r: Share left out at random, in [0, 1). What is left out in all is more, by the groups outside the window.
        groups: How many groups.
        window: Share of the groups inside the window, in (0, 1].
        annealing: Share of the epochs after which the window is dropped and only the random share is left out; None
            for never.
    """

    r: float
    groups: int = 5
    window: float = 0.9
    _: KW_ONLY
    annealing: float | None = 0.875

    ratio_name = "r"

    def __post_init__(self) -> None:
        check_ratio("r", self.r)
        check_ratio("window", self.window, zero_allowed=False, one_allowed=True)
        if not is_count(self.groups):
            raise ConfigError(f"groups must be a whole number, at least 1, got {self.groups!r}.")
        if self.annealing is not None:
            check_ratio("annealing", self.annealing, one_allowed=True)

    def size(self, n: int, context: Context) -> int | None:
        """The random share where there is no window; otherwise it depends on the losses."""
        most = count_kept(n, self.r)
        whole = self._is_annealed(context) or round(self.groups * self.window) >= self.groups
        return most if whole else None

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """At most the random share."""
        most = count_kept(n, self.r)
        return (most if self.size(n, context) else 1), most

    def nominal_ratio(self, context: Context) -> float:
        """The random share."""
        return self.r

    def select(self, table: Table, context: Context) -> Selection:
        """The random share, without the seen samples outside the window."""
        part = uniform(np.arange(context.n), count_kept(context.n, self.r), context, "part")
        if not self._is_annealed(context):
            part = part[self._in_window(table["score"][part], context.epoch)]
        return Selection(shuffled(part, context))

    def _in_window(self, scores: np.ndarray, epoch: int) -> np.ndarray:
        seen = np.isfinite(scores)
        edges = group_edges(scores[seen], self.groups)
        n_groups = len(edges) + 1
        width = max(1, round(n_groups * self.window))
        first = epoch % (n_groups - width + 1)
        # A group is everything from one edge up to, not including, the next.
        inside = np.ones(len(scores), dtype=np.bool_)
        if first > 0:
            inside &= scores >= edges[first - 1]
        if first + width < n_groups:
            inside &= ~seen | (scores < edges[first + width - 1])
        return inside

    def _is_annealed(self, context: Context) -> bool:
        return is_annealed(self.annealing, context, "SeTa")


def group_edges(values: np.ndarray, groups: int) -> np.ndarray:
    """Where one group of `values` ends and the next begins: Lloyd's k-means on a line, started at the quantiles.

    On a line a group is an interval, so a round is a search for the edges in the sorted values and a few differences
    of their running sums; no sample is looked at twice.

    >>> group_edges(np.array([0.0, 0.1, 5.0, 5.1]), 2)
    array([5.])

    Returns:
        The smallest value of every group but the first; fewer groups where there are fewer different values.
    """
    ordered = np.sort(values).astype(np.float64)
    if len(ordered) == 0 or ordered[0] == ordered[-1]:
        return np.empty(0)
    totals = np.concatenate(([0.0], np.cumsum(ordered)))
    starts = np.unique(np.searchsorted(ordered, ordered[np.arange(1, groups) * len(ordered) // groups]))
    starts = starts[starts > 0]
    for _ in range(_MOST_ROUNDS):
        bounds = np.concatenate(([0], starts, [len(ordered)]))
        means = np.diff(totals[bounds]) / np.diff(bounds)
        moved = np.unique(np.searchsorted(ordered, (means[1:] + means[:-1]) / 2, side="right"))
        moved = moved[(moved > 0) & (moved < len(ordered))]
        if np.array_equal(moved, starts):
            break
        starts = moved
    edges: np.ndarray = ordered[starts]
    return edges
