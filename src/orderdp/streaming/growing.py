"""GrowingPruner: a data set to which samples are added, and from which some are removed, during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from orderdp.checkpoint import on_host
from orderdp.dataset import length_of
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.policies.baselines import Fixed
from orderdp.policies.wrappers import ActiveIndices, ActivePerBatchPolicy, ActivePolicy, refuse_budget
from orderdp.policy import Policy
from orderdp.pruner import Pruner, between_steps, checked_gone, checked_policy
from orderdp.score_table import mean_age

__all__ = ["ActiveIndices", "GrowingPruner"]


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

    @between_steps
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

    @between_steps
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
        before = self._roster.removed.copy()
        self._roster.remove(checked_gone(indices, before))
        try:
            self._manager.check_sizes()
        except Exception:
            self._roster.put_back(before)
            raise

    @property
    def removed(self) -> torch.Tensor:
        """Indices of the removed samples."""
        return torch.from_numpy(np.flatnonzero(self._roster.removed))

    def _resize(self, n: int) -> None:
        self.copied += self._table.grow(n)
        self._roster.grow(n)
        if self._handed_out == self.n:
            self._handed_out = n
        self.n = n
        self._manager.resize(n)  # all ranks have synced, so they have the same table

    def reset(self, seed: int | None = None) -> None:
        """As `Pruner.reset`; removed samples are back, and added ones stay."""
        super().reset(seed)
        self._roster.become(ActiveIndices(self.n))

    def exclude(self, index: Any) -> None:
        """As `remove`."""
        self.remove(index)

    @property
    def excluded(self) -> torch.Tensor:
        """As `removed`."""
        return self.removed

    # -- reading -----------------------------------------------------------------------------------------------

    def _there(self) -> torch.Tensor:
        return torch.from_numpy(~self._roster.removed)

    @between_steps
    def report(self) -> dict[str, float]:
        """As `Pruner.report`; samples, coverage and staleness are over the active samples."""
        numbers = super().report()
        there = ~self._roster.removed
        numbers["staleness"] = mean_age(self._table["seen"][there], self.epoch)
        full = self._roster.offered(self._manager.progress.epochs_done) + self._manager.extra_samples
        numbers["samples"] = self._roster.live
        numbers["coverage"] = float((self._table["usage"][there] > 0).mean())
        numbers["pruned"] = max(0, round(full) - numbers["kept"])
        numbers["saved"] = 1 - numbers["kept"] / full if full else 0.0
        return numbers

    # -- checkpoints -------------------------------------------------------------------------------------------

    @between_steps
    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, including the removed samples."""
        return {**super().state_dict(), "roster": self._roster.state_dict()}

    @between_steps
    @torch.inference_mode(False)
    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        policy: Literal["same", "replace"] = "same",
    ) -> None:
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
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(
                f"the state must come from GrowingPruner.state_dict(), it does not ({error!r})."
            ) from error
        before = self._roster.state_dict()
        self._roster.become(roster)
        try:
            super().load_state_dict({name: part for name, part in longer.items() if name != "roster"}, policy=policy)
        except Exception:
            self._roster.become(ActiveIndices.from_state(before, self.n))
            raise


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
