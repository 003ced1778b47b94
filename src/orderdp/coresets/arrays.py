"""A source made of arrays that are there already: no model, no training, no cost."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orderdp.checks import checked_labels
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Labelled
from orderdp.errors import ConfigError, DatasetError

if TYPE_CHECKING:
    import torch

__all__ = ["Arrays", "check_finite"]

_KINDS = ("features", "logits", "labels", "correct", "scores")
_ROWS_AT_ONCE = 4096


class Arrays:
    """Arrays somebody has already, for every method that does not need the model itself.

    All of them are taken to be of one moment: the epoch that a method asks for is whatever these are of.

    >>> Arrays(features=np.zeros((4, 2)), labels=[0, 0, 1, 1]).n
    4

    Args:
        features: (n, width).
        logits: (n, classes), or (inits, n, classes) from several models.
        labels: n whole numbers; with logits, each below the number of classes.
        correct: (epochs, n) of True and False.
        scores: n numbers; the largest are the most worth keeping.
        held_out: Features, logits and labels of a validation set.
    """

    def __init__(
        self,
        features: Any = None,
        logits: Any = None,
        labels: Any = None,
        correct: Any = None,
        scores: Any = None,
        held_out: Labelled | None = None,
    ) -> None:
        self._given: dict[str, np.ndarray | None] = {
            "features": _floats("features", features, (2,)),
            "logits": _floats("logits", logits, (2, 3)),
            "correct": None if correct is None else np.atleast_2d(np.asarray(correct, dtype=np.bool_)),
            "scores": _floats("scores", scores, (1,)),
        }
        self.n = _common_length(self._given, labels)
        self._given["labels"] = checked_labels(labels, self.n)
        self._held_out = held_out
        self._check_labels()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Arrays:
        """Reads an .npz file with any of features, logits, labels, correct and scores, or an .npy file of features."""
        try:
            loaded = np.load(path, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return cls(features=loaded)
            with loaded:
                found = {name: loaded[name] for name in _KINDS if name in loaded.files}
                others = loaded.files
        except FileNotFoundError:
            raise DatasetError(f"there is no file {os.fspath(path)!r}.") from None
        except DatasetError:
            raise
        except (ValueError, zipfile.BadZipFile, EOFError) as error:
            raise DatasetError(f"{os.fspath(path)!r} must be an .npz or .npy file of numbers: {error}.") from None
        if not found:
            raise DatasetError(
                f"{Path(path).name} must hold some of {', '.join(_KINDS)}, it holds {', '.join(others)}."
            )
        return cls(**found)

    @property
    def labels(self) -> np.ndarray | None:
        """One class for each sample, if they were given."""
        return self._given["labels"]

    @property
    def inits(self) -> int:
        """As many as there are logits of."""
        logits = self._given["logits"]
        return len(logits) if logits is not None and logits.ndim == 3 else 1

    def check(self, needs: Needs, who: str) -> None:
        """Raises where an array is not there."""
        if needs.model:
            raise DatasetError(f"{who} needs the model itself, arrays are not enough. Give it a Proxy.")
        missing = [name for name in _KINDS if getattr(needs, name) and self._given[name] is None]
        if missing:
            raise DatasetError(f"{who} needs {' and '.join(missing)}. Give Arrays({missing[0]}=...), or use a Proxy.")
        if needs.inits is not None and needs.inits > self.inits:
            raise ConfigError(
                f"{who} needs logits of {needs.inits} models, (inits, n, classes); there are {self.inits}."
            )

    def features(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Those that were given."""
        return self._there("features")

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Those that were given, of one of the models."""
        given = self._there("logits")
        one: np.ndarray = given[init] if given.ndim == 3 else given
        return one

    def correct(self, init: int = 0) -> np.ndarray:
        """What was given."""
        return self._there("correct")

    def scores(self) -> np.ndarray:
        """Those that were given."""
        return self._there("scores")

    def checkpoints(self) -> Sequence[int | None]:
        """One: that of the arrays."""
        return [None]

    def validation(self) -> Labelled | None:
        """What was given of a validation set."""
        return self._held_out

    def model(self, epoch: int | None = None, init: int = 0) -> torch.nn.Module:
        """There is none."""
        raise DatasetError("arrays have no model. Give the method a Proxy.")

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """There are none."""
        raise DatasetError("arrays have no samples. Give the method a Proxy.")

    def seconds_for(self, needs: Needs) -> float:
        """Nothing that is known here."""
        return 0.0

    def _there(self, name: str) -> np.ndarray:
        array = self._given[name]
        if array is None:
            raise DatasetError(f"{name} were not given. Give Arrays({name}=...).")
        return array

    def _check_labels(self) -> None:
        labels, logits = self._given["labels"], self._given["logits"]
        if labels is None or logits is None:
            return
        if labels.min() < 0 or labels.max() >= logits.shape[-1]:
            raise DatasetError(
                f"labels must be in [0, {logits.shape[-1]}), the number of logits; they go from {labels.min()} to "
                f"{labels.max()}."
            )


def check_finite(name: str, values: np.ndarray) -> None:
    """Raises with the rows in which something is NaN or infinite. Looks at few rows at once."""
    bad: list[int] = []
    for start in range(0, len(values), _ROWS_AT_ONCE):
        block = values[start : start + _ROWS_AT_ONCE]
        bad += (np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(1)) + start).tolist()
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise DatasetError(
            f"{name} must be finite; {len(bad)} of {len(values)} rows hold NaN or infinity: {shown}. "
            "Leave these samples out, or find out why the model gives such numbers."
        )


def _floats(name: str, values: Any, dimensions: tuple[int, ...]) -> np.ndarray | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim not in dimensions or not np.issubdtype(array.dtype, np.number):
        wanted = " or ".join(map(str, dimensions))
        raise DatasetError(
            f"{name} must be numbers in {wanted} dimension(s), got {array.dtype} of shape {array.shape}."
        )
    for block in array if array.ndim == 3 else [array]:
        check_finite(name, block)
    return np.ascontiguousarray(array, dtype=np.float32)


def _common_length(given: dict[str, np.ndarray | None], labels: Any) -> int:
    axis = {"features": 0, "logits": -2, "correct": 1, "scores": 0}
    lengths = {name: array.shape[axis[name]] for name, array in given.items() if array is not None}
    if labels is not None:
        lengths["labels"] = np.asarray(labels).size
    if not lengths or 0 in lengths.values():
        raise DatasetError("at least one array must be given, and none may be empty.")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise DatasetError(f"all arrays must be of the same samples, there are {shown}.")
    return int(next(iter(lengths.values())))
