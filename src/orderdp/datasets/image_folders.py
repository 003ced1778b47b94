"""Folders of images, the usual layout of ImageNet: ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg``.

Images are read from disk during training, so `FolderData` has map-style data sets instead of arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderdp.datasets.formats import extra
from orderdp.errors import DatasetError

__all__ = ["FolderData", "classes_in", "folder_for_testing", "is_image_folder", "read_image_folder"]


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
