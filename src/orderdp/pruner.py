"""Pruner: a policy, what is remembered about the samples, and where training stands."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch.utils.data import DataLoader

from orderdp.checks import checked_epochs, checked_group, checked_labels, checked_policy, checked_seed
from orderdp.dataloader import pruned_loader
from orderdp.errors import ConfigError, StateError, UnknownSizeError, UnsyncedStateWarning
from orderdp.feedback import Feedback
from orderdp.filtering import FilteredSampler
from orderdp.graphs import outside_graphs
from orderdp.loading import length_of
from orderdp.naming import checked_name
from orderdp.origin import check_origin, with_origin
from orderdp.planning import Split, check_batch_size, is_count, steps_within
from orderdp.policy import Policy, describe, epoch_sizes, total_samples
from orderdp.readings import Readings
from orderdp.sampling import PrunedBatchSampler, PrunedSampler
from orderdp.scores import ScoreTable
from orderdp.state import on_host
from orderdp.team import TeamOptions
from orderdp.timeline import Timeline

__all__ = ["Pruner", "SameSteps"]


class SameSteps(NamedTuple):
    """With which pruned training makes as many steps as full data."""

    batch_size: int
    lr_factor: float


class Pruner(Readings):
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
        n = length_of(dataset_or_length)
        policy = checked_policy(policy)
        epochs = checked_epochs(epochs)
        if on_nan not in ("warn", "raise"):
            raise ConfigError(f'on_nan must be "warn" or "raise", got {on_nan!r}.')
        given: dict[str, Any] = {
            "seed": checked_seed(seed),
            "epochs": epochs,
            "labels": checked_labels(labels, n),
            "raise_on_nan": on_nan == "raise",
            "options": TeamOptions(checked_group(process_group), bool(shard), bool(pad)),
        }
        remembered: ScoreTable
        timeline: Timeline
        self.table = checked_name(table, ("replicated", "sharded"), "table")
        checked_name(sharding, ("exact", "stratified"), "sharding")
        if self.table == "sharded":
            from orderdp.sharded.assembly import assembled

            remembered, timeline = assembled(policy, n, sharding, **given)
        else:
            remembered = ScoreTable(n, getattr(policy, "columns", ()))
            timeline = Timeline(policy, remembered, **given)
        super().__init__(policy, remembered, timeline, epochs)
        self._feedback = Feedback(policy, remembered, timeline)
        self.shard = bool(shard)
        self._pad = bool(pad)
        self._warned_unsynced = False
        self._timeline.check_sizes()  # fail now, not in some epoch, if the policy cannot do with so few

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
        return pruned_loader(self._timeline, dataset, batch_size, dataloader_kwargs)

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

    @outside_graphs
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

        Where an index occurs twice in a batch, one of its losses is remembered, and both count as progress.

        Args:
            index: The indices that came with the batch.
            losses: One loss for each of them; it is not modified.
            scores: What to remember instead of the losses, where the two differ (MixUp, weighted losses).
            reduced: `losses` is one number for the whole batch; each sample's score moves towards it.
            **extra: What else the policy wants to know, one value for each sample: `update_arguments` names it.

        Returns:
            The mean of the losses, each with the weight that the policy gives it.
        """
        return self._feedback.update(index, losses, scores, reduced, extra)

    @outside_graphs
    def observe(self, index: Any, scores: torch.Tensor, **extra: Any) -> None:
        """Writes scores without counting as training: a warm start, a pass that scores everything anew.

        Args:
            index: Which samples.
            scores: One number for each of them.
            **extra: What else `update` would take; then all of it is remembered as from `update`.
        """
        self._feedback.observe(index, scores, extra)

    @outside_graphs
    def reduce(self, index: Any, losses: torch.Tensor) -> torch.Tensor:
        """The weighted mean that `update` returns, and nothing else: for closures and second passes (SAM, L-BFGS)."""
        return self._feedback.reduce(index, losses)

    @property
    def update_arguments(self) -> tuple[str, ...]:
        """What `update` needs by keyword besides index and losses; nothing for most policies."""
        return self._feedback.arguments.required

    # -- time ------------------------------------------------------------------------------------------------

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
        total = total_samples(self.policy, self.n, epochs) if epochs else None
        sizes: Iterable[tuple[int, int]] = (self._timeline.size_bounds(number) for number in range(epochs))
        if total is not None:
            # Steps that leave samples out make later epochs longer than the policy can know.
            whole = not drop_last and world_size == 1
            known = epoch_sizes(self.policy, self.n, epochs) if whole else None
            if known is None:
                return self._steps_of(total, batch_size, drop_last, world_size, accumulate)
            sizes = ((size, size) for size in known)
        fewest, most = steps_within(
            sizes,
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

    def same_steps(self, batch_size: int) -> SameSteps:
        """The batch size and the factor on the learning rate with which training makes as many steps as full data.

        The batch is smaller by the share that is kept, and so is the learning rate, for a mean over the batch: each
        sample moves the model as far as it would without pruning.

        >>> from orderdp import OrderDP
        >>> Pruner(OrderDP(prune_ratio=0.4), 50_000).same_steps(128)
        SameSteps(batch_size=77, lr_factor=0.6015625)

        Args:
            batch_size: That of full data.
        """
        check_batch_size(batch_size)
        total = total_samples(self.policy, self.n, self.epochs)
        if total is not None and self.epochs is not None:
            share: float | None = total / (self.epochs * self.n)
        else:
            ratios = {self._timeline.nominal_ratio(epoch) for epoch in range(self.epochs or 1)}
            ratio = ratios.pop()
            share = None if ratio is None or ratios else 1 - ratio
        if share is None:
            raise ConfigError(
                f"as many steps as full data need a share that is kept in every epoch, and {describe(self.policy)} has "
                "none: it changes, or is not known in advance. Choose a batch size yourself."
            )
        smaller = max(1, round(share * batch_size))
        return SameSteps(smaller, smaller / batch_size)

    def _steps_of(self, total: int, batch_size: int, drop_last: bool, world_size: int, accumulate: int) -> int:
        """The number of steps that a budget of so many samples makes, all of them full."""
        full, _ = steps_within([(total, total)], batch_size, drop_last=True, world_size=world_size)
        if drop_last and accumulate == 1:
            return full
        fewest_samples = self._timeline.size_bounds(0)[0]
        epochs = -(-total // max(1, fewest_samples))
        raise UnknownSizeError(
            f"{describe(self.policy)} decides by the losses how long an epoch is, and each may end in a smaller step: "
            f"there are between {-(-full // accumulate)} and {full + epochs} steps. With drop_last=True and without "
            f"accumulation there are exactly {full}; or let the schedule follow Pruner.progress.",
            -(-full // accumulate),
            full + epochs,
        )

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

    def sync(self) -> None:
        """Exchanges feedback between the processes of a group now, where otherwise the next epoch's start would.

        A collective: all of them call it, after the same step, before they write a checkpoint. Does nothing where
        there is one process.
        """
        self._timeline.sync()

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
        return with_origin(self.policy, self.n, table, self._timeline.state_dict())

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Puts everything back as it was. Raises, and changes nothing, where the state does not fit.

        The seed of the checkpoint replaces the one given to the constructor.

        Args:
            state: What `state_dict` gave; or, where the processes of a group did not call `sync` before, what it gave
                on each of them.
        """
        try:
            state = on_host(state)
            check_origin(state, self.policy, self.n)
            whole = self._timeline.whole(state)
            self._table.check_state(whole["table"])
            restore_timeline = self._timeline.restorer(whole["timeline"])
        except StateError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the checkpoint is damaged ({error!r}). Use another one.") from error
        self._table.load_state_dict(whole["table"])
        self._feedback.table_was_loaded()
        restore_timeline()

    def rewind(self) -> None:
        """Lets ``iter(loader)`` serve a half-trained epoch from its start: for loaders that skip by themselves.

        After `load_state_dict` the loader gives the rest of the epoch. A framework that skips as many batches as have
        been trained on (``accelerator.skip_first_batches``) would skip as many again. What was trained on stays
        counted. Called after `load_state_dict` and before the first step; in a process group all call it.
        """
        self._timeline.rewind()
