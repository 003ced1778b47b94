"""Data in memory: two splits, their classes, and how they are usually normalised and augmented."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

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
        return Split(self.images[index], self.labels[index])


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

    Whole numbers are summed as whole numbers, so the result does not depend on the order of the sums.

    >>> channel_statistics(torch.tensor([[[[0, 255]]], [[[255, 0]]]], dtype=torch.uint8))
    ((0.5,), (0.5,))
    """
    if len(images) == 0:
        raise DatasetError("the training split must have samples, got none.")
    rows = images.reshape(len(images), images.shape[1] if images.ndim > 1 else 1, -1)
    parts = torch.tensor_split(rows, max(1, rows.numel() // _CHUNK))
    count = rows.shape[0] * rows.shape[2]
    if images.dtype == torch.uint8:
        # Along the pixels first: over both dimensions at once the sum takes five times as long.
        mean = _summed(part.int().sum(2).sum(0) for part in parts).double() / count / 255
        squares = _summed(part.int().square().sum(2).sum(0) for part in parts).double() / count / 255**2
        variance = squares - mean * mean
    else:
        # In two passes: squares of large numbers that differ little would cancel.
        mean = _summed(part.double().sum((0, 2)) for part in parts) / count
        variance = _summed((part.double() - mean[:, None]).square().sum((0, 2)) for part in parts) / count
    std = variance.clamp(min=0).sqrt()
    std[std == 0] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _summed(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, parts)
