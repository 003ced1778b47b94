"""Going through a trivial data set, with a pruner that prunes nothing and with a plain shuffling DataLoader.

50,000 rows of 16 floats and a label in memory, batches of 128, no workers: almost nothing but the loaders' own cost.
Both sides draw their order inside the timed loop. `update` is not called; at prune ratio 0 no feedback is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import Goal, overhead, take_turns
from orderdp import OrderDP, Pruner

_SAMPLES = 50_000
_BATCH = 128


def loader() -> Iterator[dict[str, Any]]:
    """One pass over a loader."""
    dataset = TensorDataset(torch.rand(_SAMPLES, 16), torch.randint(10, (_SAMPLES,)))
    pruner = Pruner(OrderDP(prune_ratio=0), dataset)
    contestants = {
        "ours": _exhaust(pruner.loader(dataset, batch_size=_BATCH)),
        "theirs": _exhaust(DataLoader(dataset, batch_size=_BATCH, shuffle=True)),
    }
    seconds = take_turns(contestants, rounds=21)
    yield {
        "benchmark": "loader",
        "what": f"A pass over {_SAMPLES:,} tiny rows, batch {_BATCH}, prune ratio 0, against DataLoader(shuffle=True).",
        **overhead(seconds["ours"], seconds["theirs"], Goal("<=", 1.2)),
    }


def _exhaust(batches: Iterable[object]) -> Callable[[], None]:
    def run() -> None:
        for _ in batches:
            pass

    return run
