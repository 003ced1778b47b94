"""A whole epoch of a small CNN at prune ratio p against the full epoch of a plain loop, everything included.

Synthetic images of 1x28x28, ten classes, batches of 128, SGD, loading in the main process. The pruned epoch contains
its draw, the loader that carries the index, and `update`. Ideal is a ratio of 1 - p; the goal allows 0.02 more.

On one torch thread. Beside another busy process, on a machine of two cores, this epoch took 3 to 15 times as long on
two threads and 1.1 to 1.7 times as long on one; with two, the ratio would say more about the neighbors.
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
from orderdp.experiments.models import CompactCNN

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


def smaller_batches() -> Iterator[dict[str, Any]]:
    """Time per sample with the smaller batches of `Pruner.same_steps`, against whole ones; on a GPU if there is one.

    A ratio of 1.4 at a share of 0.3 says: what saves 70 % of the samples saves 58 % of the time (1 - 0.3 * 1.4).
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name, whole, shape, width in _SIZES[device.type]:
        images = torch.randn(whole, *shape, device=device).to(memory_format=torch.channels_last)
        classes = torch.randint(10, (whole,), device=device)
        sizes = {share: round(share * whole) for share in (0.3, 0.5, 0.7, 1.0)}
        contestants = {str(share): _steps(images[:size], classes[:size], width) for share, size in sizes.items()}
        with _one_thread():
            seconds = take_turns(contestants, rounds=11)
        per_sample = {
            share: [second / (_STEPS * size) for second in seconds[str(share)]] for share, size in sizes.items()
        }
        for share in (0.3, 0.5, 0.7):
            yield {
                "benchmark": f"smaller-batches-{name}-{share}",
                "what": f"Time per sample, batches of {sizes[share]} against {whole}: {name} on {device.type}.",
                "torch_threads": 1,
                **overhead(per_sample[share], per_sample[1.0]),
            }


_STEPS = 8

#: Name, whole batch, shape of an image, width of the compact CNN.
_SIZES = {
    "cpu": [("cifar-width-8", 100, (3, 32, 32), 8), ("fashion-width-8", 100, (1, 28, 28), 8)],
    "cuda": [("cifar-width-64", 512, (3, 32, 32), 64), ("imagenet-width-64", 256, (3, 224, 224), 64)],
}


def _steps(images: torch.Tensor, classes: torch.Tensor, width: int) -> Callable[[], None]:
    model = CompactCNN(images.shape[1:], 10, width=width).to(images.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run() -> None:
        for _ in range(_STEPS):
            loss = F.cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if images.is_cuda:
            torch.cuda.synchronize()

    return run


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
