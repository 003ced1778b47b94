"""The order of an epoch in the form that FFCV, DALI and Grain take, for loaders that read data in their own way.

None of them hands the loop an index by itself; the functions here say how it comes along. As everywhere, only
``pruner.update`` moves time: an order that is asked for twice is the same until losses have come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from orderdp._draw import generator
from orderdp._validation import check_batch_size
from orderdp.errors import ConfigError, DatasetError, install_command
from orderdp.pruner import Pruner
from orderdp.samplers import EpochRequest, OpenEpoch, served_at_once

__all__ = ["DaliBatches", "GrainSampler", "ffcv_order"]


def _open(pruner: Pruner, batch_size: int, drop_last: bool) -> OpenEpoch:
    """Open the epoch for batches of this size."""
    manager = pruner._manager
    if manager.every_batch:
        raise ConfigError(
            'every="batch" selects its batches one by one, so there is no order of an epoch. Use OrderDP(..., '
            'every="epoch").'
        )
    cut = check_batch_size(batch_size), bool(drop_last)
    return manager.open(EpochRequest(batch_size=cut[0], drop_last=cut[1], cut=cut))


def ffcv_order(pruner: Pruner) -> type:
    """Return a traversal order for FFCV: ``Loader(path, batch_size, order=ffcv_order(pruner), ...)``.

    FFCV's batches are those of `Pruner.index_batches`, in the same order, so the two are iterated together::

        for index, (images, labels) in zip(pruner.index_batches(loader.batch_size, drop_last=loader.drop_last), loader):
            loss = pruner.update(index, criterion(model(images), labels))

    Epochs may differ in length, and an epoch is resumed from its position. In a process group each rank gets its own
    shard: ``distributed=True`` is not needed.

    Args:
        pruner: The pruner for all samples of the file.
    """
    try:
        from ffcv.traversal_order.base import TraversalOrder
    except ImportError:
        raise ConfigError("ffcv_order needs FFCV: see https://ffcv.io for how to install it.") from None

    class PrunedOrder(TraversalOrder):
        """The samples that a pruner selects."""

        def __init__(self, loader: Any) -> None:
            super().__init__(loader)
            if len(loader.indices) != pruner.n:
                raise DatasetError(
                    f"the file must have the {pruner.n} samples the pruner was created for, the loader has "
                    f"{len(loader.indices)}. Leave `indices` out, or create a Pruner for that many."
                )
            self._served: tuple[int, OpenEpoch] | None = None

        def sample_order(self, epoch: int) -> np.ndarray:
            """Return this rank's rest of the pruner's current epoch; `epoch` counts FFCV's own iterators."""
            if self._served is not None and self._served[0] != epoch:
                pruner._manager.exhausted(self._served[1].order, certainly=True)
            opened = _open(pruner, self.loader.batch_size, self.loader.drop_last)
            self._served = epoch, opened
            order: np.ndarray = self.loader.indices[served_at_once(opened, None).numpy()]
            # FFCV takes the length of all epochs from this attribute.
            self.loader.first_traversal_order = order
            return order

    return PrunedOrder


class DaliBatches:
    """Batches for DALI: ``fn.external_source(source=DaliBatches(...), num_outputs=..., batch=True, cycle="raise")``.

    Each batch is a tuple: the indices as the first output, then one list of arrays for each value of `read`, such as
    the bytes of an image for ``fn.decoders.image`` and its label. With ``cycle="raise"`` the pipeline stops at the end
    of the epoch and begins the next after its ``reset()``. A pipeline that runs ahead changes nothing.

    Args:
        pruner: The pruner.
        read: A function of an index that returns the arrays of that sample.
        batch_size: Samples per batch, the pipeline's ``max_batch_size``.
        drop_last: Whether to drop a last, smaller batch.
    """

    def __init__(
        self, pruner: Pruner, read: Callable[[int], Sequence[Any]], batch_size: int, drop_last: bool = False
    ) -> None:
        self._batches = pruner.index_batches(batch_size, drop_last=drop_last)
        self._read = read

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of an epoch, which begins with the first of them.

        DALI asks for the next iterator when it has fetched the last batch, which is before that batch is trained on.
        """
        for index in self._batches:
            samples = [[np.asarray(value) for value in self._read(i)] for i in index.tolist()]
            yield (index.numpy(), *(list(values) for values in zip(*samples, strict=True)))

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self._batches)


class GrainSampler:
    """One epoch as a sampler for Grain: a new ``grain.DataLoader(sampler=GrainSampler(pruner, batch_size), ...)`` each.

    With `Indexed` as the data source every item carries its index::

        loader = grain.DataLoader(
            data_source=orderdp.Indexed(data),
            sampler=GrainSampler(pruner, 128),
            operations=[grain.transforms.Batch(128)],
            shard_options=grain.sharding.NoSharding(),
        )
        for index, (x, y) in loader:
            loss = pruner.update(torch.as_tensor(index), ...)

    It holds the rest of the current epoch, in a process group that of this rank (so Grain does not shard), and can be
    sent to workers. The random generator of an item depends on the seed, the epoch and the sample, not on
    Grain's own numbering: a resumed epoch augments as the straight one.

    Args:
        pruner: The pruner.
        batch_size: Samples per batch, as in ``grain.transforms.Batch``.
        drop_last: Whether a smaller last batch is dropped, as by ``drop_remainder=True``.
    """

    def __init__(self, pruner: Pruner, batch_size: int, drop_last: bool = False) -> None:
        opened = _open(pruner, batch_size, drop_last)
        pruner._manager.exhausted(opened.order, certainly=True)
        self._order = served_at_once(opened, None).numpy()
        self._seed, self._epoch = pruner.seed, opened.number

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, position: int) -> Any:
        """Return Grain's description of the sample at a position; raise an IndexError after the last."""
        try:
            from grain import RecordMetadata
        except ImportError:
            raise ConfigError(f"GrainSampler needs Grain: {install_command('grain')}.") from None

        if not 0 <= position < len(self._order):
            raise IndexError(f"position must be in [0, {len(self._order)}), got {position}.")
        sample = int(self._order[position])
        rng = generator(self._seed, "items", self._epoch, sample)
        return RecordMetadata(index=int(position), record_key=sample, rng=rng)

    def __repr__(self) -> str:
        # Grain compares it when it restores a state of its own.
        return f"GrainSampler({len(self._order)} samples of epoch {self._epoch}, seed={self._seed})"
