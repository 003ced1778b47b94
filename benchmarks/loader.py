"""Going through data in memory, with a pruner and without: by a DataLoader, and by indices alone.

Loader: 50,000 rows of 16 floats and a label in memory, batches of 128, no workers: almost nothing but the loaders' own
cost. Both sides draw their order inside the timed loop. `update` is not called; at prune ratio 0 no feedback is needed.

Index batches: 50,000 images of 3x32x32 in memory, batches of 512, at prune ratio 0.4 against `torch.randperm` and
`split`. Both sides take every batch by index. Ours contains the draw from scores of all samples and the end of the
epoch; its one call of `update` stands for none, since an epoch without any is served again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import Goal, overhead, take_turns
from orderdp import OrderDP, Pruner

_SAMPLES = 50_000
_BATCH = 128
_INDEX_BATCH = 512


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


def index_batches(
    device: torch.device | None = None, samples: int = _SAMPLES, rounds: int = 21
) -> Iterator[dict[str, Any]]:
    """Time per sample of one epoch by indices; on a GPU if there is one and no device is given."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
    images = torch.rand(samples, 3, 32, 32, device=device)
    classes = torch.randint(10, (samples,), device=device)
    pruner = Pruner(OrderDP(prune_ratio=0.4), samples)
    pruner.observe(torch.arange(samples), torch.rand(samples))

    def ours() -> None:
        for index in pruner.index_batches(_INDEX_BATCH, device=device):
            images[index], classes[index]
        pruner.update(index, torch.rand(len(index), device=device))
        pruner.end_epoch()
        wait(device)

    def theirs() -> None:
        for index in torch.randperm(samples, device=device).split(_INDEX_BATCH):
            images[index], classes[index]
        wait(device)

    seconds = take_turns({"ours": ours, "theirs": theirs}, rounds)
    kept = len(pruner.preview())
    yield {
        "benchmark": "index-batches",
        "what": f"Time per sample of {samples:,} images on {device.type}, batch {_INDEX_BATCH}, prune ratio 0.4, "
        "against torch.randperm and split.",
        **overhead(
            [second / kept for second in seconds["ours"]],
            [second / samples for second in seconds["theirs"]],
            Goal("<=", 1.15),
        ),
        "ours_ms": round(1000 * statistics.median(seconds["ours"]), 3),
        "theirs_ms": round(1000 * statistics.median(seconds["theirs"]), 3),
    }


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _exhaust(batches: Iterable[object]) -> Callable[[], None]:
    def run() -> None:
        for _ in batches:
            pass

    return run
