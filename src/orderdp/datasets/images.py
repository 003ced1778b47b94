"""Images in memory: splits with their statistics, and batches that are augmented and normalized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from orderdp._draw import fair_hash, key64
from orderdp._validation import is_count
from orderdp.augment import alternate_flip
from orderdp.errors import ConfigError, DatasetError

__all__ = ["Augment", "ImageBatches", "ImageData", "Split", "channel_statistics", "normalise"]


# So many numbers at once are widened to sum them up: they fit the processor's cache.
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Samples and their labels.

    Attributes:
        images: uint8 of shape (n, channels, height, width); or float32 of any shape (n, ...).
        labels: int64, one for each sample.
    """

    images: torch.Tensor
    labels: torch.Tensor

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DatasetError(
                f"there must be as many labels as images, got {len(self.labels):,} labels for {len(self.images):,}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, index: torch.Tensor) -> Split:
        """The samples with these indices, in this order."""
        return Split(self.images.index_select(0, index), self.labels.index_select(0, index))


@dataclass(frozen=True, slots=True, eq=False)
class ImageData:
    """A data set in memory.

    Attributes:
        name: What was asked for.
        train: What is trained on.
        test: What is tested on.
        classes: How many there are.
        class_names: In the order of the labels, where they are known.
        mean: Of each channel of the training split as it was read; of uint8 images on a scale from 0 to 1.
        std: Likewise; 1 for a channel that does not vary.
        augment: How training images are usually changed.
    """

    name: str
    train: Split
    test: Split
    classes: int
    class_names: tuple[str, ...] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment


def channel_statistics(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation over all but the second dimension; of uint8 on a scale from 0 to 1.

    >>> channel_statistics(torch.tensor([[[[0, 255]]], [[[255, 0]]]], dtype=torch.uint8))
    ((0.5,), (0.5,))
    """
    if len(images) == 0:
        raise DatasetError("the training split must have samples, got none.")
    # In numpy: torch would wake its threads for each part, which takes seconds where other work keeps the cores busy.
    rows = images.reshape(len(images), images.shape[1] if images.ndim > 1 else 1, -1).numpy()
    moments = _moments_of_bytes if rows.dtype == np.uint8 else _moments
    mean, variance = moments(rows, max(1, rows.size // _CHUNK))
    std = np.sqrt(variance)
    std[std == 0] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _moments_of_bytes(rows: np.ndarray, n_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance from how often each value occurs: exact until the last division."""
    counts = np.zeros((rows.shape[1], 256), dtype=np.int64)
    for part in np.array_split(rows, n_parts):
        for channel in range(rows.shape[1]):
            counts[channel] += np.bincount(part[:, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    chances = counts / counts.sum(axis=1, keepdims=True)
    mean = chances @ values
    return mean, (chances * (values - mean[:, None]) ** 2).sum(axis=1)


def _moments(rows: np.ndarray, n_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """In two passes: squares of large numbers that differ little would cancel."""
    count = rows.shape[0] * rows.shape[2]
    mean = _summed(part.sum(axis=(0, 2), dtype=np.float64) for part in np.array_split(rows, n_parts)) / count
    deviations = (part - mean[:, None] for part in np.array_split(rows, n_parts))
    return mean, _summed((deviation**2).sum(axis=(0, 2)) for deviation in deviations) / count


def _summed(parts: Iterable[np.ndarray]) -> np.ndarray:
    return reduce(np.add, parts)


# A set whose padded copy is larger than this is padded a batch at a time instead, which takes three times as long.
_LARGEST_COPY = 1 << 30


@dataclass(frozen=True, slots=True)
class Augment:
    """A random crop out of the image padded by reflection, mirrored every other time.

    Attributes:
        padding: Pixels on each side; the crop has the size of the image. 0 for no crop.
        flip: Whether half of the images are mirrored, left to right: True or "random" by chance each time; "alternate"
            the first time by chance and then every other time that a sample is trained on.
    """

    padding: int = 4
    flip: bool | Literal["random", "alternate"] = True

    def __post_init__(self) -> None:
        if not is_count(self.padding, least=0):
            raise ConfigError(f"padding must be a whole number of pixels, at least 0, got {self.padding!r}.")
        if self.flip not in (True, False, "random", "alternate"):
            raise ConfigError(f'flip must be True, False, "random" or "alternate", got {self.flip!r}.')

    @property
    def changes_nothing(self) -> bool:
        """Whether images come out as they went in."""
        return self.padding == 0 and not self.flip

    def draws(
        self, index: np.ndarray, *, seed: int, epoch: int, visits: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The upper edge, the left edge and whether mirrored, of each sample's crop in the padded image.

        The two edges come from different halves of one hash and the mirror from its top bit, so they are independent
        but for a bias of (2 padding + 1) / 2**31. Mirrors that alternate are those of `orderdp.alternate_flip`.
        """
        bits = fair_hash(index, key64(seed, "augment", epoch))
        places = np.uint64(2 * self.padding + 1)
        top = (bits & np.uint64(0xFFFFFFFF)) % places
        left = (bits >> np.uint64(32) & np.uint64(0x7FFFFFFF)) % places
        if self.flip == "alternate":
            if visits is None:
                raise ConfigError('flip="alternate" needs the visits of each sample. Pass visits=pruner.visits(index).')
            mirrored = alternate_flip(index, visits, seed).numpy()
        else:
            mirrored = bits >> np.uint64(63) if self.flip else np.zeros_like(bits)
        return top.astype(np.int64), left.astype(np.int64), mirrored.astype(np.bool_)

    def batch(
        self,
        images: torch.Tensor,
        index: torch.Tensor,
        *,
        seed: int,
        epoch: int,
        visits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The images of one batch, of samples `index`, changed as (seed, epoch, index) says; of the same type.

        Args:
            images: Of shape (batch, channels, height, width), on the CPU.
            index: Which samples of the data set these are.
            seed: Of the run.
            epoch: Which one, from 0.
            visits: How often each was trained on before, on the CPU, for flips that alternate.
        """
        if self.changes_nothing:
            return images
        padded = self.padded(images.numpy())
        rows = np.arange(len(images))
        before = None if visits is None else visits.numpy()
        return torch.from_numpy(self.crops(padded, rows, index.numpy(), seed=seed, epoch=epoch, visits=before))

    def padded(self, images: np.ndarray) -> np.ndarray:
        """The images with a margin in which they are reflected, without repeating their edges."""
        if images.ndim != 4:
            raise ConfigError(f"only images (n, channels, height, width) can be augmented, got shape {images.shape}.")
        if self.padding >= min(images.shape[2:]):
            raise ConfigError(
                f"padding must be smaller than the image, got {self.padding} for {images.shape[2]} x {images.shape[3]}."
            )
        margin = (self.padding, self.padding)
        return np.pad(images, ((0, 0), (0, 0), margin, margin), mode="reflect")

    def crops(
        self,
        padded: np.ndarray,
        rows: np.ndarray,
        index: np.ndarray,
        *,
        seed: int,
        epoch: int,
        visits: np.ndarray | None = None,
    ) -> np.ndarray:
        """The crops of the padded images `rows`, which are the samples `index`."""
        height, width = padded.shape[2] - 2 * self.padding, padded.shape[3] - 2 * self.padding
        windows = sliding_window_view(padded, (height, width), (2, 3))  # every possible crop, as a view
        top, left, mirrored = self.draws(index, seed=seed, epoch=epoch, visits=visits)
        crops: np.ndarray = windows[rows, :, top, left]
        which = np.flatnonzero(mirrored)
        crops[which] = crops[which][..., ::-1]
        return crops


class ImageBatches:
    """The images of a split as a model sees them: augmented for training, plain for testing, always normalised.

    Args:
        split: The images; not copied, except into a padded copy where that is not too large.
        augment: How training images are changed.
        mean: To be subtracted, of each channel.
        std: To be divided by, of each channel.
    """

    def __init__(self, split: Split, augment: Augment, mean: Sequence[float], std: Sequence[float]) -> None:
        self._images = split.images
        self._augment = augment
        self._normal = _Normal.of(split.images, mean, std)
        self._padded = None if augment.changes_nothing else self._padded_once()

    def train_batch(
        self, index: torch.Tensor, epoch: int, seed: int, visits: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The samples `index`, on the CPU, as epoch `epoch` of a run with this seed sees them, float32.

        Where flips alternate, `visits` says how often each was trained on before, on the CPU.
        """
        if self._padded is not None:
            rows, before = index.numpy(), None if visits is None else visits.numpy()
            crops = self._augment.crops(self._padded, rows, rows, seed=seed, epoch=epoch, visits=before)
            return self._normal(torch.from_numpy(crops))
        images = self._images.index_select(0, index)  # several times as fast as images[index]
        return self._normal(self._augment.batch(images, index, seed=seed, epoch=epoch, visits=visits))

    def eval_batch(self, index: torch.Tensor) -> torch.Tensor:
        """The samples `index` as they are, normalised, float32."""
        return self._normal(self._images.index_select(0, index))

    def _padded_once(self) -> np.ndarray | None:
        first = self._augment.padded(self._images[:1].numpy())  # complains early where images cannot be padded
        if len(self._images) * first.nbytes > _LARGEST_COPY:
            return None
        return self._augment.padded(self._images.numpy())


def normalise(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """``(x - mean) / std`` of each channel (the second dimension) as float32; uint8 is first brought to [0, 1].

    >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), [0.5], [0.25]).tolist()
    [[[[-2.0, 2.0]]]]
    """
    return _Normal.of(images, mean, std)(images)


class _Normal(NamedTuple):
    """Constants of `normalise`, shaped for images of one kind, so that a batch does not make them anew."""

    centre: torch.Tensor | None
    factor: torch.Tensor
    shift: torch.Tensor | None

    @classmethod
    def of(cls, images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> _Normal:
        channels = [1, -1, *[1] * (images.ndim - 2)] if images.ndim > 1 else [-1]
        middle = torch.tensor(mean, dtype=torch.float64).reshape(channels)
        spread = torch.tensor(std, dtype=torch.float64).reshape(channels)
        if images.dtype == torch.uint8:
            return cls(None, (1 / (255 * spread)).float(), (-middle / spread).float())
        # Subtracted first: numbers that are large and differ little would lose their digits in the product.
        return cls(middle.float(), (1 / spread).float(), None)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        values = images.float() if self.centre is None else images.float() - self.centre
        values = values.mul_(self.factor)
        return values if self.shift is None else values.add_(self.shift)
