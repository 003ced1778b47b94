"""`load`: data by name or by path: arrays, folders and saved data sets, with the modifiers of the specification."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orderdp._validation import suggestion
from orderdp.datasets.catalog import DATASETS, DatasetInfo
from orderdp.datasets.fetching import find
from orderdp.datasets.files import FileSource, check, open_source, recognized
from orderdp.datasets.formats import FAMILIES, Arrays, decode, extra, original_files
from orderdp.datasets.images import (
    Augment,
    FolderData,
    ImageData,
    Split,
    channel_statistics,
    is_image_folder,
    read_image_folder,
)
from orderdp.datasets.modify import Modifiers, corrupted, hold_out, long_tailed, parse, subset, with_label_noise
from orderdp.errors import ConfigError, DatasetError

__all__ = [
    "KEYS",
    "data_from_arrays",
    "is_saved_dataset",
    "load",
    "read_digits",
    "read_npz",
    "read_saved_dataset",
    "samples",
]


#: Required arrays of the file. `class_names` is optional.
KEYS = ("x_train", "y_train", "x_test", "y_test")


_CHANNELS = (1, 3, 4)


_MOST_CLASSES = 1 << 31  # a model has one output per class


def read_npz(path: Path) -> ImageData:
    """Read the data in an ``.npz`` file. Nothing in the file is unpickled."""
    stored = _stored(path)
    missing = [key for key in KEYS if key not in stored]
    if missing:
        raise DatasetError(
            f"{path} must have the arrays {', '.join(KEYS)}; missing: {', '.join(missing)}; there are: "
            f"{', '.join(stored) or 'none'}. Write it with np.savez(path, x_train=..., ...)."
        )
    names = tuple(str(name) for name in np.atleast_1d(stored["class_names"])) if "class_names" in stored else None
    return data_from_arrays(path.name, [stored[key] for key in KEYS], names, source=str(path))


def _stored(path: Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path} must be a whole .npz file with {', '.join(KEYS)}; it is none, or was cut short.")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return dict(stored)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DatasetError(f"{path} must be a whole .npz file, but reading it failed: {error}.") from None
    except ValueError as error:  # raised by numpy for objects, which would have to be unpickled
        raise DatasetError(f"{path} must hold plain arrays of numbers: {error}") from None


def data_from_arrays(
    name: str, arrays: list[np.ndarray], class_names: tuple[str, ...] | None, *, source: str
) -> ImageData:
    """Build a data set from x_train, y_train, x_test and y_test, after checking each array."""
    train = _array_split(arrays[0], arrays[1], f"{source}: x_train", f"{source}: y_train")
    test = _array_split(arrays[2], arrays[3], f"{source}: x_test", f"{source}: y_test")
    if train.images.shape[1:] != test.images.shape[1:] or train.images.dtype != test.images.dtype:
        raise DatasetError(
            f"{source}: training and test samples must have the same shape and type, got "
            f"{tuple(train.images.shape[1:])} of {train.images.dtype} and {tuple(test.images.shape[1:])} of "
            f"{test.images.dtype}."
        )
    if len(train) == 0 or len(test) == 0:
        raise DatasetError(f"{source}: both splits must have samples, got {len(train)} and {len(test)}.")
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    if class_names is not None and len(class_names) < classes:
        raise DatasetError(f"{source}: there must be {classes} class names, got {len(class_names)}.")
    mean, std = channel_statistics(train.images)
    # Whether a shifted or mirrored image keeps its class is unknown for a user's own data.
    unchanged = Augment(padding=0, flip=False)
    classes = classes if class_names is None else len(class_names)
    return ImageData(name, train, test, classes, class_names, mean, std, unchanged)


def samples(values: np.ndarray, what: str) -> torch.Tensor:
    """Convert samples to model inputs: uint8 images with channels first, or float32 of any shape."""
    if values.ndim < 2 or values.dtype.kind not in "biuf":
        raise DatasetError(f"{what} must be numbers of shape (n, ...), got {values.dtype} of shape {values.shape}.")
    if len(values) and values.size == 0:
        raise DatasetError(f"{what} must have at least one number per sample, got shape {values.shape}.")
    is_image = values.dtype == np.uint8 and values.ndim in (3, 4)
    if is_image and values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[1] not in _CHANNELS and values.shape[3] in _CHANNELS:
        values = np.moveaxis(values, 3, 1)
    if is_image:
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    numbers = np.require(values, np.float32, ["C", "W"])
    if not np.isfinite(numbers).all():
        raise DatasetError(f"{what} must be finite, got NaN or infinity.")
    return torch.from_numpy(numbers)


def _array_split(values: np.ndarray, labels: np.ndarray, values_name: str, labels_name: str) -> Split:
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.integer) or (len(flat) and int(flat.min()) < 0):
        raise DatasetError(
            f"{labels_name} must be whole numbers from 0, one per sample, got {labels.dtype} of shape {labels.shape}."
        )
    if len(flat) and int(flat.max()) >= _MOST_CLASSES:
        raise DatasetError(
            f"{labels_name} must be class numbers, counted from 0, got {int(flat.max()):,}. Renumber the classes."
        )
    if len(flat) != len(values):
        raise DatasetError(
            f"{labels_name} must have a label for each of the {len(values):,} samples of x, got {len(flat):,}."
        )
    return Split(samples(values, values_name), torch.from_numpy(flat.astype(np.int64)))


_IMAGES = ("image", "img", "images", "pixel_values", "pixels", "features", "x")


_LABELS = ("label", "labels", "fine_label", "target", "y")


_TESTS = ("test", "validation", "valid", "val")


def is_saved_dataset(path: Path) -> bool:
    """Whether ``save_to_disk`` has written this folder."""
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def read_saved_dataset(path: Path) -> ImageData:
    """Read a saved data set: splits "train" and "test" or "validation", with a column of images and one of labels."""
    datasets = extra("datasets", "saved data sets", "datasets")
    splits = datasets.load_from_disk(str(path))
    there = ", ".join(splits) if isinstance(splits, dict) else "a single one"
    if not isinstance(splits, dict) or "train" not in splits:
        raise DatasetError(
            f"{path} must hold the splits train and test, got {there}. Split it with train_test_split, then save it."
        )
    test = _named(_TESTS, splits, f"{path}: a split for testing")
    features = splits["train"].features
    images, labels = (
        _named(_IMAGES, features, f"{path}: a column of images"),
        _named(_LABELS, features, f"{path}: labels"),
    )
    arrays = []
    for split in ("train", test):
        arrays.append(_stacked(splits[split], images, f"{path}: {split}"))
        arrays.append(np.asarray(splits[split].with_format("numpy")[labels][:]))
    names = getattr(features[labels], "names", None)
    return data_from_arrays(path.name, arrays, None if names is None else tuple(names), source=str(path))


def _stacked(split: Any, column: str, what: str) -> np.ndarray:
    if type(split.features[column]).__name__ == "Image":
        images = [np.asarray(image) for image in split[column]]
    else:
        # In the numpy format all integers come out as int64, whatever type they are stored as.
        dtype = _dtype(split.features[column])
        images = [np.asarray(image, dtype) for image in split.with_format("numpy")[column]]
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise DatasetError(
            f"{what} must have images of one size, got {', '.join(map(str, sorted(shapes)[:3]))}. Resize them before "
            "saving; or save them as an image folder, which is resized while it is read."
        )
    return np.stack(images) if images else np.empty((0, 1))


def _dtype(feature: Any) -> str | None:
    """Return the stored dtype of a column, also for lists and nested lists."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    dtype = getattr(feature, "dtype", None)
    return dtype if isinstance(dtype, str) and dtype.startswith(("uint", "int", "float")) else None


def _named(choices: tuple[str, ...], there: Any, what: str) -> str:
    for name in choices:
        if name in there:
            return name
    raise DatasetError(
        f"{what} must be called {', '.join(choices[:-1])} or {choices[-1]}; there are {', '.join(there)}."
    )


def read_digits() -> Arrays:
    """Return training images and labels, test images and labels; a fixed quarter of the samples is the test split."""
    datasets = extra("sklearn.datasets", "the digits", "demo")
    selection = extra("sklearn.model_selection", "the digits", "demo")
    pixels, labels = datasets.load_digits(return_X_y=True)
    # The gray levels 0 to 16, spread over a byte: the 17 values stay distinct.
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train, test, train_labels, test_labels = selection.train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )
    return train, train_labels, test, test_labels


def load(spec: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> ImageData | FolderData:
    """Load the data set that `spec` names. Nothing is downloaded.

    Args:
        spec: A name ("cifar10"), or the path of an .npz file, of a folder or archive in one of the upstream formats,
            of a folder saved by `datasets`, or of a folder of images; then optional modifiers:
            "cifar10?train=5000&noise=0.2".
        data_dir: Folder that is searched first for named data.

    Returns:
        Data in memory; for a folder of images, data on disk.
    """
    name, modifiers = parse(os.fspath(spec))
    data = _by_name(DATASETS[name], data_dir) if name in DATASETS else _by_path(name)
    if modifiers == Modifiers():
        return data
    if isinstance(data, FolderData):
        raise ConfigError(f"modifiers must be left out for a folder of images, got {os.fspath(spec)!r}.")
    return replace(_modified(data, modifiers), name=os.fspath(spec))


def _by_name(known: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> ImageData:
    if known.family == "digits":
        return _known_data(known, read_digits())
    file_source = find(known, data_dir)
    files = original_files(file_source, known.family) or {}
    check(known, files, file_source.path)
    return _known_data(known, decode(files, known.family, file_source.path))


def _by_path(name: str) -> ImageData | FolderData:
    path = Path(name).expanduser()
    if not path.exists():
        raise _not_there(name)
    if path.suffix == ".npz":
        return read_npz(path)
    if path.is_dir() and is_saved_dataset(path):
        return read_saved_dataset(path)
    file_source = open_source(path)
    data = None if file_source is None else _upstream(file_source)
    if data is not None:
        return data
    if path.is_dir() and is_image_folder(path):
        return read_image_folder(path)
    raise DatasetError(
        f"{path} must be an .npz file, a folder or archive with idx files or CIFAR batches, a folder saved by "
        "`datasets`, or a folder with train/CLASS/ and val/CLASS/; it is none of these."
    )


def _upstream(file_source: FileSource) -> ImageData | None:
    """Load data in a storage format of the named data sets, whether it is one of them or not; None if there is none."""
    for family in FAMILIES:
        files = original_files(file_source, family)
        if files is None:
            continue
        known = recognized(files)
        images, labels, test_images, test_labels = decode(files, family, file_source.path)
        if known is not None:
            return _known_data(known, (images, labels, test_images, test_labels))
        arrays = [images, labels, test_images, test_labels]
        return data_from_arrays(file_source.path.name, arrays, None, source=str(file_source.path))
    return None


def _known_data(known: DatasetInfo, arrays: Arrays) -> ImageData:
    images, labels, test_images, test_labels = arrays
    train, test = _split(images, labels), _split(test_images, test_labels)
    mean, std = channel_statistics(train.images)
    augment = Augment(known.padding, known.flip)
    return ImageData(known.name, train, test, len(known.class_names), known.class_names, mean, std, augment)


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    # Copied if the array still shares the bytes of a file: tensors cannot be read-only.
    return Split(
        torch.from_numpy(np.require(images, requirements=["C", "W"])), torch.from_numpy(labels.astype(np.int64))
    )


def _modified(data: ImageData, how: Modifiers) -> ImageData:
    if how.holdout is not None:
        data = hold_out(data, how.holdout, how.seed)
    if how.tail is not None:
        data = long_tailed(data, how.tail, how.seed)
    if how.train is not None or how.test is not None:
        data = subset(data, how.train, how.test, how.seed)
    if how.noise is not None:
        data = with_label_noise(data, how.noise, how.seed)
    if how.corrupt is not None:
        data = corrupted(data, *how.corrupt, seed=how.seed)
    return data


def _not_there(name: str) -> Exception:
    looks_like_path = os.sep in name or Path(name).suffix in (".npz", ".tgz", ".gz", ".tar")
    if looks_like_path:
        return DatasetError(f"there is nothing at {name}. Data sets with a name are {', '.join(DATASETS)}.")
    return ConfigError(f"there is no data set {name!r}, by name or by path.{suggestion(name, DATASETS)}")
