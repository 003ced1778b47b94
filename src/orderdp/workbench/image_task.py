"""Classification of images held in memory, augmented a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from orderdp import Pruner
from orderdp.errors import ConfigError
from orderdp.losses import predictions
from orderdp.randomness import generator
from orderdp.workbench.data import Augment, Pictures
from orderdp.workbench.mixing import blend, mixed_losses
from orderdp.workbench.models import build_model, quarter_width
from orderdp.workbench.settings import Settings
from orderdp.workbench.task import Losses

if TYPE_CHECKING:
    from orderdp.workbench.data import ImageData

__all__ = ["ImageTask"]

_TEST_BATCH = 1000


class ImageTask:
    """Trains a classifier on arrays.

    Args:
        data: The images.
        settings: Model, augmentation, MixUp, label smoothing.
        device: Where the model is.
    """

    metric_name = "accuracy"

    def __init__(self, data: ImageData, settings: Settings, device: torch.device) -> None:
        self.data = data
        self.settings = settings
        self.device = device
        self.index_seconds = 0.0  # what choosing samples has taken, which is no part of augmentation
        self.train_set = data.train.labels
        self.test_set = data.test.labels
        self.labels = data.train.labels.numpy()
        augment = data.augment if settings.augment else Augment(padding=0, flip=False)
        if settings.flip == "alternate":
            if not augment.flip:
                raise ConfigError(
                    f"flip='alternate' needs images that are mirrored, those of {data.name!r} are not. Leave it out."
                )
            augment = replace(augment, flip="alternate")
        self._train = Pictures(data.train, augment, data.mean, data.std)
        self._test = Pictures(data.test, Augment(padding=0, flip=False), data.mean, data.std)
        self._memory_format = torch.channels_last if settings.channels_last else torch.contiguous_format

    def build_model(self, seed: int) -> nn.Module:
        """The model of the settings, on the device."""
        return self._built(seed, self.settings.width)

    def build_proxy(self, seed: int, width: int | None) -> nn.Module:
        """The same of another width; of a quarter of it, if none is given."""
        return self._built(seed, quarter_width(self.settings.model, self.settings.width) if width is None else width)

    def _built(self, seed: int, width: int | None) -> nn.Module:
        shape = tuple(self.data.train.images.shape[1:])
        model = build_model(self.settings.model, shape=shape, classes=self.data.classes, seed=seed, width=width)
        moved: nn.Module = model.to(self.device).to(memory_format=self._memory_format)  # type: ignore[call-overload]
        return moved

    def plain_training_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All training images without augmentation, for proxies."""
        return self._train.eval_batch(torch.arange(len(self.train_set))), self.data.train.labels

    def batches(
        self, pruner: Pruner, batch_size: int, seed: int, *, drop_last: bool = False
    ) -> Iterator[tuple[torch.Tensor, Any]]:
        """What is left of the epoch; the pictures depend on (seed, epoch, index) alone."""
        epoch = pruner.epoch
        # An epoch has a sample once, so what is known at its start, or where it goes on, holds for all that is left.
        visits = pruner.usage if self.settings.flip == "alternate" else None
        sampler = iter(pruner.batch_sampler(batch_size, drop_last))
        while True:
            start = time.perf_counter()
            indices = next(sampler, None)
            self.index_seconds += time.perf_counter() - start
            if indices is None:
                return
            index = torch.tensor(indices)
            before = None if visits is None else visits[index]
            images = self._placed(self._train.train_batch(index, epoch, seed, before))
            targets = self.data.train.labels[index].to(self.device, non_blocking=True)
            yield index, (images, targets, self._rng(seed, epoch, indices[0]))

    def _rng(self, seed: int, epoch: int, first: int) -> np.random.Generator | None:
        if not (self.settings.mixup or self.settings.cutmix):
            return None
        # Keyed by the batch's first sample, which no other batch of the epoch has: so a resumed run mixes alike.
        return generator(seed, "mix", epoch, first)

    def losses(self, model: nn.Module, batch: Any) -> Losses:
        """Cross-entropy; under MixUp and CutMix the score is the sample's own."""
        images, targets, rng = batch
        smoothing = self.settings.label_smoothing
        mixture = None if rng is None else blend(images, self.settings.mixup, self.settings.cutmix, rng)
        logits = model(images if mixture is None else mixture.images)
        if mixture is None:
            losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
            return Losses(losses, None, _Told(logits, targets))
        losses, scores = mixed_losses(logits, targets, mixture, smoothing)
        return Losses(losses, scores, _Told(logits, targets))

    def test_batches(self) -> Iterator[Any]:
        """The test set in order."""
        for start in range(0, len(self.test_set), _TEST_BATCH):
            index = torch.arange(start, min(start + _TEST_BATCH, len(self.test_set)))
            yield self._placed(self._test.eval_batch(index)), self.test_set[index].to(self.device)

    def metric(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """1 where the largest logit is that of the right class."""
        images, targets = batch
        right: torch.Tensor = model(images).argmax(1) == targets
        return right.float()

    def _placed(self, images: torch.Tensor) -> torch.Tensor:
        if images.ndim == 4:
            return images.to(self.device, non_blocking=True, memory_format=self._memory_format)
        return images.to(self.device, non_blocking=True)


class _Told(dict[str, torch.Tensor]):
    """What policies may want to know, computed when the first of them asks."""

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        super().__init__()
        self._source = logits.detach(), targets

    def __missing__(self, name: str) -> torch.Tensor:
        self.update(predictions(*self._source))
        return dict.__getitem__(self, name)
