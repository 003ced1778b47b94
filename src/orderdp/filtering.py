"""What is selected out of a sampler that the user already has, in the user's order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import BatchSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from orderdp.epochs import Epoch, FixedEpoch
from orderdp.errors import ConfigError, DatasetError
from orderdp.planning import batches_in, check_batch_size
from orderdp.sampling import BatchCursor, SampleCursor, check_some_batch

if TYPE_CHECKING:
    from orderdp.timeline import Timeline

__all__ = ["FilteredSampler"]

# A sampler that is still going after this many times the data set is taken to be endless.
_ENDLESS = 64


class FilteredSampler(Sampler[Any]):
    """Hands out what the inner sampler hands out, without what the pruner has left out this epoch.

    A sampler of indices gives indices. A batch sampler gives its batches with fewer samples and none that are
    empty, or, with `repack`, full ones again. The inner sampler is read to its end when an epoch starts, so that
    its order can be stored and resumed like any other.

    Args:
        timeline: Which epoch it is, and what is left out of it.
        inner: A sampler or batch sampler over the whole data set.
        repack: Whether to refill filtered batches to the inner sampler's batch size.
    """

    def __init__(self, timeline: Timeline, inner: Iterable[Any], repack: bool = False) -> None:
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
        self._order = object()  # stands for it; an id may come again with another filter, once this one is gone
        self.sampler = getattr(inner, "sampler", None)
        self.batch_size = getattr(inner, "batch_size", None)
        self.drop_last = bool(getattr(inner, "drop_last", False))
        if repack and self.batch_size is None:
            raise ConfigError(
                f"repack=True needs a batch sampler with a batch_size, got {type(inner).__name__} without one. "
                "Wrap it: torch.utils.data.BatchSampler(sampler, batch_size, drop_last)."
            )
        self._repack_to = check_batch_size(self.batch_size) if repack else None
        # A stock BatchSampler only cuts up what its sampler gives, and with drop_last cuts off the end, of which
        # some would have been selected: repacking starts from before the cut.
        self._inner = inner.sampler if repack and type(inner) is BatchSampler else inner

    def __iter__(self) -> Iterator[Any]:
        serving = self._timeline.open(self)
        if self._repack_to:
            check_some_batch(self._timeline, serving, self._repack_to)
            return BatchCursor(self._timeline, serving, self._repack_to)
        if isinstance(serving.epoch, FixedEpoch) and serving.epoch.cuts is not None:
            return BatchCursor(self._timeline, serving, 1)
        return SampleCursor(self._timeline, serving)

    def __len__(self) -> int:
        """Samples or, when repacked, batches in a whole epoch.

        Known before an epoch starts where the inner sampler visits every sample once. That is taken to be so
        where it is as long as the data set and does not draw with replacement.
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
        """Whether batches are handed out: seen once an epoch has begun, and told by the looks of the sampler before."""
        if self._timeline.arranged_size(self) is not None:
            return self._timeline.is_in_batches(self)
        if isinstance(self._inner, BatchSampler):
            return True
        # One of single indices may know a batch size, too, to group by. It is as long as the data set.
        return self.batch_size is not None and not _visits_each_once(self._inner, self._timeline.n)

    @property
    def arrangement(self) -> Hashable:
        """Each filter has its own order."""
        return self._order

    def check(self) -> None:
        """Nothing can be wrong before the inner sampler has been read."""

    def arrange(self) -> Epoch:
        """What the inner sampler gives, read to its end and filtered."""
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
        return FixedEpoch(order[kept], cuts, self.arrangement)

    def end(self, epoch: Epoch, start: int) -> int:
        """The end of the last sample or batch."""
        if isinstance(epoch, FixedEpoch) and epoch.cuts is not None and self._timeline.team.sharded:
            raise ConfigError(
                "batches that were filtered as they are differ in size and cannot be dealt out evenly to several "
                "processes. Use pruner.filter(batch_sampler, repack=True), or Pruner(..., shard=False) where a "
                "framework deals out the batches."
            )
        return self._timeline.team.end_of(epoch, start, *(self.cut or (1, False)))

    @property
    def cut(self) -> tuple[int, bool] | None:
        """Known where it makes the batches."""
        return (self._repack_to, self.drop_last) if self._repack_to else None


def _read(sampler: Iterable[Any], n: int) -> tuple[np.ndarray, np.ndarray | None]:
    """All indices a sampler gives and, if it gives batches, where each of them ends."""
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
