"""A whole epoch of a small CNN at prune ratio p against the full epoch of a plain loop, everything included.

Synthetic images of 1x28x28, ten classes, batches of 128, SGD, loading in the main process. The pruned epoch contains
its draw, the loader that carries the index, and `update`. Ideal is a ratio of 1 - p; the goal allows 0.02 more.

On one torch thread. Beside another busy process, on a machine of two cores, this epoch took 3 to 15 times as long on
two threads and 1.1 to 1.7 times as long on one; with two, the ratio would say more about the neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import Goal, overhead, take_turns
from orderdp import OrderDP, Pruner

_SAMPLES = 6_400
_BATCH = 128
_PRUNE_RATIOS = (0.3, 0.5, 0.7)


def epoch() -> Iterator[dict[str, Any]]:
    """One line for each prune ratio."""
    dataset = TensorDataset(torch.randn(_SAMPLES, 1, 28, 28), torch.randint(10, (_SAMPLES,)))
    contestants = {"full": _full_epoch(dataset)} | {str(p): _pruned_epoch(dataset, p) for p in _PRUNE_RATIOS}
    with _one_thread():
        seconds = take_turns(contestants, rounds=11)
    for p in _PRUNE_RATIOS:
        yield {
            "benchmark": f"epoch-{p}",
            "what": f"An epoch of a small CNN over {_SAMPLES:,} images at prune ratio {p} against the full epoch.",
            "torch_threads": 1,
            **overhead(seconds[str(p)], seconds["full"], Goal("<=", round(1 - p + 0.02, 2))),
        }


def _full_epoch(dataset: TensorDataset) -> Callable[[], None]:
    model, optimizer = _model()
    loader = DataLoader(dataset, batch_size=_BATCH, shuffle=True)

    def run() -> None:
        for images, classes in loader:
            loss = F.cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def _pruned_epoch(dataset: TensorDataset, prune_ratio: float) -> Callable[[], None]:
    model, optimizer = _model()
    pruner = Pruner(OrderDP(prune_ratio=prune_ratio), dataset)
    loader = pruner.loader(dataset, batch_size=_BATCH)

    def run() -> None:
        for index, (images, classes) in loader:
            loss = pruner.update(index, F.cross_entropy(model(images), classes, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
