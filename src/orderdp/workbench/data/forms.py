"""The forms in which a family of data sets is stored, and how each is turned into its original files.

Three families: "idx" (MNIST's four files), "cifar10" (six batches), "cifar100" (two).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from orderdp.errors import DatasetError
from orderdp.workbench.data.cifar import read_labels_json, read_records, records_of_pickle, records_of_png
from orderdp.workbench.data.idx import read_idx
from orderdp.workbench.data.shelves import Shelf, unzipped

__all__ = ["FAMILIES", "Arrays", "Form", "decode", "form_on", "original_files"]

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to store a data set.

    Attributes:
        title: What people call it.
        needs: For each file, the names it may have.
        convert: Makes the original files out of these files; also given the folder, for messages.
    """

    title: str
    needs: tuple[tuple[str, ...], ...]
    convert: Callable[[Files, Path], dict[str, bytes]]

    def chosen(self, names: frozenset[str]) -> list[str] | None:
        """Which of the files that are there make up this form, or None if one is missing."""
        chosen = [next((name for name in choices if name in names), None) for choices in self.needs]
        return None if None in chosen else [name for name in chosen if name is not None]


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_TEN = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_HUNDRED = ("train", "test")


def _idx_names(name: str) -> tuple[str, ...]:
    dotted = name.replace("-idx", ".idx")
    return name, f"{name}.gz", dotted, f"{dotted}.gz"


def _from_idx(files: Files, path: Path) -> dict[str, bytes]:
    return {
        name.removesuffix(".gz").replace(".idx", "-idx"): unzipped(name, data, path) for name, data in files.items()
    }


def _from_binary(files: Files, path: Path) -> dict[str, bytes]:
    return dict(files)


def _from_pickles(files: Files, path: Path, label_keys: tuple[str, ...]) -> dict[str, bytes]:
    return {f"{name}.bin": records_of_pickle(data, str(path / name), label_keys) for name, data in files.items()}


def _from_pngs(files: Files, path: Path) -> dict[str, bytes]:
    original = {}
    for split, labels in (("data", "train_lables.json"), ("test", "test_lables.json")):
        rest = read_labels_json(files[labels], str(path / labels))
        for name in sorted(name for name in files if name.startswith(split) and name.endswith(".png")):
            records, rest = records_of_png(files[name], str(path / name), rest)
            original[name.replace(".png", ".bin")] = records
    return original


def _alone(names: tuple[str, ...], ending: str = "") -> tuple[tuple[str, ...], ...]:
    return tuple((name + ending,) for name in names)


#: The forms of each family, the fastest to read first.
FAMILIES: Mapping[str, tuple[Form, ...]] = {
    "idx": (Form("idx files", tuple(_idx_names(name) for name in _IDX), _from_idx),),
    "cifar10": (
        Form("binary batches", _alone(_TEN, ".bin"), _from_binary),
        Form("Python batches", _alone(_TEN), partial(_from_pickles, label_keys=("labels",))),
        Form("PNG batches", (*_alone(_TEN, ".png"), ("train_lables.json",), ("test_lables.json",)), _from_pngs),
    ),
    "cifar100": (
        Form("binary batches", _alone(_HUNDRED, ".bin"), _from_binary),
        Form("Python batches", _alone(_HUNDRED), partial(_from_pickles, label_keys=("coarse_labels", "fine_labels"))),
    ),
}


def form_on(shelf: Shelf, family: str) -> tuple[Form, list[str]] | None:
    """The form in which a data set of the family is complete on the shelf, and its files; None if in none."""
    names = shelf.names()
    for form in FAMILIES[family]:
        chosen = form.chosen(names)
        if chosen is not None:
            return form, chosen
    return None


def original_files(shelf: Shelf, family: str) -> dict[str, bytes] | None:
    """The original files of a data set of the family, whatever form it is in; None if it is not there."""
    found = form_on(shelf, family)
    if found is None:
        return None
    form, chosen = found
    return form.convert(shelf.read(chosen), shelf.path)


def decode(files: Files, family: str, path: Path) -> Arrays:
    """Training images and labels, test images and labels: uint8, images as (n, channels, height, width)."""
    if family == "idx":
        parts = [read_idx(files[name], str(path / name)) for name in _IDX]
        images, labels, test_images, test_labels = parts
        if [part.ndim for part in parts] != [3, 1, 3, 1]:
            raise DatasetError(
                f"{path} must hold images of three and labels of one dimension, got {[part.ndim for part in parts]}."
            )
        return images[:, None], labels, test_images[:, None], test_labels
    names, label_bytes = (_TEN, 1) if family == "cifar10" else (_HUNDRED, 2)
    batches = [read_records(files[f"{name}.bin"], str(path / f"{name}.bin"), label_bytes) for name in names]
    images = np.concatenate([batch[0] for batch in batches[:-1]])
    labels = np.concatenate([batch[1] for batch in batches[:-1]])
    return images, labels, np.ascontiguousarray(batches[-1][0]), batches[-1][1]
