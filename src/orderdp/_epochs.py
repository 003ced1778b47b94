"""EpochManager: which epoch is open, what it holds, and when the next one begins. Only feedback advances it.

Loaders prefetch, frameworks fetch a batch before they start, progress bars ask for lengths. None of this is training,
so none of it advances the epoch. Until losses come back, every iterator gets the same selection from the stored
position; after that, a new iterator starts the next epoch. Positions count samples from the start of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from orderdp._draw import key64
from orderdp._process_group import DistributedContext, DistributedOptions
from orderdp._warnings import TrainingWarnings
from orderdp.checkpoint import whole_state
from orderdp.errors import ConfigError, StateError
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
from orderdp.score_table import ScoreTable

if TYPE_CHECKING:
    from orderdp.distributed.rank_shard import RankShard
    from orderdp.distributed.sync import RankStatus, Synchronizer, SyncResult

__all__ = [
    "EpochManager",
    "EpochOrder",
    "OpenEpoch",
    "Order",
    "PerBatchOrder",
    "PolicySelection",
    "SamplerView",
    "TrainingProgress",
    "restore_order",
    "restore_selection",
    "selection_state",
]


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
        moved: Whether losses have come back since the epoch was opened or loaded.
        idle_passes: How often the epoch was exhausted since then; each certain pass counts twice.
    """

    epoch: int = 0
    trained: int = 0
    end: int | None = None
    cut: tuple[int, bool] | None = None
    step: int = 0
    kept_before: int = 0
    moved: bool = False
    idle_passes: int = 0

    @property
    def epochs_done(self) -> float:
        """Epochs trained; the current one counts by its finished fraction."""
        return self.epoch + (min(1.0, self.trained / self.end) if self.end else 0.0)

    @property
    def kept(self) -> int:
        """Samples trained on so far."""
        return self.kept_before + self.trained

    @property
    def is_remainder(self) -> bool:
        """True if the rest of the epoch is smaller than one step and may be dropped."""
        return self.cut is None and self.end is not None and self.trained > 0 and self.end - self.trained < self.step

    def tick(self, samples: int) -> bool:
        """Count samples whose losses have come back; return True if this ends the epoch."""
        self.moved = True
        self.step = max(self.step, samples)
        self.trained += samples
        return self.end is not None and self.trained >= self.end

    def next_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.kept_before = self.kept
        self.epoch += 1
        self.trained, self.end = 0, None
        self.moved, self.idle_passes = False, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as plain numbers."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TrainingProgress:
        """Restore the progress, with nothing trained since."""
        end, cut = state["end"], state.get("cut")
        epoch, trained = int(state["epoch"]), int(state["trained"])
        if epoch < 0 or trained < 0:
            raise ValueError(f"epoch {epoch}, {trained} samples trained")
        return cls(
            epoch=epoch,
            trained=trained,
            end=None if end is None else int(end),
            cut=None if cut is None else (int(cut[0]), bool(cut[1])),
            step=int(state.get("step", 0)),
            kept_before=int(state["kept_before"]),
        )


class Order(Protocol):
    """The samples of one epoch, batch by batch.

    Attributes:
        arrangement: Identifies the sampler view that made the order. A view with another arrangement makes a new order.
            None for an order from a checkpoint, which every view accepts.
    """

    arrangement: Hashable | None

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


class EpochOrder:
    """An epoch whose order is known from the start.

    Args:
        order: The samples in visiting order.
        cuts: Where batches end, if a batch sampler made them; None cuts by size.
        arrangement: Identifies the sampler view that made the order.
    """

    def __init__(self, order: np.ndarray, cuts: np.ndarray | None = None, arrangement: Hashable | None = None) -> None:
        self.order = order
        self.cuts = cuts
        self.arrangement = arrangement

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
                    f"the checkpoint's batches must end one after the other, the last one after {len(order)} samples. "
                    "Use another checkpoint."
                )
        return cls(order, cuts)


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
        drop_last: Whether to drop a last, smaller step.
    """

    def __init__(
        self, policy: StepwisePolicy, table: ScoreTable, context: Context, q: int, batch_size: int, drop_last: bool
    ) -> None:
        self._policy = policy
        self._table = table
        self._context = context
        self._batch_size = batch_size
        self._total = q // batch_size * batch_size if drop_last else q
        self._candidates = policy.candidates(context)
        self._chosen = np.empty(self._total, dtype=np.int64)
        self._n_chosen = 0
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
        while self._n_chosen < stop:
            self._choose()
        return self._chosen[start:stop]

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
                f'an epoch begun with every="batch" and batches of {self._batch_size} cannot go on with batches of '
                f"{batch_size}. Resume with batch_size={self._batch_size}."
            )
        return self._total

    def _choose(self) -> None:
        start, stop = self._n_chosen, min(self._n_chosen + self._batch_size, self._total)
        s = len(self._candidates)
        part = self._candidates[start * s // self._total : stop * s // self._total]
        scores = self._table.scores_of(part) if self._frozen is None else self._frozen[part]
        self._chosen[start:stop] = self._policy.select_from(part, scores, stop - start, self._context)
        self._n_chosen = stop

    def state_dict(self) -> dict[str, Any]:
        """Return the candidates and the samples selected from them so far."""
        return {
            "kind": "stepwise",
            "candidates": torch.tensor(self._candidates),
            "chosen": torch.tensor(self._chosen[: self._n_chosen]),
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
        epoch._batch_size, epoch._total = int(state["batch_size"]), int(state["total"])
        epoch._candidates = _indices(state["candidates"], context.n)
        chosen = _indices(state["chosen"], context.n)
        if not len(chosen) <= epoch._total <= len(epoch._candidates):
            raise StateError(
                f"the checkpoint's epoch must have chosen at most {epoch._total} of its candidates, got "
                f"{len(chosen)} of {len(epoch._candidates)}. Use another checkpoint."
            )
        epoch._chosen = np.empty(epoch._total, dtype=np.int64)
        epoch._chosen[: len(chosen)] = chosen
        epoch._n_chosen = len(chosen)
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
    return Selection(_indices(state["indices"], n), None if weights is None else weights.cpu().numpy().copy())


def _indices(values: Any, n: int) -> np.ndarray:
    """Convert indices from a checkpoint to an int64 array; check that every value is in [0, n)."""
    fits = isinstance(values, torch.Tensor) and values.dtype == torch.int64 and values.ndim == 1
    if not fits or (len(values) and not (int(values.min()) >= 0 and int(values.max()) < n)):
        raise StateError(
            f"the checkpoint's draw must hold int64 indices below {n}, got something else. "
            "Use a checkpoint of this data set that was written to its end."
        )
    indices: np.ndarray = values.cpu().numpy().copy()
    return indices


class PolicySelection:
    """Calls the policy and keeps its last selection.

    Args:
        policy: Selects the samples.
        table: The scores it selects by.
        epochs: Number of planned epochs, or None.
        labels: One class per sample, or None.
        complaints: The warnings issued at every selection.

    Attributes:
        current: The selection of the current epoch; None until it is made.
        weights: One weight per sample by the last selection; None if all are 1.
        weights_used: The smallest, mean and largest weight of the selected samples.
    """

    def __init__(
        self,
        policy: Policy,
        table: ScoreTable,
        epochs: int | None,
        labels: np.ndarray | None,
        complaints: TrainingWarnings,
    ) -> None:
        self.current: Selection | None = None
        self.weights: torch.Tensor | None = None
        self.weights_used = _spread(None)
        self._policy = policy
        self._table = table
        self._epochs = epochs
        self._labels = labels
        self._complaints = complaints

    def context(self, epoch: int, seed: int, trained: int = 0) -> Context:
        """Return the policy's context for that epoch, given the number of samples trained on before it."""
        return Context(
            n=self._table.n,
            epoch=epoch,
            seed=seed,
            epochs=self._epochs,
            labels=self._labels,
            trained=trained,
            total=self.total,
        )

    @property
    def total(self) -> int | None:
        """Samples in the whole training, if the policy fixes the total."""
        return total_samples(self._policy, self._table.n, self._epochs)

    @property
    def offered(self) -> int:
        """Number of samples to select from: all, unless some have been removed."""
        return self._policy.offered(self._table.n)

    def prepare(self, epoch: int) -> None:
        """Prepare an epoch once, before its selection: widen the counters and issue the warnings of the last epoch."""
        self._policy.on_epoch_start(epoch)
        self._table.widen_counters(epoch)
        self._complaints.flush()

    def select(self, context: Context) -> Selection:
        """Return the selection of the current epoch; make it on the first call."""
        selection = self.current
        if selection is None:
            self.prepare(context.epoch)
            selection = self._policy.select(self._table, context)
            self.keep(selection)
            # A budget limits the whole training, not one epoch.
            nominal = None if self.total is not None else nominal_ratio(self._policy, self.offered, context)
            self._complaints.warn_real_ratio(context.epoch, 1 - len(selection) / self.offered, nominal)
        return selection

    def preview(self, context: Context) -> Selection:
        """Return the selection of the current epoch, or the one it would get now. Stores nothing."""
        if self.current is not None:
            return self.current
        if self._epochs is not None and context.epoch >= self._epochs and self.total is None:
            # Policies and schedules need not handle epochs after the last, and reusing its seed would repeat its pool.
            context = replace(context, epoch=self._epochs - 1, seed=key64(context.seed, "one more"))
        return self._policy.select(self._table, context)

    def keep(self, selection: Selection | None) -> None:
        """Set the selection of the current epoch, new or from a checkpoint; None if there is none yet."""
        self.current = selection
        self.weights = None if selection is None else selection.dense_weights(self._table.n)
        self.weights_used = _spread(None if selection is None else selection.weights)

    def forget(self) -> None:
        """Clear the selection of the current epoch. The last weights stay, for losses that are still to come."""
        self.current = None


def _spread(weights: np.ndarray | None) -> dict[str, float]:
    """Return the smallest, mean and largest weight of a selection."""
    if weights is None or len(weights) == 0:
        return {"weight_min": 1.0, "weight_mean": 1.0, "weight_max": 1.0}
    smallest, mean, largest = weights.min(), weights.mean(dtype=np.float64), weights.max()
    return {"weight_min": float(smallest), "weight_mean": float(mean), "weight_max": float(largest)}


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
        team: The distributed context, if it is not the default one.
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
        team: DistributedContext | None = None,
    ) -> None:
        self.n = table.n
        self.seed = seed
        self.stepwise = policy.every == "batch"
        self.clock = TrainingProgress()
        self.complaints = TrainingWarnings(policy, table, raise_on_nan)
        self.selector = PolicySelection(policy, table, epochs, labels, self.complaints)
        self._policy = policy
        self._table = table
        self._epochs = epochs
        self._epoch: Order | None = None  # the open one, in the order of its sampler view
        self._rewound = False  # whether the loader itself skips the trained part of the open epoch
        self.team = team or DistributedContext(
            policy, table, epochs, labels, raise_on_nan, options or DistributedOptions()
        )
        self._share: RankShard | None = None  # of the open epoch, for this rank
        self._world = 1  # number of ranks that go through the open epoch
        self._repeated_before = 0

    def context(self, epoch: int) -> Context:
        """Return the policy's context for that epoch."""
        return self.selector.context(epoch, self.seed, self.clock.kept_before)

    def size_bounds(self, epoch: int) -> tuple[int, int]:
        """Return the fewest and the most samples that epoch can have."""
        return size_bounds(self._policy, self.n, self.context(epoch))

    def check_sizes(self) -> None:
        """Raise the policy's errors about any remaining epoch now, not when that epoch begins."""
        for epoch in range(self.clock.epoch, self._epochs or self.clock.epoch + 1):
            self.size_bounds(epoch)

    def nominal_ratio(self, epoch: int) -> float | None:
        """Return the nominal prune ratio of that epoch; None if the policy has none."""
        return nominal_ratio(self._policy, self.selector.offered, self.context(epoch))

    def nominal_saved(self) -> float:
        """Return the nominal prune ratio of the current epoch; the middle of its bounds if the policy has none."""
        epoch = self._planned()
        n = self.selector.offered
        nominal = self.nominal_ratio(epoch)
        return 1 - sum(self.size_bounds(epoch)) / (2 * n) if nominal is None else nominal

    def _planned(self) -> int:
        """Return the current epoch, or the last planned one: policies and schedules need not handle epochs after it."""
        if self._epochs is None or self.selector.total is not None:
            return self.clock.epoch
        return min(self.clock.epoch, self._epochs - 1)

    # -- size of the training ----------------------------------------------------------------------------------

    @property
    def total(self) -> int | None:
        """Samples in the whole training if a budget decides when training ends; otherwise None.

        With dropped smaller batches, the total counts full steps only; with equal shards, only samples that divide
        evenly.
        """
        total = self.selector.total
        if total is None:
            return None
        batch_size, drop_last = self.clock.cut or (1, False)
        return total - total % self.team.smallest_step(batch_size, drop_last)

    @property
    def progress(self) -> float | None:
        """Finished fraction of the planned training, in [0, 1]; None if nothing was planned."""
        total = self.total
        if total is not None:
            return min(1.0, self.clock.kept / total) if total else 1.0
        return None if self._epochs is None else min(1.0, self.clock.epochs_done / self._epochs)

    @property
    def done(self) -> bool:
        """Whether all planned epochs or samples have been trained on."""
        total = self.total
        if total is not None:
            return self.clock.kept >= total
        return self._epochs is not None and self.epoch >= self._epochs

    @property
    def full_samples(self) -> float:
        """Samples that training on the full data would have processed by now."""
        total = self.total
        if total is None or self._epochs is None:
            return self.clock.epochs_done * self.n
        return self._epochs * self.n * min(1.0, self.clock.kept / total) if total else 0.0

    # -- opening and ending epochs -----------------------------------------------------------------------------

    def open(self, view: SamplerView) -> OpenEpoch:
        """Open an epoch for a new iterator; return its order and its start and end offsets."""
        meeting = self.team.meeting(self.clock.kept)
        if meeting is None:
            self.team.detach_group()
            view.check()
            if self._wanted(view) > self.clock.epoch:
                self._next_epoch()
            if not self._is_spent(view):
                self._arrange(view)
        else:
            self._open_together(view, meeting)
        if self._epoch is None:  # the budget is spent
            return OpenEpoch(EpochOrder(np.empty(0, dtype=np.int64)), self.clock.epoch, 0, 0)
        self._share, start = self.team.share(), self._start
        self.clock.end, self.clock.cut = view.end(self._epoch, start), view.cut
        self._world = 1 if meeting is None or meeting.exchange is None else meeting.exchange.world
        self.team.tally.opened(self.clock.trained)
        return OpenEpoch(self._epoch, self.clock.epoch, start, self.clock.end, self._share)

    @property
    def epoch(self) -> int:
        """The epoch that a new iterator goes through.

        Right after a checkpoint is loaded, the rest of the open epoch may be smaller than the number of ranks, or than
        one step. Then this is the next epoch, and a loop over the remaining epochs must start there.
        """
        if self._epoch is None or not self.clock.trained or self.clock.moved or self._rewound:
            return self.clock.epoch
        if isinstance(self._epoch, PerBatchOrder):  # continues with the steps it was begun with, or not at all
            left = len(self._epoch) - self.clock.trained
            return self.clock.epoch + (self.team.share_of(left) == 0)
        end = self.team.end_of(self._epoch, self.clock.trained, *(self.clock.cut or (1, False)))
        return self.clock.epoch + self._ends_at(end)

    def _is_spent(self, view: SamplerView) -> bool:
        """True if the rest of the budget is empty or smaller than one step."""
        if self._epoch is not None or self.selector.total is None:
            return False
        self.clock.cut = view.cut
        if not self.clock.kept:
            self._check_shortest(view)
        return self.done

    def _check_shortest(self, view: SamplerView) -> None:
        """Raise before training starts if an epoch may become smaller than one step and smaller steps are dropped."""
        if view.cut is None or not view.cut[1]:
            return
        step, (fewest, _) = self.team.step_size(view.cut[0]), self.size_bounds(0)
        if 1 < fewest < step:  # 1 is the default of policies without bounds
            raise ConfigError(
                f"under {describe(self._policy)} an epoch may have {fewest} samples, fewer than the {step} of a step, "
                "and smaller steps are left out. Choose a smaller batch_size, refresh more, or set drop_last=False."
            )

    @property
    def _start(self) -> int:
        """Position from which the open epoch is served."""
        return 0 if self._rewound else self.clock.trained

    def rewind(self) -> None:
        """Serve the open epoch from its start until it is over; trained samples stay counted."""
        if self.clock.moved:
            raise StateError(
                f"rewind() belongs between load_state_dict() and the first step, and {self.clock.trained} samples of "
                f"epoch {self.clock.epoch} have been trained on here. Leave it out if nothing was loaded."
            )
        self._rewound = True

    def end_epoch(self) -> None:
        """End the open epoch before all of it is trained on. An epoch without losses stays open."""
        if self._epoch is not None and self.clock.trained:
            self._over()

    def leave(self, epoch: int) -> None:
        """Move to the next epoch at the end of a loop body, whether or not all of this epoch was trained on."""
        if self.epoch != epoch or self.done:
            return
        if self.clock.moved:
            self.end_epoch()
        elif self.clock.idle_passes and not self._policy.needs_feedback:
            self._over()
        else:
            raise StateError(
                f"epoch {epoch} has passed and no loss came back, so the loop would never end. Call "
                "loss = pruner.update(index, losses) in every step."
            )

    def _over(self) -> None:
        """End the open epoch: the rest of it is not trained on."""
        self._next_epoch()
        if self.team.exchange() is None:  # ranks warn together, when the next epoch begins
            self.complaints.flush()

    def _wanted(self, view: SamplerView) -> int:
        """Return the number of the epoch to serve: the open one, or the next."""
        over = self._epoch is not None and (self._is_over() or self._nothing_left(self._epoch, view))
        return self.clock.epoch + over

    def _nothing_left(self, epoch: Order, view: SamplerView) -> bool:
        # The rest of a resumed epoch may be smaller than the number of ranks, or than one batch.
        if not self.clock.trained or not self._ends_at(view.end(epoch, self._start)):
            return False
        # If the batch size has changed, a loop that counts by `epoch` still counts this epoch: it is then served
        # once, empty.
        return self._rewound or self.epoch > self.clock.epoch or self.clock.idle_passes > 0

    def _ends_at(self, end: int) -> bool:
        """True if nothing of the open epoch is left for a view that ends at this position."""
        return self.clock.trained >= end

    def _arrange(self, view: SamplerView) -> None:
        if self._epoch is None or self._epoch.arrangement not in (None, view.arrangement):
            self._epoch = view.arrange()
            self.clock.idle_passes = 0

    def on_exhausted(self, epoch: Order, certainly: bool) -> None:
        """Record that an iterator has reached, or may have reached, the end of `epoch`.

        Prefetching workers exhaust a short epoch even if only its first batch is used. If the loader's prefetch depth
        is unknown, the end counts as reached on the second time.
        """
        if epoch is self._epoch:
            self.clock.idle_passes += 2 if certainly else 1

    def overran(self, epoch: Order) -> None:
        """Record that an iterator asked for more of `epoch` than there is."""
        if epoch is self._epoch:
            self.team.tally.overran = True

    def trained_on(self, samples: int) -> None:
        """Count samples whose losses have come back.

        They count only while an epoch is open: feedback from a loader of the user, before the first epoch, is not
        progress.
        """
        if self._epoch is None:
            return
        if self._epochs is not None and self.clock.epoch >= self._epochs and self.selector.total is None:
            self.complaints.warn_beyond_plan(self._epochs)
        self.team.tally.came_back(samples)
        # All ranks are at the same step, so each rank knows the progress of all.
        if self.clock.tick(samples * self._world):
            self._over()

    def _is_over(self) -> bool:
        if self.clock.moved:
            return True
        if self.clock.idle_passes and not self._policy.needs_feedback:
            return True
        if self.clock.idle_passes and self.clock.is_remainder:
            return True
        if self.clock.idle_passes >= 2:
            self.complaints.warn_no_feedback()
        return False

    def _next_epoch(self) -> None:
        self._table.flush()
        self._repeated_before = self.repeated
        self.clock.next_epoch()
        self.selector.forget()
        self._epoch, self._rewound = None, False

    # -- sync with other ranks ---------------------------------------------------------------------------------

    def sync(self) -> None:
        """Exchange feedback between the ranks now. A collective."""
        meeting = self.team.meeting(self.clock.kept)
        if meeting is not None:
            self._follow(meeting.decide(True, self.clock.epoch, self.seed, self._standing))

    def _open_together(self, view: SamplerView, meeting: Synchronizer) -> None:
        self._follow(meeting.decide(False, self.clock.epoch, self.seed, lambda: self._standing_before(view)))
        if self._is_spent(view):
            return
        if meeting.drawing:
            try:
                meeting.agree(self.clock.epoch, lambda: self._drawn(view))
            except Exception:
                self._epoch = None
                self.selector.forget()
                raise
        assert self._epoch is not None
        if isinstance(self._epoch, PerBatchOrder):
            self._epoch.freeze(meeting.agreed_scores())
        if self.team.sharded and view.end(self._epoch, self._start) <= self._start == 0:
            raise ConfigError(
                f"an epoch of {len(self._epoch)} samples is too small to give every process a batch. Prune less, use "
                "fewer processes or smaller batches, set drop_last=False, or fill up with Pruner(..., pad=True)."
            )

    def _standing(self) -> RankStatus:
        from orderdp.distributed.sync import RankStatus

        return RankStatus.now(self.clock, self.team.tally, is_open=self._epoch is not None)

    def _standing_before(self, view: SamplerView) -> RankStatus:
        from orderdp.distributed.sync import RankStatus

        view.check()
        wanted = self._wanted(view)
        return RankStatus.before(wanted, view, self._epoch, self.clock, self.team.tally, rewound=self._rewound)

    def _follow(self, decision: SyncResult) -> None:
        if decision.epoch > self.clock.epoch:
            self._next_epoch()
        if decision.kept is not None:
            self.team.tally.fed = 0
            self.clock.trained = decision.trained
            self.clock.kept_before = decision.kept - decision.trained

    def _drawn(self, view: SamplerView) -> int:
        from orderdp.distributed.sync import digest

        self._arrange(view)
        assert self._epoch is not None
        parts = [value.numpy() for value in self._epoch.state_dict().values() if isinstance(value, torch.Tensor)]
        selection = self.selector.current
        if selection is not None and selection.weights is not None:
            parts.append(selection.weights)
        return digest(*(part.tobytes() for part in parts))

    @property
    def repeated(self) -> int:
        """Samples trained on twice in an epoch, to pad the shards."""
        pads = self._epoch is not None and self._share is not None and self._share.pad
        return self._repeated_before + (max(0, self.clock.trained - len(self._epoch or ())) if pads else 0)

    # -- contents of an epoch ----------------------------------------------------------------------------------

    def select(self) -> Selection:
        """Return the selection of the current epoch; make it on the first call."""
        return self.selector.select(self.context(self.clock.epoch))

    def preview(self) -> Selection:
        """Return the selection of the open epoch, or the one the next epoch would get now. Stores nothing."""
        if self.selector.current is None and isinstance(self._epoch, EpochOrder):
            return Selection(self._epoch.order)  # from a checkpoint; an epoch with weights would have its selection
        return self.selector.preview(self.context(self.clock.epoch))

    def drawn_order(self, arrangement: Hashable) -> Order:
        """Return the current epoch in the order of its selection."""
        return EpochOrder(self.select().indices, arrangement=arrangement)

    def per_batch_order(self, batch_size: int, drop_last: bool) -> Order:
        """Return the current epoch with one selection per step."""
        self.selector.prepare(self.clock.epoch)
        assert isinstance(self._policy, StepwisePolicy)
        context = self.context(self.clock.epoch)
        size = self._policy.size(self.n, context)
        together = self.team.step_size(batch_size)
        size = len(self.select()) if size is None else size
        return PerBatchOrder(self._policy, self._table, context, size, together, drop_last)

    def epoch_size(self) -> int:
        """Return the number of samples in the whole open epoch, or in the next one if it were selected now."""
        if self._epoch is not None:
            return len(self.selector.current or self._epoch)
        size = self._policy.size(self.n, self.context(self._planned()))
        if size is not None:
            return size
        if self.selector.current is None and self._must_meet:
            raise TypeError(
                "how many samples are kept depends on losses that other processes know, and they meet when an epoch "
                "begins. Ask for the length after iter(loader)."
            )
        return len(self.preview())

    @property
    def _must_meet(self) -> bool:
        """Whether a selection that depends on losses needs a sync with other ranks."""
        return self.team.exchange() is not None

    def is_in_batches(self, view: SamplerView) -> bool:
        """True if `view` has begun the current epoch and the batches were made by its inner batch sampler."""
        return self.arranged_size(view) is not None and getattr(self._epoch, "cuts", None) is not None

    def arranged_size(self, view: SamplerView) -> int | None:
        """Return the number of samples in the current epoch in the order of `view`; None if `view` has not begun it."""
        if self._epoch is None or self._epoch.arrangement not in (None, view.arrangement):
            return None
        return len(self._epoch)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values from which the epoch manager can be restored."""
        # An open epoch stores its own order; the selection beside it is stored only for its weights.
        drawn = self.selector.current if self._epoch is None or self.selector.weights is not None else None
        return {
            "seed": self.seed,
            "clock": self.clock.state_dict(),
            "nonfinite": self.complaints.nonfinite,
            "repeated": self.repeated,
            "selection": None if drawn is None else selection_state(drawn),
            "epoch": None if self._epoch is None else self._epoch.state_dict(),
        }

    def whole(self, state: Any) -> Mapping[str, Any]:
        """Return one state of a pruner, from a single state or from the states of all ranks."""
        return whole_state(state, self._table.declared)

    def restorer(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Read and check `state`; return a function that applies it, so that nothing is half restored."""
        clock, seed, nonfinite = (
            TrainingProgress.from_state(state["clock"]),
            int(state["seed"]),
            int(state["nonfinite"]),
        )
        repeated = int(state.get("repeated", 0))
        context = self.selector.context(clock.epoch, seed)
        selection = restore_selection(state["selection"], self.n)
        epoch = restore_order(state["epoch"], self._policy, self._table, context)

        def restore() -> None:
            self.clock, self.seed, self.complaints.nonfinite = clock, seed, nonfinite
            self.selector.keep(selection)
            self._epoch, self._rewound = epoch, False
            self._repeated_before, self._share = repeated, None
            self.team.restored(clock.kept)

        return restore


class SamplerView(Protocol):
    """How a sampler goes through an epoch: its order and its batches."""

    @property
    def arrangement(self) -> Hashable:
        """Equal for views that go through an epoch in the same order."""
        ...

    @property
    def cut(self) -> tuple[int, bool] | None:
        """Batch size, and whether a smaller last batch is dropped; None if an inner batch sampler makes the batches."""
        ...

    def check(self) -> None:
        """Raise if this view cannot be iterated."""
        ...

    def arrange(self) -> Order:
        """Return the epoch in this view's order."""
        ...

    def end(self, epoch: Order, start: int) -> int:
        """Return the position at which this view ends if it starts at `start`."""
        ...


class OpenEpoch(NamedTuple):
    """An open epoch: its order, its number, its start and end positions, and the shard of this rank.

    The shard is None if one process gets the whole epoch. Positions always count samples of the whole epoch.
    """

    epoch: Order
    number: int
    start: int
    end: int
    share: RankShard | None = None
