"""Classification of images read from the disk while training."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from orderdp.errors import ConfigError
from orderdp.losses import predictions
from orderdp.randomness import generator
from orderdp.workbench.mixing import blend, mixed_losses
from orderdp.workbench.models import build_model, quarter_width
from orderdp.workbench.settings import Settings
from orderdp.workbench.task import Losses

if TYPE_CHECKING:
    from orderdp.workbench.data import FolderData

__all__ = ["FolderTask"]


class FolderTask:
    """Trains a classifier on a folder of images.

    Args:
        data: The images, as map-style data sets.
        settings: Model, augmentation, MixUp, CutMix, label smoothing, order of the channels.
        device: Where the model is.
    """

    metric_name = "accuracy"

    def __init__(self, data: FolderData, settings: Settings, device: torch.device) -> None:
        if settings.flip == "alternate":
            raise ConfigError("images of a folder are mirrored while they are read, at random. Use flip='random'.")
        self.data = data
        self.settings = settings
        self.device = device
        self.train_set: Any = data.train if settings.augment else data.plain
        self.test_set: Any = data.test
        self.labels = getattr(self.train_set, "targets", None)
        self._memory_format = torch.channels_last if settings.channels_last else torch.contiguous_format
        workers = min(8, os.cpu_count() or 1)
        self.loader_options = {"num_workers": workers, "pin_memory": device.type == "cuda"}

    def build_model(self, seed: int) -> nn.Module:
        """The model of the settings, on the device."""
        return self._built(seed, self.settings.width)

    def build_proxy(self, seed: int, width: int | None) -> nn.Module:
        """The same of another width; of a quarter of it, if none is given."""
        return self._built(seed, quarter_width(self.settings.model, self.settings.width) if width is None else width)

    def _built(self, seed: int, width: int | None) -> nn.Module:
        image, _ = self.train_set[0]
        model = build_model(
            self.settings.model, shape=tuple(image.shape), classes=self.data.classes, seed=seed, width=width
        )
        moved: nn.Module = model.to(self.device).to(memory_format=self._memory_format)  # type: ignore[call-overload]
        return moved

    def losses(self, model: nn.Module, batch: Any) -> Losses:
        """Cross-entropy; under MixUp and CutMix the score is the sample's own."""
        images, targets = self._placed(batch)
        smoothing = self.settings.label_smoothing
        if not (self.settings.mixup or self.settings.cutmix):
            logits = model(images)
            losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
            return Losses(losses, None, predictions(logits, targets))
        # From torch's generator: a run has one of its own, which its checkpoints hold.
        mixture = blend(
            images, self.settings.mixup, self.settings.cutmix, generator(int(torch.randint(1 << 31, ())), "mix")
        )
        logits = model(mixture.images)
        losses, scores = mixed_losses(logits, targets, mixture, smoothing)
        return Losses(losses, scores, predictions(logits, targets))

    def metric(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """1 where the largest logit is that of the right class."""
        images, targets = self._placed(batch)
        right: torch.Tensor = model(images).argmax(1) == targets
        return right.float()

    def _placed(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        images, targets = batch
        placed = images.to(self.device, non_blocking=True, memory_format=self._memory_format)
        return placed, targets.to(self.device, non_blocking=True)
