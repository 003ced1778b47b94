"""Samplers for a DataLoader. They yield the samples of the pruner's current epoch and decide nothing.

The selection is made in ``__iter__`` and not at the first ``next``, because some frameworks ask for the length in
between. ``__iter__`` returns an iterator whose own ``iter()`` is itself, because DataLoader calls ``iter`` on it
once for every batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sized
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from orderdp._epochs import EpochOrder, Order
from orderdp._planning import batches_in
from orderdp._validation import check_batch_size
from orderdp.errors import ConfigError, DatasetError, StateError

if TYPE_CHECKING:
    from orderdp._epochs import EpochManager, OpenEpoch

__all__ = [
    "BatchIterator",
    "FilteredSampler",
    "PrunedBatchSampler",
    "PrunedSampler",
    "SampleIterator",
    "check_length",
    "check_some_batch",
]


# Number of indices that the plain sampler converts to Python ints at a time.
_CHUNK = 4096


class _EpochIterator:
    """Iterates over one epoch.

    It has the two methods with which torchdata's StatefulDataLoader stores its position. That loader then owns the
    position: it may have yielded fewer batches than it asked for, and skips some itself when it resumes.
    """

    def __init__(self, timeline: EpochManager, serving: OpenEpoch, prefetched: int | None = None) -> None:
        self._timeline = timeline
        self._epoch, self._number, self._position, self._end, self._share = serving
        self._stride = 1 if self._share is None else self._share.world
        self._prefetched = prefetched
        # A loader asks for `prefetched` batches before it yields the first, and for one more with each batch it
        # yields, even if none are left: after `prefetched` refusals it has yielded the last.
        self._refusals_left = max(1, prefetched or 0)

    def _stop_at_end(self) -> None:
        if self._position < self._end:
            return
        self._refusals_left -= 1
        if self._refusals_left == 0:
            self._timeline.overran(self._epoch)
            self._timeline.on_exhausted(self._epoch, certainly=self._prefetched is not None)
        raise StopIteration

    def _batch(self, batch_size: int) -> list[int]:
        if self._share is None:
            return self._epoch.batch(self._position, batch_size)
        return self._share.batch(self._epoch, self._position, batch_size)

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


class SampleIterator(_EpochIterator):
    """Iterates over an epoch sample by sample."""

    def __init__(self, timeline: EpochManager, serving: OpenEpoch) -> None:
        super().__init__(timeline, serving)
        self._chunk: list[int] = []
        self._chunk_start = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self._stop_at_end()
        offset = (self._position - self._chunk_start) // self._stride
        if not 0 <= offset < len(self._chunk):
            self._chunk = self._batch(_CHUNK)
            self._chunk_start, offset = self._position, 0
        self._position += self._stride
        return self._chunk[offset]


class BatchIterator(_EpochIterator):
    """Iterates over an epoch batch by batch."""

    def __init__(
        self, timeline: EpochManager, serving: OpenEpoch, batch_size: int, prefetched: int | None = None
    ) -> None:
        super().__init__(timeline, serving, prefetched)
        self._batch_size = batch_size
        self._to_skip = 0

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        if self._to_skip:
            self._to_skip -= 1
            return self._batch(1)
        self._stop_at_end()
        batch = self._batch(self._batch_size)
        self._position += len(batch) * self._stride
        return batch

    def _serve_to_skip(self, samples: int) -> None:
        self._to_skip = batches_in(samples, self._batch_size * self._stride, drop_last=False)


class PrunedSampler(Sampler[int]):
    """Yields the current epoch's samples one by one, for a DataLoader that makes its own batches."""

    arrangement = "as drawn"
    cut = None

    def __init__(self, timeline: EpochManager) -> None:
        self._timeline = timeline

    def __iter__(self) -> Iterator[int]:
        return SampleIterator(self._timeline, self._timeline.open(self))

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch, also while an epoch is being resumed."""
        return self._timeline.team.share_of(self._timeline.epoch_size())

    def check(self) -> None:
        """Do nothing: this view can always be iterated."""

    def arrange(self) -> Order:
        """Return the selection in its own order."""
        if self._timeline.stepwise:
            raise ConfigError(
                'every="batch" chooses batch by batch, so it must know the batches; a sampler of single indices '
                "does not. Use pruner.loader(...) or pruner.batch_sampler(...)."
            )
        return self._timeline.drawn_order(self.arrangement)

    def end(self, epoch: Order, start: int) -> int:
        """Return the end of the epoch."""
        return self._timeline.team.end_of(epoch, start, 1, drop_last=False)


class PrunedBatchSampler(Sampler[list[int]]):
    """Yields the current epoch's samples in batches.

    Args:
        timeline: The epoch manager.
        batch_size: Samples per batch.
        drop_last: Whether to drop a last, smaller batch.
        dataset: The data set whose length is checked when an epoch starts; None skips the check.
        generator: Seeded anew for each epoch, for the seeds of a DataLoader's workers.
        prefetched: Number of batches the loader asks for before the first one is used; None if unknown.
    """

    def __init__(
        self,
        timeline: EpochManager,
        batch_size: int,
        drop_last: bool = False,
        *,
        dataset: Sized | None = None,
        generator: torch.Generator | None = None,
        prefetched: int | None = None,
    ) -> None:
        self.batch_size = check_batch_size(batch_size)
        self.drop_last = bool(drop_last)
        self.sampler = PrunedSampler(timeline)
        self._timeline = timeline
        self._dataset = dataset
        self._generator = generator
        self._prefetched = prefetched

    def __iter__(self) -> Iterator[list[int]]:
        serving = self._timeline.open(self)
        check_some_batch(self._timeline, serving, self.batch_size)
        if self._generator is not None:
            # So that a resumed epoch starts its workers with the same seeds.
            self._generator.manual_seed(self._timeline.team.worker_seed(self._timeline.seed, serving.number))
        return BatchIterator(self._timeline, serving, self.batch_size, self._prefetched)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch, also while an epoch is being resumed."""
        return batches_in(len(self.sampler), self.batch_size, self.drop_last)

    @property
    def arrangement(self) -> Hashable:
        """The order of the selection; with one selection per step, how the epoch is cut into steps."""
        if self._timeline.stepwise:
            return self._timeline.team.step_size(self.batch_size), self.drop_last
        return PrunedSampler.arrangement

    def check(self) -> None:
        """Raise if the length of the data set has changed."""
        if self._dataset is not None:
            check_length(self._dataset, self._timeline.n)

    def arrange(self) -> Order:
        """Return the epoch in the order of its selection, or with one selection per step."""
        if self._timeline.stepwise:
            return self._timeline.per_batch_order(self.batch_size, self.drop_last)
        return self.sampler.arrange()

    def end(self, epoch: Order, start: int) -> int:
        """Return the end of the last batch."""
        return self._timeline.team.end_of(epoch, start, *self.cut)

    @property
    def cut(self) -> tuple[int, bool]:
        """Batch size, and whether a smaller last batch is dropped."""
        return self.batch_size, self.drop_last


def check_some_batch(timeline: EpochManager, serving: OpenEpoch, batch_size: int) -> None:
    """Raise if an open epoch has no batch to yield because smaller batches are dropped."""
    if serving.end == 0 and not timeline.done:
        # With one selection per step, the epoch itself holds only its full batches.
        samples = len(serving.epoch) or timeline.size_bounds(serving.number)[1]
        raise ConfigError(
            f"an epoch of {samples} samples has no full batch of {batch_size}. "
            "Choose a smaller batch_size, prune less, or set drop_last=False."
        )


def check_length(dataset: Sized, n: int) -> None:
    """Raise if the length of the data set has changed."""
    if len(dataset) != n:
        raise DatasetError(
            f"the data set must have the {n} samples the pruner was made for, it has {len(dataset)}. "
            "Make a new Pruner for it, or pass the data set the Pruner was made with."
        )


# A sampler that yields more than this many times the data set is treated as endless.
_ENDLESS = 64


class FilteredSampler(Sampler[Any]):
    """Yields the samples of an inner sampler that are part of the pruner's current selection.

    A sampler of indices yields indices. A batch sampler yields its batches with fewer samples and no empty ones, or,
    with `repack`, full batches again. The inner sampler is read to its end when an epoch starts, so that its order can
    be stored and resumed like any other.

    Args:
        timeline: The epoch manager.
        inner: A sampler or batch sampler over the whole data set.
        repack: Whether to refill filtered batches to the inner sampler's batch size.
    """

    def __init__(self, timeline: EpochManager, inner: Iterable[Any], repack: bool = False) -> None:
        _refuse_sharded(inner)
        if isinstance(inner, Iterator):
            raise ConfigError(
                f"filter needs a sampler that can be gone through in every epoch, a {type(inner).__name__} can be gone "
                "through once. Pass a sampler, a batch sampler or a list."
            )
        if timeline.stepwise:
            raise ConfigError(
                'every="batch" takes its batches from its own candidates and cannot keep the order of another '
                'sampler. Use OrderDP(..., every="epoch") with filter.'
            )
        self._timeline = timeline
        self._order = object()  # identifies this filter; an id could be reused by another filter once this one is gone
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

    def __iter__(self) -> Iterator[Any]:
        serving = self._timeline.open(self)
        if self._repack_to:
            check_some_batch(self._timeline, serving, self._repack_to)
            return BatchIterator(self._timeline, serving, self._repack_to)
        if isinstance(serving.epoch, EpochOrder) and serving.epoch.cuts is not None:
            return BatchIterator(self._timeline, serving, 1)
        return SampleIterator(self._timeline, serving)

    def __len__(self) -> int:
        """Samples or, when repacked, batches in a whole epoch.

        Known before an epoch starts if the inner sampler visits every sample once. This is assumed if it is as long as
        the data set and does not draw with replacement.
        """
        if not self._repack_to and self._gives_batches():
            raise TypeError(
                "how many filtered batches there are is not known before they are made, because empty ones are "
                "left out. Use pruner.filter(batch_sampler, repack=True)."
            )
        samples = self._timeline.arranged_size(self)
        if samples is None:
            if not _visits_each_once(self._inner, self._timeline.n):
                raise TypeError(
                    "how many samples pass the filter is not known before an epoch starts, because "
                    f"{type(self._inner).__name__} does not say that it visits each of the {self._timeline.n} samples "
                    "once."
                )
            samples = self._timeline.epoch_size()
        samples = self._timeline.team.share_of(samples)
        return batches_in(samples, self._repack_to, self.drop_last) if self._repack_to else samples

    def _gives_batches(self) -> bool:
        """Whether this sampler yields batches: known once an epoch has begun, before that inferred from the sampler."""
        if self._timeline.arranged_size(self) is not None:
            return self._timeline.is_in_batches(self)
        if isinstance(self._inner, BatchSampler):
            return True
        # A sampler of single indices may also have a batch size, to group by. It is as long as the data set.
        return self.batch_size is not None and not _visits_each_once(self._inner, self._timeline.n)

    @property
    def arrangement(self) -> Hashable:
        """Each filter has its own order."""
        return self._order

    def check(self) -> None:
        """Do nothing: the inner sampler is checked when it is read."""

    def arrange(self) -> Order:
        """Read the inner sampler to its end and filter it."""
        selected = np.zeros(self._timeline.n, dtype=np.bool_)
        selected[self._timeline.select().indices] = True
        order, cuts = _read(self._inner, self._timeline.n)
        kept = selected[order]
        if cuts is not None:
            ends = np.concatenate(([0], np.cumsum(kept)))[cuts]
            cuts = None if self._repack_to else np.unique(ends[ends > 0])
        if not kept.any():
            raise ConfigError(
                f"the sampler gave {len(order)} indices, and none of them is among the {int(selected.sum())} samples "
                "that were selected. Pass a sampler over the whole data set."
            )
        return EpochOrder(order[kept], cuts, self.arrangement)

    def end(self, epoch: Order, start: int) -> int:
        """Return the end of the last sample or batch."""
        if isinstance(epoch, EpochOrder) and epoch.cuts is not None and self._timeline.team.sharded:
            raise ConfigError(
                "batches that were filtered as they are differ in size and cannot be dealt out evenly to several "
                "processes. Use pruner.filter(batch_sampler, repack=True), or Pruner(..., shard=False) where a "
                "framework deals out the batches."
            )
        return self._timeline.team.end_of(epoch, start, *(self.cut or (1, False)))

    @property
    def cut(self) -> tuple[int, bool] | None:
        """Batch size and drop_last when repacked; None otherwise."""
        return (self._repack_to, self.drop_last) if self._repack_to else None


def _read(sampler: Iterable[Any], n: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return all indices of a sampler and, if it yields batches, where each batch ends."""
    given = list(islice(sampler, _ENDLESS * n + 1))
    if len(given) > _ENDLESS * n:
        raise ConfigError(
            f"the sampler must come to an end; it gave more than {_ENDLESS} times the {n} samples of the data set. "
            "Pass one that ends with the epoch."
        )
    cuts = None
    if given and np.ndim(given[0]) > 0:
        cuts = np.cumsum([len(batch) for batch in given])
        given = list(chain.from_iterable(given))
    order = np.fromiter((int(index) for index in given), dtype=np.int64, count=len(given))
    if len(order) and not (order.min() >= 0 and order.max() < n):
        raise DatasetError(
            f"the sampler must give indices below {n}, the length of the data set; it gave "
            f"{int(order.min())} to {int(order.max())}. Pass a sampler over the same data set."
        )
    return order, cuts


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
