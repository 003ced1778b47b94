"""Samplers for a DataLoader. They yield the samples of the pruner's current epoch and decide nothing.

A sampler asks the epoch manager for an epoch, with an `EpochRequest` that says what it needs, and iterates over the
answer. It asks in ``__iter__`` and not at the first ``next``, because some frameworks ask for the length in between.
``__iter__`` returns an iterator whose own ``iter()`` is itself, because DataLoader calls ``iter`` on it once for every
batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import BatchSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from orderdp._epochs import EpochRequest
from orderdp._planning import batches_in
from orderdp._validation import check_batch_size
from orderdp.errors import ConfigError, StateError

if TYPE_CHECKING:
    from orderdp._epochs import EpochManager, OpenEpoch

__all__ = ["BatchIterator", "FilteredSampler", "PrunedBatchSampler", "PrunedSampler", "SampleIterator"]


# Number of indices that the plain sampler converts to Python ints at a time.
_CHUNK = 4096


class SampleIterator:
    """Iterates over an epoch sample by sample.

    It has the two methods with which torchdata's StatefulDataLoader stores its position. That loader then owns the
    position: it may have yielded fewer batches than it asked for, and skips some itself when it resumes.

    Args:
        manager: The epoch manager.
        opened: The epoch.
        batch_size: Samples per batch.
        prefetched: Number of batches the loader asks for before the first one is used; None if unknown.
    """

    def __init__(
        self, manager: EpochManager, opened: OpenEpoch, batch_size: int = 1, prefetched: int | None = None
    ) -> None:
        self._manager = manager
        self._order, self._number, self._position, self._end, self._shard = opened
        self._stride = 1 if self._shard is None else self._shard.world
        self._batch_size = batch_size
        self._to_skip = 0  # batches that the loader will skip
        self._prefetched = prefetched
        # A loader asks for `prefetched` batches before it yields the first, and for one more with each batch it
        # yields, even if none are left: after `prefetched` refusals it has yielded the last.
        self._refusals_left = max(1, prefetched or 0)
        self._chunk: list[int] = []
        self._chunk_start = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._position >= self._end:
            self._refuse()
        offset = (self._position - self._chunk_start) // self._stride
        if not 0 <= offset < len(self._chunk):
            self._chunk = self._batch(_CHUNK)
            self._chunk_start, offset = self._position, 0
        self._position += self._stride
        return self._chunk[offset]

    def _refuse(self) -> NoReturn:
        self._refusals_left -= 1
        if self._refusals_left == 0:
            self._manager.exhausted(self._order, certainly=self._prefetched is not None)
        raise StopIteration

    def _batch(self, batch_size: int) -> list[int]:
        if self._shard is None:
            return self._order.batch(self._position, batch_size)
        return self._shard.batch(self._order, self._position, batch_size)

    def state_dict(self) -> dict[str, int]:
        """Return the number of the epoch, the position reached, and the end."""
        return {"epoch": self._number, "position": self._position, "end": self._end}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Move to the position of `state`."""
        if state["epoch"] == self._number:
            self._position = state["position"]
        elif state["epoch"] == self._number - 1:
            # That epoch was trained to its end. The loader may still skip the last part of it, if the loader's
            # state is older than the pruner's.
            self._serve_to_skip(state["end"] - state["position"])
        else:
            raise StateError(
                f"the loader's state is of epoch {state['epoch']}, the pruner is at epoch {self._number}. "
                "Load the pruner's state, from the same checkpoint, before the loader's."
            )

    def _serve_to_skip(self, samples: int) -> None:
        if samples > 0:
            raise StateError(
                "the loader's state is older than the pruner's, by part of an epoch that is over. Set "
                "snapshot_every_n_steps=1, or give the loader pruner.batch_sampler(...) instead of pruner.sampler."
            )


class BatchIterator(SampleIterator):
    """Iterates over an epoch batch by batch."""

    def __next__(self) -> list[int]:
        if self._to_skip:
            self._to_skip -= 1
            return self._batch(1)
        if self._position >= self._end:
            self._refuse()
        if self._shard is None:
            batch = self._order.batch(self._position, self._batch_size)
        else:
            batch = self._shard.batch(self._order, self._position, self._batch_size)
        self._position += len(batch) * self._stride
        return batch

    def _serve_to_skip(self, samples: int) -> None:
        self._to_skip = batches_in(samples, self._batch_size * self._stride, drop_last=False)


class PrunedSampler(Sampler[int]):
    """Yields the current epoch's samples one by one, for a DataLoader that makes its own batches."""

    def __init__(self, manager: EpochManager) -> None:
        self._manager = manager

    def __iter__(self) -> Iterator[int]:
        return SampleIterator(self._manager, self._manager.open(EpochRequest()))

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch, also while an epoch is being resumed."""
        return self._manager.rank_samples(self._manager.epoch_size())


class PrunedBatchSampler(Sampler[list[int]]):
    """Yields the current epoch's samples in batches.

    Args:
        manager: The epoch manager.
        batch_size: Samples per batch.
        drop_last: Whether to drop a last, smaller batch.
        dataset: The data set whose length is checked when an epoch starts; None skips the check.
        generator: Seeded anew for each epoch, for the seeds of a DataLoader's workers.
        prefetched: Number of batches the loader asks for before the first one is used; None if unknown.
    """

    def __init__(
        self,
        manager: EpochManager,
        batch_size: int,
        drop_last: bool = False,
        *,
        dataset: Sized | None = None,
        generator: torch.Generator | None = None,
        prefetched: int | None = None,
    ) -> None:
        self.batch_size = check_batch_size(batch_size)
        self.drop_last = bool(drop_last)
        self.sampler = PrunedSampler(manager)
        self._manager = manager
        cut = self.batch_size, self.drop_last
        self._request = EpochRequest(batch_size=cut[0], drop_last=cut[1], cut=cut, dataset=dataset)
        self._generator = generator
        self._prefetched = prefetched

    def __iter__(self) -> Iterator[list[int]]:
        opened = self._manager.open(self._request)
        if self._generator is not None:
            # So that a resumed epoch starts its workers with the same seeds.
            self._generator.manual_seed(self._manager.worker_seed())
        return BatchIterator(self._manager, opened, self.batch_size, self._prefetched)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch, also while an epoch is being resumed."""
        return batches_in(len(self.sampler), self.batch_size, self.drop_last)


class FilteredSampler(Sampler[Any]):
    """Yields the samples of an inner sampler that are part of the pruner's current selection.

    A sampler of indices yields indices. A batch sampler yields its batches with fewer samples and no empty ones, or,
    with `repack`, full batches again. The inner sampler is read to its end when an epoch starts, so that its order can
    be stored and resumed like any other.

    Args:
        manager: The epoch manager.
        inner: A sampler or batch sampler over the whole data set.
        repack: Whether to refill filtered batches to the inner sampler's batch size.
    """

    def __init__(self, manager: EpochManager, inner: Iterable[Any], repack: bool = False) -> None:
        _refuse_sharded(inner)
        if isinstance(inner, Iterator):
            raise ConfigError(
                f"filter needs a sampler that can be gone through in every epoch, a {type(inner).__name__} can be gone "
                "through once. Pass a sampler, a batch sampler or a list."
            )
        if manager.every_batch:
            raise ConfigError(
                'every="batch" takes its batches from its own candidates and cannot keep the order of another '
                'sampler. Use OrderDP(..., every="epoch") with filter.'
            )
        self._manager = manager
        self.sampler = getattr(inner, "sampler", None)
        self.batch_size = getattr(inner, "batch_size", None)
        self.drop_last = bool(getattr(inner, "drop_last", False))
        if repack and self.batch_size is None:
            raise ConfigError(
                f"repack=True needs a batch sampler with a batch_size, got {type(inner).__name__} without one. "
                "Wrap it: torch.utils.data.BatchSampler(sampler, batch_size, drop_last)."
            )
        self._repack_to = check_batch_size(self.batch_size) if repack else None
        # A stock BatchSampler only cuts the output of its sampler into batches, and with drop_last drops the end,
        # which may hold selected samples: repacking reads the sampler itself.
        self._inner = inner.sampler if repack and type(inner) is BatchSampler else inner
        self._request = EpochRequest(
            order=object(),  # each filter has its own order; an id could be reused once this one is gone
            batch_size=self._repack_to or self.batch_size,
            drop_last=self.drop_last,
            cut=(self._repack_to, self.drop_last) if self._repack_to else None,
            inner=self._inner,
        )

    def __iter__(self) -> Iterator[Any]:
        opened = self._manager.open(self._request)
        if self._repack_to:
            return BatchIterator(self._manager, opened, self._repack_to)
        if getattr(opened.order, "cuts", None) is not None:
            return BatchIterator(self._manager, opened, 1)
        return SampleIterator(self._manager, opened)

    def __len__(self) -> int:
        """Samples or, when repacked, batches in a whole epoch.

        Known before an epoch starts if the inner sampler visits every sample once. This is assumed if it is as long as
        the data set and does not draw with replacement.
        """
        order, n = self._manager.order_for(self._request), self._manager.n
        if order is not None:
            gives_batches = getattr(order, "cuts", None) is not None
        else:
            # A sampler of single indices may also have a batch size, to group by. It is as long as the data set.
            has_batches = self.batch_size is not None and not _visits_each_once(self._inner, n)
            gives_batches = isinstance(self._inner, BatchSampler) or has_batches
        if gives_batches and not self._repack_to:
            raise TypeError(
                "how many filtered batches there are is not known before they are made, because empty ones are "
                "left out. Use pruner.filter(batch_sampler, repack=True)."
            )
        if order is None and not _visits_each_once(self._inner, n):
            raise TypeError(
                "how many samples pass the filter is not known before an epoch starts, because "
                f"{type(self._inner).__name__} does not say that it visits each of the {n} samples once."
            )
        samples = self._manager.rank_samples(self._manager.epoch_size() if order is None else len(order))
        return batches_in(samples, self._repack_to, self.drop_last) if self._repack_to else samples


def _visits_each_once(sampler: Any, n: int) -> bool:
    return hasattr(sampler, "__len__") and len(sampler) == n and not getattr(sampler, "replacement", False)


def _refuse_sharded(sampler: Any) -> None:
    layer = sampler
    for _ in range(8):
        if isinstance(layer, DistributedSampler):
            raise ConfigError(
                "filter needs a sampler over the whole data set, got a DistributedSampler, which gives each process "
                "its own part. Pass the sampler it would have replaced."
            )
        layer = getattr(layer, "sampler", None)
    if not hasattr(sampler, "__iter__"):
        raise ConfigError(f"filter needs a sampler or batch sampler, got {type(sampler).__name__}.")
