"""Data in memory: two splits, their classes, and how they are usually normalised and augmented."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch

from orderdp.errors import DatasetError
from orderdp.workbench.data.augment import Augment

__all__ = ["ImageData", "Split", "channel_statistics"]

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
