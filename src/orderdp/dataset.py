"""Data sets whose items carry their index, the DataLoader built on them, and flips by the number of visits.

Worker processes import this module; it does not depend on policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from orderdp._draw import key64
from orderdp._epochs import EpochManager, check_length
from orderdp._validation import check_batch_size, checked_seed
from orderdp.errors import ConfigError, DatasetError, FeedbackError
from orderdp.losses import checked_index
from orderdp.samplers import PrunedBatchSampler

__all__ = ["Indexed", "IndexedCollate", "alternate_flip", "length_of", "pruned_loader", "without_own_order"]


class Indexed(Dataset[Any]):
    """A data set whose items carry their index: ``(index, item)``, or under `key` in items that are dicts.

    >>> Indexed(["a", "b"])[1]
    (1, 'b')
    >>> Indexed([{"text": "a"}], key="index")[0]
    {'text': 'a', 'index': 0}

    Args:
        dataset: Any data set with a length and items by index.
        key: Key of the index in items that are dicts.
    """

    # Nothing is forwarded by __getattr__: unpickling reads attributes before the inner data set exists,
    # and methods of the inner data set would return items without their index.

    def __init__(self, dataset: Any, key: str | None = None) -> None:
        length_of(dataset)
        if key is not None and not isinstance(key, str):
            raise ConfigError(f"key must be the name of an entry, got {key!r}.")
        self.dataset = dataset
        self.key = key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._with_index(index, self.dataset[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a whole batch at once, with the inner data set's ``__getitems__`` if it has one."""
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(indices) if fetch else list(map(getitem, repeat(self.dataset), indices))
        if len(items) != len(indices):
            raise DatasetError(
                f"{type(self.dataset).__name__}.__getitems__ must return one item for each index, it returned "
                f"{len(items)} for {len(indices)}."
            )
        if self.key is None:
            return list(zip(indices, items, strict=True))
        return [self._with_index(index, item) for index, item in zip(indices, items, strict=True)]

    @property
    def set_epoch(self) -> Callable[[int], Any]:
        """The inner data set's ``set_epoch``, if it has one: Accelerate and Hugging Face's Trainer look for it."""
        found: Callable[[int], Any] = self.dataset.set_epoch
        return found

    def __repr__(self) -> str:
        return f"Indexed({self.dataset!r}{'' if self.key is None else f', key={self.key!r}'})"

    def _with_index(self, index: int, item: Any) -> Any:
        if self.key is None:
            return index, item
        if not isinstance(item, Mapping):
            raise DatasetError(
                f"key={self.key!r} needs items that are dicts, got {type(item).__name__}. "
                "Leave the key out to get (index, item) pairs."
            )
        if self.key in item:
            raise DatasetError(f"the items have an entry {self.key!r} already. Choose another key.")
        return {**item, self.key: index}


class IndexedCollate:
    """Collates ``(index, item)`` pairs to ``(indices, batch)`` with the collate function for the items."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self.collate = collate or default_collate

    def __call__(self, pairs: list[tuple[int, Any]]) -> tuple[torch.Tensor, Any]:
        """Return the indices as an int64 tensor, and the collated items."""
        indices, items = zip(*pairs, strict=True)
        return torch.tensor(indices, dtype=torch.int64), self.collate(list(items))


def length_of(dataset_or_length: Any) -> int:
    """Return the number of samples, or raise an error that says why there is none."""
    given = dataset_or_length
    if isinstance(given, bool | float | np.floating):
        raise DatasetError(f"the length of a data set must be a whole number, got {given!r}.")
    if isinstance(given, DataLoader):
        raise DatasetError(
            "the pruner needs the data set or its number of samples, got a DataLoader, whose length is its number of "
            "batches. Pass loader.dataset, and load with pruner.loader(dataset, batch_size=...)."
        )
    if isinstance(given, str | bytes):
        raise DatasetError(
            f"the pruner needs the data set or its number of samples, got the text {given!r}. Pass a whole number, or "
            "the data set itself."
        )
    if isinstance(given, int | np.integer):
        length = int(given)
    elif isinstance(given, IterableDataset) or not hasattr(given, "__len__"):
        raise DatasetError(
            f"the data set must have a length and items by index, got {type(given).__name__}, which does not. Samples "
            "of a stream cannot be selected in advance: filter them by key with orderdp.streaming.KeyFilter, or load "
            "the stream into a map-style data set."
        )
    else:
        length = len(given)
    if length < 1:
        raise DatasetError(f"the data set must have at least one sample, got {length}.")
    return length


def without_own_order(options: dict[str, Any]) -> dict[str, Any]:
    """Return a DataLoader's arguments; raise an error for those that would set another order."""
    for name in ("sampler", "batch_sampler"):
        if options.get(name) is not None:
            raise ConfigError(
                f"loader() sets the order itself, so it takes no {name}. Use DataLoader(orderdp.Indexed(dataset), "
                f"{name}=pruner.filter({name}))."
            )
    if options.get("shuffle") is False:
        raise ConfigError(
            "a pruned epoch is always shuffled, got shuffle=False. For another order use "
            "DataLoader(orderdp.Indexed(dataset), sampler=pruner.filter(sampler))."
        )
    if options.get("in_order") is False:
        raise ConfigError(
            "batches must arrive in the order in which they are selected, got in_order=False: a checkpoint stores only "
            "a position, and would skip a batch that another one overtook. Leave in_order out."
        )
    return {name: value for name, value in options.items() if name not in ("sampler", "batch_sampler", "shuffle")}


def pruned_loader(
    manager: EpochManager, dataset: Any, batch_size: int, given: dict[str, Any], group_by: Any = None
) -> DataLoader[Any]:
    """Return a DataLoader that yields ``(index, batch)``; raise an error if the data set or an option does not fit.

    Args:
        manager: The epoch manager.
        dataset: The data set.
        batch_size: Samples per batch.
        given: Further arguments of the DataLoader.
        group_by: One number per sample, by which batches are grouped; None for no groups.
    """
    options = without_own_order(given)
    check_batch_size(batch_size)
    length_of(dataset)
    check_length(dataset, manager.n)
    own_generator = None
    if options.get("generator") is None:
        # Without a generator, a DataLoader draws its workers' seeds from the global generator and so advances it.
        own_generator = options["generator"] = torch.Generator()
    batches = PrunedBatchSampler(
        manager,
        batch_size,
        options.pop("drop_last", False),
        dataset=dataset,
        generator=own_generator,
        prefetched=(options.get("num_workers") or 0) * (options.get("prefetch_factor") or 2),
        group_by=group_by,
    )
    if not (type(dataset) is Indexed and dataset.key is None):
        dataset = Indexed(dataset)
    collate = IndexedCollate(options.pop("collate_fn", None))
    return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **options)


# -- augmentation by the number of visits ------------------------------------------------------------------------------


def alternate_flip(index: Any, visits: Any, seed: int = 0) -> torch.Tensor:
    """Return which samples of a batch to mirror, so that each is mirrored on every other visit.

    Whether the first visit is mirrored is a hash of (seed, index); every later visit is the opposite of the one before.
    It counts visits and not epochs: a pruned sample skips epochs, and would otherwise show one side more often.

    ::

        flips = orderdp.alternate_flip(index, pruner.visits(index), seed).to(x.device)
        x = torch.where(flips[:, None, None, None], x.flip(-1), x)
        loss = pruner.update(index, criterion(model(x), y))

    >>> first = alternate_flip([3, 5, 8], [0, 0, 0])
    >>> bool((alternate_flip([3, 5, 8], [1, 2, 3]) == (first ^ torch.tensor([True, False, True]))).all())
    True

    Args:
        index: The samples.
        visits: How often each of them was trained on before: ``pruner.visits(index)``, before `update`.
        seed: Seed of the first visits.

    Returns:
        True for samples to mirror, on the device of `visits`. Does not wait for the device.
    """
    index, visits = checked_index(index), torch.as_tensor(visits)
    if visits.shape != index.shape or visits.is_floating_point():
        raise FeedbackError(
            f"visits must be one whole number for each of the {len(index)} indices, got {visits.dtype} of shape "
            f"{tuple(visits.shape)}. Pass pruner.visits(index)."
        )
    # Non-blocking only to a device: a non-blocking copy to the host may be read before it is complete.
    index = index.to(visits.device, non_blocking=not visits.is_cpu)
    first = _hash(index, key64(checked_seed(seed), "flip")) < 0  # its top bit
    mirrored: torch.Tensor = first ^ (visits & 1).bool()
    return mirrored


def _hash(index: torch.Tensor, key: int) -> torch.Tensor:
    """Return the bits of `orderdp._draw.fair_hash`, on the device of the index; int64 wraps around as uint64 does."""
    h = index * _signed(0x9E3779B97F4A7C15) + _signed(key)
    h = (h ^ _shifted(h, 30)) * _signed(0xBF58476D1CE4E5B9)
    h = (h ^ _shifted(h, 27)) * _signed(0x94D049BB133111EB)
    return h ^ _shifted(h, 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(h: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right with zeros, where torch would fill with the sign bit."""
    return (h >> bits) & ((1 << (64 - bits)) - 1)
