"""GrowingPruner: a data set to which samples are added, and from which some are removed, during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from orderdp.checkpoint import on_host
from orderdp.dataset import length_of
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.policies.baselines import Fixed
from orderdp.policies.wrappers import PolicyWrapper, refuse_budget
from orderdp.policy import Context, Policy, Selection, StepwisePolicy, Table, describe, nominal_ratio, size_bounds
from orderdp.pruner import Pruner, checked_policy, in_turn
from orderdp.score_table import mean_age

__all__ = ["ActiveIndices", "ActiveTableView", "GrowingPruner"]


class ActiveIndices:
    """Indices of the samples that have not been removed.

    Args:
        n: Samples in the data set, removed ones included.

    Attributes:
        removed: One flag per sample.
        live: Number of active samples.
    """

    def __init__(self, n: int) -> None:
        self._flags = np.zeros(n, np.bool_)
        self.n = self.live = n
        self._history: list[list[int]] = []  # pairs: first epoch, number of active samples from then on

    @property
    def removed(self) -> np.ndarray:
        """One flag per sample."""
        return self._flags[: self.n]

    def grow(self, n: int) -> None:
        """Grow to `n` samples."""
        if n > len(self._flags):
            larger = np.zeros(max(n, len(self._flags) * 3 // 2), np.bool_)
            larger[: self.n] = self.removed
            self._flags = larger
        self.live += n - self.n
        self.n = n

    def remove(self, gone: np.ndarray) -> None:
        """Mark samples as removed."""
        self.removed[gone] = True
        self.live = self.n - int(np.count_nonzero(self.removed))

    def put_back(self, removed: np.ndarray) -> None:
        """Replace the set of removed samples."""
        self.removed[:] = removed
        self.live = self.n - int(np.count_nonzero(removed))

    def places(self) -> np.ndarray | None:
        """Indices of the active samples; None for all."""
        return None if self.live == self.n else np.flatnonzero(~self.removed)

    # -- history -----------------------------------------------------------------------------------------------

    def note(self, epoch: int) -> None:
        """Store that `epoch` is drawn from the currently active samples."""
        self._history = [entry for entry in self._history if entry[0] < epoch]
        if not self._history or self._history[-1][1] != self.live:
            self._history.append([epoch, self.live])

    def offered(self, epochs: float) -> float:
        """Number of samples that this many epochs would have trained on without pruning."""
        total, last = 0.0, epochs
        for start, live in reversed(self._history):
            total += max(0.0, last - start) * live
            last = min(last, start)
        return total

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a tensor and plain numbers."""
        gone = torch.from_numpy(np.flatnonzero(self.removed))
        return {"n": self.n, "removed": gone, "history": [list(entry) for entry in self._history]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> ActiveIndices:
        """Build from `state`, for a data set that may have grown to `n` since."""
        gone = state["removed"].cpu().numpy()
        if len(gone) and not (gone.min() >= 0 and gone.max() < n):
            raise StateError(
                f"the checkpoint lists removed samples beyond the {n} of the data set. Use another checkpoint."
            )
        roster = cls(n)
        roster.remove(gone)
        roster._history = [[int(epoch), int(live)] for epoch, live in state["history"]]
        return roster

    def become(self, other: ActiveIndices) -> None:
        """Become equal to `other`."""
        self._flags, self.n, self.live, self._history = other._flags, other.n, other.live, other._history


class ActiveTableView:
    """View of a table that has only the rows of the active samples.

    Args:
        table: The whole table.
        places: Indices of the active samples.
    """

    def __init__(self, table: Table, places: np.ndarray) -> None:
        self.n = len(places)
        self._table, self._places = table, places

    def __getitem__(self, name: str) -> np.ndarray:
        """The column `name`, read-only."""
        values: np.ndarray = self._table[name][self._places]
        values.flags.writeable = False
        return values


class GrowingPruner(Pruner):
    """`Pruner` for a data set that grows and loses samples.

    ::

        pruner = GrowingPruner(orderdp.OrderDP(prune_ratio=0.4), train_set)
        ...
        train_set.append(sample)
        pruner.grow(len(train_set))
        pruner.remove([17, 23])

    Indices are stable: new samples get the next ones, and the index of a removed sample is not reused. Changes take
    effect with the next draw; an open epoch continues as it was drawn.

    Args:
        policy: The policy. It sees the active samples only.
        dataset_or_length: The current data set, or its length.
        **options: Options of `Pruner`, except `labels`.
    """

    def __init__(self, policy: Policy, dataset_or_length: Any, **options: Any) -> None:
        if options.get("labels") is not None:
            raise ConfigError("a GrowingPruner takes no labels: those of future samples are not known.")
        refuse_budget(policy, "a growing data set has no fixed number of samples")
        self._roster = ActiveIndices(length_of(dataset_or_length))
        kind = ActivePerBatchPolicy if checked_policy(policy).every == "batch" else ActivePolicy
        super().__init__(kind(policy, self._roster), dataset_or_length, **options)
        self._chooser = policy
        self.copied = 0  # values that were moved to grow

    # -- changes -----------------------------------------------------------------------------------------------

    @in_turn
    @torch.inference_mode(False)
    def grow(self, dataset_or_length: Any) -> None:
        """Grow to the new length of the data set. New samples are unseen, so they come first in their pools.

        Calls may be frequent and small: a sample is moved a bounded number of times on average. In a process group
        every rank must call it.

        Args:
            dataset_or_length: The current data set, or its length.
        """
        n = length_of(dataset_or_length)
        if n < self.n:
            raise DatasetError(
                f"the data set must have at least the {self.n} samples it had, it has {n}. Samples keep their indices: "
                "call remove(indices) for samples that are gone, and keep their positions."
            )
        if n == self.n:
            return
        self.sync()
        self._resize(n)

    @in_turn
    def remove(self, indices: Any) -> None:
        """Remove samples: they are not drawn any more. In a process group every rank must call it.

        Args:
            indices: Their indices, or one boolean per sample. Samples that are removed already are allowed.
        """
        if isinstance(self._chooser, Fixed):
            raise ConfigError(
                f"{self._chooser} refers to samples by index, but a policy sees only the remaining samples, "
                "renumbered. Create it with the remaining samples instead."
            )
        gone = np.unique(self._indices(indices))
        if len(gone) and not (gone[0] >= 0 and gone[-1] < self.n):
            raise DatasetError(f"indices must be in [0, {self.n}), got {int(gone[0])} to {int(gone[-1])}.")
        before = self._roster.removed.copy()
        if before.sum() + np.count_nonzero(~before[gone]) == self.n:
            raise DatasetError(f"at least one of the {self.n} samples must remain, got all of them.")
        self._roster.remove(gone)
        try:
            self._manager.check_sizes()
        except Exception:
            self._roster.put_back(before)
            raise

    def _indices(self, given: Any) -> np.ndarray:
        values = np.asarray(given.cpu() if isinstance(given, torch.Tensor) else given).reshape(-1)
        if values.dtype == np.bool_ and len(values) == self.n:
            values = np.flatnonzero(values)
        if len(values) and values.dtype.kind not in "iu":
            raise DatasetError(
                f"indices must be whole numbers, or a True or False for each of the {self.n} samples, got "
                f"{len(values)} of {values.dtype}."
            )
        return values.astype(np.int64)

    @property
    def removed(self) -> torch.Tensor:
        """Indices of the removed samples."""
        return torch.from_numpy(np.flatnonzero(self._roster.removed))

    def _resize(self, n: int) -> None:
        self.copied += self._table.grow(n)
        self._roster.grow(n)
        self.n = n
        self._manager.resize(n)  # all ranks have synced, so they have the same table

    # -- reading -----------------------------------------------------------------------------------------------

    def _there(self) -> torch.Tensor:
        return torch.from_numpy(~self._roster.removed)

    @in_turn
    def report(self) -> dict[str, float]:
        """As `Pruner.report`; samples, coverage and staleness are over the active samples."""
        numbers = super().report()
        there = ~self._roster.removed
        numbers["staleness"] = mean_age(self._table["seen"][there], self.epoch)
        full = self._roster.offered(self._manager.progress.epochs_done)
        numbers["samples"] = self._roster.live
        numbers["coverage"] = float((self._table["usage"][there] > 0).mean())
        numbers["pruned"] = max(0, round(full) - numbers["kept"])
        numbers["saved"] = 1 - numbers["kept"] / full if full else 0.0
        return numbers

    # -- checkpoints -------------------------------------------------------------------------------------------

    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, including the removed samples."""
        return {**super().state_dict(), "roster": self._roster.state_dict()}

    @in_turn
    @torch.inference_mode(False)
    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore the whole state. The data set may have grown since: appended samples are unseen."""
        if not isinstance(state, Mapping):
            raise StateError(
                "a GrowingPruner cannot merge the states of several ranks. Call pruner.sync() on all ranks before "
                "state_dict(), and load one of them."
            )
        try:
            here: dict[str, Any] = on_host(state)
            longer = _lengthened(here, self.n, self._table.declared)
            roster = ActiveIndices.from_state(here["roster"], self.n)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(
                f"the state must come from GrowingPruner.state_dict(), it does not ({error!r})."
            ) from error
        before = self._roster.state_dict()
        self._roster.become(roster)
        try:
            super().load_state_dict({name: part for name, part in longer.items() if name != "roster"})
        except Exception:
            self._roster.become(ActiveIndices.from_state(before, self.n))
            raise


class ActivePolicy(PolicyWrapper):
    """Policy that sees the active samples only, and otherwise behaves as the inner policy.

    Args:
        inner: The policy.
        roster: The active indices.
    """

    def __init__(self, inner: Policy, roster: ActiveIndices) -> None:
        self.policy, self._roster = inner, roster

    def __repr__(self) -> str:
        return describe(self.policy)

    def __getattr__(self, name: str) -> Any:
        if name == "policy" or name.startswith("_"):  # copy and pickle ask before `policy` is set
            raise AttributeError(name)
        return getattr(self.policy, name)

    def size(self, n: int, context: Context) -> int | None:
        """Number of active samples that are kept."""
        return self.policy.size(self._roster.live, self._here(context))

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """Bounds of `size`, if it depends on the losses."""
        return size_bounds(self.policy, self._roster.live, self._here(context))

    def nominal_ratio(self, context: Context) -> float | None:
        """Nominal prune ratio of the inner policy."""
        return nominal_ratio(self.policy, self._roster.live, self._here(context))

    def lr_scale(self, n: int, kept: int) -> float:
        """Learning-rate factor of the inner policy."""
        return self.policy.lr_scale(self._roster.live, kept)

    def offered(self, n: int) -> int:
        """Number of samples to draw from."""
        return self._roster.live

    def on_epoch_start(self, epoch: int) -> None:
        """Store the number of active samples for the epoch that is drawn next."""
        self._roster.note(epoch)

    def select(self, table: Table, context: Context) -> Selection:
        """Select among the active samples."""
        places = self._roster.places()
        shown = table if places is None else ActiveTableView(table, places)
        selection = self.policy.select(shown, self._here(context))
        return selection if places is None else Selection(places[selection.indices], selection.weights)

    def _here(self, context: Context) -> Context:
        return replace(context, n=self._roster.live)


class ActivePerBatchPolicy(ActivePolicy, StepwisePolicy):
    """`ActivePolicy` for a policy that selects at every step."""

    every = "batch"
    policy: StepwisePolicy

    def candidates(self, context: Context) -> np.ndarray:
        """Candidates among the active samples."""
        places, drawn = self._roster.places(), self.policy.candidates(self._here(context))
        candidates: np.ndarray = drawn if places is None else places[drawn]
        return candidates

    def select_from(self, part: np.ndarray, scores: np.ndarray, count: int, context: Context) -> np.ndarray:
        """Selection of the inner policy."""
        picked: np.ndarray = self.policy.select_from(part, scores, count, self._here(context))
        return picked


def _lengthened(state: Mapping[str, Any], n: int, declared: Mapping[str, Any]) -> Mapping[str, Any]:
    """Extend the state of a shorter data set to `n` samples; the appended ones are unseen."""
    old = state.get("n")
    if not isinstance(old, int) or old == n:
        return state
    if old > n:
        raise StateError(
            f"the checkpoint was written for a data set of {old} samples, this one has {n}. Samples keep their "
            "indices: append to the data set, and call remove(indices) for samples that are gone."
        )
    columns = {}
    for name, values in state["table"]["columns"].items():
        columns[name] = torch.full((n,), declared[name].initial, dtype=values.dtype) if name in declared else values
        if name in declared and values.shape == (old,):
            columns[name][:old] = values
    return {**state, "n": n, "table": {**state["table"], "columns": columns}}
