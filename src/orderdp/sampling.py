"""Samplers for a DataLoader. They hand out what the pruner's current epoch holds; they decide nothing.

The draw is made in ``__iter__`` and not at the first ``next``, because some frameworks ask for the length in
between. What they return is an iterator whose own ``iter()`` is itself: today's DataLoader calls ``iter`` on it
once for every batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch.utils.data import Sampler

from orderdp.epochs import Epoch
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.planning import batches_in, check_batch_size

if TYPE_CHECKING:
    from orderdp.distributed.share import Share
    from orderdp.timeline import Timeline

__all__ = [
    "BatchCursor",
    "PrunedBatchSampler",
    "PrunedSampler",
    "SampleCursor",
    "Serving",
    "View",
    "check_length",
    "check_some_batch",
]

# Indices turned into Python numbers at a time by the plain sampler.
_CHUNK = 4096


class View(Protocol):
    """One way of going through an epoch: which order, which batches."""

    @property
    def arrangement(self) -> Hashable:
        """Equal for views that go through an epoch in the same order."""
        ...

    @property
    def cut(self) -> tuple[int, bool] | None:
        """Samples a batch, and whether a smaller last one is left out; None where somebody else makes the batches."""
        ...

    def check(self) -> None:
        """Raises where this view cannot be gone through."""
        ...

    def arrange(self) -> Epoch:
        """The epoch in this view's order."""
        ...

    def end(self, epoch: Epoch, start: int) -> int:
        """The position at which this view ends if it starts at `start`."""
        ...


class Serving(NamedTuple):
    """An epoch that has been opened: its number, from which position to which it is handed out, and what of it.

    The share is None where one process gets all of it. Positions are those of the whole epoch in any case.
    """

    epoch: Epoch
    number: int
    start: int
    end: int
    share: Share | None = None


class _Cursor:
    """Walks through one epoch.

    It has the two methods by which torchdata's StatefulDataLoader stores where it is. That loader then owns the
    position: it may have handed out fewer batches than it asked for, and skips some itself on the way back.
    """

    def __init__(self, timeline: Timeline, serving: Serving, prefetched: int | None = None) -> None:
        self._timeline = timeline
        self._epoch, self._number, self._position, self._end, self._share = serving
        self._stride = 1 if self._share is None else self._share.world
        self._prefetched = prefetched
        # A loader asks for so many batches before it hands out the first, and for one more with each it hands
        # out, also when there are none left: so many refusals mean that it has handed out the last.
        self._refusals_left = max(1, prefetched or 0)

    def _stop_at_end(self) -> None:
        if self._position < self._end:
            return
        self._refusals_left -= 1
        if self._refusals_left == 0:
            self._timeline.ran_dry(self._epoch)
            self._timeline.handed_out(self._epoch, certainly=self._prefetched is not None)
        raise StopIteration

    def _batch(self, batch_size: int) -> list[int]:
        if self._share is None:
            return self._epoch.batch(self._position, batch_size)
        return self._share.batch(self._epoch, self._position, batch_size)

    def state_dict(self) -> dict[str, int]:
        """Which epoch this is, how far it has been handed out, and where it ends."""
        return {"epoch": self._number, "position": self._position, "end": self._end}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes to where `state` was taken."""
        if state["epoch"] == self._number:
            self._position = state["position"]
        elif state["epoch"] == self._number - 1:
            # The pruner knows that this epoch was trained to its end. The loader may still want to skip the last
            # of it, if its state is older than the pruner's.
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


class SampleCursor(_Cursor):
    """Walks through an epoch sample by sample."""

    def __init__(self, timeline: Timeline, serving: Serving) -> None:
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


class BatchCursor(_Cursor):
    """Walks through an epoch batch by batch."""

    def __init__(self, timeline: Timeline, serving: Serving, batch_size: int, prefetched: int | None = None) -> None:
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
    """The current epoch's samples one by one, for a DataLoader that makes its own batches."""

    arrangement = "as drawn"
    cut = None

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def __iter__(self) -> Iterator[int]:
        return SampleCursor(self._timeline, self._timeline.open(self))

    def __len__(self) -> int:
        """Samples in this process's share of a whole epoch, also while one is being resumed."""
        return self._timeline.team.share_of(self._timeline.epoch_size())

    def check(self) -> None:
        """Nothing can be wrong here."""

    def arrange(self) -> Epoch:
        """The selection in the order in which it was drawn."""
        if self._timeline.stepwise:
            raise ConfigError(
                'every="batch" chooses batch by batch, so it must know the batches; a sampler of single indices '
                "does not. Use pruner.loader(...) or pruner.batch_sampler(...)."
            )
        return self._timeline.as_drawn(self.arrangement)

    def end(self, epoch: Epoch, start: int) -> int:
        """All of it."""
        return self._timeline.team.end_of(epoch, start, 1, drop_last=False)


class PrunedBatchSampler(Sampler[list[int]]):
    """The current epoch's samples in batches.

    Args:
        timeline: Whose epoch.
        batch_size: Samples a batch.
        drop_last: Whether to leave out a last, smaller batch.
        dataset: Looked at to find out whether its length has changed; None where there is none to look at.
        generator: Seeded anew for each epoch, for the seeds of a DataLoader's workers.
        prefetched: How many batches the loader asks for before the first one is used; None if unknown.
    """

    def __init__(
        self,
        timeline: Timeline,
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
            # So that a resumed epoch starts its workers with the seeds it had.
            self._generator.manual_seed(self._timeline.team.worker_seed(self._timeline.seed, serving.number))
        return BatchCursor(self._timeline, serving, self.batch_size, self._prefetched)

    def __len__(self) -> int:
        """Batches of this process in a whole epoch, also while one is being resumed."""
        return batches_in(len(self.sampler), self.batch_size, self.drop_last)

    @property
    def arrangement(self) -> Hashable:
        """As drawn; or, where every step chooses, by how the epoch is cut into steps."""
        if self._timeline.stepwise:
            return self._timeline.team.step_size(self.batch_size), self.drop_last
        return PrunedSampler.arrangement

    def check(self) -> None:
        """The data set is as long as it was."""
        if self._dataset is not None:
            check_length(self._dataset, self._timeline.n)

    def arrange(self) -> Epoch:
        """The epoch as drawn, or step by step."""
        if self._timeline.stepwise:
            return self._timeline.step_by_step(self.batch_size, self.drop_last)
        return self.sampler.arrange()

    def end(self, epoch: Epoch, start: int) -> int:
        """The end of the last batch."""
        return self._timeline.team.end_of(epoch, start, *self.cut)

    @property
    def cut(self) -> tuple[int, bool]:
        """As it was asked for."""
        return self.batch_size, self.drop_last


def check_some_batch(timeline: Timeline, serving: Serving, batch_size: int) -> None:
    """Raises where an epoch that was opened has nothing to hand out, because smaller batches are left out."""
    if serving.end == 0 and not timeline.done:
        # Where every step chooses, the epoch itself has no more than its full batches.
        samples = len(serving.epoch) or timeline.size_bounds(serving.number)[1]
        raise ConfigError(
            f"an epoch of {samples} samples has no full batch of {batch_size}. "
            "Choose a smaller batch_size, prune less, or set drop_last=False."
        )


def check_length(dataset: Sized, n: int) -> None:
    """Raises where the data set is not as long as it was."""
    if len(dataset) != n:
        raise DatasetError(
            f"the data set must have the {n} samples the pruner was made for, it has {len(dataset)}. "
            "Make a new Pruner for it, or pass the data set the Pruner was made with."
        )
