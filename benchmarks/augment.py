"""What augmentation costs beside training: a batch of 128 pictures against a step of a small residual network on them.

One thread each. The pictures are random; their sizes are those of Fashion-MNIST and CIFAR-10. A step is forward,
backward and SGD; the network, of six layers and width 8 or 16, is smaller than most, so that the share is an upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import Goal, overhead, take_turns
from orderdp.datasets import Augment, ImageBatches, Split

_BATCH = 128
_SAMPLES = 20_000
_ROUNDS = 21
_CALLS = 4


def augment() -> Iterator[dict[str, Any]]:
    """A training batch, shifted, mirrored and normalized."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, channels, size, padding, width in (("fashion-mnist", 1, 28, 2, 8), ("cifar10", 3, 32, 4, 16)):
            yield _one(name, channels, size, padding, width)
    finally:
        torch.set_num_threads(threads)


def _one(name: str, channels: int, size: int, padding: int, width: int) -> dict[str, Any]:
    images = torch.randint(0, 256, (_SAMPLES, channels, size, size), dtype=torch.uint8)
    labels = torch.randint(0, 10, (_SAMPLES,))
    pictures = ImageBatches(Split(images, labels), Augment(padding, True), [0.5] * channels, [0.25] * channels)
    index = torch.randperm(_SAMPLES)[: _BATCH * _CALLS].split(_BATCH)
    batch = pictures.train_batch(index[0], 0, 0)
    step = _training_step(channels, width, batch, labels[index[0]])
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: [pictures.train_batch(part, 1, 0) for part in index],
        "theirs": lambda: [step() for _ in index],
    }
    seconds = take_turns(contestants, rounds=_ROUNDS)
    measured = {who: [time / _CALLS for time in times] for who, times in seconds.items()}
    return {
        "benchmark": "augment",
        "what": f"Augmenting a batch of {_BATCH} like {name}, against a training step on it; one thread.",
        **overhead(measured["ours"], measured["theirs"], Goal("<=", 0.05)),
    }


class _Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])
        self.past = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(inner + self.past(x))


def _training_step(channels: int, width: int, batch: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    stem = nn.Conv2d(channels, width, 3, 2, 1, bias=False)
    blocks = [_Residual(width << k, width << (k + 1), 2) for k in range(2)]
    network = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 2, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(batch), labels).backward()
        optimizer.step()

    return run
