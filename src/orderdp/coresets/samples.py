"""The proxy's view of a data set: batches of (inputs, labels), and what tells it from others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from orderdp.checks import checked_labels
from orderdp.errors import DatasetError

__all__ = ["Samples"]

_LOOKED_AT = 16
_DIGESTED_AT_ONCE = 1 << 24  # bytes


class Samples:
    """A data set of (inputs, label) pairs, without augmentation.

    Args:
        dataset: A map-style data set of pairs, a `TensorDataset`, or a pair of tensors.
        labels: One class for each sample, where it is known: saves a pass over the data.
        workers: Processes that read a data set which is not made of tensors.
    """

    def __init__(self, dataset: Any, labels: Any = None, workers: int = 0) -> None:
        self._dataset, self._workers = dataset, workers
        self._tensors = _tensors_of(dataset)
        try:
            self.n = len(dataset if self._tensors is None else self._tensors[0])
        except TypeError:
            raise DatasetError(f"the data set must have a length, {type(dataset).__name__} has none.") from None
        if self.n == 0:
            raise DatasetError("the data set must not be empty, it has no samples.")
        self._known_labels = checked_labels(labels, self.n)
        if self._tensors is None:
            _checked_pair(dataset[0])

    @cached_property
    def labels(self) -> np.ndarray:
        """One class for each sample, from 0 on."""
        labels = self._known_labels
        if labels is None:
            labels = self._declared_labels() if self._tensors is None else self._tensors[1].cpu().numpy()
        if labels is None:
            labels = np.concatenate([y.numpy() for _, _, y in self.batches(self.in_order(256))])
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
            raise DatasetError(
                f"labels must be one whole number from 0 on for each sample, got {labels.dtype} {labels.shape}."
            )
        return labels.astype(np.int64)

    @cached_property
    def checksum(self) -> str:
        """Of the number of samples, all labels and the inputs of some. The same whatever the form of the data set."""
        first, second = (_bytes(self._some()[1]) for _ in range(2))
        if first != second:
            raise DatasetError(
                "the data set must give the same samples each time they are read, it gives different ones. "
                "The proxy is trained without augmentation: switch it off."
            )
        digest = blake2b(digest_size=16)
        for part in (str(self.n).encode(), self.labels.tobytes(), first):
            digest.update(part)
        return digest.hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """What recordings are kept under: the checksum and, of tensors, a digest of all inputs."""
        if self._tensors is None:
            return self.checksum
        inputs = self._tensors[0]
        digest = blake2b(f"{inputs.dtype} {tuple(inputs.shape)}".encode(), digest_size=16)
        rows = max(1, _DIGESTED_AT_ONCE // max(1, inputs[0].numel() * inputs.element_size()))
        for start in range(0, self.n, rows):
            digest.update(_bytes(inputs[start : start + rows]))
        return f"{self.checksum}-{digest.hexdigest()}"

    def is_same_as(self, other: Samples) -> bool:
        """Whether the samples are the same: all of them where both are tensors, else as far as the checksum sees."""
        if self._tensors is None or other._tensors is None:
            return self.checksum == other.checksum
        return self.fingerprint == other.fingerprint

    def in_order(self, batch_size: int) -> list[np.ndarray]:
        """The indices of all samples, in batches."""
        return np.split(np.arange(self.n), range(batch_size, self.n, batch_size))

    def batches(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """Each batch with its indices."""
        if self._tensors is not None:
            x, y = self._tensors
            for batch in indices:
                places = torch.from_numpy(batch)
                yield batch, x[places], _long(y[places])
            return
        wanted = [batch.tolist() for batch in indices]
        loader: DataLoader[Any] = DataLoader(
            self._dataset, batch_sampler=wanted, num_workers=self._workers, generator=torch.Generator()
        )
        for batch, (inputs, labels) in zip(wanted, loader, strict=True):
            yield np.array(batch), inputs, _long(torch.as_tensor(labels))

    def _some(self) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
        """A few samples from all over the data set."""
        return next(self.batches([np.unique(np.linspace(0, self.n - 1, _LOOKED_AT).astype(np.int64))]))

    def _declared_labels(self) -> np.ndarray | None:
        """The data set's own list of labels, as torchvision's have it, if it agrees with some of the items."""
        declared = np.asarray(getattr(self._dataset, "targets", None))
        if declared.shape != (self.n,) or not np.issubdtype(declared.dtype, np.integer):
            return None
        places, _, labels = self._some()
        return declared if np.array_equal(declared[places], labels.numpy()) else None


def _bytes(inputs: torch.Tensor) -> bytes:
    # As bytes before numpy sees them: it does not know all types of torch.
    return inputs.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _long(labels: torch.Tensor) -> torch.Tensor:
    """Whole numbers as the loss wants them; anything else stays what it is, so that the check sees it."""
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return labels.long() if whole else labels


def _tensors_of(dataset: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    given = dataset.tensors if isinstance(dataset, TensorDataset) else dataset
    if not (isinstance(given, tuple | list) and all(isinstance(part, torch.Tensor) for part in given)):
        return None
    if len(given) != 2 or len(given[0]) != len(given[1]):
        shapes = [tuple(part.shape) for part in given]
        raise DatasetError(f"tensors must be inputs and labels, as many of each; got {shapes}.")
    return given[0], given[1]


def _checked_pair(item: Any) -> None:
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise DatasetError(
            f"items of the data set must be (inputs, label), got {type(item).__name__}. The proxy needs the labels."
        )
