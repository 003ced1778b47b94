"""What a row of a comparison is called and how it looks, the same in the table and in every chart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orderdp.workbench.statistics import Row

__all__ = ["Series", "series"]

# Told apart by people who see few colours, and on white as on black. Controls and OrderDP always look the same.
_OWN = {"full": "#808080", "orderdp": "#0a7ac0", "random": "#e08a00", "reduced": "#b0559b"}
_OTHERS = ("#009e73", "#d55e00", "#4fb0e6", "#8c7a00", "#8f6bd8", "#c4586c", "#3f8f8f", "#a0703c")
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [1, 3])
_RATIO = re.compile(r"[\s,(]*\d+(\.\d+)?\s*%\)?$")


@dataclass(frozen=True)
class Series:
    """A row's looks.

    Attributes:
        method: The label without its ratio, which the colour stands for.
        colour: Of the method.
        ratio: In words, which the dashes stand for; empty where none was asked for.
        dash: Of the ratio.
    """

    method: str
    colour: str
    ratio: str
    dash: tuple[int, ...]


def series(rows: Sequence[Row]) -> dict[str, Series]:
    """The looks of each row, by its label."""
    methods: dict[str, str] = {}  # method -> colour
    ratios: list[float] = sorted({row.prune_ratio for row in rows if row.prune_ratio is not None})
    looks = {}
    for row in rows:
        method = _RATIO.sub("", row.label) or row.label
        if method not in methods:
            methods[method] = _colour(row.policy, list(methods.values()))
        place = 0 if row.prune_ratio is None else ratios.index(row.prune_ratio)
        ratio = "" if row.prune_ratio is None else f"{100 * row.prune_ratio:g} % left out"
        looks[row.label] = Series(method, methods[method], ratio, tuple(_DASHES[place % len(_DASHES)]))
    return looks


def _colour(policy: str, taken: list[str]) -> str:
    own = _OWN.get(policy)
    if own and own not in taken:
        return own
    free = [colour for colour in _OTHERS if colour not in taken]
    return free[0] if free else _OTHERS[len(taken) % len(_OTHERS)]
