"""Arrays that somebody hands in, checked before anything is done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orderdp.checks import checked_labels
from orderdp.coresets.source import Labelled
from orderdp.errors import DatasetError

__all__ = [
    "check_finite",
    "check_label_range",
    "checked_held_out",
    "checked_marks",
    "checked_numbers",
    "common_length",
    "first_few",
]

_ROWS_AT_ONCE = 4096
_SAMPLES_AXIS = {"features": -2, "logits": -2, "correct": 1, "scores": 0, "labels": 0}


def first_few(rows: Sequence[int]) -> str:
    """The first of them, for a message.

    >>> first_few([4, 8, 9]), first_few(range(9))
    ('4, 8, 9', '0, 1, 2, 3, 4, ...')
    """
    return ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")


def check_finite(name: str, values: np.ndarray) -> None:
    """Raises with the rows in which something is NaN or infinite. Looks at few rows at once."""
    bad: list[int] = []
    for start in range(0, len(values), _ROWS_AT_ONCE):
        block = values[start : start + _ROWS_AT_ONCE]
        bad += (np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(1)) + start).tolist()
    if bad:
        raise DatasetError(
            f"{name} must be finite; {len(bad)} of {len(values)} rows hold NaN or infinity: {first_few(bad)}. "
            "Leave these samples out, or find out why the model gives such numbers."
        )


def checked_numbers(name: str, values: Any, dimensions: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray | None:
    """Finite numbers as an array of that type, None, or an error."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim not in dimensions or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        wanted = " or ".join(map(str, dimensions))
        raise DatasetError(
            f"{name} must be numbers in {wanted} dimension(s), got {array.dtype} of shape {array.shape}."
        )
    with np.errstate(over="ignore"):  # looked for just below
        cast = np.ascontiguousarray(array, dtype=dtype)
    for before, after in zip(array, cast, strict=True) if array.ndim == 3 else [(array, cast)]:
        check_finite(name, before)
        if not np.can_cast(array.dtype, dtype):
            check_finite(f"{name} in single precision", after)
    return cast


def checked_marks(name: str, values: Any) -> np.ndarray | None:
    """True and False, or 1 and 0, by epoch and sample, None, or an error: a predicted class is no mark."""
    if values is None:
        return None
    array = np.atleast_2d(np.asarray(values))
    if array.ndim != 2 or not ((array == 0) | (array == 1)).all():
        raise DatasetError(
            f"{name} must be True or False for each epoch and sample, (epochs, n), got {array.dtype} of shape "
            f"{array.shape}{' with other values' if array.ndim == 2 else ''}. Give predictions == labels."
        )
    return array.astype(np.bool_)


def common_length(given: Mapping[str, np.ndarray | None], labels: Any = None, prefix: str = "") -> int:
    """The number of samples that all arrays have, or an error."""
    lengths = {name: array.shape[_SAMPLES_AXIS[name]] for name, array in given.items() if array is not None}
    if labels is not None:
        lengths["labels"] = np.asarray(labels).size
    if not lengths or 0 in lengths.values():
        raise DatasetError("at least one array must be given, and none may be empty.")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{length} {prefix}{name}" for name, length in lengths.items())
        raise DatasetError(f"all arrays must be of the same samples, there are {shown}.")
    return int(next(iter(lengths.values())))


def check_label_range(labels: np.ndarray | None, logits: np.ndarray | None, prefix: str = "") -> None:
    """Raises where a label has no logit."""
    if labels is None or logits is None:
        return
    if labels.min() < 0 or labels.max() >= logits.shape[-1]:
        raise DatasetError(
            f"{prefix}labels must be in [0, {logits.shape[-1]}), the number of logits; they go from {labels.min()} to "
            f"{labels.max()}."
        )


def checked_held_out(held_out: Any, own: Mapping[str, np.ndarray | None]) -> Labelled | None:
    """A validation set that fits to these features and logits, None, or an error."""
    if held_out is None:
        return None
    if not isinstance(held_out, Labelled):
        raise DatasetError(
            f"held_out must be coresets.Labelled(features, logits, labels), got {type(held_out).__name__}."
        )
    found = {
        name: checked_numbers(f"held_out.{name}", np.asarray(getattr(held_out, name)), (2,))
        for name in ("features", "logits")
    }
    n = common_length(found, prefix="held_out.")
    features, logits = found["features"], found["logits"]
    assert features is not None
    assert logits is not None
    for name, array in (("features", features), ("logits", logits)):
        mine = own[name]
        if mine is not None and array.shape[1] != mine.shape[-1]:
            raise DatasetError(
                f"held_out.{name} must be {mine.shape[-1]} wide, as the {name} are; they are {array.shape[1]}."
            )
    try:
        labels = checked_labels(np.asarray(held_out.labels), n)
    except DatasetError as error:
        raise DatasetError(f"held_out.{error}") from None
    assert labels is not None
    check_label_range(labels, logits, "held_out.")
    return Labelled(features, logits, labels)
