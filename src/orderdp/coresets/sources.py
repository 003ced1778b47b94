"""Sources of features, logits and scores: what a method requires, the protocol of sources, and arrays of your own."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from orderdp.errors import ConfigError, DatasetError
from orderdp.pruner import checked_labels

if TYPE_CHECKING:
    import torch

__all__ = [
    "LARGEST",
    "Arrays",
    "FeatureSource",
    "Labeled",
    "Requirements",
    "check_finite",
    "check_label_range",
    "checked_held_out",
    "checked_marks",
    "checked_numbers",
    "common_length",
    "first_few",
]


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Recordings that a method requires.

    Attributes:
        features: Inputs of the last linear layer.
        logits: Outputs of the last linear layer.
        labels: The class of each sample.
        correct: Whether each sample was predicted correctly when it was trained on, per epoch.
        model: The trained model itself, and the samples.
        scores: One precomputed number per sample.
        validation: Features and logits of the validation set, if there is one.
        epoch: Number of trained epochs, or None for all.
        inits: Number of models, each with its own initial weights; None for all there are.
        every_epoch: Whether features and logits are required after each epoch instead of after one.
    """

    features: bool = False
    logits: bool = False
    labels: bool = False
    correct: bool = False
    model: bool = False
    scores: bool = False
    validation: bool = False
    epoch: int | None = None
    inits: int | None = 1
    every_epoch: bool = False

    @property
    def nothing(self) -> bool:
        """Whether no model has to be trained."""
        return not (self.features or self.logits or self.correct or self.model)


@dataclass(frozen=True, eq=False)
class Labeled:
    """Data for example of a validation set: `features` (n, width), `logits` (n, classes) and `labels` (n)."""

    features: np.ndarray
    logits: np.ndarray
    labels: np.ndarray


class FeatureSource(Protocol):
    """What methods read. Epochs count trained epochs: 0 is the initial model, None the end of training."""

    @property
    def n(self) -> int:
        """Number of samples."""
        ...

    @property
    def labels(self) -> np.ndarray | None:
        """One class per sample; None if unknown."""
        ...

    @property
    def inits(self) -> int:
        """Number of models."""
        ...

    def check(self, needs: Requirements, who: str) -> None:
        """Raise if some of `needs` are not available; `who` is the method's name for messages."""
        ...

    def features(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Inputs of the last linear layer, (n, width), after `epoch` of model `init`."""
        ...

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Outputs of the last linear layer, (n, classes), after `epoch` of model `init`."""
        ...

    def correct(self, init: int = 0) -> np.ndarray:
        """Whether model `init` predicted each sample correctly when it was trained on, (epochs, n)."""
        ...

    def scores(self) -> np.ndarray:
        """One precomputed number per sample."""
        ...

    def checkpoints(self) -> Sequence[int | None]:
        """Epochs after which features and logits are available."""
        ...

    def validation(self) -> Labeled | None:
        """Features, logits and labels of a validation set; None without one."""
        ...

    def model(self, epoch: int | None = None, init: int = 0) -> torch.nn.Module:
        """Model `init` after `epoch`, in evaluation mode."""
        ...

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """Yield all samples in order: indices, inputs, labels."""
        ...

    def seconds_for(self, needs: Requirements) -> float:
        """Cost of recording `needs`, training included."""
        ...


_ROWS_AT_ONCE = 4096


_SAMPLES_AXIS = {"features": -2, "logits": -2, "correct": 1, "scores": 0, "labels": 0}


def first_few(rows: Sequence[int]) -> str:
    """The first few rows, for a message.

    >>> first_few([4, 8, 9]), first_few(range(9))
    ('4, 8, 9', '0, 1, 2, 3, 4, ...')
    """
    return ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")


#: Largest size of a feature or logit: sums of products of many samples still fit into single precision.
LARGEST = 1e12


def check_finite(name: str, values: np.ndarray, most: float = np.inf) -> None:
    """Raise with the rows that hold NaN, infinity, or a number larger than `most`. Reads few rows at once."""
    bad: list[int] = []
    large: list[int] = []
    for start in range(0, len(values), _ROWS_AT_ONCE):
        block = values[start : start + _ROWS_AT_ONCE]
        block = block.reshape(len(block), -1)
        finite = np.isfinite(block).all(1)
        bad += (np.flatnonzero(~finite) + start).tolist()
        if most < np.inf:
            sizes = np.maximum(block.max(1, initial=0), -block.min(1, initial=0))
            large += (np.flatnonzero(finite & (sizes > most)) + start).tolist()
    what, rows, wrong = (
        ("finite", bad, "NaN or infinity") if bad else (f"at most {most:g} in size", large, "larger numbers")
    )
    if rows:
        raise DatasetError(
            f"{name} must be {what}; {len(rows)} of {len(values)} rows hold {wrong}: {first_few(rows)}. "
            "Leave these samples out, or find out why the model gives such numbers."
        )


def checked_numbers(name: str, values: Any, dimensions: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray | None:
    """Return finite numbers as an array of `dtype`, or None if `values` is None; raise otherwise."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim not in dimensions or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        wanted = " or ".join(map(str, dimensions))
        raise DatasetError(
            f"{name} must be numbers in {wanted} dimension(s), got {array.dtype} of shape {array.shape}."
        )
    with np.errstate(over="ignore"):  # checked just below
        cast = np.ascontiguousarray(array, dtype=dtype)
    for before, after in zip(array, cast, strict=True) if array.ndim == 3 else [(array, cast)]:
        check_finite(name, before)
        if not np.can_cast(array.dtype, dtype):
            check_finite(f"{name} in single precision", after)
        if dtype is np.float32:
            check_finite(name, after, LARGEST)
    return cast


def checked_marks(name: str, values: Any) -> np.ndarray | None:
    """Return booleans (or 1 and 0) by epoch and sample, or None; raise otherwise, for example on predicted classes."""
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
    """Return the common number of samples of all arrays; raise if they differ."""
    lengths = {name: array.shape[_SAMPLES_AXIS[name]] for name, array in given.items() if array is not None}
    if labels is not None:
        lengths["labels"] = np.asarray(labels).size
    if not lengths or 0 in lengths.values():
        raise DatasetError("at least one array must be given, and none may be empty.")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{length} {prefix}{name}" for name, length in lengths.items())
        raise DatasetError(f"all arrays must have the same samples, got {shown}.")
    return int(next(iter(lengths.values())))


def check_label_range(labels: np.ndarray | None, logits: np.ndarray | None, prefix: str = "") -> None:
    """Raise if a label has no logit."""
    if labels is None or logits is None:
        return
    if labels.min() < 0 or labels.max() >= logits.shape[-1]:
        raise DatasetError(
            f"{prefix}labels must be in [0, {logits.shape[-1]}), the number of logits; they go from {labels.min()} to "
            f"{labels.max()}."
        )


def checked_held_out(held_out: Any, own: Mapping[str, np.ndarray | None]) -> Labeled | None:
    """Return a validation set that fits these features and logits, or None; raise otherwise."""
    if held_out is None:
        return None
    if not isinstance(held_out, Labeled):
        raise DatasetError(
            f"held_out must be coresets.Labeled(features, logits, labels), got {type(held_out).__name__}."
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
    return Labeled(features, logits, labels)


_KINDS = ("features", "logits", "labels", "correct", "scores")


class Arrays:
    """Existing arrays, for every method that does not require the model itself.

    All arrays count as recorded at one epoch: whichever epoch a method requires, it gets these arrays.

    >>> Arrays(features=np.zeros((4, 2)), labels=[0, 0, 1, 1]).n
    4

    Args:
        features: (n, width), or (inits, n, width) from several models.
        logits: (n, classes), or (inits, n, classes) from several models.
        labels: n integers; with logits, each below the number of classes.
        correct: (epochs, n) booleans.
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
        held_out: Labeled | None = None,
    ) -> None:
        self._given: dict[str, np.ndarray | None] = {
            "features": checked_numbers("features", features, (2, 3)),
            "logits": checked_numbers("logits", logits, (2, 3)),
            "correct": checked_marks("correct", correct),
            # Not rounded to single precision: the exact values are ranked.
            "scores": checked_numbers("scores", scores, (1,), np.float64),
        }
        self.n = common_length(self._given, labels)
        self._check_models()
        self._given["labels"] = checked_labels(labels, self.n)
        check_label_range(self._given["labels"], self._given["logits"])
        self._held_out = checked_held_out(held_out, self._given)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Arrays:
        """Load an .npz file with any of features, logits, labels, correct and scores, or an .npy file of features.

        Args:
            path: Path of the file.
        """
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
        """One class per sample; None if not given."""
        return self._given["labels"]

    @property
    def inits(self) -> int:
        """Number of models that have logits, or features."""
        return self._models("logits") or self._models("features") or 1

    def check(self, needs: Requirements, who: str) -> None:
        """Raise if a required array is missing.

        Args:
            needs: Requirements of a method.
            who: Name of the method, for messages.
        """
        if needs.model:
            raise DatasetError(f"{who} needs the model itself, arrays are not enough. Give it a Proxy.")
        missing = [name for name in _KINDS if getattr(needs, name) and self._given[name] is None]
        if missing:
            raise DatasetError(f"{who} needs {' and '.join(missing)}. Give Arrays({missing[0]}=...), or use a Proxy.")
        if needs.inits is not None and needs.inits > self.inits:
            raise ConfigError(
                f"{who} needs logits of {needs.inits} models, (inits, n, classes); there are {self.inits}."
            )
        wanted = self.inits if needs.inits is None else needs.inits
        if needs.features and wanted > self._models("features"):
            raise DatasetError(
                f"{who} needs the features of each of {wanted} models, (inits, n, width); there are those of one. "
                "Give all, or let the method ask one model: repeats=1."
            )
        correct = self._given["correct"]
        if needs.correct and correct is not None and len(correct) < 2:
            raise ConfigError(f"{who} needs at least 2 epochs, there is {len(correct)}.")

    def features(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """The given features of model `init`; `epoch` is ignored."""
        return self._of_model("features", init)

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """The given logits of model `init`; `epoch` is ignored."""
        return self._of_model("logits", init)

    def correct(self, init: int = 0) -> np.ndarray:
        """The given booleans; `init` is ignored."""
        return self._there("correct")

    def scores(self) -> np.ndarray:
        """The given scores."""
        return self._there("scores")

    def checkpoints(self) -> Sequence[int | None]:
        """One checkpoint: that of the arrays."""
        return [None]

    def validation(self) -> Labeled | None:
        """The given validation set; None without one."""
        return self._held_out

    def model(self, epoch: int | None = None, init: int = 0) -> torch.nn.Module:
        """Not available for any `epoch` or `init`: arrays have no model."""
        raise DatasetError("arrays have no model. Give the method a Proxy.")

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """Not available: arrays have no samples."""
        raise DatasetError("arrays have no samples. Give the method a Proxy.")

    def seconds_for(self, needs: Requirements) -> float:
        """Always 0, whatever `needs` are: the cost of the arrays is unknown."""
        return 0.0

    def _there(self, name: str) -> np.ndarray:
        array = self._given[name]
        if array is None:
            raise DatasetError(f"{name} were not given. Give Arrays({name}=...).")
        return array

    def _of_model(self, name: str, init: int) -> np.ndarray:
        given = self._there(name)
        one: np.ndarray = given[init] if given.ndim == 3 else given
        return one

    def _models(self, name: str) -> int:
        """Number of models in an array; 0 if it is missing."""
        array = self._given[name]
        return 0 if array is None else len(array) if array.ndim == 3 else 1

    def _check_models(self) -> None:
        features, logits = self._models("features"), self._models("logits")
        if features > 1 and logits and features != logits:
            raise DatasetError(
                f"features and logits must be of the same models, got features of {features} models and "
                f"logits of {logits}."
            )
