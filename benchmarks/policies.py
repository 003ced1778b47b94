"""One draw of every policy, as a multiple of OrderDP's, at as many samples as ImageNet has."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import torch

from benchmarks.draw import IMAGENET
from benchmarks.timing import Goal, overhead, take_turns
from orderdp import Context, OrderDP, Policy
from orderdp.policies import (
    RS2,
    UCB,
    ActiveBias,
    Adaptive,
    Balanced,
    Calibrated,
    DynamicRandom,
    DynamicUncertainty,
    EpsilonGreedy,
    InfoBatch,
    InfoBatchQuantile,
    InstanceEarlyStopping,
    Kakurenbo,
    Mixed,
    OnlineBatchSelection,
    ProgressiveDropout,
    RePB,
    SelectiveBackprop,
    SelectiveByRank,
    SeTa,
    Trimmed,
)
from orderdp.score_table import ScoreTable

POLICIES: list[Policy] = [
    OrderDP(0.4, select="bottom"),
    OrderDP(0.4, select=Trimmed(0.1)),
    OrderDP(0.4, select=Mixed(top=0.7, uniform=0.3)),
    OrderDP(0.4, select=Mixed(top=0.7, uniform=0.3), unbiased=True),
    DynamicRandom(0.4),
    RS2(0.4),
    EpsilonGreedy(0.4),
    UCB(0.4),
    InfoBatch(0.5, annealing=None),
    InfoBatchQuantile(),
    Adaptive(0.2),
    SeTa(0.2, annealing=None),
    RePB(0.5),
    Kakurenbo(0.3),
    SelectiveBackprop(),
    SelectiveByRank(0.4, start=0, end=1),
    OnlineBatchSelection(0.4),
    InstanceEarlyStopping(),
    ProgressiveDropout(),
    ActiveBias(0.4),
    ActiveBias(0.4, by="sampling"),
    DynamicUncertainty(0.4, warm_up=0),
    Calibrated(0.4),
    Balanced(OrderDP(0.4)),
]


def policies() -> Iterator[dict[str, Any]]:
    """A line for each policy."""
    warnings.simplefilter("ignore")
    for policy in POLICIES:
        seconds = take_turns({"ours": _drawer(policy), "theirs": _drawer(OrderDP(0.4))}, rounds=7)
        yield {
            "benchmark": "policies",
            "what": f"One draw of {policy!r}, n = {IMAGENET:,}, against OrderDP(prune_ratio=0.4).",
            **overhead(seconds["ours"], seconds["theirs"], Goal("<=", 10)),
        }


def _drawer(policy: Policy) -> Callable[[], object]:
    table = ScoreTable(IMAGENET, getattr(policy, "columns", ()))
    losses = torch.from_numpy(np.random.default_rng(0).exponential(1.0, IMAGENET)).float()
    table.write(torch.arange(IMAGENET), losses, epoch=0)
    epochs = count()
    labels = np.random.default_rng(1).integers(0, 1000, IMAGENET)
    return lambda: policy.select(table, Context(n=IMAGENET, epoch=next(epochs), epochs=1000, labels=labels))
