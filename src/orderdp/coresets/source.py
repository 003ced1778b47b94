"""What a method may ask: the interface that a `Proxy` and `Arrays` share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from orderdp.coresets.needs import Needs

if TYPE_CHECKING:
    import torch

__all__ = ["Labelled", "Source"]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Features, logits and labels of a data set, for example of a validation set."""

    features: np.ndarray
    logits: np.ndarray
    labels: np.ndarray


class Source(Protocol):
    """What a method may ask. Epochs count what has been trained: 0 is the initial model, None the end."""

    @property
    def n(self) -> int:
        """Number of samples."""
        ...

    @property
    def labels(self) -> np.ndarray | None:
        """One class for each sample, if anybody knows."""
        ...

    @property
    def inits(self) -> int:
        """How many models there are."""
        ...

    def check(self, needs: Needs, who: str) -> None:
        """Raises where something of `needs` cannot be given."""
        ...

    def features(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Inputs of the last linear layer, (n, width)."""
        ...

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Outputs of the last linear layer, (n, classes)."""
        ...

    def correct(self, init: int = 0) -> np.ndarray:
        """Whether each sample was right when trained on, (epochs, n)."""
        ...

    def scores(self) -> np.ndarray:
        """One number for each sample, made elsewhere."""
        ...

    def checkpoints(self) -> Sequence[int | None]:
        """The epochs after which features and logits can be had."""
        ...

    def validation(self) -> Labelled | None:
        """The same of a validation set, where there is one."""
        ...

    def model(self, epoch: int | None = None, init: int = 0) -> torch.nn.Module:
        """The model, in evaluation mode."""
        ...

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """All samples in order: indices, inputs, labels."""
        ...

    def seconds_for(self, needs: Needs) -> float:
        """What it costs to have `needs` recorded, training included."""
        ...
