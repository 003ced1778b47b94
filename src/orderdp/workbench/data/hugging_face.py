"""Data sets that Hugging Face's `datasets` has saved to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from orderdp.errors import DatasetError
from orderdp.workbench.data.extras import extra
from orderdp.workbench.data.npz import data_from_arrays
from orderdp.workbench.data.sets import ImageData

__all__ = ["is_saved_dataset", "read_saved_dataset"]

_IMAGES = ("image", "img", "images", "pixel_values", "pixels", "features", "x")
_LABELS = ("label", "labels", "fine_label", "target", "y")
_TESTS = ("test", "validation", "valid", "val")


def is_saved_dataset(path: Path) -> bool:
    """Whether ``save_to_disk`` has written this folder."""
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def read_saved_dataset(path: Path) -> ImageData:
    """The data in the folder: splits "train" and "test" or "validation", with a column of images and one of labels."""
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
        # As numpy arrays whole numbers come out as int64, whatever they were stored as.
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
    """How the numbers of a column are stored, lists and lists of lists included."""
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
