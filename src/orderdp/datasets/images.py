"""Images in memory, with statistics and augmented batches; and folders of images, the usual layout of ImageNet."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from orderdp._draw import fair_hash, key64
from orderdp._validation import is_count
from orderdp.dataset import alternate_flip
from orderdp.datasets.formats import extra
from orderdp.errors import ConfigError, DatasetError

__all__ = [
    "Augment",
    "FolderData",
    "ImageBatches",
    "ImageData",
    "Split",
    "channel_statistics",
    "classes_in",
    "folder_for_testing",
    "is_image_folder",
    "normalize",
    "read_image_folder",
]


# Number of values that are widened at once for a sum: they fit the CPU cache.
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Samples and their labels.

    Attributes:
        images: uint8 of shape (n, channels, height, width); or float32 of any shape (n, ...).
        labels: int64, one per sample.
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
        """Return the samples `index`, in this order."""
        return Split(self.images.index_select(0, index), self.labels.index_select(0, index))


@dataclass(frozen=True, slots=True, eq=False)
class ImageData:
    """A data set in memory.

    Attributes:
        name: Requested name, with modifiers.
        train: Training split.
        test: Test split.
        classes: Number of classes.
        class_names: Names of the classes in the order of the labels, if known.
        mean: Mean per channel of the training split before modifiers; for uint8 images on a scale from 0 to 1.
        std: Standard deviation per channel, likewise; 1 for a constant channel.
        augment: Usual augmentation of the training images.
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
    """Return mean and standard deviation over all but the second dimension; for uint8 on a scale from 0 to 1.

    >>> channel_statistics(torch.tensor([[[[0, 255]]], [[[255, 0]]]], dtype=torch.uint8))
    ((0.5,), (0.5,))
    """
    if len(images) == 0:
        raise DatasetError("the training split must have samples, got none.")
    # In numpy: torch would wake its threads for each part, which takes seconds if other work keeps the cores busy.
    rows = images.reshape(len(images), images.shape[1] if images.ndim > 1 else 1, -1).numpy()
    moments = _moments_of_bytes if rows.dtype == np.uint8 else _moments
    mean, variance = moments(rows, max(1, rows.size // _CHUNK))
    std = np.sqrt(variance)
    std[std == 0] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _moments_of_bytes(rows: np.ndarray, n_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance, computed from the counts of each value: exact until the last division."""
    counts = np.zeros((rows.shape[1], 256), dtype=np.int64)
    for part in np.array_split(rows, n_parts):
        for channel in range(rows.shape[1]):
            counts[channel] += np.bincount(part[:, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    chances = counts / counts.sum(axis=1, keepdims=True)
    mean = chances @ values
    return mean, (chances * (values - mean[:, None]) ** 2).sum(axis=1)


def _moments(rows: np.ndarray, n_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance in two passes: squares of large numbers that differ little would cancel."""
    count = rows.shape[0] * rows.shape[2]
    mean = _summed(part.sum(axis=(0, 2), dtype=np.float64) for part in np.array_split(rows, n_parts)) / count
    deviations = (part - mean[:, None] for part in np.array_split(rows, n_parts))
    return mean, _summed((deviation**2).sum(axis=(0, 2)) for deviation in deviations) / count


def _summed(parts: Iterable[np.ndarray]) -> np.ndarray:
    return reduce(np.add, parts)


# If the padded copy of a split is larger than this, each batch is padded instead, which takes three times as long.
_LARGEST_COPY = 1 << 30


@dataclass(frozen=True, slots=True)
class Augment:
    """A random crop of the image padded by reflection, mirrored half of the time.

    Attributes:
        padding: Pixels on each side; the crop has the size of the image. 0 for no crop.
        flip: Whether half of the images are mirrored, left to right. True or "random": at random each time.
            "alternate": at random the first time, then every second time that the sample is trained on.
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
        """Whether images stay unchanged."""
        return self.padding == 0 and not self.flip

    def draws(
        self, index: np.ndarray, *, seed: int, epoch: int, visits: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the top edge and left edge of each sample's crop in the padded image, and whether it is mirrored.

        The two edges come from different halves of one hash and the flip from its top bit, so they are independent
        up to a bias of (2 padding + 1) / 2**31. Alternating flips are those of `orderdp.alternate_flip`.

        Args:
            index: Samples.
            seed: Seed of the run.
            epoch: The epoch.
            visits: For alternating flips, how often each sample was trained on before.
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
        """Augment the images of one batch; the result depends only on (seed, epoch, index) and has the same dtype.

        Args:
            images: Images of shape (batch, channels, height, width), on the CPU.
            index: Indices of these samples in the data set.
            seed: Seed of the run.
            epoch: Epoch, counted from 0.
            visits: How often each sample was trained on before, on the CPU, for alternating flips.
        """
        if self.changes_nothing:
            return images
        padded = self.padded(images.numpy())
        rows = np.arange(len(images))
        before = None if visits is None else visits.numpy()
        return torch.from_numpy(self.crops(padded, rows, index.numpy(), seed=seed, epoch=epoch, visits=before))

    def padded(self, images: np.ndarray) -> np.ndarray:
        """Pad `images` by reflection, without repeating their edges."""
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
        """Return the crops of rows of padded images; the draws are those of `draws`.

        Args:
            padded: Images from `padded`.
            rows: Their rows to crop.
            index: The samples that these rows are.
            seed: Seed of the run.
            epoch: The epoch.
            visits: As in `draws`.
        """
        height, width = padded.shape[2] - 2 * self.padding, padded.shape[3] - 2 * self.padding
        windows = sliding_window_view(padded, (height, width), (2, 3))  # every possible crop, as a view
        top, left, mirrored = self.draws(index, seed=seed, epoch=epoch, visits=visits)
        crops: np.ndarray = windows[rows, :, top, left]
        which = np.flatnonzero(mirrored)
        crops[which] = crops[which][..., ::-1]
        return crops


class ImageBatches:
    """Batches of a split as model inputs: augmented for training, plain for testing, always normalized.

    Args:
        split: The images; not copied, except into a padded copy if that is not too large.
        augment: Augmentation of training images.
        mean: Mean per channel, which is subtracted.
        std: Standard deviation per channel, the divisor.
    """

    def __init__(self, split: Split, augment: Augment, mean: Sequence[float], std: Sequence[float]) -> None:
        self._images = split.images
        self._augment = augment
        self._normal = _Normal.of(split.images, mean, std)
        self._padded = None if augment.changes_nothing else self._padded_once()

    def train_batch(
        self, index: torch.Tensor, epoch: int, seed: int, visits: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the samples `index`, on the CPU, augmented as in epoch `epoch` of a run with `seed`, as float32.

        For alternating flips, `visits` is how often each sample was trained on before, on the CPU.
        """
        if self._padded is not None:
            rows, before = index.numpy(), None if visits is None else visits.numpy()
            crops = self._augment.crops(self._padded, rows, rows, seed=seed, epoch=epoch, visits=before)
            return self._normal(torch.from_numpy(crops))
        images = self._images.index_select(0, index)  # several times faster than images[index]
        return self._normal(self._augment.batch(images, index, seed=seed, epoch=epoch, visits=visits))

    def eval_batch(self, index: torch.Tensor) -> torch.Tensor:
        """Return the samples `index` without augmentation, normalized, as float32."""
        return self._normal(self._images.index_select(0, index))

    def _padded_once(self) -> np.ndarray | None:
        first = self._augment.padded(self._images[:1].numpy())  # raises early if images cannot be padded
        if len(self._images) * first.nbytes > _LARGEST_COPY:
            return None
        return self._augment.padded(self._images.numpy())


def normalize(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return ``(x - mean) / std`` per channel (the second dimension) as float32; uint8 is first scaled to [0, 1].

    >>> normalize(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), [0.5], [0.25]).tolist()
    [[[[-2.0, 2.0]]]]

    Args:
        images: Of shape (n, channels, ...).
        mean: One number per channel.
        std: One number per channel.
    """
    return _Normal.of(images, mean, std)(images)


class _Normal(NamedTuple):
    """Constants of `normalize`, shaped for images of one kind, so that batches do not build them again."""

    center: torch.Tensor | None
    factor: torch.Tensor
    shift: torch.Tensor | None

    @classmethod
    def of(cls, images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> _Normal:
        channels = [1, -1, *[1] * (images.ndim - 2)] if images.ndim > 1 else [-1]
        middle = torch.tensor(mean, dtype=torch.float64).reshape(channels)
        spread = torch.tensor(std, dtype=torch.float64).reshape(channels)
        if images.dtype == torch.uint8:
            return cls(None, (1 / (255 * spread)).float(), (-middle / spread).float())
        # The mean is subtracted first: large numbers that differ little would lose their digits in the product.
        return cls(middle.float(), (1 / spread).float(), None)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        values = images.float() if self.center is None else images.float() - self.center
        values = values.mul_(self.factor)
        return values if self.shift is None else values.add_(self.shift)


_TESTS = ("val", "validation", "test")


# Statistics of ImageNet's training images, with which pretrained models and published recipes normalize.
_MEAN = (0.485, 0.456, 0.406)


_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, eq=False)
class FolderData:
    """A data set on disk.

    Attributes:
        name: Name of the folder.
        train: Map-style training set: ``train[i]`` is an augmented, normalized image and its label.
        plain: The same training images without augmentation.
        test: Map-style test set, without augmentation.
        classes: Number of classes.
        class_names: Names of the class folders, sorted.
    """

    name: str
    train: Sized
    plain: Sized
    test: Sized
    classes: int
    class_names: tuple[str, ...]


def is_image_folder(path: Path) -> bool:
    """Whether the path has a folder "train" with one folder per class."""
    return (path / "train").is_dir() and any(entry.is_dir() for entry in (path / "train").iterdir())


def folder_for_testing(path: Path) -> Path:
    """Return the folder of the test images; raise if there is none."""
    for name in _TESTS:
        if (path / name).is_dir():
            return path / name
    raise DatasetError(f"{path} must have a folder {', '.join(_TESTS[:-1])} or {_TESTS[-1]} beside train.")


def classes_in(path: Path) -> tuple[str, ...]:
    """Return the class names; raise if the test images have other classes."""
    names = tuple(sorted(entry.name for entry in (path / "train").iterdir() if entry.is_dir()))
    tested = folder_for_testing(path)
    unequal = sorted({entry.name for entry in tested.iterdir() if entry.is_dir()} ^ set(names))
    if unequal:
        raise DatasetError(
            f"{path / 'train'} and {tested} must have the same classes; only in one of them: {', '.join(unequal[:5])}."
        )
    return names


def read_image_folder(path: Path, size: int = 224) -> FolderData:
    """Open the folder as data sets of `size` x `size` images, with the usual transforms of ImageNet."""
    names = classes_in(path)
    extra("torchvision", "image folders", "vision")
    datasets = extra("torchvision.datasets", "image folders", "vision")
    transforms = extra("torchvision.transforms", "image folders", "vision")
    last = [transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]
    training = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), *last]
    testing = [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size), *last]
    train: Any = datasets.ImageFolder(str(path / "train"), transforms.Compose(training))
    plain = copy.copy(train)  # scanning a large folder twice would take long
    plain.transform = transforms.Compose(testing)
    test: Any = datasets.ImageFolder(str(folder_for_testing(path)), transforms.Compose(testing))
    return FolderData(path.name, train, plain, test, len(names), names)
