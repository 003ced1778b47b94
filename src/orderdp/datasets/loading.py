"""`load`: data by name or by path, with the modifiers of the specification."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from orderdp._validation import suggestion
from orderdp.datasets import arrays as hugging_face
from orderdp.datasets import image_folders as folders
from orderdp.datasets.arrays import data_from_arrays, read_digits, read_npz
from orderdp.datasets.cache import find
from orderdp.datasets.catalog import DATASETS, DatasetInfo
from orderdp.datasets.files import FileSource, check, open_source, recognised
from orderdp.datasets.formats import FAMILIES, Arrays, decode, original_files
from orderdp.datasets.image_folders import FolderData
from orderdp.datasets.images import Augment, ImageData, Split, channel_statistics
from orderdp.datasets.modify import Modifiers, corrupted, hold_out, long_tailed, parse, subset, with_label_noise
from orderdp.errors import ConfigError, DatasetError

__all__ = ["load"]


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
    shelf = find(known, data_dir)
    files = original_files(shelf, known.family) or {}
    check(known, files, shelf.path)
    return _known_data(known, decode(files, known.family, shelf.path))


def _by_path(name: str) -> ImageData | FolderData:
    path = Path(name).expanduser()
    if not path.exists():
        raise _not_there(name)
    if path.suffix == ".npz":
        return read_npz(path)
    if path.is_dir() and hugging_face.is_saved_dataset(path):
        return hugging_face.read_saved_dataset(path)
    shelf = open_source(path)
    data = None if shelf is None else _upstream(shelf)
    if data is not None:
        return data
    if path.is_dir() and folders.is_image_folder(path):
        return folders.read_image_folder(path)
    raise DatasetError(
        f"{path} must be an .npz file, a folder or archive with idx files or CIFAR batches, a folder saved by "
        "`datasets`, or a folder with train/CLASS/ and val/CLASS/; it is none of these."
    )


def _upstream(shelf: FileSource) -> ImageData | None:
    """Load data in a storage format of the named data sets, whether it is one of them or not; None if there is none."""
    for family in FAMILIES:
        files = original_files(shelf, family)
        if files is None:
            continue
        known = recognised(files)
        images, labels, test_images, test_labels = decode(files, family, shelf.path)
        if known is not None:
            return _known_data(known, (images, labels, test_images, test_labels))
        arrays = [images, labels, test_images, test_labels]
        return data_from_arrays(shelf.path.name, arrays, None, source=str(shelf.path))
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
