"""One OrderDP draw, exploration 0.8 and exploitation 0.75, against the published recipe.

Ours is ``policy.select`` on a table of scores; the recipe is `published.draw` on the same scores. The library counts
usage in ``update``, the published code counts it in the draw, one sample at a time; at 10^8 samples that loop is left
out. Each of our draws is of another epoch, so no two are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import torch

from benchmarks import published
from benchmarks.timing import Goal, speedup, take_turns
from orderdp import Context, OrderDP
from orderdp.score_table import ScoreTable

IMAGENET = 1_281_167

_POLICY = OrderDP(exploration=0.8, exploitation=0.75)
_CHUNK = 1 << 20


def imagenet() -> Iterator[dict[str, Any]]:
    """A draw over as many samples as ImageNet has, every loss different."""
    yield {
        "benchmark": "draw-imagenet",
        "what": f"One draw at n = {IMAGENET:,}, 0.8 x 0.75, all losses different, against the published recipe.",
        **_race(_seen_table(IMAGENET), counting=True, rounds=31, goal=Goal(">=", 20)),
    }


def first() -> Iterator[dict[str, Any]]:
    """The first draw of a training, in which all samples are tied at +inf."""
    yield {
        "benchmark": "draw-first",
        "what": f"The first draw at n = {IMAGENET:,}, 0.8 x 0.75, all scores tied, against the published recipe.",
        **_race(ScoreTable(IMAGENET), counting=True, rounds=7, goal=None),
    }


def hundred_million() -> Iterator[dict[str, Any]]:
    """A draw over 10^8 samples; the recipe does not count usage."""
    n = 10**8
    yield {
        "benchmark": "draw-100m",
        "what": f"One draw at n = {n:,}, 0.8 x 0.75, against the published recipe without its counting loop.",
        **_race(_seen_table(n), counting=False, rounds=2, goal=Goal(">=", 6), warm_up=False),
    }


def _race(table: ScoreTable, *, counting: bool, rounds: int, goal: Goal | None, warm_up: bool = True) -> dict[str, Any]:
    s, q = _POLICY.sizes(table.n)
    epochs = count()
    counts = np.zeros(table.n, dtype=np.int64) if counting else None
    contestants = {
        "ours": lambda: _POLICY.select(table, Context(n=table.n, epoch=next(epochs))),
        "theirs": lambda: published.draw(table["score"], s, q, counts),
    }
    with published.global_numpy_state_kept():
        seconds = take_turns(contestants, rounds, warm_up=warm_up)
    return speedup(seconds["ours"], seconds["theirs"], goal)


def _seen_table(n: int) -> ScoreTable:
    """A table in which every sample has a loss of its own."""
    table = ScoreTable(n)
    for start in range(0, n, _CHUNK):
        index = np.arange(start, min(start + _CHUNK, n))
        table.write(torch.from_numpy(index), torch.from_numpy(_distinct_losses(index)), epoch=0)
    return table


def _distinct_losses(index: np.ndarray) -> np.ndarray:
    """A pseudo-random loss between 2^-8 and 2^8 for each index; no two of fewer than 2^27 samples have the same.

    Mixes 27 bits by steps that can be undone, then takes them for the low bits of a float32. Shuffling that many
    floats would take longer than what is measured.
    """
    bits = index.astype(np.uint32)
    mask = np.uint32((1 << 27) - 1)
    for multiplier in (0x9E3779B1, 0x85EBCA77):
        bits = (bits * np.uint32(multiplier)) & mask
        bits ^= bits >> np.uint32(13)
    smallest = np.float32(2.0**-8).view(np.uint32)
    return (bits + smallest).view(np.float32)
