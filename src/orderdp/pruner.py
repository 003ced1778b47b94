"""Pruner: a policy, a score table and the progress of training; the class that a training loop uses."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from threading import get_ident
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from orderdp._epochs import DistributedOptions, EpochManager, checked_group
from orderdp._validation import (
    check_batch_size,
    check_ratio,
    checked_epochs,
    checked_name,
    checked_seed,
    is_count,
)
from orderdp.checkpoint import check_origin, on_host, under_policy, with_current_keys, with_origin
from orderdp.dataset import length_of, pruned_loader
from orderdp.errors import (
    ConfigError,
    DatasetError,
    StateError,
    UnknownSizeError,
    UnsyncedStateWarning,
    warn,
)
from orderdp.losses import (
    checked_extra,
    checked_index,
    checked_losses,
    checked_scores,
    feedback_arguments,
    of_a_batch_loss,
)
from orderdp.policies.baselines import Fixed, Replay
from orderdp.policies.learned import learned_threshold
from orderdp.policies.wrappers import ActiveIndices, ActivePerBatchPolicy, ActivePolicy
from orderdp.policy import Policy, StepwisePolicy, describe, epoch_sizes, total_samples
from orderdp.samplers import (
    ENDLESS,
    EpochRequest,
    FilteredSampler,
    IndexBatches,
    PrunedBatchSampler,
    PrunedSampler,
    served_at_once,
)
from orderdp.score_table import ScoreTable, check_ages, mean_age
from orderdp.theory.plan import Split, steps_within

__all__ = [
    "Preview",
    "Pruner",
    "SameSteps",
    "between_steps",
    "checked_gone",
    "checked_labels",
    "checked_policy",
]


def checked_policy(policy: Any) -> Policy:
    """Return the policy, or raise an error that says what a policy must be."""
    if isinstance(policy, type):
        raise ConfigError(f"policy must be an instance, got the class {policy.__name__}. Write {policy.__name__}(...).")
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"policy must be an orderdp.Policy, got {type(policy).__name__}. Use orderdp.OrderDP(prune_ratio=0.4), for "
            "example; a policy of your own must subclass orderdp.Policy."
        )
    if policy.every == "batch" and not isinstance(policy, StepwisePolicy):
        raise ConfigError(
            f'{type(policy).__name__} has every="batch", so it must have the methods candidates and select_from. '
            "Subclass orderdp.policy.StepwisePolicy."
        )
    return policy


def checked_labels(labels: Any, n: int) -> np.ndarray | None:
    """Return one class for each of `n` samples, or None, or raise an error."""
    if labels is None:
        return None
    classes = np.asarray(labels)
    if classes.shape != (n,) or not np.issubdtype(classes.dtype, np.integer):
        raise DatasetError(
            f"labels must be {n} whole numbers, one for each sample, got {classes.dtype} of shape {classes.shape}."
        )
    return classes


def checked_gone(index: Any, gone: np.ndarray) -> np.ndarray:
    """Return which samples leave the data set, as unique indices, or raise an error.

    Args:
        index: Indices, or one boolean per sample.
        gone: One flag per sample; those that have left already.
    """
    n = len(gone)
    values = np.asarray(index.cpu() if isinstance(index, torch.Tensor) else index).reshape(-1)
    if values.dtype == np.bool_ and len(values) == n:
        values = np.flatnonzero(values)
    if len(values) and values.dtype.kind not in "iu":
        raise DatasetError(
            f"indices must be whole numbers, or a True or False for each of the {n} samples, got {len(values)} of "
            f"{values.dtype}."
        )
    values = np.unique(values.astype(np.int64))
    if len(values) and not (values[0] >= 0 and values[-1] < n):
        raise DatasetError(f"indices must be in [0, {n}), got {int(values[0])} to {int(values[-1])}.")
    if np.count_nonzero(gone) + np.count_nonzero(~gone[values]) == n:
        raise DatasetError(f"at least one of the {n} samples must remain, got all of them.")
    return values


def _inner_policies(policy: Policy) -> Iterator[Policy]:
    """Yield a policy and those that it wraps."""
    yield policy
    while isinstance(policy := getattr(policy, "policy", None), Policy):  # type: ignore[assignment]
        yield policy


_Result = TypeVar("_Result")


def _eagerly(method: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Call a method outside of the graph that is being compiled, which would guard on its counters.

    Called only while `torch.compile` traces: importing the compiler takes as long as importing torch.
    """
    result: _Result = torch.compiler.disable(method)(*args, **kwargs)  # type: ignore[no-untyped-call]
    return result


_LR_SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
}


@dataclass(frozen=True, eq=False)
class Preview:
    """What an epoch trains on, as tensors on the CPU.

    Attributes:
        indices: int64, in visiting order.
        weights: float32, one per index; None if all are 1.
    """

    indices: torch.Tensor
    weights: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def dense_weights(self, n: int) -> torch.Tensor | None:
        """Return one weight per sample, 1 for samples that are not selected; None if all weights are 1.

        Args:
            n: Number of samples.
        """
        if self.weights is None:
            return None
        dense = torch.ones(n)
        dense[self.indices] = self.weights
        return dense


_Method = TypeVar("_Method", bound=Callable[..., Any])


def between_steps(method: _Method) -> _Method:
    """Run a method of a pruner between two steps: it waits while another thread trains, reads or changes anything."""

    @wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._manager.alone():
            return method(self, *args, **kwargs)

    return cast(_Method, locked)


class SameSteps(NamedTuple):
    """The settings with which pruned training makes as many steps as full data.

    Attributes:
        batch_size: Samples per batch.
        lr_factor: Factor on the learning rate.
    """

    batch_size: int
    lr_factor: float


class Pruner:
    """Prunes the data of a training loop: it serves the selected samples and stores their losses.

    ::

        pruner = orderdp.Pruner(orderdp.OrderDP(prune_ratio=0.4), len(train_set), seed=0)
        loader = pruner.loader(train_set, batch_size=128, num_workers=4)
        for epoch in range(epochs):
            for index, (x, y) in loader:
                loss = pruner.update(index, criterion(model(x), y))  # criterion has reduction="none"
                optimizer.zero_grad(); loss.backward(); optimizer.step()

    Only `update` advances training. Before its first call in an epoch, every ``iter(loader)`` serves the same selection
    from the stored position; after it, the next ``iter(loader)`` starts the next epoch. Fetching a batch, prefetching
    workers and progress bars change nothing.

    Args:
        policy: Selects what to train on, for example `OrderDP`.
        dataset_or_length: The data set, or its number of samples.
        seed: All randomness is a function of the seed, the epoch and the scores. Give it your run's seed: with the
            same one, runs under different ``torch.manual_seed`` see the same order and the same worker seeds.
        epochs: Number of planned epochs, for `progress` and for policies that need it.
        steps: Number of planned calls of `update`, for loops that count steps and not epochs: `progress` and `done`
            follow it. Not together with `epochs`.
        labels: One class per sample, for policies that need them.
        shard: Whether, in a process group, each rank takes its own shard of an epoch. False if a framework distributes
            the sampler's output (Accelerate).
        process_group: The ranks that share the data, if not all of them do.
        pad: Whether shards are padded with up to ``world_size - 1`` repeats; otherwise as many samples are left out.
        on_nan: "warn" or "raise", once per epoch, if losses were NaN or infinite.
        table: "replicated": every rank stores the scores of all samples. "sharded": each rank stores those of its own
            samples, for data sets too large for that. For `OrderDP` with ``every="epoch"``.
        sharding: How samples are selected from a sharded table. "exact": what one process with all scores would select.
            "stratified": each rank selects from its own samples, without any exchange.
        fingerprint: Any text that names the data set (a version, a fold, a hash). Checkpoints keep it; one of a data
            set with another fingerprint is refused.
    """

    @torch.inference_mode(False)
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
        fingerprint: str | None = None,
        steps: int | None = None,
    ) -> None:
        n = length_of(dataset_or_length)
        policy = checked_policy(policy)
        epochs = checked_epochs(epochs)
        if steps is not None and not is_count(steps):
            raise ConfigError(f"steps must be a whole number, at least 1, or None, got {steps!r}.")
        if steps is not None and epochs is not None:
            raise ConfigError(
                f"training is planned in epochs or in steps, got epochs={epochs} and steps={steps}. Leave one of them "
                "out: epochs for policies that need their number, steps for a loop that ends in mid-epoch."
            )
        if on_nan not in ("warn", "raise"):
            raise ConfigError(f'on_nan must be "warn" or "raise", got {on_nan!r}.')
        if fingerprint is not None and not isinstance(fingerprint, str):
            raise ConfigError(
                f"fingerprint must be a text that names the data set, got {type(fingerprint).__name__}. Pass "
                "str(...) of it."
            )
        self.n = n
        self.policy = policy
        self.epochs = epochs
        self.fingerprint = fingerprint
        self.shard = bool(shard)
        self.table = checked_name(table, ("replicated", "sharded"), "table")
        checked_name(sharding, ("exact", "stratified"), "sharding")
        options = DistributedOptions(checked_group(process_group), self.shard, bool(pad))
        seed, labels = checked_seed(seed), checked_labels(labels, n)
        sharded = None
        if self.table == "sharded":
            from orderdp.distributed.sharded import build_sharded

            sharded = build_sharded(policy, n, sharding, epochs, options)
        self._table = ScoreTable(n, policy.columns) if sharded is None else sharded.table
        self._manager = EpochManager(
            policy,
            self._table,
            seed=seed,
            epochs=epochs,
            labels=labels,
            raise_on_nan=on_nan == "raise",
            options=options,
            sharding=sharded,
            steps=None if steps is None else int(steps),
        )
        self._compute_columns = policy.compute_columns
        self._arguments = feedback_arguments(self._compute_columns)
        self._threshold = learned_threshold(policy)
        self._pad = bool(pad)
        self._handed_out: int | None = n  # samples per epoch before pruning, by the last sampler; None if unknown
        self._table_is_home = False  # whether the table is on the device of the losses
        self._warned_unsynced = False
        self._active: ActiveIndices | None = None  # if samples were excluded
        self._manager.check_sizes()  # fail now, not in some epoch, if the data set is too small for the policy

    def __repr__(self) -> str:
        return f"Pruner({describe(self.policy)}, {self.n}, seed={self.seed}, epoch={self.epoch})"

    # -- progress --------------------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The seed. Loading a checkpoint replaces it."""
        return self._manager.seed

    @property
    @between_steps
    def epoch(self) -> int:
        """Number of epochs trained to their end; a resumed loop starts here."""
        return self._manager.epoch

    @property
    @between_steps
    def batches_done(self) -> int:
        """Batches of the open epoch that this process has trained on; 0 between epochs.

        After a resume in mid-epoch the loader serves the rest of the epoch, and ``len(loader)`` counts the whole one.
        ``enumerate(loader, start=pruner.batches_done)`` ends at ``len(loader) - 1``; so does a progress bar with
        ``initial=pruner.batches_done, total=len(loader)``.
        """
        return self._manager.batches_done

    @property
    @between_steps
    def progress(self) -> float:
        """Finished fraction of the planned training, in [0, 1]: of epochs or steps, or of a `Budget`'s samples."""
        progress = self._manager.fraction_done
        if progress is None:
            raise ConfigError(
                "progress needs to know how many epochs are planned. Use Pruner(..., epochs=...), or steps=... if the "
                "loop counts steps."
            )
        return progress

    @property
    @between_steps
    def done(self) -> bool:
        """Whether the planned training is finished: all epochs or steps, or all samples under a `Budget`."""
        if self._manager.fraction_done is None:
            raise ConfigError("done needs to know how many epochs are planned. Use Pruner(..., epochs=...).")
        return self._manager.done

    def remaining_epochs(self) -> Iterator[int]:
        """Yield the numbers of the remaining epochs until training is `done`.

        The same loop works for a new training, a resumed one, and a `Budget`, whose number of epochs is not known in
        advance. Leaving an epoch early ends it. A loop that starts again after an interruption (Ctrl-C in a notebook)
        starts with the rest of the interrupted epoch, as after a checkpoint. ::

            for epoch in pruner.remaining_epochs():
                for index, (x, y) in loader:
                    ...
        """
        if self._manager.fraction_done is None:
            raise ConfigError("remaining_epochs needs to know how many are planned. Use Pruner(..., epochs=...).")
        self.resume()
        while not self.done:
            epoch = self.epoch
            yield epoch
            with self._manager.alone():
                self._manager.leave(epoch)

    @property
    @between_steps
    def lr_scale(self) -> float:
        """The factor on the learning rate that the policy asks for; 1 for most policies."""
        handed_out = self._manager.progress.handed_out
        return float(self.policy.lr_scale(handed_out or self._manager.offered, self._manager.epoch_size()))

    def lr_lambda(
        self,
        schedule: Literal["cosine", "linear", "constant"] | Callable[[float], float] = "cosine",
        *,
        warmup: float = 0.0,
    ) -> Callable[[int], float]:
        """Return a function for ``torch.optim.lr_scheduler.LambdaLR`` that follows `progress`, not a number of steps.

        So the schedule ends when training does, also where losses decide how much is kept. After a checkpoint, create
        the scheduler after `load_state_dict`; its own state need not be saved.

        Args:
            schedule: The factor on the learning rate: from 1 to 0 along a cosine or a line, constant, or any function
                of the progress.
            warmup: Fraction of training in which the factor rises from a tenth to all of the schedule's.
        """
        self.progress  # noqa: B018  raises now, and not in some step, if nothing is planned
        check_ratio("warmup", warmup)
        if not callable(schedule):
            checked_name(schedule, _LR_SCHEDULES, "schedule")
        factor = schedule if callable(schedule) else _LR_SCHEDULES[schedule]

        def at(step: int) -> float:
            progress = self.progress
            rising = 0.1 + 0.9 * progress / warmup if progress < warmup else 1.0
            return rising * float(factor(progress))

        return at

    # -- samples ---------------------------------------------------------------------------------------------

    @property
    def local_indices(self) -> range:
        """The samples whose scores this process holds: all of them, unless ``table="sharded"``."""
        return range(self._table.first, self._table.first + self._table.size)

    @property
    @between_steps
    def scores(self) -> torch.Tensor:
        """The score of every sample in `local_indices`, a copy on the CPU; infinite for unseen samples."""
        return torch.tensor(self._table["score"])

    @property
    @between_steps
    def usage(self) -> torch.Tensor:
        """How often every sample in `local_indices` was trained on, a copy on the CPU."""
        return torch.tensor(self._table["usage"], dtype=torch.int64)

    @property
    @between_steps
    def last_seen_epoch(self) -> torch.Tensor:
        """The epoch in which every sample was last trained on or observed, a copy on the CPU; -1 for never."""
        if "seen" not in self._table.declared:
            raise ConfigError('a sharded table stores no epochs, to save memory. Use table="replicated" to have them.')
        return torch.tensor(self._table["seen"], dtype=torch.int64)

    def visits(self, index: Any) -> torch.Tensor:
        """Return how often each sample of a batch was trained on, on the device of the losses, without waiting for it.

        Called before `update`, it counts the earlier visits only. Unlike `usage` it does not copy the table, which is
        on the CPU until the first `update`.

        Args:
            index: The indices that came with the batch.
        """
        if torch.compiler.is_compiling():
            return _eagerly(self.visits, index)
        if "seen" not in self._table.declared:
            raise ConfigError(
                "with a sharded table a process does not know how often samples of other processes were trained on. "
                'Use table="replicated" for the visits of any batch.'
            )
        with self._manager.alone():
            return self._table.uses_of(checked_index(index))

    @between_steps
    def preview(self) -> Preview:
        """Return the selection of the open epoch or, between epochs, the one the next epoch would get now.

        Changes nothing, so it is no way to train on an epoch: see `index_batches`. After the last planned epoch it is
        the selection of one more epoch of that kind. With ``every="batch"`` it is what one selection for the whole
        epoch would keep.
        """
        selection = self._manager.preview()
        weights = selection.weights
        return Preview(torch.tensor(selection.indices), None if weights is None else torch.tensor(weights).float())

    def hardest(self, k: int) -> torch.Tensor:
        """Return the `k` seen samples with the largest scores, hardest first: candidates for wrong labels.

        Args:
            k: Number of samples; if fewer have been seen, all of those are returned.
        """
        if not is_count(k, least=0):
            raise ConfigError(f"k must be a whole number of samples, at least 0, got {k!r}.")
        scores = self.scores
        seen = scores.isfinite() & self._there()
        return torch.where(seen, scores, -torch.inf).topk(min(int(k), int(seen.sum()))).indices + self._table.first

    def _there(self) -> torch.Tensor | bool:
        """Return a mask of the samples in `local_indices` that have not been removed."""
        return True if self._active is None else torch.from_numpy(~self._active.removed)

    @between_steps
    def exclude(self, index: Any) -> None:
        """Never select these samples again: for items that cannot be read, or that should not be trained on.

        From the next selection on, the policy sees the ``n - len(pruner.excluded)`` remaining samples only, and keeps
        exactly as many as of a data set of that length. The rest of an open epoch loses the excluded samples with the
        next ``iter(loader)``, unless ``every="batch"``; an iterator that is running serves what it was made for.
        Checkpoints keep them, and `reset` brings them back. Not with ``table="sharded"``; in a process group, all ranks
        call it with the same samples.

        Args:
            index: Their indices, or one boolean per sample. Samples that are excluded already are allowed.
        """
        if self.table == "sharded":
            raise ConfigError(
                'exclude() works with table="replicated" only: the ranks of a sharded table draw from ranges without '
                "gaps. Leave the samples out of the data set."
            )
        by_index = next((part for part in _inner_policies(self.policy) if isinstance(part, Fixed | Replay)), None)
        if by_index is not None:
            raise ConfigError(
                f"{describe(by_index)} refers to samples by index, but a policy sees only the remaining samples, "
                "renumbered. Create it without the samples instead."
            )
        before = np.zeros(self.n, np.bool_) if self._active is None else self._active.removed.copy()
        gone = checked_gone(index, before)
        if not len(gone):
            return
        active, was = self._active, self._active
        if active is None:
            active = ActiveIndices(self.n)
            active.note(0)
        active.remove(gone)
        self._set_active(active)
        try:
            self._manager.check_sizes()
        except Exception:
            active.put_back(before)
            self._set_active(was)
            raise

    @property
    @between_steps
    def excluded(self) -> torch.Tensor:
        """Indices of the excluded samples."""
        gone = np.empty(0, np.int64) if self._active is None else np.flatnonzero(self._active.removed)
        return torch.from_numpy(gone)

    def _set_active(self, active: ActiveIndices | None) -> None:
        self._active = active
        if active is None:
            self._manager.select_with(self.policy, None)
        else:
            kind = ActivePerBatchPolicy if self.policy.every == "batch" else ActivePolicy
            self._manager.select_with(kind(self.policy, active), active.removed)

    def _learned(self) -> float:
        scores = self._table["score"]
        if self._active is not None:
            scores = scores[~self._active.removed]
        return float(np.mean(scores <= self._threshold.at(self._table))) if len(scores) else 0.0

    @between_steps
    def report(self) -> dict[str, float]:
        """Return what has been saved so far.

        Returns:
            A flat dict of numbers:

            - ``epoch``: epochs trained to their end.
            - ``samples``: samples in the data set, without the excluded ones.
            - ``excluded``: samples that were excluded.
            - ``kept``, ``pruned``: samples trained on and left out so far.
            - ``nominal_saved``: nominal prune ratio of the current epoch; without one, the middle of its bounds.
            - ``saved``: fraction really left out so far.
            - ``weight_min``, ``weight_mean``, ``weight_max``: weights of the last selection, all 1 for most policies.
            - ``coverage``: fraction of the samples trained on at least once.
            - ``learned``: fraction of the samples whose last loss is at or below the policy's threshold; without one,
              at or below the cross-entropy of a right class with probability 0.9.
            - ``staleness``: mean age of the seen samples' scores, in epochs.
            - ``nonfinite``: losses that were NaN or infinite.
            - ``repeated``: samples trained on twice in an epoch because shards were padded.
            - ``exchanged_bytes``: bytes received in the last sync. Between syncs a rank has its own feedback only.

            With ``table="sharded"`` coverage counts only the samples this rank holds, there is no staleness, and:

            - ``selection_bytes``: bytes received for the last selection.
            - ``moved_picks``, ``moved_bytes``: remote samples that this rank trains on, and bytes received for them.
            - ``returned_bytes``: losses of remote samples, sent and received.
        """
        manager, active = self._manager, self._active
        kept, full = manager.progress.kept, manager.full_samples
        summary = self._table.summary(self.epoch)
        if active is not None:
            there = ~active.removed
            summary = {
                "coverage": float((self._table["usage"][there] > 0).mean()),
                "staleness": mean_age(self._table["seen"][there], self.epoch),
            }
            full = active.offered(manager.progress.epochs_done) if manager.total is None else full
        return {
            "epoch": self.epoch,
            "samples": manager.offered,
            "excluded": len(self.excluded),
            "kept": kept,
            "pruned": max(0, round(full) - kept),
            "nominal_saved": manager.nominal_saved(),
            "saved": 1 - kept / full if full else 0.0,
            **manager.weight_spread,
            **summary,
            "learned": self._learned(),
            "nonfinite": manager.nonfinite + self._table.invalid_counts()[0],
            "repeated": manager.repeated,
            **manager.traffic,
        }

    # -- files -----------------------------------------------------------------------------------------------

    @between_steps
    def export(
        self, path: str | os.PathLike[str], *, keep: float | None = None, by: Literal["usage", "score"] = "usage"
    ) -> str:
        """Write one row per sample: index, score, usage, last_seen_epoch and whether it is kept.

        ``orderdp.export.read_kept(path)`` returns the kept samples, for ``torch.utils.data.Subset(dataset, kept)`` or
        ``dataset.select(kept)``.

        Args:
            path: The file: .npz, .csv, or .parquet if pyarrow is installed.
            keep: What a static subset keeps: a number of samples as an int, or a fraction of the data set as a float.
                None for the selection of the open or the next epoch, as in `preview`.
            by: Whether a static subset keeps the samples trained on most often or those with the largest scores.

        Returns:
            A fingerprint of the kept set.
        """
        if self.table == "sharded":
            raise ConfigError('export() needs all scores, but with table="sharded" each process has only its own part.')
        from orderdp.export import columns_of_state, write_columns

        state = self.state_dict()
        if keep is None:
            chosen = {"indices": torch.from_numpy(self._manager.preview().indices)}
            state["timeline"] = {**state["timeline"], "selection": chosen}
        columns, selection = columns_of_state(state, keep, by)
        write_columns(path, columns, selection)
        return selection

    @between_steps
    def import_scores(self, source: Any, *, column: str = "score") -> int:
        """Store scores from outside as `observe` does: larger means more to learn. Not counted as training.

        Args:
            source: One number per sample, or the path of an .npz, .csv or .parquet file with a column of scores and, if
                it lacks samples or has another order, a column "index". NaN and infinity stay unseen.
            column: The column of the scores.

        Returns:
            The number of samples that got a score.
        """
        from orderdp.export import read_scores

        index, scores = read_scores(source, self.n, column)
        held = (index >= self._table.first) & (index < self._table.first + self._table.size) & ~np.isposinf(scores)
        self.observe(torch.from_numpy(index[held]), torch.from_numpy(scores[held]))
        return int(np.count_nonzero(held))

    # -- loading ---------------------------------------------------------------------------------------------

    def loader(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        group_by: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        **dataloader_kwargs: Any,
    ) -> DataLoader[Any]:
        """Return a stock DataLoader over this epoch's samples that yields ``(index, batch)``.

        Args:
            dataset: The data set the pruner was made for.
            batch_size: Samples per batch.
            group_by: One number per sample, as in `batch_sampler`.
            num_workers: As in `torch.utils.data.DataLoader`, like all that follow.
            collate_fn: Gets the items without their indices.
            pin_memory: As there.
            drop_last: As there.
            timeout: As there.
            worker_init_fn: As there.
            multiprocessing_context: As there.
            generator: Seeds the workers; None for the pruner's seed and epoch.
            prefetch_factor: As there.
            persistent_workers: As there.
            **dataloader_kwargs: Further arguments of the DataLoader, except those that set another order.
        """
        self._handed_out = self.n
        options = {
            **dataloader_kwargs,
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "drop_last": drop_last,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }
        return pruned_loader(self._manager, dataset, batch_size, options, group_by)

    @property
    def sampler(self) -> PrunedSampler:
        """This epoch's samples one by one, for ``DataLoader(Indexed(dataset), sampler=pruner.sampler, ...)``."""
        return PrunedSampler(self._manager)

    def batch_sampler(self, batch_size: int, drop_last: bool = False, *, group_by: Any = None) -> PrunedBatchSampler:
        """Return this epoch's samples in batches, for ``DataLoader(Indexed(dataset), batch_sampler=...)``.

        Args:
            batch_size: Samples per batch.
            drop_last: Whether to drop a last, smaller batch.
            group_by: One number per sample, such as its length. The epoch has the same samples, and each batch holds
                samples of similar numbers.
        """
        self._handed_out = self.n
        return PrunedBatchSampler(self._manager, batch_size, drop_last, group_by=group_by)

    def index_batches(
        self, batch_size: int, *, device: torch.device | str | int | None = None, drop_last: bool = False
    ) -> IndexBatches:
        """Return this epoch's samples in batches of indices, for loops over data that are on the device already.

        ::

            for index in pruner.index_batches(512, device=x.device):
                loss = pruner.update(index, criterion(model(x[index]), y[index]))

        The batches are those of `loader`, from the stored position on, and in a process group those of this rank. Each
        is an int64 tensor on the device; the epoch is copied there at once.

        Args:
            batch_size: Samples per batch.
            device: Where the indices are needed; None for the CPU.
            drop_last: Whether to drop a last, smaller batch.
        """
        self._handed_out = self.n
        return IndexBatches(self._manager, batch_size, drop_last, device)

    def indices(self, device: torch.device | str | int | None = None) -> torch.Tensor:
        """Return the rest of this epoch's samples at once, in their order, for loops that make their own batches.

        Serves the epoch, as an iterator that is read to its end does. Unlike `preview`, which shows a selection and
        opens nothing, the next call after the losses have come back returns the next epoch.

        Args:
            device: Where the indices are needed; None for the CPU.
        """
        manager = self._manager
        opened = manager.open(EpochRequest())
        manager.exhausted(opened.order, certainly=True)
        return served_at_once(opened, device)

    def filter(self, sampler: Iterable[Any], *, repack: bool = False) -> FilteredSampler:
        """Return the selected part of another sampler or batch sampler, in its order.

        The selection is made among what the sampler yields in the epoch, repeats included: a weighted sampler or one
        of a subset is pruned by the same ratio.

        Args:
            sampler: A sampler or batch sampler of indices of the data set.
            repack: Whether to refill batches that have lost samples.
        """
        filtered = FilteredSampler(self._manager, sampler, repack)
        # A policy that names its samples keeps each as often as the sampler repeats it.
        self._handed_out = filtered.handed_out if filtered.visits_each_once or not self.policy.by_index else None
        return filtered

    # -- feedback --------------------------------------------------------------------------------------------

    def update(
        self,
        index: Any,
        losses: torch.Tensor,
        scores: torch.Tensor | None = None,
        *,
        reduced: bool = False,
        **extra: Any,
    ) -> torch.Tensor:
        """Store a batch's losses and return the scalar to call ``backward()`` on.

        If an index occurs twice in a batch, one of its losses is stored, and both count as progress.

        Args:
            index: The indices that came with the batch.
            losses: One loss per index; not modified.
            scores: Stored in place of the losses, if the two differ (MixUp, weighted losses).
            reduced: Whether `losses` is one number for the whole batch; each sample's score then moves toward it.
            **extra: Further values that the policy needs, one per sample: `update_arguments` names them.

        Returns:
            The mean of the losses, weighted by the policy's weights.
        """
        if torch.compiler.is_compiling():
            return _eagerly(self.update, index, losses, scores, reduced=reduced, **extra)
        index = checked_index(index)
        losses = checked_losses(losses, index, reduced)
        manager, table, compute_columns = self._manager, self._table, self._compute_columns
        mean = None
        if manager.weights is None:
            result = mean = losses.mean() if losses.numel() else losses.sum()  # the mean of nothing would be NaN
        else:
            result = self._weighted_mean(index, losses)
        if scores is not None:
            scores, mean = checked_scores(scores, index), None
        elif reduced:
            scores, mean = losses.detach().expand(len(index)), None
            compute_columns = of_a_batch_loss(compute_columns)
        else:
            scores = losses.detach()
        if extra or self._arguments.required:
            extra = checked_extra(extra, self._arguments, index, self.policy)
        try:
            manager.stepping = get_ident()
            if manager.asked:
                manager.let_pass()
            if not self._table_is_home:
                table.move(losses.device)
                self._table_is_home = True
            progress = manager.progress
            # Only the rest of a loaded epoch can be too small to be served: see EpochManager.epoch.
            epoch = manager.epoch if progress.trained and not progress.received else progress.epoch
            table.write(index, scores, epoch=epoch, mean=mean, compute_columns=compute_columns, extra=extra)
            manager.trained_on(index.numel())
        finally:
            manager.stepping = 0
        return result

    def observe(self, index: Any, scores: torch.Tensor, **extra: Any) -> None:
        """Write scores without counting them as training: for a warm start, or a pass that rescores all samples.

        Args:
            index: The samples.
            scores: One number per sample.
            **extra: Further values as in `update`; all columns are then stored as by `update`.
        """
        if torch.compiler.is_compiling():
            _eagerly(self.observe, index, scores, **extra)
            return
        index = checked_index(index)
        compute_columns = None
        if extra:
            extra, compute_columns = checked_extra(extra, self._arguments, index, self.policy), self._compute_columns
        scores = checked_scores(scores, index)
        with self._manager.alone():
            self._table.write(
                index, scores, epoch=self._manager.epoch, trained=False, compute_columns=compute_columns, extra=extra
            )

    def reduce(self, index: Any, losses: torch.Tensor) -> torch.Tensor:
        """Return the weighted mean of `update` without storing anything: for closures and second passes (SAM, L-BFGS).

        Args:
            index: The indices that came with the batch.
            losses: One loss per index.
        """
        if torch.compiler.is_compiling():
            return _eagerly(self.reduce, index, losses)
        index = checked_index(index)
        return self._weighted_mean(index, checked_losses(losses, index, reduced=False))

    def _weighted_mean(self, index: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        dense = self._manager.weights
        if dense is not None:
            if dense.device != losses.device:
                dense = self._manager.weights = dense.to(losses.device, non_blocking=not losses.is_cpu)
            self._table.check_range(index)
            # An out-of-range index on a device is only counted, so it must not fail here.
            rows = index.to(losses.device, non_blocking=not losses.is_cpu)
            weights = dense.index_select(0, rows.clamp(0, len(dense) - 1)).to(losses.dtype)
            if len(dense) < self._table.n:  # the selection has no weights for samples added after it
                weights = torch.where(rows < len(dense), weights, 1.0)
            losses = losses * (weights if losses.ndim else weights.mean())
        return losses.mean() if losses.numel() else losses.sum()

    @property
    def update_arguments(self) -> tuple[str, ...]:
        """The keyword arguments that `update` needs besides index and losses; none for most policies."""
        return self._arguments.required

    # -- steps and epochs ------------------------------------------------------------------------------------

    def steps(
        self,
        epochs: int,
        batch_size: int,
        *,
        drop_last: bool = False,
        world_size: int = 1,
        accumulate: int = 1,
        split: Split = "samples",
        samples: int | None = None,
    ) -> int:
        """Return the number of optimizer steps in `epochs` epochs, for a learning-rate schedule.

        >>> from orderdp import OrderDP
        >>> Pruner(OrderDP(prune_ratio=0.4), 50_000).steps(200, 128)
        47000

        Args:
            epochs: Number of epochs.
            batch_size: Samples per batch and rank.
            drop_last: Whether a last, smaller batch is dropped.
            world_size: Number of ranks that share the work.
            accumulate: Batches per step. The remaining batches of an epoch make a step of their own.
            split: What is distributed to the ranks: "samples", and each rank batches its own, or "batches".
            samples: How many samples a filtered sampler yields per epoch, repeats included, before pruning. Default:
                as many as the last one given to `filter` says, or all samples.
        """
        if not is_count(epochs, least=0):
            raise ConfigError(f"epochs must be a whole number, at least 0, got {epochs!r}.")
        if samples is not None and not is_count(samples):
            raise ConfigError(f"samples must be a whole number, at least 1, got {samples!r}.")
        count = self._handed_out if samples is None else int(samples)
        self._manager.counted_on = count
        offered = self._manager.offered
        total = total_samples(self.policy, offered, epochs) if epochs else None
        sizes: Iterable[tuple[int, int]] = (self._bounds(number, count) for number in range(epochs))
        if total is not None:
            # Steps that drop samples make later epochs longer than the policy can predict.
            whole = not drop_last and world_size == 1 and count == self.n
            known = epoch_sizes(self.policy, offered, epochs) if whole else None
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
        if fewest != most and count is None:
            raise UnknownSizeError(
                "how many samples an epoch keeps of the sampler that was given to filter() is not known in advance, so "
                f"the number of steps is between {fewest} and {most}. If the sampler always yields the same number "
                "of indices, call steps(..., samples=...) with it; or let the schedule follow Pruner.progress.",
                fewest,
                most,
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
        """Return the batch size and learning-rate factor with which training makes as many steps as full data.

        The batch size is scaled by the fraction that is kept, and so is the learning rate, for a mean over the batch:
        each sample moves the model as far as it would without pruning.

        >>> from orderdp import OrderDP
        >>> Pruner(OrderDP(prune_ratio=0.4), 50_000).same_steps(128)
        SameSteps(batch_size=77, lr_factor=0.6015625)

        Args:
            batch_size: The batch size of training on full data.
        """
        check_batch_size(batch_size)
        offered = self._manager.offered
        total = total_samples(self.policy, offered, self.epochs)
        if total is not None and self.epochs is not None:
            share: float | None = total / (self.epochs * offered)
        else:
            ratios = {self._manager.nominal_ratio(epoch) for epoch in range(self.epochs or 1)}
            ratio = ratios.pop()
            share = None if ratio is None or ratios else 1 - ratio
        if share is None:
            raise ConfigError(
                f"as many steps as full data need a constant kept fraction, but that of {describe(self.policy)} "
                "changes or is not known in advance. Choose a batch size yourself."
            )
        smaller = max(1, round(share * batch_size))
        return SameSteps(smaller, smaller / batch_size)

    def _steps_of(self, total: int, batch_size: int, drop_last: bool, world_size: int, accumulate: int) -> int:
        """Return the number of steps of a budget of `total` samples, if all of them are full."""
        full, _ = steps_within([(total, total)], batch_size, drop_last=True, world_size=world_size)
        if drop_last and accumulate == 1:
            return full
        fewest_samples = self._manager.size_bounds(0)[0]
        epochs = -(-total // max(1, fewest_samples))
        raise UnknownSizeError(
            f"{describe(self.policy)} decides by the losses how long an epoch is, and each may end in a smaller step: "
            f"there are between {-(-full // accumulate)} and {full + epochs} steps. With drop_last=True and without "
            f"accumulation there are exactly {full}; or let the schedule follow Pruner.progress.",
            -(-full // accumulate),
            full + epochs,
        )

    def size_bounds(self, epoch: int) -> tuple[int, int]:
        """Return the fewest and the most samples that `epoch` can have; equal if the policy's size is known in advance.

        >>> from orderdp import OrderDP
        >>> Pruner(OrderDP(prune_ratio=0.4), 50_000).size_bounds(0)
        (30000, 30000)

        Args:
            epoch: The epoch, from 0.
        """
        if not is_count(epoch, least=0):
            raise ConfigError(f"epoch must be a whole number, at least 0, got {epoch!r}.")
        return self._bounds(int(epoch), self._handed_out)

    def _bounds(self, epoch: int, count: int | None) -> tuple[int, int]:
        """Return the fewest and the most samples of an epoch in which a sampler yields `count`; None if unknown."""
        if count is None:
            return 1, self._manager.bounds_among(ENDLESS * self.n, epoch)[1]
        return self._manager.bounds_among(count, epoch)

    @between_steps
    def end_epoch(self) -> None:
        """End the epoch before all of it is trained on: for loops that leave an epoch early on purpose.

        The next ``iter(loader)`` starts the next epoch, also after a checkpoint. Does nothing if none of the epoch has
        been trained on, and so nothing at the end of a whole epoch. In a process group, all ranks call it.
        """
        self._manager.end_epoch()

    @between_steps
    @torch.inference_mode(False)
    def sync(self) -> None:
        """Exchange feedback between the ranks of a group now instead of at the start of the next epoch.

        A collective: all ranks call it, after the same step, before they write a checkpoint. Does nothing in a single
        process.
        """
        self._manager.sync()

    # -- checkpoints -----------------------------------------------------------------------------------------

    @between_steps
    def state_dict(self) -> dict[str, Any]:
        """Return the full state, at any moment, as tensors and plain values for ``torch.load(weights_only=True)``.

        In a process group, call `sync` first: otherwise the state lacks the feedback of other ranks since the last
        sync.
        """
        unsynced = self._manager.unsynced()
        if unsynced is not None and not self._warned_unsynced:
            self._warned_unsynced = True
            warn(
                f"this is the state of rank {unsynced['rank']} of {unsynced['world_size']} and lacks the losses of "
                "the other ranks; it cannot be loaded alone. Call pruner.sync() on all ranks before state_dict().",
                UnsyncedStateWarning,
            )
        return {**self._state_around(self._table.state_dict()), "group": unsynced}

    def _state_around(self, table: Mapping[str, Any]) -> dict[str, Any]:
        state = with_origin(self.policy, self.n, table, self._manager.state_dict())
        if self.fingerprint is not None:
            state["fingerprint"] = self.fingerprint
        if self._active is not None:
            state["excluded"] = self._active.state_dict()
        return state

    @between_steps
    @torch.inference_mode(False)
    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        policy: Literal["same", "replace"] = "same",
    ) -> None:
        """Restore the state. Raises, and changes nothing, if the state does not fit.

        The seed of the checkpoint replaces the one given to the constructor.

        Args:
            state: What `state_dict` returned; or, if the ranks of a group did not call `sync` before, a list of what it
                returned on each of them.
            policy: "same": the checkpoint must have been written with this policy. "replace": it may be another one, or
                the same at another ratio. Scores, counts and progress stay, an open epoch ends as it was drawn, and
                this policy selects from the next one on.
        """
        checked_name(policy, ("same", "replace"), "policy")
        active = self._active
        try:
            state = with_current_keys(on_host(state))
            if policy == "replace":
                state = under_policy(state, self.policy, self._table.declared)
            check_origin(state, self.policy, self.n, self.fingerprint)
            whole = self._manager.whole(state)
            self._table.check_state(whole["table"])
            excluded = whole.get("excluded")
            self._set_active(None if excluded is None else ActiveIndices.from_state(excluded, self.n))
            restore_manager = self._manager.restorer(whole["timeline"])
            check_ages(whole["table"]["columns"], whole["timeline"]["clock"]["epoch"])
        except StateError:
            self._set_active(active)
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            self._set_active(active)
            raise StateError(f"the checkpoint is damaged ({error!r}). Use another one.") from error
        self._table.load_state_dict(whole["table"])
        self._table_is_home = False
        restore_manager()

    @between_steps
    def reset(self, seed: int | None = None) -> None:
        """Forget all scores, counts and progress, as if the pruner were new: for another fold, or to start over.

        Existing loaders and samplers keep working. Not with ``table="sharded"``; in a process group, all ranks call
        it.

        Args:
            seed: The new seed; None keeps the current one.
        """
        if self.table == "sharded":
            raise ConfigError('reset() works with table="replicated" only. Create a new Pruner for a sharded table.')
        seed = self.seed if seed is None else checked_seed(seed)
        self._table.reset()
        self._set_active(None)
        self._manager.reset(seed)
        self._warned_unsynced = False

    @between_steps
    def resume(self) -> None:
        """Serve the rest of an epoch that was interrupted, as after loading a checkpoint of this moment.

        For loops that start again in the same process, such as a cell of a notebook after Ctrl-C;
        `remaining_epochs` calls it. Does nothing if no epoch was interrupted. In a process group, all ranks call it.
        """
        self._manager.resume()

    @between_steps
    def rewind(self) -> None:
        """Let ``iter(loader)`` serve a partly trained epoch from its start: for loaders that skip batches themselves.

        After `load_state_dict` the loader yields the rest of the epoch. A framework that skips the batches already
        trained on (``accelerator.skip_first_batches``) would skip as many again. Trained samples stay counted. Call it
        after `load_state_dict` and before the first step; in a process group, on all ranks.
        """
        self._manager.rewind()
