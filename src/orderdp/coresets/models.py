"""The proxy's models: each trained from weights of its own, epoch by epoch, and kept after each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import nn

from orderdp.coresets.heads import find_head
from orderdp.coresets.progress import Progress, told
from orderdp.coresets.samples import Samples
from orderdp.coresets.store import Store
from orderdp.coresets.training import Recipe, own_generators, train_epoch
from orderdp.errors import ConfigError, DatasetError

__all__ = ["Models"]


@dataclass(frozen=True, eq=False)
class Models:
    """Trains on, from where a model is, as far as somebody asks.

    Attributes:
        factory: Makes a fresh model.
        samples: What it is trained on.
        recipe: How.
        store: Where checkpoints go.
        device: Where it runs.
        progress: Whom to tell.
        wanted_head: Name of the last linear layer, or None to find it.
    """

    factory: Callable[[], nn.Module]
    samples: Samples
    recipe: Recipe
    store: Store
    device: torch.device
    progress: Progress
    wanted_head: str | None

    def __post_init__(self) -> None:
        if not callable(self.factory) or isinstance(self.factory, nn.Module):
            raise ConfigError("model_factory must be a function that makes a fresh model, such as lambda: Net().")

    @cached_property
    def head(self) -> str:
        """The name of the last linear layer."""
        _, x, _ = next(self.samples.batches([np.arange(min(2, self.samples.n))]))
        with own_generators(self.recipe.seed, "proxy", "head", device=self.device):
            return find_head(self._fresh(0).eval(), x.to(self.device), self.wanted_head)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """What the trained models depend on, as plain values."""
        return {
            "data": self.samples.fingerprint,
            "model": _digest(self._fresh(0)),
            "head": self.head,
            "recipe": repr(self.recipe),
        }

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Width of the features and number of classes."""
        layer = self._fresh(0).get_submodule(self.head)
        assert isinstance(layer, nn.Linear)
        return layer.in_features, layer.out_features

    def after(self, epoch: int, init: int) -> nn.Module:
        """A model after so many epochs, in evaluation mode."""
        self.train(epoch, init)
        model = self._fresh(init)
        model.load_state_dict(self.store.load_checkpoint(f"model-{init}-{epoch}"))
        return model.eval()

    def train(self, epoch: int, init: int) -> None:
        """Sees to it that a model has been trained for so many epochs."""
        if self.store.has_checkpoint(f"model-{init}-{epoch}"):
            return
        self._check_classes()
        model = self._fresh(init)
        optimiser, done = self.recipe.optimiser(model), 0
        if self.store.has_checkpoint(f"latest-{init}"):
            latest = self.store.load_checkpoint(f"latest-{init}")
            done = latest["epoch"]
            model.load_state_dict(self.store.load_checkpoint(f"model-{init}-{done}"))
            optimiser.load_state_dict(latest["optimiser"])
        else:
            self.store.save_checkpoint(f"model-{init}-0", model.state_dict())
        for number in range(done + 1, epoch + 1):
            self._train_epoch(model, optimiser, init, number)

    def correct(self, epochs: int, init: int) -> np.ndarray:
        """Which samples were right when they were trained on, epoch by epoch."""
        self.train(epochs, init)
        return np.stack([self.store.load(f"correct-{init}-{epoch}") for epoch in range(1, epochs + 1)])

    def _train_epoch(self, model: nn.Module, optimiser: torch.optim.Optimizer, init: int, epoch: int) -> None:
        start = time.perf_counter()
        batches = self.recipe.order(self.samples.n, init, epoch)
        with (
            own_generators(self.recipe.seed, "proxy", init, "train", epoch, device=self.device),
            told(self.progress, f"proxy: model {init + 1}, epoch {epoch}", len(batches)) as step,
        ):
            correct = train_epoch(model, optimiser, self.samples, batches, self.device, step)
        with self.store.writing(f"correct-{init}-{epoch}", correct.shape, np.bool_) as file:
            file[:] = correct
        self.store.save_checkpoint(f"model-{init}-{epoch}", model.state_dict())
        # Last, so that what it points to is there.
        self.store.save_checkpoint(f"latest-{init}", {"epoch": epoch, "optimiser": optimiser.state_dict()})
        self.store.spent(f"train-{init}-{epoch}", time.perf_counter() - start)

    def _fresh(self, init: int) -> nn.Module:
        with own_generators(self.recipe.seed, "proxy", init, "weights", device=self.device):
            return self.factory().to(self.device)

    def _check_classes(self) -> None:
        if self.samples.labels.max() >= self.sizes[1]:
            raise DatasetError(
                f"labels go up to {self.samples.labels.max()}, but the model has {self.sizes[1]} outputs."
            )


def _digest(model: nn.Module) -> str:
    """Of a model's layers as it prints them, and of the shapes of its parameters."""
    # Some layers print functions and other objects with their address, which changes from process to process.
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(model))
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    return f"{type(model).__name__} {blake2b(f'{printed}{shapes}'.encode(), digest_size=16).hexdigest()}"
