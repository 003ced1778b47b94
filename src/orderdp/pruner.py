"""Pruner: a policy, what is remembered about the samples, and where training stands."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import torch
from torch.utils.data import DataLoader

from orderdp.checks import (
    checked_epochs,
    checked_extra,
    checked_group,
    checked_index,
    checked_labels,
    checked_losses,
    checked_policy,
    checked_scores,
    checked_seed,
    feedback_arguments,
)
from orderdp.errors import ConfigError, StateError, UnknownSizeError, UnsyncedStateWarning
from orderdp.filtering import FilteredSampler
from orderdp.loading import Indexed, IndexedCollate, length_of, without_own_order
from orderdp.naming import checked_name
from orderdp.planning import Split, check_batch_size, is_count, steps_within
from orderdp.policy import Policy, Selection, describe
from orderdp.sampling import PrunedBatchSampler, PrunedSampler, check_length
from orderdp.scores import ScoreTable
from orderdp.team import TeamOptions
from orderdp.timeline import Timeline

__all__ = ["Pruner"]

_Method = TypeVar("_Method", bound=Callable[..., Any])

# How much of the old score a batch loss leaves (reduced=True): the noise of who else was in the batch falls to a
# third, and a score is forgotten in about five visits.
_BATCH_LOSS_MEMORY = 0.8

_FORMAT = "orderdp.Pruner"
_VERSION = 1


def _outside_graphs(method: _Method) -> _Method:
    """Keeps a method out of `torch.compile`, which would trace the bookkeeping and guard on its counters.

    The compiler is asked to keep out only while it is tracing: loading it takes as long as loading torch, and most
    loops do without.
    """

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **kwargs)  # type: ignore[no-untyped-call]
        return method(*args, **kwargs)

    return cast("_Method", guarded)


class Pruner:
    """What a training loop touches.

    ::

        pruner = orderdp.Pruner(orderdp.OrderDP(prune_ratio=0.4), len(train_set), seed=0)
        loader = pruner.loader(train_set, batch_size=128, num_workers=4)
        for epoch in range(epochs):
            for index, (x, y) in loader:
                loss = pruner.update(index, criterion(model(x), y))  # criterion has reduction="none"
                optimizer.zero_grad(); loss.backward(); optimizer.step()

    Only `update` moves time. Until it is called, every ``iter(loader)`` serves the same draw from where it stands;
    once it has been, the next ``iter(loader)`` starts the next epoch. Looking at a batch, prefetching workers and
    progress bars change nothing.

    Args:
        policy: What to train on, for example `OrderDP`.
        dataset_or_length: The data set, or how many samples it has.
        seed: Everything random is a function of this, the epoch and the scores.
        epochs: How many epochs are planned, for `progress` and for policies that need to know.
        labels: One class for each sample, for policies that need them.
        shard: Whether, in a process group, each process takes its own share of an epoch. False where a framework deals
            out what the sampler gives (Accelerate).
        process_group: The processes that share the data, where that is not all of them.
        pad: Whether shares are filled up with up to ``world_size - 1`` repeats; otherwise as many samples are left out.
        on_nan: "warn" or "raise", once an epoch, when losses were NaN or infinite.
        table: "replicated", every process remembers all samples; or "sharded", each those that it holds, for data
            sets too large for that. For `OrderDP` with ``every="epoch"``.
        sharding: How a sharded table is drawn from: "exact", what one process with all scores would draw; or
            "stratified", each process its share from its own samples, without exchanging anything for it.
    """

    def __init__(
        self,
        policy: Policy,
        dataset_or_length: Any,
        *,
        seed: int = 0,
        epochs: int | None = None,
        labels: Any = None,
        shard: bool = True,
        process_group: Any = None,
        pad: bool = False,
        on_nan: Literal["warn", "raise"] = "warn",
        table: Literal["replicated", "sharded"] = "replicated",
        sharding: Literal["exact", "stratified"] = "exact",
    ) -> None:
        self.n = length_of(dataset_or_length)
        self.policy = checked_policy(policy)
        self.epochs = checked_epochs(epochs)
        if on_nan not in ("warn", "raise"):
            raise ConfigError(f'on_nan must be "warn" or "raise", got {on_nan!r}.')
        self._remember = getattr(policy, "remember", None)
        self._arguments = feedback_arguments(self._remember)
        self._table_is_home = False  # whether it has moved to the device of the losses
        given: dict[str, Any] = {
            "seed": checked_seed(seed),
            "epochs": self.epochs,
            "labels": checked_labels(labels, self.n),
            "raise_on_nan": on_nan == "raise",
            "options": TeamOptions(checked_group(process_group), bool(shard), bool(pad)),
        }
        self._table: ScoreTable
        self._timeline: Timeline
        self.table = checked_name(table, ("replicated", "sharded"), "table")
        if self.table == "sharded":
            from orderdp.sharded.assembly import assembled

            self._table, self._timeline = assembled(self.policy, self.n, sharding, **given)
        else:
            self._table = ScoreTable(self.n, getattr(policy, "columns", ()))
            self._timeline = Timeline(self.policy, self._table, **given)
        self.shard = bool(shard)
        self._pad = bool(pad)
        self._warned_unsynced = False
        self._timeline.size_bounds(0)  # fail now, not in the first epoch, if the policy cannot do with so few

    def __repr__(self) -> str:
        return f"Pruner({describe(self.policy)}, {self.n}, seed={self.seed}, epoch={self.epoch})"

    # -- loading ---------------------------------------------------------------------------------------------

    def loader(self, dataset: Any, batch_size: int = 1, **dataloader_kwargs: Any) -> DataLoader[Any]:
        """A stock DataLoader over this epoch's samples, yielding ``(index, batch)``.

        Args:
            dataset: The data set the pruner was made for.
            batch_size: Samples a batch.
            **dataloader_kwargs: Anything a DataLoader takes, except another order.
        """
        options = without_own_order(dataloader_kwargs)
        check_batch_size(batch_size)
        length_of(dataset)
        check_length(dataset, self.n)
        own_generator = None
        if options.get("generator") is None:
            # Without one, a DataLoader takes its workers' seeds from the global generator and so moves it.
            own_generator = options["generator"] = torch.Generator()
        batches = PrunedBatchSampler(
            self._timeline,
            batch_size,
            options.pop("drop_last", False),
            dataset=dataset,
            generator=own_generator,
            prefetched=(options.get("num_workers") or 0) * (options.get("prefetch_factor") or 2),
        )
        if not (type(dataset) is Indexed and dataset.key is None):
            dataset = Indexed(dataset)
        collate = IndexedCollate(options.pop("collate_fn", None))
        return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **options)

    @property
    def sampler(self) -> PrunedSampler:
        """This epoch's samples one by one, for ``DataLoader(Indexed(dataset), sampler=pruner.sampler, ...)``."""
        return PrunedSampler(self._timeline)

    def batch_sampler(self, batch_size: int, drop_last: bool = False) -> PrunedBatchSampler:
        """This epoch's samples in batches, for ``DataLoader(Indexed(dataset), batch_sampler=...)``."""
        return PrunedBatchSampler(self._timeline, batch_size, drop_last)

    def filter(self, sampler: Iterable[Any], *, repack: bool = False) -> FilteredSampler:
        """What is selected out of a sampler or batch sampler of your own, in its order.

        Args:
            sampler: A sampler or batch sampler over the whole data set.
            repack: Whether to refill batches that have lost samples.
        """
        return FilteredSampler(self._timeline, sampler, repack)

    # -- feedback --------------------------------------------------------------------------------------------

    @_outside_graphs
    def update(
        self,
        index: Any,
        losses: torch.Tensor,
        scores: torch.Tensor | None = None,
        *,
        reduced: bool = False,
        **extra: Any,
    ) -> torch.Tensor:
        """Remembers a batch's losses and returns the scalar to call ``backward()`` on.

        Where an index occurs twice in a batch, one of its losses is remembered.

        Args:
            index: The indices that came with the batch.
            losses: One loss for each of them; it is not modified.
            scores: What to remember instead of the losses, where the two differ (MixUp, weighted losses).
            reduced: `losses` is one number for the whole batch; each sample's score moves towards it.
            **extra: What else the policy wants to know, one value for each sample: `update_arguments` names it.

        Returns:
            The mean of the losses, each with the weight that the policy gives it.
        """
        index = checked_index(index)
        losses = checked_losses(losses, index, reduced)
        remember = self._remember
        result = self._weighted_mean(index, losses)
        mean = None
        if scores is not None:
            scores = checked_scores(scores, index)
        elif reduced:
            scores, remember = losses.detach().expand(len(index)), remember or _moving_average
        else:
            scores = losses.detach()
            mean = result if self._timeline.selector.weights is None else None
        if extra or self._arguments.required:
            extra = checked_extra(extra, self._arguments, index, self.policy)
        if not self._table_is_home:
            self._table.move(losses.device)
            self._table_is_home = True
        self._table.write(index, scores, epoch=self.epoch, mean=mean, remember=remember, extra=extra)
        self._timeline.trained_on(index.numel())
        return result

    @_outside_graphs
    def observe(self, index: Any, scores: torch.Tensor, **extra: Any) -> None:
        """Writes scores without counting as training: a warm start, a pass that scores everything anew.

        Args:
            index: Which samples.
            scores: One number for each of them.
            **extra: What else `update` would take; then all of it is remembered as from `update`.
        """
        index = checked_index(index)
        remember = None
        if extra:
            extra, remember = checked_extra(extra, self._arguments, index, self.policy), self._remember
        self._table.write(
            index, checked_scores(scores, index), epoch=self.epoch, trained=False, remember=remember, extra=extra
        )

    @_outside_graphs
    def reduce(self, index: Any, losses: torch.Tensor) -> torch.Tensor:
        """The weighted mean that `update` returns, and nothing else: for closures and second passes (SAM, L-BFGS)."""
        index = checked_index(index)
        return self._weighted_mean(index, checked_losses(losses, index, reduced=False))

    def _weighted_mean(self, index: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        dense = self._timeline.selector.weights
        if dense is not None:
            if dense.device != losses.device:
                dense = self._timeline.selector.weights = dense.to(losses.device, non_blocking=True)
            weights = dense.index_select(0, index.to(losses.device, non_blocking=True)).to(losses.dtype)
            losses = losses * (weights if losses.ndim else weights.mean())
        return losses.mean() if losses.numel() else losses.sum()  # the mean of nothing would be NaN

    # -- time ------------------------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The seed, which a loaded checkpoint brings with it."""
        return self._timeline.seed

    @property
    def epoch(self) -> int:
        """How many epochs have been trained to their end; where a resumed loop goes on."""
        return self._timeline.epoch

    @property
    def progress(self) -> float:
        """Share of the planned training that is done, in [0, 1]."""
        if self.epochs is None:
            raise ConfigError("progress needs to know how many epochs are planned. Give Pruner(..., epochs=...).")
        return min(1.0, self._timeline.clock.epochs_done / self.epochs)

    @property
    def lr_scale(self) -> float:
        """A factor on the learning rate that the policy asks for; 1 for most."""
        scale: Callable[[int, int], float] | None = getattr(self.policy, "lr_scale", None)
        return 1.0 if scale is None else float(scale(self.n, self._timeline.epoch_size()))

    def steps(
        self,
        epochs: int,
        batch_size: int,
        *,
        drop_last: bool = False,
        world_size: int = 1,
        accumulate: int = 1,
        split: Split = "samples",
    ) -> int:
        """The number of optimiser steps in `epochs` epochs, for a learning-rate schedule.

        >>> from orderdp import OrderDP
        >>> Pruner(OrderDP(prune_ratio=0.4), 50_000).steps(200, 128)
        47000

        Args:
            epochs: How many epochs.
            batch_size: Samples a batch and process.
            drop_last: Whether a last, smaller batch is left out.
            world_size: How many processes share the work.
            accumulate: Batches a step. What is left at the end of an epoch makes a step of its own.
            split: What is dealt out to the processes: "samples", each process batching its own, or "batches".
        """
        if not is_count(epochs, least=0):
            raise ConfigError(f"epochs must be a whole number, at least 0, got {epochs!r}.")
        fewest, most = steps_within(
            (self._timeline.size_bounds(number) for number in range(epochs)),
            batch_size,
            drop_last=drop_last,
            world_size=world_size,
            accumulate=accumulate,
            split=split,
            pad=self._pad,
        )
        if fewest != most:
            raise UnknownSizeError(
                f"{describe(self.policy)} decides by the losses how much it keeps, so the number of steps is not "
                f"known in advance: it is between {fewest} and {most}. Let the schedule follow Pruner.progress.",
                fewest,
                most,
            )
        return fewest

    def size_bounds(self, epoch: int) -> tuple[int, int]:
        """The fewest and the most samples that epoch can have; equal where the policy's size is known in advance.

        >>> from orderdp import OrderDP
        >>> Pruner(OrderDP(prune_ratio=0.4), 50_000).size_bounds(0)
        (30000, 30000)
        """
        if not is_count(epoch, least=0):
            raise ConfigError(f"epoch must be a whole number, at least 0, got {epoch!r}.")
        return self._timeline.size_bounds(int(epoch))

    def end_epoch(self) -> None:
        """Says that the epoch is over, though not all of it was trained on: for loops that leave it early on purpose.

        The next ``iter(loader)`` starts the next epoch, after a checkpoint too. Does nothing where nothing of the
        epoch has been trained on, and so nothing at the end of a whole one. In a process group all call it.
        """
        self._timeline.end_epoch()

    @property
    def update_arguments(self) -> tuple[str, ...]:
        """What `update` needs by keyword besides index and losses; nothing for most policies."""
        return self._arguments.required

    def sync(self) -> None:
        """Exchanges feedback between the processes of a group now, where otherwise the next epoch's start would.

        A collective: all of them call it, after the same step, before they write a checkpoint. Does nothing where
        there is one process.
        """
        self._timeline.sync()

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def owned(self) -> range:
        """The samples whose scores this process holds: all, but with ``table="sharded"``."""
        return range(self._table.first, self._table.first + self._table.size)

    @property
    def scores(self) -> torch.Tensor:
        """The score of every sample that is `owned`, a copy on the CPU; infinite for those nobody has seen."""
        return torch.tensor(self._table["score"])

    @property
    def usage(self) -> torch.Tensor:
        """How often every sample that is `owned` was trained on, a copy on the CPU."""
        return torch.tensor(self._table["usage"], dtype=torch.int64)

    @property
    def seen(self) -> torch.Tensor:
        """The epoch in which every sample was last trained on or observed, a copy on the CPU; -1 for never."""
        if self.table == "sharded":
            raise ConfigError('a sharded table keeps no epochs, to be small. Use table="replicated" to know them.')
        return torch.tensor(self._table["seen"], dtype=torch.int64)

    def preview(self) -> Selection:
        """What the open epoch trains on, or, between epochs, what the next one would if it were drawn now.

        Nothing is changed by looking. After the last planned epoch it is what one more of that kind would train on.
        With ``every="batch"`` it is what one draw for the whole epoch would keep.
        """
        return self._timeline.preview()

    def hardest(self, k: int) -> torch.Tensor:
        """The `k` seen samples with the largest scores, hardest first: where to look for wrong labels.

        Fewer where fewer have been seen.
        """
        if not is_count(k, least=0):
            raise ConfigError(f"k must be a whole number of samples, at least 0, got {k!r}.")
        scores = self.scores
        seen = scores.isfinite()
        return torch.where(seen, scores, -torch.inf).topk(min(int(k), int(seen.sum()))).indices + self._table.first

    def report(self) -> dict[str, float]:
        """What has been saved so far, as flat numbers.

        Returns:
            epoch: epochs trained to their end. samples: in the data set. kept, pruned: samples trained on and left
            out so far. nominal_saved: the share the policy leaves out of the current epoch by its own account; the
            middle of what is possible where it gives none. saved: the share really left out so far. weight_min,
            weight_mean, weight_max: the weights of the samples selected last, all 1 for most policies. coverage: share
            of the samples trained on at least once. staleness: mean age of the seen samples' scores, in epochs.
            nonfinite: losses that were NaN or infinite.
            repeated: samples trained on twice in an epoch because shares were padded. exchanged_bytes: what came in
            when the processes last met. Between their meetings a process knows its own feedback only.

            With ``table="sharded"`` coverage is that of the samples this process holds and there is no staleness, but:
            selection_bytes: what came in for the last selection. moved_picks, moved_bytes: samples that came here to
            be trained on, and what came in for them. returned_bytes: losses of such samples, sent and received.
        """
        clock = self._timeline.clock
        kept, full = clock.kept, clock.epochs_done * self.n
        return {
            "epoch": self.epoch,
            "samples": self.n,
            "kept": kept,
            "pruned": max(0, round(full) - kept),
            "nominal_saved": self._nominal_saved(),
            "saved": 1 - kept / full if full else 0.0,
            **self._timeline.selector.weights_used,
            **self._table.summary(self.epoch),
            "nonfinite": self._timeline.complaints.nonfinite + self._table.strays()[0],
            "repeated": self._timeline.repeated,
            **self._timeline.team.traffic,
        }

    def _nominal_saved(self) -> float:
        nominal = self._timeline.nominal_ratio(self.epoch)
        return 1 - sum(self._timeline.size_bounds(self.epoch)) / (2 * self.n) if nominal is None else nominal

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, at any moment, as tensors and plain values that ``torch.load(weights_only=True)`` accepts.

        In a process group call `sync` before: what other processes have learnt since they met is not in it otherwise.
        """
        unsynced = self._timeline.team.unsynced()
        if unsynced is not None and not self._warned_unsynced:
            self._warned_unsynced = True
            warnings.warn(
                f"this is the state of rank {unsynced['rank']} of {unsynced['world_size']} and lacks what the others "
                "have learnt; it cannot be loaded alone. Call pruner.sync() on all ranks before state_dict().",
                UnsyncedStateWarning,
                stacklevel=2,
            )
        return {**self._state_around(self._table.state_dict()), "group": unsynced}

    def _state_around(self, table: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "policy": describe(self.policy),
            "n": self.n,
            "table": table,
            "timeline": self._timeline.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Puts everything back as it was. Raises, and changes nothing, where the state does not fit.

        The seed of the checkpoint replaces the one given to the constructor.

        Args:
            state: What `state_dict` gave; or, where the processes of a group did not call `sync` before, what it gave
                on each of them.
        """
        try:
            state = self._whole(state)
            self._table.check_state(state["table"])
            restore_timeline = self._timeline.restorer(state["timeline"])
        except StateError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the checkpoint is damaged ({error!r}). Use another one.") from error
        self._table.load_state_dict(state["table"])
        self._table_is_home = False
        restore_timeline()

    def rewind(self) -> None:
        """Lets ``iter(loader)`` serve a half-trained epoch from its start: for loaders that skip by themselves.

        After `load_state_dict` the loader gives the rest of the epoch. A framework that skips as many batches as have
        been trained on (``accelerator.skip_first_batches``) would skip as many again. What was trained on stays
        counted. Called after `load_state_dict` and before the first step; in a process group all call it.
        """
        self._timeline.rewind()

    def _whole(self, state: Any) -> Mapping[str, Any]:
        """One state that fits this pruner, out of one or out of the parts of all processes."""
        in_parts = isinstance(state, list | tuple) and all(isinstance(part, Mapping) for part in state) and state
        for part in state if in_parts else [state]:
            self._check_origin(part)
        return self._timeline.whole(state)

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
            came = f"keys {sorted(map(str, state))[:6]}" if isinstance(state, Mapping) else type(state).__name__
            raise StateError(
                f"this must be what Pruner.state_dict() gave, got {came}. Pass that part of the checkpoint."
            )
        if state.get("version") != _VERSION:
            raise StateError(
                f"the checkpoint must be of version {_VERSION}, it is of {state.get('version')!r}. "
                "Load it with the version of orderdp that wrote it."
            )
        if state.get("policy") != describe(self.policy):
            raise StateError(
                f"the checkpoint was written with {state.get('policy')}, this pruner has {describe(self.policy)}. "
                'Make the pruner with the same policy; to take over scores alone, observe(index, state["table"]...).'
            )
        if state.get("n") != self.n:
            raise StateError(
                f"the checkpoint is of a data set of {state.get('n')} samples, this one has {self.n}. "
                "Resume with the data set it was written for."
            )


def _moving_average(rows: Any, losses: torch.Tensor) -> dict[str, torch.Tensor]:
    """How a batch's loss becomes the score of each of its samples."""
    old = rows["score"]
    mixed = _BATCH_LOSS_MEMORY * old + (1 - _BATCH_LOSS_MEMORY) * losses
    return {"score": torch.where(torch.isinf(old), losses, mixed)}
