"""How the compact CNN is made fast: a training step in the layout it uses, against the other one and the compiler.

One thread, batches of 128, the widths of the published results. Ours is `--preset cpu`: channels last, not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.timing import speedup, take_turns
from orderdp.experiments.models import CompactCNN

_BATCH = 128
_ROUNDS = 15
_STEPS = 4


def layout() -> Iterator[dict[str, Any]]:
    """Steps on images like those of Fashion-MNIST and CIFAR-10."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, shape, width in (("fashion-mnist", (1, 28, 28), 8), ("cifar10", (3, 32, 32), 24)):
            yield from _against(name, shape, width)
    finally:
        torch.set_num_threads(threads)


def _against(name: str, shape: tuple[int, int, int], width: int) -> Iterator[dict[str, Any]]:
    rivals = {
        "channels first": _step(shape, width, torch.contiguous_format),
        "channels first, compiled": _step(shape, width, torch.contiguous_format, compiled=True),
        "channels last, compiled": _step(shape, width, torch.channels_last, compiled=True),
    }
    seconds = take_turns({"ours": _step(shape, width, torch.channels_last), **rivals}, rounds=_ROUNDS)
    for rival in rivals:
        yield {
            "benchmark": "layout",
            "what": f"A training step of the compact CNN, width {width}, on {name}: channels last against {rival}.",
            "torch_threads": 1,
            **speedup(seconds["ours"], seconds[rival], None),
        }


def _step(
    shape: tuple[int, int, int], width: int, memory: torch.memory_format, *, compiled: bool = False
) -> Callable[[], None]:
    """Forward, backward and SGD, a few times."""
    network = CompactCNN(shape, 10, width=width).to(memory_format=memory)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(_BATCH, *shape).contiguous(memory_format=memory)
    labels = torch.randint(0, 10, (_BATCH,))
    model: Callable[..., torch.Tensor] = torch.compile(network) if compiled else network

    def run() -> None:
        for _ in range(_STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels, reduction="none").mean().backward()
            optimizer.step()

    return run
