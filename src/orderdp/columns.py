"""Columns of a table: which ones there are, the memory they take, and whether stored ones fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from orderdp.errors import ConfigError, StateError
from orderdp.policy import Column

__all__ = ["SCORE", "SEEN", "USAGE", "allocated", "by_name", "check_columns", "lengthened"]

SCORE = Column("score", initial=float("inf"))
USAGE = Column("usage", initial=0, dtype="int16", merge="sum")
#: The epoch in which it was last trained on or observed; -1 for never.
SEEN = Column("seen", initial=-1, dtype="int16")


def by_name(built_in: Iterable[Column], columns: Iterable[Column]) -> dict[str, Column]:
    """All columns of a table, those that every table has first.

    Args:
        built_in: What every table of that kind has.
        columns: What a policy declares besides. One of the same name must be the same.
    """
    declared = {column.name: column for column in built_in}
    for column in columns:
        if column.name in declared and column != declared[column.name]:
            raise ConfigError(
                f"column {column.name!r} is declared twice, as {declared[column.name]} and {column}. "
                "Give one of them another name."
            )
        declared[column.name] = column
    return declared


def allocated(declared: Mapping[str, Column], rows: int) -> dict[str, torch.Tensor]:
    """Memory for so many rows that nobody has seen, on the CPU."""
    return {
        name: torch.full((rows,), column.initial, dtype=_torch_dtype(column.dtype)) for name, column in declared.items()
    }


def lengthened(values: torch.Tensor, kept: int, rows: int, initial: float) -> tuple[torch.Tensor, int]:
    """A column with more rows, and how many values were moved for it.

    Where its memory has no room for them, new memory has half as much again.

    Args:
        values: The column as it is.
        kept: How many of its rows stay.
        rows: How many there are to be.
        initial: What the others are set to.
    """
    moved = 0
    if values.storage_offset() + rows > values.untyped_storage().nbytes() // values.element_size():
        larger = torch.empty(max(rows, (kept + 1) * 3 // 2), dtype=values.dtype, device=values.device)
        larger[:kept] = values[:kept]
        values, moved = larger, kept
    values = values.as_strided((rows,), (1,))
    values[kept:] = initial
    return values, moved


def check_columns(stored: Mapping[str, Any], columns: Mapping[str, torch.Tensor], size: int) -> None:
    """Raises where columns out of a checkpoint could not take the place of those that are there.

    Args:
        stored: The columns of the checkpoint.
        columns: Those that are there.
        size: How many values each must have.
    """
    if set(stored) != set(columns):
        raise StateError(
            f"the checkpoint must have the columns {sorted(columns)}, it has {sorted(stored)}. "
            "It was written with another policy or by another version."
        )
    for name, values in stored.items():
        wanted = columns[name]
        if not isinstance(values, torch.Tensor) or values.shape != (size,):
            came = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise StateError(
                f"column {name!r} of the checkpoint must hold {size} values, got {came}. "
                "Use a checkpoint of this data set that was written to its end."
            )
        if values.is_floating_point() != wanted.is_floating_point() or values.isnan().any():
            raise StateError(
                f"column {name!r} of the checkpoint must hold numbers like {wanted.dtype}, "
                f"got {values.dtype} or NaN. Use another checkpoint."
            )


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"a column's dtype must be one that torch has, got {name!r}. Use 'float32', for example.")
    return dtype
