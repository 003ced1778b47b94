"""GrowingPruner: a data set to which samples are added, and of which some are removed, during training."""

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
from orderdp.policies.wrappers import refuse_budget
from orderdp.policy import Context, Policy, Selection, Table, describe, nominal_ratio, size_bounds
from orderdp.pruner import Pruner, checked_policy
from orderdp.score_table import mean_age

__all__ = ["ActiveIndices", "ActiveTableView", "GrowingPruner"]


class ActiveIndices:
    """Who is there.

    Args:
        n: Samples in the data set, removed ones included.

    Attributes:
        removed: One flag for each.
        live: How many are there.
    """

    def __init__(self, n: int) -> None:
        self._flags = np.zeros(n, np.bool_)
        self.n = self.live = n
        self._history: list[list[int]] = []  # from which epoch on how many were there

    @property
    def removed(self) -> np.ndarray:
        """One flag for each sample."""
        return self._flags[: self.n]

    def grow(self, n: int) -> None:
        """There are more, `n` in all."""
        if n > len(self._flags):
            larger = np.zeros(max(n, len(self._flags) * 3 // 2), np.bool_)
            larger[: self.n] = self.removed
            self._flags = larger
        self.live += n - self.n
        self.n = n

    def remove(self, gone: np.ndarray) -> None:
        """These are gone."""
        self.removed[gone] = True
        self.live = self.n - int(np.count_nonzero(self.removed))

    def put_back(self, removed: np.ndarray) -> None:
        """Those that are gone are these, and no others."""
        self.removed[:] = removed
        self.live = self.n - int(np.count_nonzero(removed))

    def places(self) -> np.ndarray | None:
        """The indices of those that are there; None for all."""
        return None if self.live == self.n else np.flatnonzero(~self.removed)

    # -- how many there were -----------------------------------------------------------------------------------

    def note(self, epoch: int) -> None:
        """That epoch is drawn from those that are there now."""
        self._history = [entry for entry in self._history if entry[0] < epoch]
        if not self._history or self._history[-1][1] != self.live:
            self._history.append([epoch, self.live])

    def offered(self, epochs: float) -> float:
        """How many samples so many epochs would have trained on, had they left out none."""
        total, last = 0.0, epochs
        for start, live in reversed(self._history):
            total += max(0.0, last - start) * live
            last = min(last, start)
        return total

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """A tensor and plain numbers."""
        gone = torch.from_numpy(np.flatnonzero(self.removed))
        return {"n": self.n, "removed": gone, "history": [list(entry) for entry in self._history]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> ActiveIndices:
        """The roster that `state` describes, for a data set that may have grown to `n` since."""
        gone = state["removed"].cpu().numpy()
        if len(gone) and not (gone.min() >= 0 and gone.max() < n):
            raise StateError(
                f"the checkpoint says that samples beyond the {n} of the data set were removed. Use another."
            )
        roster = cls(n)
        roster.remove(gone)
        roster._history = [[int(epoch), int(live)] for epoch, live in state["history"]]
        return roster

    def take_over(self, other: ActiveIndices) -> None:
        """Becomes as the other is."""
        self._flags, self.n, self.live, self._history = other._flags, other.n, other.live, other._history


class ActiveTableView:
    """A table that shows the rows of the samples that are there.

    Args:
        table: All rows.
        places: Which of them.
    """

    def __init__(self, table: Table, places: np.ndarray) -> None:
        self.n = len(places)
        self._table, self._places = table, places

    def __getitem__(self, name: str) -> np.ndarray:
        """The column called `name`, read-only."""
        values: np.ndarray = self._table[name][self._places]
        values.flags.writeable = False
        return values


class GrowingPruner(Pruner):
    """A `Pruner` whose data set may grow and lose samples; in everything else it is one.

    ::

        pruner = GrowingPruner(orderdp.OrderDP(prune_ratio=0.4), train_set)
        ...
        train_set.append(sample)
        pruner.grow(len(train_set))
        pruner.remove([17, 23])

    Indices stay what they are: new samples get the next ones, and those of removed samples are not given to others.
    Changes hold from the next draw on; an epoch that has begun goes on as it was drawn.

    Args:
        policy: What to train on. It is shown the samples that are there.
        dataset_or_length: The data set as it is now, or how many samples it has.
        **options: Those of `Pruner`, except labels.
    """

    def __init__(self, policy: Policy, dataset_or_length: Any, **options: Any) -> None:
        if options.get("labels") is not None:
            raise ConfigError("a GrowingPruner takes no labels: it would not know those of samples to come.")
        refuse_budget(policy, "a data set that grows has no number of samples to take it of")
        self._roster = ActiveIndices(length_of(dataset_or_length))
        kind = ActivePerBatchPolicy if getattr(checked_policy(policy), "every", "epoch") == "batch" else ActivePolicy
        super().__init__(kind(policy, self._roster), dataset_or_length, **options)
        self._chooser = policy
        self.copied = 0  # values that were moved to make room

    # -- changes -----------------------------------------------------------------------------------------------

    def grow(self, dataset_or_length: Any) -> None:
        """The data set has become longer. New samples are unseen, so they come first in the pools they are drawn into.

        Every call may be small: a sample is moved a bounded number of times on average. In a process group all call it.

        Args:
            dataset_or_length: The data set as it is now, or how many samples it has.
        """
        n = length_of(dataset_or_length)
        if n < self.n:
            raise DatasetError(
                f"the data set must have at least the {self.n} samples it had, it has {n}. Samples keep their indices; "
                "say with remove(indices) which ones are gone, and leave their places as they are."
            )
        if n == self.n:
            return
        self.sync()
        self._resize(n)

    def remove(self, indices: Any) -> None:
        """These samples are gone: they are not drawn any more. In a process group all call it.

        Args:
            indices: Which ones, or a True or False for every sample. Those that are gone already are allowed.
        """
        if isinstance(self._chooser, Fixed):
            raise ConfigError(
                f"{self._chooser} names its samples by their indices, and a policy is shown those that are there, "
                "numbered anew. Leave out of its list what is gone."
            )
        gone = np.unique(self._indices(indices))
        if len(gone) and not (gone[0] >= 0 and gone[-1] < self.n):
            raise DatasetError(f"indices must be in [0, {self.n}), got {int(gone[0])} to {int(gone[-1])}.")
        before = self._roster.removed.copy()
        if before.sum() + np.count_nonzero(~before[gone]) == self.n:
            raise DatasetError(f"at least one of the {self.n} samples must stay, and all would be removed.")
        self._roster.remove(gone)
        try:
            self._timeline.check_sizes()
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
        """The indices of the samples that were removed."""
        return torch.from_numpy(np.flatnonzero(self._roster.removed))

    def _resize(self, n: int) -> None:
        self.copied += self._table.grow(n)
        self._roster.grow(n)
        self.n = self._timeline.n = n
        # What the ranks had agreed on was as long as the table. They know the same, so they agree on what is there now.
        team = self._timeline.team
        tally = team.tally
        team.restored(self._timeline.clock.kept)
        team.tally = tally

    # -- reading -----------------------------------------------------------------------------------------------

    def _there(self) -> torch.Tensor:
        return torch.from_numpy(~self._roster.removed)

    def report(self) -> dict[str, float]:
        """As that of `Pruner`; samples, coverage and staleness are those of the samples that are there."""
        numbers = super().report()
        there = ~self._roster.removed
        numbers["staleness"] = mean_age(self._table["seen"][there], self.epoch)
        full = self._roster.offered(self._timeline.clock.epochs_done)
        numbers["samples"] = self._roster.live
        numbers["coverage"] = float((self._table["usage"][there] > 0).mean())
        numbers["pruned"] = max(0, round(full) - numbers["kept"])
        numbers["saved"] = 1 - numbers["kept"] / full if full else 0.0
        return numbers

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, with what was removed."""
        return {**super().state_dict(), "roster": self._roster.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Puts everything back. The data set may have grown since: what has been appended is unseen."""
        if not isinstance(state, Mapping):
            raise StateError(
                "the states of several ranks cannot be put together here. Call pruner.sync() on all ranks before "
                "state_dict(), and load one of them."
            )
        try:
            here: dict[str, Any] = on_host(state)
            longer = _lengthened(here, self.n, self._table.declared)
            roster = ActiveIndices.from_state(here["roster"], self.n)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"this must be what GrowingPruner.state_dict() gave, it is not ({error!r}).") from error
        before = self._roster.state_dict()
        self._roster.take_over(roster)
        try:
            super().load_state_dict({name: part for name, part in longer.items() if name != "roster"})
        except Exception:
            self._roster.take_over(ActiveIndices.from_state(before, self.n))
            raise


class ActivePolicy:
    """A policy that is shown the samples that are there, and is otherwise the one inside.

    Args:
        inner: The policy.
        roster: Who is there.
    """

    def __init__(self, inner: Policy, roster: ActiveIndices) -> None:
        self._inner, self._roster = inner, roster

    def __repr__(self) -> str:
        return describe(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for before there is anything inside, by copy and pickle
            raise AttributeError(name)
        return getattr(self._inner, name)

    def size(self, n: int, context: Context) -> int | None:
        """How many of the samples that are there."""
        return self._inner.size(self._roster.live, self._here(context))

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        """The same, where it depends on the losses."""
        return size_bounds(self._inner, self._roster.live, self._here(context))

    def nominal_ratio(self, context: Context) -> float | None:
        """What the policy says it leaves out."""
        return nominal_ratio(self._inner, self._roster.live, self._here(context))

    def lr_scale(self, n: int, kept: int) -> float:
        """A factor on the learning rate."""
        own = getattr(self._inner, "lr_scale", None)
        return 1.0 if own is None else float(own(self._roster.live, kept))

    @property
    def offered(self) -> int:
        """How many samples there are to draw from."""
        return self._roster.live

    def on_epoch_start(self, epoch: int) -> None:
        """That epoch is drawn next, and in earnest."""
        self._roster.note(epoch)

    def select(self, table: Table, context: Context) -> Selection:
        """Draws among the samples that are there."""
        places = self._roster.places()
        shown = table if places is None else ActiveTableView(table, places)
        selection = self._inner.select(shown, self._here(context))
        return selection if places is None else Selection(places[selection.indices], selection.weights)

    def _here(self, context: Context) -> Context:
        return replace(context, n=self._roster.live)


class ActivePerBatchPolicy(ActivePolicy):
    """The same for a policy that chooses at every step."""

    every = "batch"

    def candidates(self, context: Context) -> np.ndarray:
        """Candidates among the samples that are there."""
        places, drawn = self._roster.places(), self._inner.candidates(self._here(context))  # type: ignore[attr-defined]
        candidates: np.ndarray = drawn if places is None else places[drawn]
        return candidates

    def select_from(self, part: np.ndarray, scores: np.ndarray, count: int, context: Context) -> np.ndarray:
        """The choice of the policy inside."""
        picked: np.ndarray = self._inner.select_from(part, scores, count, self._here(context))  # type: ignore[attr-defined]
        return picked


def _lengthened(state: Mapping[str, Any], n: int, declared: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of a shorter data set as if what was appended had been there, unseen."""
    old = state.get("n")
    if not isinstance(old, int) or old == n:
        return state
    if old > n:
        raise StateError(
            f"the checkpoint is of a data set of {old} samples, this one has {n}. Samples keep their places: append to "
            "the data set, and say with remove(indices) which ones are gone."
        )
    columns = {}
    for name, values in state["table"]["columns"].items():
        columns[name] = torch.full((n,), declared[name].initial, dtype=values.dtype) if name in declared else values
        if name in declared and values.shape == (old,):
            columns[name][:old] = values
    return {**state, "n": n, "table": {**state["table"], "columns": columns}}
