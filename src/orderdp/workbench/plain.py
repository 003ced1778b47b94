"""Values as JSON can hold them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from orderdp.errors import RecordError

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """The same value in dicts, lists, strings and numbers; NaN and infinity, which JSON lacks, become None.

    >>> plain({"loss": float("nan"), "sizes": (1, 2)})
    {'loss': None, 'sizes': [1, 2]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        return plain(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise RecordError(
        f"a record must be made of numbers, strings, lists and dicts, got {type(value).__name__}. Convert it first."
    )
