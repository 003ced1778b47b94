"""Tiny data sets in every form, written by hand. Nothing here uses the library's readers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from orderdp.datasets.catalog import DatasetInfo, Source

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def idx_arrays(seed: int = 0, n_train: int = 30, n_test: int = 10) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [(n_train, 5, 4), (n_train,), (n_test, 5, 4), (n_test,)]
    return [rng.integers(0, 256 if len(shape) == 3 else 3, shape, dtype=np.uint8) for shape in shapes]


def idx_files(seed: int = 0) -> dict[str, bytes]:
    return {name: idx_bytes(array) for name, array in zip(IDX, idx_arrays(seed), strict=True)}


def cifar_arrays(names: tuple[str, ...], seed: int = 0, n: int = 4) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each batch, pixels (n, 3072) and labels (n, 2): coarse, fine."""
    rng = np.random.default_rng(seed)
    return {name: (rng.integers(0, 256, (n, 3072), np.uint8), rng.integers(0, 10, (n, 2), np.uint8)) for name in names}


def binary_batch(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes(own) + bytes(row) for own, row in zip(labels.tolist(), pixels, strict=True))


def cifar10_binary(seed: int = 0) -> dict[str, bytes]:
    arrays = cifar_arrays(BATCHES, seed)
    return {f"{name}.bin": binary_batch(pixels, labels[:, 1:]) for name, (pixels, labels) in arrays.items()}


def cifar10_pickles(protocol: int, seed: int = 0) -> dict[str, bytes]:
    arrays = cifar_arrays(BATCHES, seed)
    return {
        name: pickle.dumps({b"data": pixels, b"labels": labels[:, 1].tolist(), b"batch_label": b"x"}, protocol)
        for name, (pixels, labels) in arrays.items()
    }


def cifar10_pngs(seed: int = 0) -> dict[str, bytes]:
    arrays = cifar_arrays(BATCHES, seed)
    files, labels = {}, {"train": [], "test": []}
    for name, (pixels, own) in arrays.items():
        stream = io.BytesIO()
        Image.fromarray(np.stack([np.stack(list(row.reshape(3, 1024)), -1) for row in pixels])).save(stream, "PNG")
        files[f"{name}.png"] = stream.getvalue()
        labels["test" if name == "test_batch" else "train"] += own[:, 1].tolist()
    return files | {f"{split}_lables.json": json.dumps(values).encode() for split, values in labels.items()}


def cifar100_binary(seed: int = 0) -> dict[str, bytes]:
    return {f"{name}.bin": binary_batch(*arrays) for name, arrays in cifar_arrays(("train", "test"), seed).items()}


def cifar100_pickles(seed: int = 0) -> dict[str, bytes]:
    arrays = cifar_arrays(("train", "test"), seed)
    return {
        name: pickle.dumps({"data": x, "coarse_labels": y[:, 0].tolist(), "fine_labels": y[:, 1].tolist()}, 2)
        for name, (x, y) in arrays.items()
    }


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def zipped(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(data) for name, data in files.items()}


def archive(path: Path, files: Mapping[str, bytes], folder: str = "inside") -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return path


def tiny(files: Mapping[str, bytes], *sources: Source, family: str = "idx", name: str = "tiny") -> DatasetInfo:
    """A known data set of which these are the original files."""
    pins = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    return DatasetInfo(name, family, 30, 10, (1, 5, 4), ("a", "b", "c"), pins, sources=sources, padding=1, flip=True)
