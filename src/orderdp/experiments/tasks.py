"""Tasks: data, a model, a loss per sample and a metric; images in memory and in folders."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from orderdp import Pruner
from orderdp._draw import generator
from orderdp.datasets import Augment, ImageBatches
from orderdp.errors import ConfigError
from orderdp.experiments.config import Settings, import_object
from orderdp.experiments.models import build_model, quarter_width
from orderdp.losses import predictions

if TYPE_CHECKING:
    from orderdp.datasets import FolderData, ImageData

__all__ = [
    "FolderTask",
    "ImageTask",
    "Losses",
    "Mixture",
    "Task",
    "blend",
    "cutmix",
    "drops_last",
    "load_task",
    "mixed_losses",
    "mixup",
    "task_batches",
]


class Mixture(NamedTuple):
    """A batch in which each image is blended with another image of the batch.

    Attributes:
        images: The blended images.
        partner: For each image, the position in the batch of the other image.
        share: Fraction of each blend that is the image itself, at least one half.
    """

    images: torch.Tensor
    partner: torch.Tensor
    share: float


def blend(images: torch.Tensor, mixup_alpha: float, cutmix_alpha: float, rng: np.random.Generator) -> Mixture:
    """Apply MixUp or CutMix, whichever has an alpha above 0; one of the two at random if both have."""
    both = mixup_alpha > 0 and cutmix_alpha > 0
    use_cutmix = rng.random() < 0.5 if both else cutmix_alpha > 0
    return cutmix(images, cutmix_alpha, rng) if use_cutmix else mixup(images, mixup_alpha, rng)


def mixup(images: torch.Tensor, alpha: float, rng: np.random.Generator) -> Mixture:
    """Blend each image with another, pixel by pixel; the fraction is drawn from Beta(alpha, alpha)."""
    share = _share(alpha, rng)
    partner = torch.from_numpy(rng.permutation(len(images))).to(images.device)
    return Mixture(images * share + images[partner] * (1 - share), partner, share)


def cutmix(images: torch.Tensor, alpha: float, rng: np.random.Generator) -> Mixture:
    """Paste a rectangle of another image into each image; the fraction is the area that remains."""
    if images.ndim < 3:
        raise ConfigError(f"CutMix needs images, these samples have the shape {tuple(images.shape[1:])}. Use MixUp.")
    height, width = images.shape[-2:]
    side = np.sqrt(1 - _share(alpha, rng))
    tall, wide = int(side * height), int(side * width)  # rounded down: the larger part stays the image's own
    top, left = (int(rng.integers(0, room + 1)) for room in (height - tall, width - wide))
    partner = torch.from_numpy(rng.permutation(len(images))).to(images.device)
    mixed = images.clone()
    mixed[..., top : top + tall, left : left + wide] = images[partner, ..., top : top + tall, left : left + wide]
    return Mixture(mixed, partner, 1 - tall * wide / (height * width))


def mixed_losses(
    logits: torch.Tensor, targets: torch.Tensor, mixture: Mixture, label_smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss to train on and the score to store, one of each per sample.

    The loss is that of the blend: both labels, weighted by their fractions of the blend. The score is the loss with
    the sample's own label only, because the random partner says nothing about the sample.
    """
    own = F.cross_entropy(logits, targets, reduction="none", label_smoothing=label_smoothing)
    other = F.cross_entropy(logits, targets[mixture.partner], reduction="none", label_smoothing=label_smoothing)
    return own * mixture.share + other * (1 - mixture.share), own.detach()


def _share(alpha: float, rng: np.random.Generator) -> float:
    # The larger part is the image itself, or its score would be that of another sample.
    share = float(rng.beta(alpha, alpha))
    return max(share, 1 - share)


class Losses(NamedTuple):
    """Losses of a training batch, and further values per sample.

    Attributes:
        losses: One loss per sample, for the backward pass.
        scores: Scores to store instead of the losses, if the two differ.
        told: Further values that policies may use, one per sample: correct, confidence, probability.
    """

    losses: torch.Tensor
    scores: torch.Tensor | None = None
    told: Mapping[str, torch.Tensor] = {}


@runtime_checkable
class Task(Protocol):
    """Protocol of the object that ``--task module:factory`` must return.

    A task may also have

    - ``labels``: one class per training sample, for class balance;
    - ``metric_name``, ``metric_unit``, ``higher_is_better``: what the metric is (default "accuracy", "%", True). Only
      a metric in percent is multiplied by 100;
    - ``evaluate(model)``, in place of ``metric``: the metric on the whole test set, one number in its unit, if it is
      no mean over samples: perplexity, mAP, mIoU, F1, AUC, RMSE. The model is in evaluation mode, without gradients;
    - ``batches(pruner, batch_size, seed)``: an iterator of (index, batch) over the current epoch, if the task has a
      faster way than a DataLoader over ``train_set``; with a parameter ``drop_last`` if it can drop incomplete batches;
    - ``build_proxy(seed, width)``: a smaller model, for the policy proxy-plan; `width` is None if none was requested.
      For this policy ``batches`` gets a recorder, which has ``epoch``, ``batch_sampler`` and ``loader`` like a pruner;
    - ``test_batches()``: an iterator of batches of the test set, without indices;
    - ``loader_options``: arguments of the DataLoader, such as ``num_workers``.

    Attributes:
        train_set: A map-style data set with a length.
        test_set: A map-style data set with a length.
    """

    train_set: Any
    test_set: Any

    def build_model(self, seed: int) -> nn.Module:
        """Build the model, with weights that depend only on `seed`."""
        ...

    def losses(self, model: nn.Module, batch: Any) -> torch.Tensor | Losses:
        """Return one loss of `model` per sample of a training `batch`, with gradients."""
        ...

    def metric(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return one number of `model` per sample of a test `batch`; their mean is shown, times 100 if in "%"."""
        ...


def load_task(path: str) -> Task:
    """Build the task with the user's factory function."""
    task = import_object(path, "task")()
    needed = ["train_set", "test_set", "build_model", "losses"]
    needed += [] if hasattr(task, "evaluate") else ["metric"]
    missing = [name for name in needed if not hasattr(task, name)]
    if missing:
        raise ConfigError(f"the task {path!r} must have {', '.join(missing)}. See orderdp.experiments.tasks.Task.")
    found: Task = task
    return found


def task_batches(
    task: Task, pruner: Pruner, batch_size: int, seed: int, *, drop_last: bool = False
) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yield (index, batch) for the rest of the current epoch."""
    own = getattr(task, "batches", None)
    if own is not None:
        options = {"drop_last": True} if drop_last else {}
        return iter(own(pruner, batch_size, seed, **options))
    given: dict[str, Any] = {"drop_last": drop_last, **getattr(task, "loader_options", {})}
    return iter(pruner.loader(task.train_set, batch_size=batch_size, **given))


def drops_last(task: Task, wanted: bool) -> bool:
    """Whether incomplete batches are dropped: as wanted, unless the task has its own batches or loader options."""
    own = getattr(task, "batches", None)
    if own is not None:
        return wanted and "drop_last" in inspect.signature(own).parameters
    return bool(getattr(task, "loader_options", {}).get("drop_last", wanted))


_TEST_BATCH = 1000


class ImageTask:
    """Trains a classifier on arrays.

    Args:
        data: The images.
        settings: Model, augmentation, MixUp, label smoothing.
        device: Device of the model.
    """

    metric_name = "accuracy"

    def __init__(self, data: ImageData, settings: Settings, device: torch.device) -> None:
        self.data = data
        self.settings = settings
        self.device = device
        self.index_seconds = 0.0  # time for selecting samples, which is no part of augmentation
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
        self._train = ImageBatches(data.train, augment, data.mean, data.std)
        self._test = ImageBatches(data.test, Augment(padding=0, flip=False), data.mean, data.std)
        self._memory_format = torch.channels_last if settings.channels_last else torch.contiguous_format

    def build_model(self, seed: int) -> nn.Module:
        """Build the model of the settings, on the device."""
        return self._built(seed, self.settings.width)

    def build_proxy(self, seed: int, width: int | None) -> nn.Module:
        """Build the model with another width; a quarter of its width if `width` is None."""
        return self._built(seed, quarter_width(self.settings.model, self.settings.width) if width is None else width)

    def _built(self, seed: int, width: int | None) -> nn.Module:
        shape = tuple(self.data.train.images.shape[1:])
        model = build_model(self.settings.model, shape=shape, classes=self.data.classes, seed=seed, width=width)
        moved: nn.Module = model.to(self.device).to(memory_format=self._memory_format)  # type: ignore[call-overload]
        return moved

    def plain_training_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all training images without augmentation, and their labels, for proxies."""
        return self._train.eval_batch(torch.arange(len(self.train_set))), self.data.train.labels

    def batches(
        self, pruner: Pruner, batch_size: int, seed: int, *, drop_last: bool = False
    ) -> Iterator[tuple[torch.Tensor, Any]]:
        """Yield the rest of the epoch; the images depend only on (seed, epoch, index)."""
        epoch = pruner.epoch
        # An epoch has each sample once, so the usage at its start, or on resume, holds for the rest of the epoch.
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
        # Keyed by the batch's first sample, which no other batch of the epoch has: a resumed run mixes the same images.
        return generator(seed, "mix", epoch, first)

    def losses(self, model: nn.Module, batch: Any) -> Losses:
        """Return the cross-entropy per sample; under MixUp and CutMix, scores use only the sample's own label."""
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
        """Yield the test set in order."""
        for start in range(0, len(self.test_set), _TEST_BATCH):
            index = torch.arange(start, min(start + _TEST_BATCH, len(self.test_set)))
            yield self._placed(self._test.eval_batch(index)), self.test_set[index].to(self.device)

    def metric(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return 1 for each sample whose largest logit is that of its class, else 0."""
        images, targets = batch
        right: torch.Tensor = model(images).argmax(1) == targets
        return right.float()

    def _placed(self, images: torch.Tensor) -> torch.Tensor:
        if images.ndim == 4:
            return images.to(self.device, non_blocking=True, memory_format=self._memory_format)
        return images.to(self.device, non_blocking=True)


class _Told(dict[str, torch.Tensor]):
    """Values that policies may use, computed on first access."""

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        super().__init__()
        self._source = logits.detach(), targets

    def __missing__(self, name: str) -> torch.Tensor:
        self.update(predictions(*self._source))
        return dict.__getitem__(self, name)


class FolderTask:
    """Trains a classifier on a folder of images.

    Args:
        data: The images, as map-style data sets.
        settings: Model, augmentation, MixUp, CutMix, label smoothing, memory format.
        device: Device of the model.
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
        """Build the model of the settings, on the device."""
        return self._built(seed, self.settings.width)

    def build_proxy(self, seed: int, width: int | None) -> nn.Module:
        """Build the model with another width; a quarter of its width if `width` is None."""
        return self._built(seed, quarter_width(self.settings.model, self.settings.width) if width is None else width)

    def _built(self, seed: int, width: int | None) -> nn.Module:
        image, _ = self.train_set[0]
        model = build_model(
            self.settings.model, shape=tuple(image.shape), classes=self.data.classes, seed=seed, width=width
        )
        moved: nn.Module = model.to(self.device).to(memory_format=self._memory_format)  # type: ignore[call-overload]
        return moved

    def losses(self, model: nn.Module, batch: Any) -> Losses:
        """Return the cross-entropy per sample; under MixUp and CutMix, scores use only the sample's own label."""
        images, targets = self._placed(batch)
        smoothing = self.settings.label_smoothing
        if not (self.settings.mixup or self.settings.cutmix):
            logits = model(images)
            losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
            return Losses(losses, None, predictions(logits, targets))
        # Seeded from torch's generator: a run has its own, which its checkpoints save.
        mixture = blend(
            images, self.settings.mixup, self.settings.cutmix, generator(int(torch.randint(1 << 31, ())), "mix")
        )
        logits = model(mixture.images)
        losses, scores = mixed_losses(logits, targets, mixture, smoothing)
        return Losses(losses, scores, predictions(logits, targets))

    def metric(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return 1 for each sample whose largest logit is that of its class, else 0."""
        images, targets = self._placed(batch)
        right: torch.Tensor = model(images).argmax(1) == targets
        return right.float()

    def _placed(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        images, targets = batch
        placed = images.to(self.device, non_blocking=True, memory_format=self._memory_format)
        return placed, targets.to(self.device, non_blocking=True)
