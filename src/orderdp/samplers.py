"""Samplers for a DataLoader, and the orders that they iterate over. They decide nothing.

A sampler asks the epoch manager for an epoch, with an `EpochRequest` that says what it needs, and iterates over the
answer. It asks in ``__iter__`` and not at the first ``next``, because some frameworks ask for the length in between.
``__iter__`` returns an iterator whose own ``iter()`` is itself, because DataLoader calls ``iter`` on it once for every
batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from orderdp._validation import check_batch_size, stored_count
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.policy import Context, Policy, Selection, StepwisePolicy
from orderdp.score_table import ScoreTable

if TYPE_CHECKING:
    from orderdp._epochs import EpochManager

__all__ = [
    "ENDLESS",
    "BatchIterator",
    "EpochOrder",
    "EpochRequest",
    "FilteredSampler",
    "IndexBatches",
    "OpenEpoch",
    "Order",
    "PerBatchOrder",
    "PrunedBatchSampler",
    "PrunedSampler",
    "RankShard",
    "SampleIterator",
    "batches_in",
    "check_continuable",
    "grouped",
    "read_sampler",
    "restore_order",
    "restore_selection",
    "selection_state",
    "served_at_once",
]


def batches_in(samples: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches of `samples` samples."""
    return samples // batch_size if drop_last else -(-samples // batch_size)


# -- what a sampler asks for, and gets -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class EpochRequest:
    """What a sampler asks an epoch manager for.

    Attributes:
        order: Equal for samplers that visit an epoch in the same order.
        batch_size: Samples per batch; None if unknown, or for single samples.
        drop_last: Whether a smaller last batch is dropped.
        cut: Batch size and `drop_last`, if the epoch is cut into batches by them; None for single samples, and if
            `inner` makes the batches.
        inner: The sampler whose order the epoch keeps; None for the order of the selection.
        keeps_batches: Whether the batches are those of `inner`; None for single samples, and if that is not known.
        dataset: The data set whose length is checked; None for no check.
        group_by: One number per sample, by which batches are grouped; None for no groups.
    """

    order: Hashable = "as selected"
    batch_size: int | None = None
    drop_last: bool = False
    cut: tuple[int, bool] | None = None
    inner: Iterable[Any] | None = None
    keeps_batches: bool | None = None
    dataset: Sized | None = None
    group_by: np.ndarray | None = None


class OpenEpoch(NamedTuple):
    """An open epoch: its order, its number, its start and end positions, and the shard of this rank.

    The shard is None if one process gets the whole epoch. Positions always count samples of the whole epoch.
    """

    order: Order
    number: int
    start: int
    end: int
    shard: RankShard | None = None


class Order(Protocol):
    """The samples of one epoch, batch by batch.

    Attributes:
        arrangement: What the order was made for. A request for another arrangement makes a new order. None for an order
            from a checkpoint, which every sampler accepts.
        per_rank: Whether it holds the samples of this rank alone; otherwise those of all ranks.
    """

    @property
    def arrangement(self) -> Hashable | None:
        """What the order was made for."""
        ...

    @property
    def per_rank(self) -> bool:
        """Whether it holds the samples of this rank alone."""
        ...

    def __len__(self) -> int:
        """Number of samples in the whole epoch."""
        ...

    def batch(self, position: int, batch_size: int) -> list[int]:
        """Return the batch that starts at `position`; empty at the end of the epoch."""
        ...

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Return the samples between two positions, as far as the epoch goes."""
        ...

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """Return the position at which batches from `start` on end."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers from which the epoch can be restored."""
        ...


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """An epoch whose order is known from the start.

    Attributes:
        order: The samples in visiting order.
        cuts: Where batches end, if a batch sampler made them; None cuts by size.
        arrangement: What the order was made for.
    """

    order: np.ndarray
    cuts: np.ndarray | None = None
    arrangement: Hashable | None = None
    per_rank: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.order)

    def batch(self, position: int, batch_size: int) -> list[int]:
        """Return the batch that starts at `position`; empty at the end of the epoch."""
        stop = position + batch_size
        if self.cuts is not None:
            later = self.cuts[np.searchsorted(self.cuts, position, side="right") :]
            stop = int(later[0]) if len(later) else position
        indices: list[int] = self.order[position:stop].tolist()
        return indices

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Return the samples between two positions."""
        return self.order[start:stop]

    def without(self, excluded: np.ndarray, start: int) -> EpochOrder:
        """Return the order without the samples that are flagged, from position `start` on.

        Args:
            excluded: One flag per sample of the data set.
            start: What lies before is trained on and stays.
        """
        stays = ~excluded[self.order]
        stays[:start] = True
        if stays.all():
            return self
        cuts = self.cuts
        if cuts is not None:
            ends = np.concatenate(([0], np.cumsum(stays)))[cuts]
            cuts = np.unique(ends[ends > 0])
        return EpochOrder(self.order[stays], cuts, self.arrangement)

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """Return the position at which batches from `start` on end."""
        if drop_last and self.cuts is None:
            return start + (len(self.order) - start) // batch_size * batch_size
        return len(self.order)

    def state_dict(self) -> dict[str, Any]:
        """Return the order and the cuts."""
        return {
            "kind": "fixed",
            "order": torch.tensor(self.order),
            "cuts": None if self.cuts is None else torch.tensor(self.cuts),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> EpochOrder:
        """Restore the epoch from `state`, checked against the number of samples."""
        order = _indices(state["order"], n)
        cuts = state["cuts"]
        if cuts is not None:
            cuts = _indices(cuts, len(order) + 1)
            if not (len(cuts) and cuts[0] > 0 and cuts[-1] == len(order) and (np.diff(cuts) > 0).all()):
                raise StateError(
                    f"the ends of the checkpoint's batches must increase, and the last must be {len(order)}. Use "
                    "another checkpoint."
                )
        return cls(order, cuts)

    @classmethod
    def filtered(
        cls, request: EpochRequest, order: np.ndarray, cuts: np.ndarray | None, kept: np.ndarray
    ) -> EpochOrder:
        """Return what is kept of the output of another sampler, in its order.

        Args:
            request: Says whether the sampler's batches stay as they are.
            order: The indices that the sampler yielded.
            cuts: Where its batches end; None if it yields single indices.
            kept: Which positions of `order` are kept.
        """
        if cuts is not None:
            ends = np.concatenate(([0], np.cumsum(kept)))[cuts]
            cuts = None if request.cut is not None else np.unique(ends[ends > 0])
        return cls(order[kept], cuts, request.order)


# A sampler that yields more than this many times the data set is treated as endless.
ENDLESS = 64


def read_sampler(sampler: Iterable[Any], n: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return all indices of a sampler and, if it yields batches, where each batch ends."""
    given = list(islice(sampler, ENDLESS * n + 1))
    if len(given) > ENDLESS * n:
        raise ConfigError(
            f"the sampler must be finite; it yielded more than {ENDLESS} times the {n} samples of the data set. Pass "
            "one that ends with the epoch."
        )
    cuts = None
    if given and np.ndim(given[0]) > 0:
        cuts = np.cumsum([len(batch) for batch in given])
        given = list(chain.from_iterable(given))
    order = np.fromiter((int(index) for index in given), dtype=np.int64, count=len(given))
    if not len(order):
        raise ConfigError("the sampler yielded no index. Pass a sampler of at least one sample.")
    if not (order.min() >= 0 and order.max() < n):
        raise DatasetError(
            f"the sampler must yield indices below {n}, the length of the data set; it yielded {int(order.min())} to "
            f"{int(order.max())}. Pass a sampler over the same data set."
        )
    return order, cuts


class PerBatchOrder:
    """An epoch in which every step selects its own samples when it starts, from its own part of the candidates.

    The candidates are divided among the steps in proportion to their sizes, so no sample repeats and the epoch trains
    on exactly `q` samples. A selection is final: a prefetching loader, a second iterator and a resumed run get the same
    batch.

    Args:
        policy: Selects the samples of a step.
        table: Holds the scores.
        context: The epoch's context.
        q: Number of samples the epoch trains on.
        batch_size: Samples per step.
        drop_last: Whether a last, smaller step was dropped.
    """

    per_rank = False

    def __init__(
        self, policy: StepwisePolicy, table: ScoreTable, context: Context, q: int, batch_size: int, drop_last: bool
    ) -> None:
        self._policy = policy
        self._table = table
        self._context = context
        self._batch_size = batch_size
        self._total = q
        self._candidates = policy.candidates(context)
        self._selected = np.empty(self._total, dtype=np.int64)
        self._n_selected = 0
        self._frozen: np.ndarray | None = None
        self.arrangement: Hashable | None = (batch_size, drop_last)

    def __len__(self) -> int:
        return self._total

    def batch(self, position: int, batch_size: int) -> list[int]:
        """Return the batch that starts at `position`; empty at the end of the epoch."""
        indices: list[int] = self.samples(position, position + batch_size).tolist()
        return indices

    def samples(self, start: int, stop: int) -> np.ndarray:
        """Return the samples between two positions; select those that are not selected yet."""
        stop = min(stop, self._total)
        while self._n_selected < stop:
            self._select_step()
        return self._selected[start:stop]

    @property
    def n_selected(self) -> int:
        """Number of samples selected so far."""
        return self._n_selected

    def freeze(self, scores: np.ndarray) -> None:
        """Use these scores for all later selections.

        Ranks that select the same batches need the same scores. Little is lost: the score of a candidate does not
        change before its step, unless `Pruner.observe` writes it.
        """
        if self._frozen is None:
            self._frozen = scores

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """Return the position at which batches from `start` on end."""
        if batch_size != self._batch_size:
            raise StateError(
                f'an epoch started with every="batch" and batches of {self._batch_size} cannot continue with batches '
                f"of {batch_size}. Resume with batch_size={self._batch_size}."
            )
        return self._total

    def _select_step(self) -> None:
        start, stop = self._n_selected, min(self._n_selected + self._batch_size, self._total)
        s = len(self._candidates)
        part = self._candidates[start * s // self._total : stop * s // self._total]
        scores = self._table.scores_of(part) if self._frozen is None else self._frozen[part]
        self._selected[start:stop] = self._policy.select_from(part, scores, stop - start, self._context)
        self._n_selected = stop

    def state_dict(self) -> dict[str, Any]:
        """Return the candidates and the samples selected from them so far."""
        return {
            "kind": "stepwise",
            "candidates": torch.tensor(self._candidates),
            "chosen": torch.tensor(self._selected[: self._n_selected]),
            "batch_size": self._batch_size,
            "total": self._total,
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], policy: StepwisePolicy, table: ScoreTable, context: Context
    ) -> PerBatchOrder:
        """Restore the epoch from `state`."""
        epoch = cls.__new__(cls)
        epoch._policy, epoch._table, epoch._context = policy, table, context
        epoch._batch_size, epoch._total = stored_count(state, "batch_size"), stored_count(state, "total")
        if epoch._batch_size < 1:
            raise ValueError("batches of 0 samples")
        epoch._candidates = _indices(state["candidates"], context.n)
        chosen = _indices(state["chosen"], context.n)
        if not len(chosen) <= epoch._total <= len(epoch._candidates):
            raise StateError(
                f"the checkpoint's epoch must have selected at most {epoch._total} of its candidates, got "
                f"{len(chosen)} of {len(epoch._candidates)}. Use another checkpoint."
            )
        epoch._selected = np.empty(epoch._total, dtype=np.int64)
        epoch._selected[: len(chosen)] = chosen
        epoch._n_selected = len(chosen)
        epoch._frozen = None
        epoch.arrangement = None
        return epoch


def restore_order(state: Mapping[str, Any] | None, policy: Policy, table: ScoreTable, context: Context) -> Order | None:
    """Restore the epoch from `state`; None if no epoch was open."""
    if state is None:
        return None
    if state["kind"] == "stepwise" and isinstance(policy, StepwisePolicy):
        return PerBatchOrder.from_state(state, policy, table, context)
    return EpochOrder.from_state(state, context.n)


def check_continuable(order: Order, request: EpochRequest) -> None:
    """Raise if an epoch from a checkpoint was started with batches that this request cannot continue."""
    has_batches = getattr(order, "cuts", None) is not None
    if request.keeps_batches is None or request.keeps_batches == has_batches:
        return
    begun = "pruner.filter(batch_sampler), which keeps its batches" if has_batches else "batches cut by their size"
    raise StateError(
        f"the checkpoint's epoch was started with {begun}, and cannot continue with "
        f"{'others' if has_batches else 'those of pruner.filter(batch_sampler)'}. Resume it with the same kind of "
        "sampler, or call pruner.end_epoch() to continue with the next epoch."
    )


def selection_state(selection: Selection) -> dict[str, Any]:
    """Return tensors from which a selection can be restored."""
    weights = selection.weights
    return {
        "indices": torch.tensor(selection.indices),
        "weights": None if weights is None else torch.tensor(weights),
    }


def restore_selection(state: Mapping[str, Any] | None, n: int) -> Selection | None:
    """Restore the selection from `state`; None if there was none."""
    if state is None:
        return None
    weights = state["weights"]
    if weights is None:
        return Selection(_indices(state["indices"], n))
    values: np.ndarray = weights.cpu().numpy().copy()
    if values.dtype.kind != "f" or not (np.isfinite(values) & (values >= 0)).all():
        raise StateError("the checkpoint's weights must be finite numbers, at least 0. Use another checkpoint.")
    return Selection(_indices(state["indices"], n), values)


def _indices(values: Any, n: int) -> np.ndarray:
    """Convert indices from a checkpoint to an int64 array; check that every value is in [0, n)."""
    fits = isinstance(values, torch.Tensor) and values.dtype == torch.int64 and values.ndim == 1
    if not fits or (len(values) and not (int(values.min()) >= 0 and int(values.max()) < n)):
        raise StateError(
            f"the checkpoint's selection must hold int64 indices below {n}, got other values. Use a complete "
            "checkpoint of this data set."
        )
    indices: np.ndarray = values.cpu().numpy().copy()
    return indices


@dataclass(frozen=True)
class RankShard:
    """Shard of a rank: rank r of w gets positions r, r + w, r + 2w, ... counted from the current position.

    Positions are those of the whole order. One step of all ranks with batches of B advances the epoch by B * w, so the
    consumed part is always a prefix, and another number of ranks can resume from it.

    All ranks get the same number of samples, because a rank with one more batch would wait forever for the gradients of
    the others. So at most w - 1 samples at the end of the (shuffled) epoch are left out or, with `pad`, up to w - 1 of
    its first samples are repeated.

    >>> order = EpochOrder(np.array([10, 11, 12, 13, 14, 15, 16]))
    >>> [RankShard(rank, 2).batch(order, 0, 2) for rank in (0, 1)]
    [[10, 12], [11, 13]]
    >>> [RankShard(rank, 2).batch(order, 4, 2) for rank in (0, 1)]
    [[14], [15]]
    >>> [RankShard(rank, 2, pad=True).batch(order, 4, 2) for rank in (0, 1)]
    [[14, 16], [15, 10]]

    Attributes:
        rank: The rank.
        world: Number of ranks.
        pad: Whether to repeat samples instead of leaving some out.
    """

    rank: int
    world: int
    pad: bool = False

    def size(self, samples: int) -> int:
        """Number of samples that each rank gets of `samples`."""
        return -(-samples // self.world) if self.pad else samples // self.world

    def batch(self, order: Order, position: int, batch_size: int) -> list[int]:
        """Return this rank's part of the step that starts at `position`."""
        mine: list[int] = self.samples(order, position, batch_size).tolist()
        return mine

    def samples(self, order: Order, position: int, batch_size: int) -> np.ndarray:
        """Return the same as an array."""
        if order.per_rank:
            return np.array(order.batch(position, batch_size), dtype=np.int64)
        step = order.samples(position, position + batch_size * self.world)
        spare = len(step) % self.world
        if spare and self.pad:
            missing = self.world - spare
            step = np.concatenate((step, np.resize(order.samples(0, missing), missing)))
        elif spare:
            step = step[:-spare]
        return step[self.rank :: self.world]

    def end(self, order: Order, start: int, batch_size: int, drop_last: bool) -> int:
        """Position at which this rank's batches from `start` on end; beyond the epoch's length if it pads."""
        left = order.end(start, batch_size * self.world, drop_last=False) - start
        each = self.size(max(0, left))
        if drop_last:
            each -= each % batch_size
        return start + each * self.world


# -- iterators and samplers ----------------------------------------------------------------------------------------


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
        if self._manager.progress.epoch > self._number:
            self._manager.restarted(self._number)
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
        """Return the number of the epoch, the position reached, the end, and how many batches come before."""
        return {"epoch": self._number, "position": self._position, "end": self._end, "skip": self._to_skip}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Move to the position of `state`; bring it up to date if it is of the epoch before."""
        if state["epoch"] == self._number:
            self._position, self._to_skip = state["position"], state.get("skip", 0)
        elif state["epoch"] == self._number - 1:
            # That epoch is over. The loader's state may be older than the pruner's: then the loader skips what was
            # trained on since, the last part of that epoch and all of this one.
            ended = self._manager.progress.left_at
            self._to_skip = state.get("skip", 0) + self._batches_before(state, state["end"] if ended is None else ended)
            self._position = 0
            self._refusals_left = 0  # never reached: losses come back, and the loader asks for more than it serves
            # The loader keeps this state until its next snapshot, and this epoch may be over by then.
            state |= self.state_dict()
        else:
            raise StateError(
                f"the loader's state is from epoch {state['epoch']}, the pruner is at epoch {self._number}. Load the "
                "pruner's state from the same checkpoint before the loader's."
            )

    def _batches_before(self, state: Mapping[str, int], ended: int) -> int:
        """Return the batches between a state's position and the end of its epoch, which the loader will skip."""
        if ended <= state["position"]:
            return 0
        raise StateError(
            "the loader's state is older than the pruner's: it was saved in an epoch that has ended since. Set "
            "snapshot_every_n_steps=1, or give the loader pruner.batch_sampler(...) instead of this sampler."
        )


class BatchIterator(SampleIterator):
    """Iterates over an epoch batch by batch."""

    def __next__(self) -> list[int]:
        if self._to_skip:
            self._to_skip -= 1
            return self._batch(1)
        if self._position >= self._end:
            self._refuse()
        if self._manager.progress.epoch > self._number:
            self._manager.restarted(self._number)
        if self._shard is None:
            batch = self._order.batch(self._position, self._batch_size)
        else:
            batch = self._shard.batch(self._order, self._position, self._batch_size)
        self._position += len(batch) * self._stride
        return batch

    def _batches_before(self, state: Mapping[str, int], ended: int) -> int:
        if getattr(self._order, "cuts", None) is not None:  # batches of any size
            return super()._batches_before(state, ended)
        return batches_in(max(0, ended - state["position"]), self._batch_size * self._stride, drop_last=False)


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
        generator: Seeded for each epoch, for the seeds of a DataLoader's workers.
        prefetched: Number of batches the loader asks for before the first one is used; None if unknown.
        group_by: One number per sample, such as its length: batches hold samples of similar numbers.
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
        group_by: Any = None,
    ) -> None:
        self.batch_size = check_batch_size(batch_size)
        self.drop_last = bool(drop_last)
        self.sampler = PrunedSampler(manager)
        self._manager = manager
        cut = self.batch_size, self.drop_last
        self._request = EpochRequest(batch_size=cut[0], drop_last=cut[1], cut=cut, keeps_batches=False, dataset=dataset)
        if group_by is not None:
            lengths = _checked_lengths(group_by, manager)
            # Equal for equal lengths, so that samplers that are made in every epoch have the same order.
            name = "grouped", self.batch_size, blake2b(lengths.tobytes(), digest_size=8).digest()
            self._request = replace(self._request, order=name, group_by=lengths)
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


# Batches are grouped within this many steps, so that samples of one length meet others in the next epoch.
_WINDOW = 50


def grouped(indices: np.ndarray, lengths: np.ndarray, step: int, rng: np.random.Generator) -> np.ndarray:
    """Return the indices in an order in which every step holds samples of similar length.

    All steps are full except the last one. What does not fill a step is the end of `indices`, of any length, so that
    `drop_last` drops no particular lengths.

    >>> lengths = np.array([9, 1, 8, 2, 7, 3, 5])
    >>> grouped(np.arange(7), lengths, 3, np.random.default_rng(0)).tolist()
    [1, 3, 5, 4, 2, 0, 6]

    Args:
        indices: The samples, in random order.
        lengths: One number per sample of the data set.
        step: Samples per step, of all ranks.
        rng: Draws the order of the steps.
    """
    whole = len(indices) // step * step
    steps = []
    for start in range(0, whole, _WINDOW * step):
        window = indices[start : min(start + _WINDOW * step, whole)]
        steps.append(window[np.argsort(lengths[window], kind="stable")].reshape(-1, step))
    if not steps:
        return indices
    table = np.concatenate(steps)
    return np.concatenate((table[rng.permutation(len(table))].reshape(-1), indices[whole:]))


def _checked_lengths(group_by: Any, manager: EpochManager) -> np.ndarray:
    """Return one number per sample, or raise an error."""
    if manager.every_batch:
        raise ConfigError(
            'every="batch" selects its batches from its own candidates and cannot group them. Use OrderDP(..., '
            'every="epoch") with group_by.'
        )
    if manager.sharded:
        raise ConfigError(
            'group_by orders the whole selection, but with table="sharded" each process has only its own part. Use '
            'table="replicated".'
        )
    given = group_by.cpu().numpy() if isinstance(group_by, torch.Tensor) else group_by
    lengths = np.asarray(list(given) if isinstance(given, Iterable) and not hasattr(given, "__len__") else given)
    if lengths.shape != (manager.n,) or lengths.dtype.kind not in "iuf" or np.isnan(lengths).any():
        raise ConfigError(
            f"group_by must be one number for each of the {manager.n} samples, such as its length, got "
            f"{lengths.dtype} of shape {lengths.shape}."
        )
    return lengths


class IndexBatches:
    """Yields the current epoch's samples as tensors of indices on a device, for data that are there already.

    Args:
        manager: The epoch manager.
        batch_size: Samples per batch.
        drop_last: Whether to drop a last, smaller batch.
        device: Where the indices are needed; None for the CPU.
    """

    def __init__(
        self, manager: EpochManager, batch_size: int, drop_last: bool, device: torch.device | str | int | None
    ) -> None:
        self.batch_size = check_batch_size(batch_size)
        self.drop_last = bool(drop_last)
        self._manager = manager
        self._device = device
        cut = self.batch_size, self.drop_last
        self._request = EpochRequest(batch_size=cut[0], drop_last=cut[1], cut=cut)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self._serve(self._manager.open(self._request))

    def _serve(self, opened: OpenEpoch) -> Iterator[torch.Tensor]:
        manager, number = self._manager, opened.number
        if isinstance(opened.order, PerBatchOrder) or getattr(opened.order, "cuts", None) is not None:
            # A step selects by the losses of the steps before it; or another sampler has made the batches.
            for batch in BatchIterator(manager, opened, self.batch_size, prefetched=0):
                yield torch.tensor(batch, device=self._device)
            return
        if opened.start < opened.end:
            whole = served_at_once(opened, self._device)
            for index in whole.split(self.batch_size):  # type: ignore[no-untyped-call]
                if manager.progress.epoch > number:
                    manager.restarted(number)
                yield index
        manager.exhausted(opened.order, certainly=True)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch, also while an epoch is being resumed."""
        samples = self._manager.rank_samples(self._manager.epoch_size())
        return batches_in(samples, self.batch_size, self.drop_last)


def served_at_once(opened: OpenEpoch, device: torch.device | str | int | None) -> torch.Tensor:
    """Return this rank's samples of an open epoch, in one copy to a device."""
    order, _, start, end, shard = opened
    if shard is None:
        samples = order.samples(start, end)
    else:
        samples = shard.samples(order, start, (end - start) // shard.world)
    return torch.tensor(samples, dtype=torch.int64, device=device)


class FilteredSampler(Sampler[Any]):
    """Yields what the pruner selects among the samples that an inner sampler yields in an epoch.

    If the inner sampler leaves samples out or repeats some, the selection is made among what it yields, repeats
    included: the fraction that is kept is exact for any sampler.

    A sampler of indices yields indices. A batch sampler yields its batches with fewer samples and no empty ones, or,
    with `repack`, full batches again. The inner sampler is read to its end when an epoch starts, so that its order can
    be stored and resumed like any other.

    Args:
        manager: The epoch manager.
        inner: A sampler or batch sampler of indices of the data set, of all ranks.
        repack: Whether to refill filtered batches to the inner sampler's batch size.
    """

    def __init__(self, manager: EpochManager, inner: Iterable[Any], repack: bool = False) -> None:
        _refuse_sharded(inner)
        if isinstance(inner, Iterator):
            raise ConfigError(
                f"filter needs a sampler that can be iterated in every epoch, a {type(inner).__name__} can be iterated "
                "once. Pass a sampler, a batch sampler or a list."
            )
        if manager.every_batch:
            raise ConfigError(
                'every="batch" selects its batches from its own candidates and cannot keep the order of another '
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
            keeps_batches=False if self._repack_to else _makes_batches(inner),
        )

    @property
    def visits_each_once(self) -> bool:
        """Whether the inner sampler is taken to visit every sample once, by its length and its attributes."""
        return _visits_each_once(self._inner, self._manager.n)

    @property
    def handed_out(self) -> int | None:
        """Number of indices that the inner sampler yields in an epoch; None if it does not say."""
        inner, n = self._inner, self._manager.n
        if not isinstance(inner, Sized) or isinstance(inner, BatchSampler):
            return None
        length = len(inner)
        if isinstance(inner, Sequence | torch.Tensor | np.ndarray):
            single = length > 0 and np.ndim(inner[0]) == 0
        else:  # a sampler of another kind may yield batches; one with a batch size does unless it visits all samples
            single = length == n or (isinstance(inner, _SINGLE) and getattr(inner, "batch_size", None) is None)
        return length if single else None

    def __iter__(self) -> Iterator[Any]:
        opened = self._manager.open(self._request)
        if self._repack_to:
            return BatchIterator(self._manager, opened, self._repack_to)
        if getattr(opened.order, "cuts", None) is not None:
            return BatchIterator(self._manager, opened, 1)
        return SampleIterator(self._manager, opened)

    def __len__(self) -> int:
        """Samples or, when repacked, batches in a whole epoch.

        Known before an epoch starts if the inner sampler says how many indices it yields. One that is as long as the
        data set is taken to visit every sample once, unless its attribute ``replacement`` is true.
        """
        order = self._manager.order_for(self._request)
        count = self.handed_out
        if order is not None:
            gives_batches = getattr(order, "cuts", None) is not None
        else:
            # A sampler of single indices may also have a batch size, to group by. It is as long as the data set.
            gives_batches = count is None and (
                self.batch_size is not None or isinstance(self._inner, BatchSampler | Sequence)
            )
        if gives_batches and not self._repack_to:
            raise TypeError(
                "the number of filtered batches is not known before they are created, because empty ones are dropped. "
                "Use pruner.filter(batch_sampler, repack=True)."
            )
        if order is None and count is None:
            raise TypeError(
                "the number of samples that pass the filter is not known before an epoch starts, because "
                f"{type(self._inner).__name__} does not say how many indices it yields."
            )
        if order is not None:
            samples = len(order)
        elif self.visits_each_once:
            samples = self._manager.epoch_size()
        else:
            assert count is not None
            samples = self._manager.size_among(count)
        samples = self._manager.rank_samples(samples)
        return batches_in(samples, self._repack_to, self.drop_last) if self._repack_to else samples


def _makes_batches(sampler: Any) -> bool | None:
    """Whether a sampler yields batches; None if that cannot be known before it is read."""
    if isinstance(sampler, Sequence):
        return len(sampler) > 0 and np.ndim(sampler[0]) > 0
    if isinstance(sampler, RandomSampler | SequentialSampler | SubsetRandomSampler | WeightedRandomSampler):
        return False
    return True if isinstance(sampler, BatchSampler) else None


def _visits_each_once(sampler: Any, n: int) -> bool:
    return hasattr(sampler, "__len__") and len(sampler) == n and not getattr(sampler, "replacement", False)


# Samplers of torch that yield single indices, as many as their length says.
_SINGLE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def _refuse_sharded(sampler: Any) -> None:
    layer = sampler
    for _ in range(8):
        if isinstance(layer, DistributedSampler):
            raise ConfigError(
                "filter needs a sampler over the whole data set, got a DistributedSampler, which gives each process "
                "its own part. Pass the sampler that it replaces."
            )
        layer = getattr(layer, "sampler", None)
    if not hasattr(sampler, "__iter__"):
        raise ConfigError(f"filter needs a sampler or batch sampler, got {type(sampler).__name__}.")
