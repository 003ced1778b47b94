"""The idx format of MNIST and its kin: a few bytes of header, then the numbers."""

from __future__ import annotations

import math

import numpy as np

from orderdp.errors import DatasetError

__all__ = ["read_idx"]

_UNSIGNED_BYTE = 0x08
_CUT = "It may have been cut short; get it again."


def read_idx(data: bytes, name: str) -> np.ndarray:
    """The array of unsigned bytes in an idx file.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels").tolist()
    [7, 8, 9]
    """
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE or data[3] == 0:
        start = data[:4].hex(" ") or "nothing"
        raise DatasetError(f"{name} must be an idx file of unsigned bytes, which starts with 00 00 08, got {start}.")
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise DatasetError(f"{name} must have a header of {header} bytes, got {len(data)} bytes in all. {_CUT}")
    shape = tuple(np.frombuffer(data[4:header], ">u4").tolist())
    if math.prod(shape) != len(data) - header:
        raise DatasetError(
            f"{name} must have {math.prod(shape):,} bytes after its header, got {len(data) - header:,}. {_CUT}"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
