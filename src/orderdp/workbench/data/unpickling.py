"""Reads CIFAR's Python batches without running anything they say.

A pickle is a program: it names functions and calls them. This reader knows the few names with which numpy writes
an array, gives each a harmless stand-in of its own, and takes any other for an error. Not even numpy's own code is
handed what the file says before it was checked.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np

from orderdp.errors import DatasetError

__all__ = ["unpickled"]


def unpickled(data: bytes, name: str) -> dict[str, Any]:
    """The dictionary of arrays, lists, numbers and strings in a pickle, or an error that says what else is in it."""
    try:
        value = _Reader(io.BytesIO(data), encoding="bytes").load()
    except DatasetError as error:
        raise DatasetError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can make its reader fail in any way
        raise DatasetError(
            f"{name} must be a whole pickle, but reading it failed: {type(error).__name__}: {error}. Get it again."
        ) from None
    if not isinstance(value, dict):
        raise DatasetError(f"{name} must hold a dictionary, got {type(value).__name__}.")
    return {_text(key): _plain(item) for key, item in value.items()}


class _Reader(pickle.Unpickler):
    """Knows what an array of bytes is made of, and refuses the rest."""

    def find_class(self, module: str, name: str) -> Any:
        package = module.replace("numpy._core", "numpy.core")
        stand_in = _STAND_INS.get((package, name))
        if stand_in is None:
            raise DatasetError(
                f"the pickle asks for {module}.{name}, which no array needs. It may be malicious; it was not run."
            )
        return stand_in

    def persistent_load(self, pid: Any) -> Any:
        raise DatasetError(f"the pickle refers to something outside of it ({pid!r}), which no array needs.")


class _Array:
    """Stands in for an array while it is read."""

    def __init__(self, *_: Any) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, bool(fortran))

    def fill(self, data: Any, dtype: Any, shape: Any, fortran: bool) -> None:
        """Checks what the file says about an array, and makes it."""
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "uint8", "|u1"):
            raise DatasetError(f"arrays must be of uint8, got {getattr(dtype, 'code', dtype)!r}.")
        if not isinstance(data, str | bytes | bytearray):
            raise DatasetError(f"an array must come as bytes, got {type(data).__name__}.")
        content = data.encode("latin1") if isinstance(data, str) else bytes(data)
        if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) != len(content):
            raise DatasetError(f"an array of shape {shape} must have as many bytes, got {len(content):,}.")
        self.value = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """Stands in for the type of an array."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = _text(code)

    def __setstate__(self, state: Any) -> None:
        """Takes no notice: byte order and the like mean nothing for bytes."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:
    array = _Array()
    array.fill(data, dtype, shape, _text(order) == "F")
    return array


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """Python 3 writes bytes like this in the older protocols."""
    if _text(encoding) not in ("latin1", "latin-1") or not isinstance(text, str):
        raise DatasetError("the pickle asks for an encoding that no array needs.")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encoded,
}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value
