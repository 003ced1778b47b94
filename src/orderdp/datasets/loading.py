"""`load`: data by name or by path: arrays, folders and saved data sets, with the modifiers of the specification."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from orderdp._draw import generator
from orderdp._validation import checked_name, checked_seed, is_count, suggestion
from orderdp.datasets.catalog import DATASETS, DatasetInfo
from orderdp.datasets.fetching import find
from orderdp.datasets.formats import (
    FAMILIES,
    Arrays,
    FileSource,
    check,
    decode,
    extra,
    open_source,
    original_files,
    recognized,
)
from orderdp.datasets.images import (
    Augment,
    FolderData,
    ImageData,
    Split,
    channel_statistics,
    is_image_folder,
    read_image_folder,
)
from orderdp.errors import ConfigError, DatasetError

__all__ = [
    "KEYS",
    "KINDS",
    "Modifiers",
    "corrupted",
    "data_from_arrays",
    "hold_out",
    "is_saved_dataset",
    "load",
    "long_tailed",
    "parse",
    "read_digits",
    "read_npz",
    "read_saved_dataset",
    "samples",
    "subset",
    "with_label_noise",
]


# -- modified data sets ------------------------------------------------------------------------------------------------


# Number of images that are widened to float32 at once.
_PART = 1000


def corrupted(data: ImageData, kind: str, severity: int = 3, seed: int = 0) -> ImageData:
    """Corrupt the test images of a data set; training images stay unchanged.

    Args:
        data: Data set of uint8 images.
        kind: "noise" (Gaussian, a standard deviation of 4 % of the range per step), "blur" (Gaussian, 0.4 pixels per
            step), "contrast" (18 % less distance from the image's own mean per step).
        severity: 1 to 5 steps.
        seed: Seed of the noise.
    """
    checked_name(kind, KINDS, "corruption")
    if not is_count(severity) or severity > 5:
        raise ConfigError(f"severity must be a whole number from 1 to 5, got {severity!r}.")
    images = data.test.images
    if images.dtype != torch.uint8:
        raise ConfigError(f"only uint8 images can be corrupted, got {images.dtype} of shape {tuple(images.shape)}.")
    seed = checked_seed(seed)
    worse = torch.empty_like(images)
    for number, start in enumerate(range(0, len(images), _PART)):
        part = images[start : start + _PART].float()
        rng = generator(seed, "data", "corrupt", kind, number)
        worse[start : start + _PART] = KINDS[kind](part, severity, rng).round().clamp(0, 255).to(torch.uint8)
    return replace(data, test=Split(worse, data.test.labels))


def _noise(images: torch.Tensor, severity: int, rng: np.random.Generator) -> torch.Tensor:
    noise = rng.standard_normal(tuple(images.shape), dtype=np.float32)
    return images + torch.from_numpy(noise) * (0.04 * 255 * severity)


def _blur(images: torch.Tensor, severity: int, _: np.random.Generator) -> torch.Tensor:
    sigma = 0.4 * severity
    height, width = images.shape[2:]
    rows = images.reshape(-1, 1, height, width)
    for size, dimension in ((height, 2), (width, 3)):
        radius = min(round(3 * sigma) + 1, size - 1)
        weights = torch.exp(-(torch.arange(-radius, radius + 1).float() ** 2) / (2 * sigma**2))
        kernel = (weights / weights.sum()).reshape((1, 1, -1, 1) if dimension == 2 else (1, 1, 1, -1))
        margin = (0, 0, radius, radius) if dimension == 2 else (radius, radius, 0, 0)
        rows = F.conv2d(F.pad(rows, margin, mode="reflect"), kernel)
    return rows.reshape(images.shape)


def _contrast(images: torch.Tensor, severity: int, _: np.random.Generator) -> torch.Tensor:
    mean = images.mean((2, 3), keepdim=True)
    return mean + (images - mean) * (1 - 0.18 * severity)


#: Kinds of corruption.
KINDS: dict[str, Callable[[torch.Tensor, int, np.random.Generator], torch.Tensor]] = {
    "noise": _noise,
    "blur": _blur,
    "contrast": _contrast,
}


def hold_out(data: ImageData, share: float, seed: int) -> ImageData:
    """Use a part of the *training* split as test split, for choices that must not use the test set.

    Args:
        data: Data set to split. Its own test split is dropped.
        share: Fraction of the training samples to hold out, between 0 and 1. The count is exact, and every class
            contributes its fraction, up to one sample.
        seed: Seed of the selection.
    """
    _check_share("share", share)
    n = len(data.train)
    count = round(share * n)
    if not 0 < count < n:
        raise ConfigError(f"share must leave samples on both sides, got {share}, which is {count} of {n} samples.")
    held = np.zeros(n, dtype=np.bool_)
    held[_proportional(data.train.labels.numpy(), count, seed, "hold-out")] = True
    return replace(data, train=_at(data.train, ~held), test=_at(data.train, held))


def subset(data: ImageData, n_train: int | None, n_test: int | None, seed: int) -> ImageData:
    """Keep fewer samples, in their old order, in proportion to the class sizes.

    Args:
        data: The data set.
        n_train: Training samples to keep; None keeps all.
        n_test: Test samples to keep; None keeps all.
        seed: Seed of the draw.
    """
    return replace(
        data,
        train=_fewer(data.train, n_train, seed, "train"),
        test=_fewer(data.test, n_test, seed, "test"),
    )


def with_label_noise(data: ImageData, share: float, seed: int) -> ImageData:
    """Replace an exact fraction of the training labels by other classes, all equally likely.

    Args:
        data: The data set.
        share: Fraction of the labels to replace, in [0, 1].
        seed: Seed of the draw.
    """
    _check_share("share", share)
    if data.classes < 2:
        raise ConfigError(f"label noise needs at least two classes, got {data.classes}.")
    n = len(data.train)
    rng = generator(checked_seed(seed), "data", "label-noise")
    wrong = torch.from_numpy(rng.permutation(n)[: round(share * n)])
    labels = data.train.labels.clone()
    # A step of 1 to classes - 1 around the circle of classes never returns to the same class.
    steps = torch.from_numpy(rng.integers(1, data.classes, len(wrong)))
    labels[wrong] = (labels[wrong] + steps) % data.classes
    return replace(data, train=Split(data.train.images, labels))


def long_tailed(data: ImageData, imbalance: float, seed: int) -> ImageData:
    """Shrink the training classes exponentially, from the first label, which stays whole, to the last.

    Class k of K keeps ``round(largest * imbalance ** (-k / (K - 1)))`` samples, at least one, at most all of them.

    Args:
        data: Data set to reduce.
        imbalance: Size of the first class divided by the size of the last; 100 is usual.
        seed: Seed of the selection.
    """
    if not isinstance(imbalance, int | float | np.number) or not 1 <= imbalance < float("inf"):
        raise ConfigError(f"imbalance must be a number of at least 1 (largest class to smallest), got {imbalance!r}.")
    labels = data.train.labels.numpy()
    largest = int(np.bincount(labels, minlength=data.classes).max())
    kept = []
    for k in range(data.classes):
        members = np.flatnonzero(labels == k)
        target = max(1, round(largest * float(imbalance) ** (-k / max(1, data.classes - 1))))
        kept.append(_shuffled(members, seed, "tail", k)[:target])
    mask = np.zeros(len(labels), dtype=np.bool_)
    mask[np.concatenate(kept)] = True
    return replace(data, train=_at(data.train, mask))


def _fewer(split: Split, count: int | None, seed: int, what: str) -> Split:
    if count is None:
        return split
    if not is_count(count) or count > len(split):
        raise ConfigError(
            f"the {what} split has {len(split):,} samples; {what} must be a whole number from 1 to that, got {count!r}."
        )
    mask = np.zeros(len(split), dtype=np.bool_)
    mask[_proportional(split.labels.numpy(), int(count), seed, what)] = True
    return _at(split, mask)


def _proportional(labels: np.ndarray, count: int, seed: int, what: str) -> np.ndarray:
    """Select exactly `count` samples in proportion to the class sizes: rounded down, plus one at large remainders."""
    classes, sizes = np.unique(labels, return_counts=True)
    # In integers: equal fractions must have equal remainders.
    quotas, remainders = np.divmod(sizes.astype(np.int64) * count, len(labels))
    quotas[np.argsort(-remainders, kind="stable")[: count - int(quotas.sum())]] += 1
    parts = [
        _shuffled(np.flatnonzero(labels == k), seed, what, int(k))[:quota]
        for k, quota in zip(classes, quotas, strict=True)
    ]
    return np.concatenate(parts)


def _shuffled(members: np.ndarray, seed: int, *tags: int | str) -> np.ndarray:
    return generator(checked_seed(seed), "data", *tags).permutation(members)


def _at(split: Split, mask: np.ndarray) -> Split:
    return split.at(torch.from_numpy(np.flatnonzero(mask)))


def _check_share(name: str, share: Any) -> None:
    if not isinstance(share, int | float | np.number) or isinstance(share, bool) or not 0 <= share < 1:
        raise ConfigError(f"{name} must be in [0, 1), got {share!r}. It is a fraction, not a percentage.")


@dataclass(frozen=True, slots=True)
class Modifiers:
    """Modifiers of a data set, in the order in which they are applied; None for no change.

    Attributes:
        holdout: Fraction of the training split that becomes the test split.
        tail: Size of the largest class divided by the size of the smallest.
        train: Size of the training split.
        test: Size of the test split.
        noise: Fraction of training labels that become wrong.
        corrupt: Kind and severity of the corruption of the test images.
        seed: Seed of all modifiers.
    """

    holdout: float | None = None
    tail: float | None = None
    train: int | None = None
    test: int | None = None
    noise: float | None = None
    corrupt: tuple[str, int] | None = None
    seed: int = 0


def parse(spec: str) -> tuple[str, Modifiers]:
    """Split a specification into the name or path, and the modifiers after the question mark.

    >>> parse("cifar10?train=5000&corrupt=blur:3")[1].corrupt
    ('blur', 3)
    """
    name, mark, query = spec.partition("?")
    if not name:
        raise ConfigError(f"a data set must have a name, got {spec!r}. Write for example fashion-mnist?train=10000.")
    given: dict[str, Any] = {}
    for item in query.split("&") if mark else []:
        key, equals, text = item.partition("=")
        if not equals or not text:
            raise ConfigError(f"what follows the ? must be key=value&key=value, got {item!r} in {spec!r}.")
        checked_name(key, _VALUES, "modifier of data sets")
        if key in given:
            raise ConfigError(f"each modifier must be given once, got {key} twice in {spec!r}.")
        given[key] = _value(key, text)
    return name, Modifiers(**given)


def _value(key: str, text: str) -> Any:
    read, what = _VALUES[key]
    try:
        return read(text)
    except ValueError:
        raise ConfigError(f"{key} must be {what}, got {text!r}.") from None


def _corruption(text: str) -> tuple[str, int]:
    kind, _, severity = text.partition(":")
    return kind, int(severity or 3)


_VALUES: dict[str, tuple[Callable[[str], Any], str]] = {
    "holdout": (float, "a fraction between 0 and 1"),
    "tail": (float, "a number of at least 1, largest class to smallest"),
    "train": (int, "a number of samples"),
    "test": (int, "a number of samples"),
    "noise": (float, "a fraction between 0 and 1"),
    "corrupt": (_corruption, "a kind and a severity, such as blur:3"),
    "seed": (int, "a whole number"),
}


# -- loading -----------------------------------------------------------------------------------------------------------


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
