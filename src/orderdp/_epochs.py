"""EpochManager: which epoch is open, what it holds, and when the next one begins. Only feedback advances it.

Loaders prefetch, frameworks fetch a batch before they start, progress bars ask for lengths. None of this is training,
so none of it advances the epoch. Until losses come back, every iterator gets the same selection from the stored
position; after that, a new iterator starts the next epoch. Positions count samples from the start of an epoch.

An epoch manager is in one of five states:

========== ==========================================================================================
state      meaning
========== ==========================================================================================
CLOSED     no epoch is open; the next iterator selects one
OPEN       an epoch is open, and no loss has come back since it was opened or loaded
EXHAUSTED  as OPEN, and an iterator has reached the end of the epoch
TRAINING   losses have come back; the next iterator gets the next epoch
SPENT      the last iterator got nothing, because all samples of the training's budget are trained on
========== ==========================================================================================

Six events change the state; `resume` is the event "load" with the state of that moment. The table has the state
before, the event, and the states it can lead to; `TRANSITIONS` is the same as data.

========== ======== =================================================================================
before     event    after
========== ======== =================================================================================
CLOSED     iterate  OPEN; SPENT; CLOSED if the selection fails
CLOSED     update   CLOSED: losses of a loader of the user are no progress
CLOSED     exhaust  CLOSED: an iterator over an earlier epoch has ended
CLOSED     end      CLOSED
CLOSED     sync     CLOSED
CLOSED     load     CLOSED; OPEN if the checkpoint holds an open epoch
OPEN       iterate  OPEN: the same epoch, or the next one if a loaded epoch has no whole step left; SPENT; CLOSED
OPEN       update   TRAINING; CLOSED with the last samples of the epoch
OPEN       exhaust  EXHAUSTED; OPEN if the iterator is over another epoch
OPEN       end      OPEN; CLOSED if part of the epoch was trained on before it was loaded
OPEN       sync     OPEN; CLOSED if another rank has ended the epoch
OPEN       load     CLOSED; OPEN
EXHAUSTED  iterate  EXHAUSTED: the same epoch again; OPEN: in another order, or the next one, if the policy needs no
                    losses or less than a step is left; SPENT; CLOSED if the selection fails
EXHAUSTED  update   TRAINING; CLOSED
EXHAUSTED  exhaust  EXHAUSTED
EXHAUSTED  end      EXHAUSTED; CLOSED
EXHAUSTED  sync     EXHAUSTED; CLOSED
EXHAUSTED  load     CLOSED; OPEN
TRAINING   iterate  OPEN: the next epoch; SPENT; CLOSED if the selection fails
TRAINING   update   TRAINING; CLOSED
TRAINING   exhaust  TRAINING
TRAINING   end      CLOSED
TRAINING   sync     TRAINING; CLOSED
TRAINING   load     CLOSED; OPEN
SPENT      iterate  SPENT; OPEN with smaller batches; CLOSED if the selection fails
SPENT      update   SPENT
SPENT      exhaust  SPENT
SPENT      end      SPENT
SPENT      sync     SPENT
SPENT      load     CLOSED; OPEN
========== ======== =================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from orderdp._draw import key64
from orderdp._validation import checked_seed, stored_count
from orderdp.checkpoint import whole_state
from orderdp.errors import (
    BeyondPlanWarning,
    ConfigError,
    DatasetError,
    FeedbackMismatchWarning,
    IndexRangeError,
    NoFeedbackWarning,
    NoOpenEpochWarning,
    RealRatioWarning,
    RestartedEpochWarning,
    SmallEpochError,
    StateError,
    warn,
    warn_nonfinite,
)
from orderdp.policy import (
    Context,
    Policy,
    Selection,
    StepwisePolicy,
    describe,
    nominal_ratio,
    size_bounds,
    total_samples,
)
from orderdp.samplers import (
    EpochOrder,
    EpochRequest,
    OpenEpoch,
    Order,
    PerBatchOrder,
    RankShard,
    batches_in,
    check_continuable,
    grouped,
    read_sampler,
    restore_order,
    restore_selection,
    selection_state,
)
from orderdp.score_table import ScoreTable

if TYPE_CHECKING:
    from orderdp.distributed.collectives import Exchange
    from orderdp.distributed.sharded import ShardedDraw
    from orderdp.distributed.sync import Synchronizer, SyncMessage, SyncResult

__all__ = [
    "TRANSITIONS",
    "DistributedOptions",
    "EpochManager",
    "EpochState",
    "TrainingProgress",
    "check_length",
    "checked_group",
    "find_group",
]


class EpochState(Enum):
    """State of an epoch manager; the module's docstring has the transitions."""

    CLOSED = "closed"
    OPEN = "open"
    EXHAUSTED = "exhausted"
    TRAINING = "training"
    SPENT = "spent"


CLOSED, OPEN, EXHAUSTED, TRAINING, SPENT = EpochState


#: State before and event -> states after.
TRANSITIONS: dict[tuple[EpochState, str], frozenset[EpochState]] = {
    (before, event): frozenset(after)
    for before, events in {
        CLOSED: {
            "iterate": {OPEN, SPENT, CLOSED},
            "update": {CLOSED},
            "exhaust": {CLOSED},
            "end": {CLOSED},
            "sync": {CLOSED},
            "load": {CLOSED, OPEN},
        },
        OPEN: {
            "iterate": {OPEN, SPENT, CLOSED},
            "update": {TRAINING, CLOSED},
            "exhaust": {EXHAUSTED, OPEN},
            "end": {OPEN, CLOSED},
            "sync": {OPEN, CLOSED},
            "load": {CLOSED, OPEN},
        },
        EXHAUSTED: {
            "iterate": {EXHAUSTED, OPEN, SPENT, CLOSED},
            "update": {TRAINING, CLOSED},
            "exhaust": {EXHAUSTED},
            "end": {EXHAUSTED, CLOSED},
            "sync": {EXHAUSTED, CLOSED},
            "load": {CLOSED, OPEN},
        },
        TRAINING: {
            "iterate": {OPEN, SPENT, CLOSED},
            "update": {TRAINING, CLOSED},
            "exhaust": {TRAINING},
            "end": {CLOSED},
            "sync": {TRAINING, CLOSED},
            "load": {CLOSED, OPEN},
        },
        SPENT: {
            "iterate": {SPENT, OPEN, CLOSED},
            "update": {SPENT},
            "exhaust": {SPENT},
            "end": {SPENT},
            "sync": {SPENT},
            "load": {CLOSED, OPEN},
        },
    }.items()
    for event, after in events.items()
}


#: The last epoch that can be stored per sample, in four bytes.
LAST_EPOCH = 2**31 - 1


@dataclass
class TrainingProgress:
    """The current epoch and how much of it is done.

    Attributes:
        epoch: The open epoch, or the next one if none is open.
        trained: Samples of the epoch whose losses have come back; the epoch is served from this position.
        end: Position at which the epoch ends; None until an iterator opens it.
        cut: How the epoch is cut into batches: batch size, and whether a smaller last batch is dropped; None if
            unknown.
        step: The most samples whose losses came back at once.
        kept_before: Samples trained on in earlier epochs.
        left_at: Position at which the epoch before was left; None if unknown.
        passes: How often an iterator has reached the end of the epoch; each certain pass counts twice.
        unsynced: Samples whose losses came back on this rank since the last sync.
        start: Position from which the last iterator was served.
        received: Samples whose losses came back on this rank since then.
        overran: Whether an iterator has asked for more of the epoch than there is since then.
        handed_out: Samples that a sampler of the user yields in the open epoch, with repeats; None for all samples
            once.
        extra: Samples that such samplers yielded in earlier epochs beyond one of each sample; negative for fewer.
        updates: Steps whose losses came back on this rank in the whole training.
    """

    epoch: int = 0
    trained: int = 0
    end: int | None = None
    cut: tuple[int, bool] | None = None
    step: int = 0
    kept_before: int = 0
    left_at: int | None = None
    passes: int = 0
    unsynced: int = 0
    start: int = 0
    received: int = 0
    overran: bool = False
    handed_out: int | None = None
    extra: int = 0
    updates: int = 0

    @property
    def epochs_done(self) -> float:
        """Epochs trained; the current one counts by its finished fraction."""
        return self.epoch + (min(1.0, self.trained / self.end) if self.end else 0.0)

    @property
    def kept(self) -> int:
        """Samples trained on so far."""
        return self.kept_before + self.trained

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as plain numbers."""
        names = ("epoch", "trained", "end", "cut", "step", "kept_before", "left_at", "updates")
        state = {name: getattr(self, name) for name in names}
        # Only after samplers that are no permutation, so that other states are as they always were.
        return state | {name: getattr(self, name) for name in ("handed_out", "extra") if getattr(self, name)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TrainingProgress:
        """Restore the progress, with nothing trained since."""
        end, cut, left_at = state["end"], state.get("cut"), state.get("left_at")
        epoch, trained = stored_count(state, "epoch", most=LAST_EPOCH), stored_count(state, "trained")
        return cls(
            epoch=epoch,
            trained=trained,
            end=None if end is None else stored_count(state, "end"),
            cut=None if cut is None else (int(cut[0]), bool(cut[1])),
            step=stored_count(state, "step", default=0),
            kept_before=stored_count(state, "kept_before"),
            handed_out=stored_count(state, "handed_out") if state.get("handed_out") else None,
            extra=int(state.get("extra", 0)),
            updates=stored_count(state, "updates", default=0),
            left_at=None if left_at is None else stored_count(state, "left_at"),
        )


@dataclass(frozen=True)
class DistributedOptions:
    """How ranks work together.

    Attributes:
        process_group: The ranks that share the data; None for all.
        shard: Whether each rank takes its own shard; otherwise a framework distributes the samples.
        pad: Whether shards are padded with repeats; otherwise samples that do not divide evenly are left out.
    """

    process_group: Any = None
    shard: bool = True
    pad: bool = False


def checked_group(process_group: Any) -> Any:
    """Return a process group, a substitute for one, or None, or raise an error."""
    distributed = torch.distributed
    is_group = distributed.is_available() and isinstance(process_group, distributed.ProcessGroup)
    if process_group is None or is_group or hasattr(process_group, "gather_all"):
        return process_group
    outsider = distributed.is_available() and process_group is distributed.GroupMember.NON_GROUP_MEMBER
    if outsider:
        raise ConfigError(
            "process_group must be a group that contains this process, got one that does not. Pass each process its "
            "own data-parallel group."
        )
    raise ConfigError(
        f"process_group must be a torch.distributed process group or None, got {type(process_group).__name__}. "
        "For a dimension of a device mesh pass mesh.get_group(name)."
    )


def find_group(process_group: Any) -> Exchange | None:
    """Return the process group in use; None without one or if it has one process.

    Called for every epoch, because the group may be made after the pruner. Without a group, nothing of
    `orderdp.distributed` is loaded.
    """
    distributed = torch.distributed
    if process_group is None and not (distributed.is_available() and distributed.is_initialized()):
        return None
    from orderdp.distributed.collectives import find_exchange

    return find_exchange(process_group)


def check_length(dataset: Sized, n: int) -> None:
    """Raise if the length of the data set has changed."""
    if len(dataset) != n:
        raise DatasetError(
            f"the data set must have the {n} samples the pruner was created for, it has {len(dataset)}. Pass the same "
            "data set, or create a new Pruner for this one."
        )


class _Returned(NamedTuple):
    """What came back on this rank in an epoch that has ended.

    Attributes:
        epoch: The epoch.
        served: Samples that the epoch had for this rank.
        received: Losses that came back.
        repeats: How many of them may be of samples that came back before.
        earlier: Samples of the epoch that came back before it was loaded.
        counts: How many of the served samples came back, and of all; on the table's device.
    """

    epoch: int
    served: int
    received: int
    repeats: int
    earlier: int
    counts: torch.Tensor


class CopyableLock(type(RLock())):  # type: ignore[misc]
    """A lock that does not keep its owner from being copied or pickled: a copy has a new one."""

    def __reduce__(self) -> tuple[type[CopyableLock], tuple[()]]:
        return CopyableLock, ()


# A real ratio further than this from the nominal one triggers a warning.
_NOTICEABLE = 0.005


class EpochManager:
    """Opens and ends the epochs of one training.

    Args:
        policy: Selects the samples of an epoch.
        table: The scores it selects by.
        seed: The training's seed.
        epochs: Number of planned epochs, or None.
        labels: One class per sample, or None.
        raise_on_nan: Whether non-finite losses are an error.
        options: How the ranks work together.
        sharding: How epochs are selected from a sharded table; None if every rank has the whole table.
        steps: Number of planned steps, or None.

    Attributes:
        n: Number of samples.
        seed: The training's seed.
        every_batch: Whether every step selects its own samples.
        sharded: Whether each rank has only a part of the table.
        state: State of the open epoch.
        progress: The open epoch's number, and how much of it and of the training is done.
        order: The samples of the open epoch; None without one.
        selection: The selection of the current epoch; None until it is made.
        weights: One weight per sample by the last selection; None if all are 1.
        nonfinite: Non-finite losses in all epochs before the last selection.
        counted_on: Samples per epoch by which steps were counted last; None if they were not.
        stepping: The thread that is in the middle of a step; 0 for none.
        asked: Whether a thread reads or changes what steps write, or waits to.
    """

    def __init__(
        self,
        policy: Policy,
        table: ScoreTable,
        *,
        seed: int = 0,
        epochs: int | None = None,
        labels: np.ndarray | None = None,
        raise_on_nan: bool = False,
        options: DistributedOptions | None = None,
        sharding: ShardedDraw | None = None,
        steps: int | None = None,
    ) -> None:
        self.n = table.n
        self.seed = seed
        self.every_batch = policy.every == "batch"
        self.sharded = sharding is not None
        self.state = CLOSED
        self.progress = TrainingProgress()
        self.order: Order | None = None
        self.selection: Selection | None = None
        self.weights: torch.Tensor | None = None
        self.nonfinite = 0
        self.counted_on: int | None = None
        self.stepping = self.asked = 0
        self._lock = CopyableLock()
        self._policy = policy
        self._table = table
        self._epochs = epochs
        self._steps = steps
        self._labels = labels
        self._budget = total_samples(policy, table.n, epochs)
        self._raise_on_nan = raise_on_nan
        self._needs_feedback = policy.needs_feedback
        # A policy without a nominal ratio of its own keeps as many samples as it says, or does not say it.
        self._states_ratio = type(policy).nominal_ratio is not Policy.nominal_ratio
        self._last_weights: np.ndarray | None = None
        self._warned: set[type[Warning]] = set()
        self._is_among = False  # whether the selection was made among what a sampler of the user yielded
        self._rewound = False  # whether the loader itself skips the trained part of the open epoch
        self._rewinding = False  # the same, until an iterator is opened
        self._options = options or DistributedOptions()
        self._sharding = sharding
        self._synchronizer: Synchronizer | None = None
        self._labels_digest: str | None = None  # set when ranks are found
        self._loaded = False  # whether the table came from a checkpoint that all ranks have loaded
        self._shard: RankShard | None = None  # of this rank, in the open epoch
        self._rank, self._world = 0, 1  # of the process group of the open epoch
        self._repeated_before = 0
        self._returned: _Returned | None = None  # of the last epoch, until it is reported
        self._excluded: np.ndarray | None = None  # one flag per sample; None if none is excluded
        self._last: tuple[int, int] | None = None  # id and size of the order before, until its iterator ends

    # -- threads -----------------------------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads from reading and from changing anything, and wait for the end of a step.

        A step takes no lock, which would cost a tenth of it: it sets `stepping`, and then looks at `asked`; here it is
        the other way round, so one of the two waits.
        """
        with self._lock:
            self.asked += 1
            try:
                while self.stepping not in (0, get_ident()):
                    time.sleep(5e-5)
                yield
            finally:
                self.asked -= 1

    def let_pass(self) -> None:
        """Wait, at the start of a step, for threads that have asked."""
        self.stepping = 0
        with self._lock:
            self.stepping = get_ident()

    # -- the policy's context and sizes ------------------------------------------------------------------------

    def context(self, epoch: int) -> Context:
        """Return the policy's context for that epoch."""
        return Context(
            n=self.n,
            epoch=epoch,
            seed=self.seed,
            epochs=self._epochs,
            labels=self._labels,
            trained=self.progress.kept_before,
            total=self._budget,
        )

    def size_bounds(self, epoch: int) -> tuple[int, int]:
        """Return the fewest and the most samples that epoch can have."""
        return size_bounds(self._policy, self.n, self.context(epoch))

    def bounds_among(self, count: int, epoch: int) -> tuple[int, int]:
        """Return the fewest and the most samples that epoch can have of `count` that a sampler yields."""
        if count == self.n:
            return self.size_bounds(epoch)
        return self._policy.bounds_among(count, self.context(epoch))

    def size_among(self, count: int) -> int:
        """Return how many samples the next epoch keeps of `count`; raise a TypeError if the losses decide."""
        fewest, most = self._policy.bounds_among(count, self.context(self._planned()))
        if fewest != most:
            raise TypeError(
                f"the number of samples that pass the filter is not known before an epoch starts; of {count} it is "
                f"between {fewest} and {most}. Call len() after iter(loader)."
            )
        return fewest

    def check_sizes(self) -> None:
        """Raise the policy's errors about any remaining epoch now, not when that epoch begins."""
        for epoch in range(self.progress.epoch, self._epochs or self.progress.epoch + 1):
            self.size_bounds(epoch)

    @property
    def offered(self) -> int:
        """Number of samples to select from: all, unless some have been removed."""
        return self._policy.offered(self.n)

    def nominal_ratio(self, epoch: int) -> float | None:
        """Return the nominal prune ratio of that epoch; None if the policy has none."""
        return nominal_ratio(self._policy, self.offered, self.context(epoch))

    def nominal_saved(self) -> float:
        """Return the nominal prune ratio of the current epoch; the middle of its bounds if the policy has none."""
        epoch = self._planned()
        nominal = self.nominal_ratio(epoch)
        return 1 - sum(self.size_bounds(epoch)) / (2 * self.offered) if nominal is None else nominal

    def _planned(self) -> int:
        """Return the current epoch, or the last planned one: policies and schedules need not handle epochs after it."""
        if self._epochs is None or self._budget is not None:
            return self.progress.epoch
        return min(self.progress.epoch, self._epochs - 1)

    def select_with(self, policy: Policy, excluded: np.ndarray | None) -> None:
        """Use the policy from the next selection on; samples that are flagged are not served any more."""
        self._policy, self._excluded = policy, excluded
        self._budget = total_samples(policy, self.n, self._epochs)

    # -- size of the training ----------------------------------------------------------------------------------

    @property
    def total(self) -> int | None:
        """Samples in the whole training if a budget decides when training ends; otherwise None.

        With dropped smaller batches, the total counts full steps only; with equal shards, only samples that divide
        evenly.
        """
        if self._budget is None:
            return None
        batch_size, drop_last = self.progress.cut or (1, False)
        if drop_last:
            smallest_step = self._step_size(batch_size)
        else:
            smallest_step = 1 if self._options.pad else self._step_size(1)
        return self._budget - self._budget % smallest_step

    @property
    def fraction_done(self) -> float | None:
        """Finished fraction of the planned training, in [0, 1]; None if nothing was planned."""
        total = self.total
        if total is not None:
            return min(1.0, self.progress.kept / total) if total else 1.0
        if self._steps is not None:
            return min(1.0, self.progress.updates / self._steps)
        return None if self._epochs is None else min(1.0, self.progress.epochs_done / self._epochs)

    @property
    def done(self) -> bool:
        """Whether all planned epochs or samples have been trained on."""
        total = self.total
        if total is not None:
            return self.progress.kept >= total
        if self._steps is not None:
            return self.progress.updates >= self._steps
        return self._epochs is not None and self.epoch >= self._epochs

    @property
    def full_samples(self) -> float:
        """Samples that training on the full data would have processed by now."""
        total = self.total
        if total is None or self._epochs is None:
            return self.progress.epochs_done * self.n + self.extra_samples
        return self._epochs * self.offered * min(1.0, self.progress.kept / total) if total else 0.0

    @property
    def extra_samples(self) -> float:
        """Samples that samplers of the user have yielded by now beyond one of each sample; negative for fewer."""
        progress = self.progress
        if progress.handed_out is None:
            return progress.extra
        return progress.extra + (progress.handed_out - self.offered) * (progress.epochs_done - progress.epoch)

    # -- opening an epoch --------------------------------------------------------------------------------------

    def open(self, request: EpochRequest) -> OpenEpoch:
        """Open an epoch for a new iterator; return its order and its start and end offsets."""
        with self.alone():
            if not torch.is_inference_mode_enabled():
                return self._open(request)
            with torch.inference_mode(False):  # tensors made here outlive an evaluation
                return self._open(request)

    def _open(self, request: EpochRequest) -> OpenEpoch:
        group = find_group(self._options.process_group)
        if self._sharding is not None:
            self._sharding.check_group(group)
            if self.order is None and self._sharding.pending is not None:
                self.order, self.state = self._sharding.pending, OPEN  # an attempt to rebalance it has failed
        if group is None:
            if self._synchronizer is not None:
                self._synchronizer.exchange = None
            if request.dataset is not None and len(request.dataset) != self.n:
                check_length(request.dataset, self.n)
            if self.state is not CLOSED and self.is_over(request):
                self._next_epoch()
            if self._budget is None or not self._is_spent(request):
                self._arrange(request)
        else:
            self._open_together(request, group)
        order, progress = self.order, self.progress
        if order is None:
            return OpenEpoch(EpochOrder(np.empty(0, dtype=np.int64)), progress.epoch, 0, 0)
        if order.arrangement is None:
            check_continuable(order, request)
        self._rank, self._world = (0, 1) if group is None else (group.rank, group.world)
        self._shard = None if group is None else self._shard_of(group)
        start = 0 if self._rewound else progress.trained
        if self._excluded is not None and isinstance(order, EpochOrder):
            order = self.order = order.without(self._excluded, start)
        if self._shard is None:
            end = order.end(start, *(request.cut or (1, False)))
        else:
            end = self._end(order, start, request.cut, self._shard, request.inner)
        progress.end, progress.cut = end, request.cut
        progress.start, progress.received, progress.overran = progress.trained, 0, False
        if end == 0 and request.cut is not None and not self.done:
            # With one selection per step, the epoch itself holds only its full batches.
            samples = len(order) or self.size_bounds(progress.epoch)[1]
            raise SmallEpochError(
                f"an epoch of {samples} samples has no full batch of {request.batch_size}. "
                "Choose a smaller batch_size, prune less, or set drop_last=False."
            )
        return OpenEpoch(order, progress.epoch, start, end, self._shard)

    @property
    def epoch(self) -> int:
        """The epoch that a new iterator goes through.

        Right after a checkpoint is loaded, the rest of the open epoch may be smaller than the number of ranks. Then
        this is the next epoch, and a loop over the remaining epochs must start there. A rest that is only smaller than
        a step is served once, empty: the batch size is not known before the first iterator.
        """
        progress, order = self.progress, self.order
        if order is None or not progress.trained or self.state is TRAINING or self._rewound:
            return progress.epoch + self._is_passed
        shard = self._shard_of(self._group())
        if isinstance(order, PerBatchOrder):  # continues with the steps it was started with, or not at all
            left = len(order) - progress.trained
            return progress.epoch + ((left if shard is None else shard.size(left)) == 0)
        cut = progress.cut if progress.start else None  # how the checkpoint's batches were cut says nothing
        return progress.epoch + self._is_left_out(self._end(order, progress.trained, cut, shard))

    def is_over(self, request: EpochRequest) -> bool:
        """Whether a new iterator gets the next epoch and not the open one."""
        progress, order = self.progress, self.order
        if order is None or self.state is TRAINING:
            return order is not None
        if self.state is EXHAUSTED:
            is_remainder = (
                progress.cut is None
                and progress.end is not None
                and progress.trained > 0
                and progress.end - progress.trained < progress.step
            )
            # Losses have come back before a rest was loaded, and will again: its end was only looked at.
            if is_remainder or not (self._needs_feedback or progress.trained):
                return True
            if progress.passes >= (4 if progress.trained else 2):  # a look at the last batch of a rest ends it
                self._warn_once(
                    NoFeedbackWarning,
                    "an epoch ended and update() received no losses, so the same samples are served again. Call loss "
                    "= pruner.update(index, losses) in every step.",
                )
        if not progress.trained:
            return False
        # The rest of a loaded epoch may be smaller than the number of ranks, or than one batch.
        start = 0 if self._rewound else progress.trained
        end = self._end(order, start, request.cut, self._shard_of(self._group()), request.inner)
        if not self._is_left_out(end):
            return False
        # A loop that counts by `epoch` still counts this epoch: it is then served once, empty.
        return self._rewound or self.epoch > progress.epoch or progress.passes > 0

    @property
    def _is_passed(self) -> bool:
        """Whether a loop that never calls update(), as a policy without feedback allows, has ended the open epoch."""
        progress = self.progress
        return self.state is EXHAUSTED and progress.passes >= 2 and not (self._needs_feedback or progress.step)

    def _is_left_out(self, end: int) -> bool:
        """Whether nothing of the open epoch is left for an iterator that ends at this position."""
        if self._sharding is not None and self._sharding.has_too_few_left:
            return True
        return self.progress.trained >= end

    def _end(
        self,
        order: Order,
        start: int,
        cut: tuple[int, bool] | None,
        shard: RankShard | None,
        inner: Iterable[Any] | None = None,
    ) -> int:
        """Return the position at which an iterator over this rank's batches from `start` on ends."""
        batch_size, drop_last = cut or (1, False)
        if shard is None:
            return order.end(start, batch_size, drop_last)
        if inner is not None and getattr(order, "cuts", None) is not None:
            raise ConfigError(
                "filtered batches differ in size and cannot be split evenly between processes. Use "
                "pruner.filter(batch_sampler, repack=True), or Pruner(..., shard=False) if a framework shards the "
                "batches."
            )
        return shard.end(order, start, batch_size, drop_last)

    def _is_spent(self, request: EpochRequest) -> bool:
        """Whether the rest of the budget is empty or smaller than one step; then no epoch is opened."""
        if self.order is not None or self._budget is None:
            return False
        cut = self.progress.cut = request.cut
        if not self.progress.kept and cut is not None and cut[1]:
            step, (fewest, _) = self._step_size(cut[0]), self.size_bounds(0)
            if 1 < fewest < step:  # 1 is the default of policies without bounds
                raise ConfigError(
                    f"under {describe(self._policy)} an epoch may have {fewest} samples, fewer than the {step} of a "
                    "step, and incomplete steps are dropped. Choose a smaller batch_size, refresh more, or set "
                    "drop_last=False."
                )
        self.state = SPENT if self.done else CLOSED
        return self.state is SPENT

    def _arrangement(self, request: EpochRequest) -> Hashable:
        """Return what tells the order of a request from others; with one selection per step, the steps."""
        if self.every_batch and request.cut is not None:
            return self._step_size(request.cut[0]), request.drop_last
        return request.order

    def _arrange(self, request: EpochRequest) -> None:
        """Order the current epoch as requested, unless it is ordered so already."""
        arrangement = self._arrangement(request) if self.every_batch else request.order
        if self.order is not None and self.order.arrangement in (None, arrangement):
            return
        if self.every_batch:
            order = self._per_batch_order(request)
        elif request.inner is not None:
            order = self._filtered_order(request)
        elif self._sharding is not None:
            order = self._sharded_order(self._sharding, arrangement)
        else:
            order = EpochOrder(self._grouped(self.select().indices, request), None, arrangement)
        if request.inner is None:
            self.progress.handed_out = None
        self.order, self.state = order, OPEN
        self.progress.passes = 0

    def _grouped(self, indices: np.ndarray, request: EpochRequest) -> np.ndarray:
        """Return the selection in its own order, or in one whose steps hold samples of similar length."""
        if request.group_by is None or request.cut is None:
            return indices
        rng = self.context(self.progress.epoch).rng("epoch", self.progress.epoch, "groups")
        return grouped(indices, request.group_by, self._step_size(request.cut[0]), rng)

    def _filtered_order(self, request: EpochRequest) -> Order:
        """Order the current epoch as a sampler of the user does, which is read to its end."""
        assert request.inner is not None
        handed_out, cuts = read_sampler(request.inner, self.n)
        count = len(handed_out)
        if self.counted_on not in (None, count):
            self._warn_once(
                RealRatioWarning,
                f"steps() counted on {self.counted_on} samples per epoch before pruning, but the sampler yielded "
                f"{count} in epoch {self.progress.epoch}. Call steps(..., samples={count}).",
            )
        if count == self.n and np.bincount(handed_out, minlength=self.n).max() == 1:
            selected = np.zeros(self.n, dtype=np.bool_)
            selected[self.select().indices] = True
            kept = selected[handed_out]
            self.progress.handed_out = None
        else:
            kept = self._select_among(handed_out)
            self.progress.handed_out = count
        return EpochOrder.filtered(request, handed_out, cuts, kept)

    def _select_among(self, handed_out: np.ndarray) -> np.ndarray:
        """Select among what a sampler yielded, repeats included; return which positions are kept."""
        if self._sharding is not None:
            self.select()  # raises
        count, context = len(handed_out), self.context(self.progress.epoch)
        self._prepare()
        selection = self._policy.select_among(self._table, handed_out, context)
        if not len(selection):
            raise ConfigError(
                f"the sampler yielded {count} indices, and none of them is among the samples that "
                f"{describe(self._policy)} selects. Pass a sampler over the whole data set."
            )
        kept = np.zeros(count, dtype=np.bool_)
        kept[selection.indices] = True
        indices, weights = handed_out[selection.indices], selection.weights
        if weights is not None:
            # One weight per sample, which `update` looks up by its index.
            sums = np.bincount(indices, weights=weights, minlength=self.n)
            weights = (sums[indices] / np.bincount(indices, minlength=self.n)[indices]).astype(np.float32)
        self._hold(Selection(indices, weights))
        self._is_among = True
        if self._policy.by_index or (self._states_ratio and self._budget is None and context.epoch):
            self._check_ratio(count, context)
        return kept

    def _per_batch_order(self, request: EpochRequest) -> Order:
        if request.cut is None:
            raise ConfigError(
                'every="batch" selects batch by batch and needs the batches; a sampler of single indices has none. Use '
                "pruner.loader(...) or pruner.batch_sampler(...)."
            )
        self._prepare()
        assert isinstance(self._policy, StepwisePolicy)
        context = self.context(self.progress.epoch)
        size = self._policy.size(self.n, context)
        size = len(self.select()) if size is None else size
        step, shard = self._step_size(request.cut[0]), self._shard_of(self._group())
        if shard is None or not request.drop_last:
            whole = size // step * step if request.drop_last else size
        else:
            whole = min(size, shard.size(size) // request.cut[0] * step)  # with padding, the last step may lack some
        return PerBatchOrder(self._policy, self._table, context, whole, step, request.drop_last)

    def _sharded_order(self, sharding: ShardedDraw, arrangement: Hashable) -> Order:
        """Select and rebalance this rank's part of the current epoch. A collective with several ranks."""
        from orderdp.distributed.collectives import Collectives

        if sharding.pending is None:
            self._prepare()
        collectives = Collectives(self._group(), self.progress.epoch)
        order = sharding.order(self.context(self.progress.epoch), collectives, arrangement)
        if self._synchronizer is not None:
            self._synchronizer.exchanged_bytes += collectives.received
        return order

    # -- the end of an epoch -----------------------------------------------------------------------------------

    def trained_on(self, samples: int) -> None:
        """Count samples whose losses have come back.

        They count only while an epoch is open: feedback from a loader of the user is not progress.
        """
        if self.order is None:
            if self.state is CLOSED and samples:
                self._warn_once(
                    NoOpenEpochWarning,
                    f"update() got the losses of {samples} samples while no epoch was open: they are stored, but are "
                    "no progress, and nothing is pruned. Take the samples from pruner.loader(...) or, for data on the "
                    "device, from pruner.index_batches(...); call update() once per batch; use observe() to store "
                    "scores outside of training.",
                )
            return
        progress = self.progress
        if self._epochs is not None and progress.epoch >= self._epochs and self._budget is None:
            self._warn_once(
                BeyondPlanWarning,
                f"epoch {self._epochs + 1} is being trained, but Pruner(..., epochs={self._epochs}) planned "
                f"{self._epochs}: schedules keep their final value, and progress stays at 1. Set epochs to the number "
                "of epochs you train.",
            )
        progress.updates += 1
        if self._steps is not None and progress.updates > self._steps:
            self._warn_once(
                BeyondPlanWarning,
                f"step {progress.updates} is trained, but Pruner(..., steps={self._steps}) planned {self._steps}: "
                "progress stays at 1. Leave the loop when pruner.done is True.",
            )
        self.state = TRAINING
        progress.unsynced += samples
        progress.received += samples
        samples *= self._world  # all ranks are at the same step, so each rank knows the progress of all
        if samples > progress.step:
            progress.step = samples
        progress.trained += samples
        if progress.end is not None and progress.trained >= progress.end:
            self._over()

    def exhausted(self, order: Order, certainly: bool) -> None:
        """Record that an iterator has asked for more of `order` than there is.

        Prefetching workers exhaust a short epoch even if only its first batch is used. If the loader's prefetch depth
        is unknown, the end counts as reached on the second time.
        """
        if order is self.order:
            self.progress.overran = True
            self.progress.passes += 2 if certainly else 1
            if self.state is OPEN:
                self.state = EXHAUSTED
        elif self._last is not None and id(order) == self._last[0]:
            self._last = None

    def restarted(self, number: int) -> None:
        """Record that an iterator over epoch `number` is asked for more while a newer iterator's epoch is open."""
        if self.order is not None:
            self._warn_once(
                RestartedEpochWarning,
                f"the loader was iterated again in the middle of epoch {number}, which ended it and began epoch "
                f"{self.progress.epoch}; the loop around it continues with the rest of epoch {number}. For another "
                "pass over the data, such as the accuracy on training data, use a plain DataLoader over the data set.",
            )

    def end_epoch(self) -> None:
        """End the open epoch before all of it is trained on. An epoch without losses stays open."""
        if self.order is not None and self.progress.trained:
            self._over()

    def leave(self, epoch: int) -> None:
        """Move to the next epoch at the end of a loop body, whether or not all of this epoch was trained on."""
        if self.epoch != epoch or self.done:
            return
        if self.state is TRAINING:
            self.end_epoch()
        elif self.state is EXHAUSTED and (not self._needs_feedback or self._is_left_out(self.progress.end or 0)):
            self._over()
        else:
            raise StateError(
                f"epoch {epoch} ended and update() received no losses, so the loop would never end. Call loss = "
                "pruner.update(index, losses) in every step."
            )

    def resume(self) -> None:
        """Serve the rest of an epoch that was left early, as after loading a checkpoint of this moment."""
        if self.state is TRAINING:
            self.state, self.progress.passes = OPEN, 0

    def rewind(self) -> None:
        """Serve the open epoch from its start until it is over; trained samples stay counted."""
        if self._sharding is not None:
            self._sharding.check_rewind(self.order)
        if self.state is TRAINING:
            raise StateError(
                f"rewind() must be called between load_state_dict() and the first step, but {self.progress.trained} "
                f"samples of epoch {self.progress.epoch} have been trained on already. Leave it out if nothing was "
                "loaded."
            )
        self._rewound = self._rewinding = True

    def _over(self) -> None:
        """End the open epoch: the rest of it is not trained on."""
        self._next_epoch()
        if self._group() is None:  # ranks warn together, when the next epoch begins
            self._report_invalid(*self._table.take_invalid_counts())
            if self._returned is not None:
                self._report_returned(self._returned)

    def _compare(self, order: Order) -> None:
        """Count which of the samples that were served have come back. The counts are read when they are reported."""
        progress, shard = self.progress, self._shard
        stop = min(progress.end or 0, order.n_selected if isinstance(order, PerBatchOrder) else len(order))
        served = order.samples(progress.start, max(progress.start, stop))
        repeats = 0
        if shard is not None:
            served, repeats = served[shard.rank :: shard.world], int(shard.pad)
        elif self._world > 1:
            repeats = progress.step  # a framework that shards the samples may repeat some, to fill batches
        counts = self._table.count_seen(served, progress.epoch)
        self._returned = _Returned(progress.epoch, len(served), progress.received, repeats, progress.start, counts)

    def _report_returned(self, returned: _Returned) -> None:
        """Warn once if what came back is not what was served."""
        self._returned = None
        epoch, served, received, repeats, earlier, counts = returned
        back, seen = counts.tolist()
        if received - back <= repeats:
            return
        if seen - back <= earlier and received <= 4 * back:
            advice = (
                "update() was likely called more than once for a batch, and each call counts as progress. Call it once "
                "per batch: reduce() weights a second loss, and observe() stores scores."
            )
        else:
            advice = (
                "Likely labels or positions were passed in place of indices. Pass the index that came with the batch, "
                "unchanged."
            )
        self._warn_once(
            FeedbackMismatchWarning,
            f"{served} samples were served in epoch {epoch} and update() received {received} losses, but these are of "
            f"only {back} of the samples served. {advice}",
        )

    def _next_epoch(self) -> None:
        self._table.flush()
        if self.order is not None and self.progress.received and self._sharding is None:
            self._compare(self.order)
        iterated = self.order is not None and not (self.progress.overran and self.progress.passes < 2)
        self._last = (id(self.order), self.epoch_size()) if iterated else None
        self._repeated_before = self.repeated
        progress = self.progress
        progress.kept_before += progress.trained
        progress.left_at = progress.trained
        progress.epoch += 1
        progress.trained, progress.end, progress.passes = 0, None, 0
        if progress.handed_out is not None:
            progress.extra += progress.handed_out - self.offered
            progress.handed_out = None
        self.order, self.selection, self._rewound, self.state = None, None, False, CLOSED
        if self._sharding is not None:
            self._sharding.pending = None

    @property
    def batches_done(self) -> int:
        """Batches of the open epoch that this rank has trained on; 0 without an open epoch."""
        progress, order = self.progress, self.order
        if order is None or not progress.trained or self.epoch > progress.epoch:
            return 0
        cuts = getattr(order, "cuts", None)
        if cuts is not None and progress.cut is None:
            return int(np.searchsorted(cuts, progress.trained, side="right"))
        shard = self._shard_of(self._group())
        world = 1 if shard is None else shard.world
        batch_size, drop_last = progress.cut or (max(1, progress.step // world), False)
        whole, left = len(order), max(0, len(order) - progress.trained)
        if shard is not None:
            whole, left = shard.size(whole), shard.size(left)
        return batches_in(whole, batch_size, drop_last) - batches_in(left, batch_size, drop_last)

    @property
    def repeated(self) -> int:
        """Samples trained on twice in an epoch, to pad the shards."""
        if self.order is None or self._shard is None or not self._shard.pad:
            return self._repeated_before
        return self._repeated_before + max(0, self.progress.trained - len(self.order))

    # -- contents of an epoch ----------------------------------------------------------------------------------

    def select(self) -> Selection:
        """Return the selection of the current epoch; make it on the first call."""
        if self.selection is not None and not self._is_among:
            return self.selection
        if self._sharding is not None:
            raise ConfigError(
                'filter needs the whole selection, but with table="sharded" each process has only its own part. Use '
                "pruner.loader(...), pruner.sampler or pruner.batch_sampler(...)."
            )
        context = self.context(self.progress.epoch)
        self._prepare()
        selection = self._policy.select(self._table, context)
        self._hold(selection)
        if self._states_ratio and self._budget is None and context.epoch:
            self._check_ratio(self.offered, context)
        return selection

    def _hold(self, selection: Selection) -> None:
        self.selection, self._is_among = selection, False
        self._last_weights = selection.weights
        self.weights = None if selection.weights is None else selection.dense_weights(self.n)

    def preview(self) -> Selection:
        """Return the selection of the open epoch, or the one the next epoch would get now. Stores nothing."""
        if self._sharding is not None:
            raise ConfigError(
                'preview() shows the whole selection, but with table="sharded" each process has only its own part. Use '
                'table="replicated" for a preview.'
            )
        if self.selection is not None:
            return self.selection
        if isinstance(self.order, EpochOrder):
            return Selection(self.order.order)  # from a checkpoint; an epoch with weights would have its selection
        context = self.context(self.progress.epoch)
        if self._epochs is not None and context.epoch >= self._epochs and self._budget is None:
            # Policies and schedules need not handle epochs after the last, and reusing its seed would repeat its pool.
            context = replace(context, epoch=self._epochs - 1, seed=key64(context.seed, "one more"))
        return self._policy.select(self._table, context)

    def epoch_size(self) -> int:
        """Return the number of samples in the whole open epoch, or in the next one if it were selected now."""
        if self.order is not None:
            return len(self.selection or self.order)
        size = self._policy.size(self.n, self.context(self._planned()))
        if size is not None:
            return size
        if self.selection is None and (self._sharding is not None or self._group() is not None):
            if self._last is not None:  # an iterator over the epoch before is still in use
                return self._last[1]
            raise TypeError(
                "the number of kept samples depends on losses of other processes, which are synced when an epoch "
                "begins. Call len() after iter(loader)."
            )
        return len(self.preview())

    def order_for(self, request: EpochRequest) -> Order | None:
        """Return the order of the open epoch if it is the requested one; otherwise None."""
        if self.order is None or self.order.arrangement not in (None, self._arrangement(request)):
            return None
        return self.order

    @property
    def weight_spread(self) -> dict[str, float]:
        """The smallest, mean and largest weight of the last selection."""
        weights = self._last_weights
        if weights is None or len(weights) == 0:
            return {"weight_min": 1.0, "weight_mean": 1.0, "weight_max": 1.0}
        smallest, mean, largest = weights.min(), weights.mean(dtype=np.float64), weights.max()
        return {"weight_min": float(smallest), "weight_mean": float(mean), "weight_max": float(largest)}

    def _check_ratio(self, offered: int, context: Context) -> None:
        """Warn once if the real prune ratio differs from the nominal one. Not in epoch 0, which has no losses yet."""
        assert self.selection is not None
        real = 1 - len(self.selection) / offered
        if self._policy.by_index:
            nominal = nominal_ratio(self._policy, self.offered, context)
        else:
            nominal = nominal_ratio(self._policy, offered, replace(context, n=offered))
        if nominal is not None and abs(real - nominal) > _NOTICEABLE:
            if self._policy.by_index:
                self._warn_once(
                    RealRatioWarning,
                    f"{describe(self._policy)} keeps {len(self.selection)} of the {offered} samples that the sampler "
                    f"yielded in epoch {context.epoch}: it leaves out {real:.1%}, not the nominal {nominal:.1%}, "
                    "because it refers to samples by index. Pruner.report() shows the actual savings.",
                )
                return
            self._warn_once(
                RealRatioWarning,
                f"{describe(self._policy)} leaves out {real:.1%} of the samples in epoch {context.epoch}, not the "
                f"nominal {nominal:.1%}: how much it can leave out depends on the losses. Pruner.report() shows the "
                "actual savings.",
            )

    def _prepare(self) -> None:
        """Prepare an epoch before its selection: widen the counters and report the invalid values of the last epoch."""
        self._policy.on_epoch_start(self.progress.epoch)
        nonfinite, outside = self._table.begin_epoch(self.progress.epoch)
        if nonfinite or outside:
            self._report_invalid(nonfinite, outside)
        if self._returned is not None:
            self._report_returned(self._returned)

    def _report_invalid(self, nonfinite: int, outside: int) -> None:
        """Report, once per epoch, the invalid values that the steps have only counted."""
        self.nonfinite += nonfinite
        if outside:
            raise IndexRangeError(
                f"indices must be in [0, {self.n}), the length of the data set; {outside} of the last epoch "
                "were not, and their losses were ignored. Pass the index that came with the batch, unchanged."
            )
        if nonfinite:
            warn_nonfinite(nonfinite, as_error=self._raise_on_nan)

    def _warn_once(self, category: type[Warning], message: str) -> None:
        if category not in self._warned:
            self._warned.add(category)
            warn(message, category)

    def reset(self, seed: int) -> None:
        """Start a new training with the same policy, as if nothing had been trained."""
        self.seed, self.progress, self.state = seed, TrainingProgress(), CLOSED
        self.order, self.selection, self.weights, self._last_weights = None, None, None, None
        self.nonfinite, self._repeated_before = 0, 0
        self._warned, self._returned, self._rewound = set(), None, False
        self._synchronizer, self._loaded, self._shard = None, False, None

    # -- ranks -------------------------------------------------------------------------------------------------

    def _group(self) -> Exchange | None:
        group = find_group(self._options.process_group)
        if self._sharding is not None:
            self._sharding.check_group(group)
        return group

    def _shard_of(self, group: Exchange | None) -> RankShard | None:
        """Return the shard of this rank; None if it takes the whole epoch."""
        if group is None or not self._options.shard:
            return None
        return RankShard(group.rank, group.world, self._options.pad)

    def _step_size(self, batch_size: int) -> int:
        """Return the number of samples that all ranks take in one step."""
        shard = self._shard_of(self._group())
        return batch_size if shard is None else batch_size * shard.world

    def rank_samples(self, samples: int) -> int:
        """Return how many of `samples` samples this rank gets."""
        shard = self._shard_of(self._group())
        return samples if shard is None else shard.size(samples)

    def worker_seed(self) -> int:
        """Return a seed for a loader's workers. It differs between ranks, and so do their augmentations."""
        others = ("rank", self._rank) if self._rank else ()
        return key64(self.seed, "workers", self.progress.epoch, *others) >> 1

    def sync(self) -> None:
        """Exchange feedback between the ranks now. A collective."""
        group = self._group()
        if group is not None:
            from orderdp.distributed.sync import SyncMessage

            progress = self.progress
            message = SyncMessage(
                epoch=progress.epoch,
                is_open=self.order is not None,
                trained=progress.trained,
                fed=progress.unsynced,
                shard=self._options.shard,
            )
            synchronizer = self._synchronizer_of(group)
            self._follow(synchronizer.decide(progress.epoch, "sync()", message, self._settings(None)))

    def _open_together(self, request: EpochRequest, group: Exchange) -> None:
        from orderdp.distributed.sync import SyncMessage

        synchronizer = self._synchronizer_of(group)
        failure, message = None, SyncMessage(epoch=self.progress.epoch)
        try:
            if request.dataset is not None:
                check_length(request.dataset, self.n)
            message = self._message(request)
        except Exception as error:
            failure = error
        self._follow(synchronizer.decide(self.progress.epoch, "iter()", message, self._settings(request), failure))
        self._rewinding = False  # a rank that gets no batch stays rewound while the others end the epoch
        if self._is_spent(request):
            return
        if synchronizer.drawing:
            try:
                self._arrange_together(request, synchronizer)
            except Exception:
                self.order, self.selection, self.state = None, None, CLOSED
                raise
        assert self.order is not None
        if isinstance(self.order, PerBatchOrder):
            self.order.freeze(synchronizer.synced_scores())
        shard, start = self._shard_of(group), 0 if self._rewound else self.progress.trained
        if shard is not None and self._end(self.order, start, request.cut, shard, request.inner) <= start == 0:
            raise ConfigError(
                f"an epoch of {len(self.order)} samples is too small to give every process a batch. Prune less, use "
                "fewer processes or smaller batches, set drop_last=False, or pad it with Pruner(..., pad=True)."
            )

    def _arrange_together(self, request: EpochRequest, synchronizer: Synchronizer) -> None:
        """Order the epoch and check that all ranks have the same one. If a rank fails, all raise."""
        failure, drawn = None, 0
        try:
            self._arrange(request)
            drawn = self._digest()
        except Exception as error:
            failure = error
        synchronizer.agree(self.progress.epoch, drawn, failure)

    def _digest(self) -> int:
        """Return a digest of what must be equal on all ranks in the open epoch."""
        if self._sharding is not None:
            return self._sharding.digest
        from orderdp.distributed.sync import digest

        assert self.order is not None
        parts = [value.numpy() for value in self.order.state_dict().values() if isinstance(value, torch.Tensor)]
        if self.selection is not None and self.selection.weights is not None:
            parts.append(self.selection.weights)
        return digest(*(part.tobytes() for part in parts))

    def _message(self, request: EpochRequest) -> SyncMessage:
        """Return where this rank stands when it is about to iterate."""
        from orderdp.distributed.sync import SyncMessage

        progress, order = self.progress, self.order
        wanted = progress.epoch + self.is_over(request)
        is_open = order is not None and wanted == progress.epoch
        is_left = progress.end is not None and self.state is TRAINING and not is_open
        return SyncMessage(
            epoch=wanted,
            is_open=is_open,
            trained=progress.trained if is_open else 0,
            arranging=not is_open or self.order_for(request) is None,
            fed=progress.unsynced,
            expected=(progress.end or 0) - progress.start if is_left else 0,
            got=progress.received,
            overran=progress.overran,
            batch_size=int(request.batch_size or 0),
            shard=self._options.shard,
        )

    def _settings(self, request: EpochRequest | None) -> dict[str, object]:
        """Return what must be equal on all ranks, by the name that errors use for it."""
        policy = describe(self._policy) if self._sharding is None else self._sharding.describe(self._policy)
        settings: dict[str, object] = {
            "seed": self.seed,
            "length of the data set": self.n,
            "epochs": self._epochs,
            "steps": self._steps,
            "policy": policy,
            "columns": sorted(self._table.declared.items()),
            "labels": self._labels_digest,
            "shard": self._options.shard,
            "pad": self._options.pad,
            "on_nan": "raise" if self._raise_on_nan else "warn",
            "excluded samples": 0 if self._excluded is None else self._excluded_text(self._excluded),
        }
        if request is not None:
            settings |= {
                "batch_size": request.batch_size,
                "drop_last": request.drop_last,
                "whether rewind() was called": self._rewinding,
            }
        return settings

    @staticmethod
    def _excluded_text(excluded: np.ndarray) -> str:
        from orderdp.distributed.sync import digest

        return f"{np.count_nonzero(excluded)} with digest {digest(np.packbits(excluded).tobytes()):x}"

    def _synchronizer_of(self, group: Exchange) -> Synchronizer:
        """Return the synchronizer, which is made when a group is found for the first time."""
        if self._synchronizer is None:
            from orderdp.distributed.sync import SyncedTable, Synchronizer, digest

            if self._labels is not None:
                self._labels_digest = f"digest {digest(np.ascontiguousarray(self._labels, dtype=np.int64).tobytes()):x}"
            rows = SyncedTable(self._table, self._loaded) if self._sharding is None else self._sharding.synced_rows()
            self._synchronizer = Synchronizer(rows, self.progress.kept)
            self.progress.unsynced = 0  # already counted in `kept`
        self._synchronizer.exchange = group
        return self._synchronizer

    def _follow(self, result: SyncResult) -> None:
        if result.epoch > self.progress.epoch:
            self._next_epoch()
        if result.kept is not None:
            self.progress.unsynced = 0
            self.progress.trained = result.trained
            self.progress.kept_before = result.kept - result.trained

    def resize(self, n: int) -> None:
        """Continue with a table of another length, which is the same on all ranks."""
        self.n = n
        self._restart_sync()

    def _restart_sync(self) -> None:
        """Take the table as it is for the one that all ranks have."""
        self._synchronizer, self._loaded = None, True
        group = self._group()
        if group is not None:
            self._synchronizer_of(group)

    @property
    def traffic(self) -> dict[str, float]:
        """Bytes received and samples moved, for reports."""
        synchronizer = self._synchronizer
        numbers: dict[str, float] = {"exchanged_bytes": 0 if synchronizer is None else synchronizer.exchanged_bytes}
        return numbers if self._sharding is None else {**numbers, **self._sharding.traffic}

    def unsynced(self) -> dict[str, Any] | None:
        """Return what the other ranks do not know yet, for a checkpoint; None if there is nothing."""
        return None if self._synchronizer is None else self._synchronizer.unsynced(self.progress.unsynced)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values from which the epoch manager can be restored."""
        clock, order, selection = self.progress.state_dict(), self.order, self.selection
        if self._is_passed:
            clock |= {"epoch": self.epoch, "end": None}
            order = selection = None
        state = {
            "seed": self.seed,
            "clock": clock,
            "nonfinite": self.nonfinite,
            "repeated": self.repeated,
        }
        if self._sharding is not None:
            return {**state, **self._sharding.state_dict(order, self.progress.trained)}
        # An open epoch stores its own order; the selection beside it is stored only for its weights.
        if order is not None and self.weights is None:
            selection = None
        return {
            **state,
            "selection": None if selection is None else selection_state(selection),
            "epoch": None if order is None else order.state_dict(),
        }

    def whole(self, state: Any) -> Mapping[str, Any]:
        """Return one state of a pruner, from a single state or from the states of all ranks."""
        if self._sharding is not None:
            return self._sharding.whole(state)
        return whole_state(state, self._table.declared)

    def restorer(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Read and check `state`; return a function that applies it, so that nothing is half restored."""
        progress, seed = TrainingProgress.from_state(state["clock"]), checked_seed(state["seed"])
        nonfinite, repeated = stored_count(state, "nonfinite"), stored_count(state, "repeated", default=0)
        if self._steps is not None and "updates" not in state["clock"] and progress.kept:
            raise StateError(
                "the checkpoint was written by an earlier version, which did not count steps. Continue it with "
                "Pruner(..., epochs=...) in place of steps=..."
            )
        context = replace(self.context(progress.epoch), seed=seed, trained=0)
        sharding, selection = self._sharding, restore_selection(state.get("selection"), self.n)
        order: Order | None
        if sharding is None:
            order = restore_order(state["epoch"], self._policy, self._table, context)
        else:
            order = rest = sharding.restore_order(state["epoch"], context)
            if rest is not None and rest.base > progress.trained:
                raise ValueError(f"an epoch redistributed after {rest.base} samples, {progress.trained} trained")

        def restore() -> None:
            self.progress, self.seed, self.nonfinite = progress, seed, nonfinite
            self.selection, self._is_among = selection, False
            self._last_weights = None if selection is None else selection.weights
            self.weights = None if selection is None else selection.dense_weights(self.n)
            self.order, self._rewound, self._rewinding = order, False, False
            self.state = CLOSED if order is None else OPEN
            self._repeated_before, self._shard, self._last = repeated, None, None
            self._returned = None
            if sharding is not None:
                sharding.restored(order, state)
            self._restart_sync()

        return restore
