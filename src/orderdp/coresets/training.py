"""Training of the proxy: the shared protocol, one epoch at a time, each a function of (seed, init, epoch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from orderdp.checks import checked_seed
from orderdp.coresets.samples import Samples
from orderdp.errors import ConfigError
from orderdp.global_generators import GlobalGenerators
from orderdp.planning import check_batch_size, check_ratio
from orderdp.randomness import generator, key64

__all__ = ["Recipe", "own_generators", "train_epoch"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the proxy is trained: plain SGD at a constant rate, without augmentation.

    Args:
        lr: Learning rate.
        momentum: Of SGD.
        weight_decay: Of SGD.
        nesterov: Whether the momentum is Nesterov's.
        batch_size: Samples a step.
        seed: Of the initial weights and of the order.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = True
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        check_batch_size(self.batch_size)
        check_ratio("momentum", self.momentum)
        checked_seed(self.seed)
        for name, least in (("lr", "above"), ("weight_decay", "at least")):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < float("inf") or (least == "above" and value == 0):
                raise ConfigError(f"{name} must be a number, {least} 0, got {value!r}.")

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        """For a fresh model."""
        return torch.optim.SGD(
            model.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov and self.momentum > 0,
        )

    def order(self, n: int, init: int, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, counted from 1."""
        order = generator(self.seed, "proxy", init, "order", epoch).permutation(n)
        batches = np.split(order, range(self.batch_size, n, self.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1:
            # Batch norm cannot be trained on a single sample.
            batches[-2:] = [np.concatenate(batches[-2:])]
        return batches


@contextmanager
def own_generators(seed: int, *tags: int | str, device: torch.device) -> Iterator[None]:
    """Torch's generators seeded for a purpose, and put back as they were.

    Layers draw their initial weights, and dropout its masks, from torch's global generators: there is no other way to
    have them depend on a seed.
    """
    key = key64(seed, *tags) >> 1
    with GlobalGenerators.seeded(key, device).used(device):
        yield


@torch.enable_grad()  # features may be asked for where gradients are switched off
def train_epoch(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    samples: Samples,
    batches: list[np.ndarray],
    device: torch.device,
    after_step: Callable[[], None],
) -> np.ndarray:
    """Trains on each batch; returns which samples were predicted right when their turn came."""
    model.train()
    correct = np.zeros(samples.n, dtype=np.bool_)
    for indices, x, y in samples.batches(batches):
        logits = model(x.to(device))
        labels = y.to(device)
        loss = nn.functional.cross_entropy(logits, labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        correct[indices] = (logits.argmax(1) == labels).cpu().numpy()
        after_step()
    if not torch.isfinite(loss):
        raise ConfigError(f"the proxy's training has diverged: its loss is {loss.item()}. Give it a smaller lr.")
    return correct
