"""A feature source made of existing arrays: no model, no training, no cost."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orderdp.coresets.base import (
    Labelled,
    Requirements,
    check_label_range,
    checked_held_out,
    checked_marks,
    checked_numbers,
    common_length,
)
from orderdp.errors import ConfigError, DatasetError
from orderdp.pruner import checked_labels

if TYPE_CHECKING:
    import torch

__all__ = ["Arrays"]


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
        held_out: Labelled | None = None,
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
        """The given features of one model; `epoch` is ignored."""
        return self._of_model("features", init)

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """The given logits of one model; `epoch` is ignored."""
        return self._of_model("logits", init)

    def correct(self, init: int = 0) -> np.ndarray:
        """The given booleans."""
        return self._there("correct")

    def scores(self) -> np.ndarray:
        """The given scores."""
        return self._there("scores")

    def checkpoints(self) -> Sequence[int | None]:
        """One checkpoint: that of the arrays."""
        return [None]

    def validation(self) -> Labelled | None:
        """The given validation set; None without one."""
        return self._held_out

    def model(self, epoch: int | None = None, init: int = 0) -> torch.nn.Module:
        """Not available: arrays have no model."""
        raise DatasetError("arrays have no model. Give the method a Proxy.")

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """Not available: arrays have no samples."""
        raise DatasetError("arrays have no samples. Give the method a Proxy.")

    def seconds_for(self, needs: Requirements) -> float:
        """Always 0: the cost of the arrays is unknown."""
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
