"""What one epoch hands out, from any position on.

Positions count samples from the start of the epoch. Both kinds can be stored and put back, because a draw depends
on scores that have moved on since and cannot be made again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from orderdp.errors import StateError
from orderdp.policy import Context, Policy, Selection, StepwisePolicy
from orderdp.scores import ScoreTable

__all__ = ["Epoch", "FixedEpoch", "StepwiseEpoch", "restore_epoch", "restore_selection", "selection_state"]


class Epoch(Protocol):
    """One epoch's samples, batch by batch.

    Attributes:
        arrangement: Who put the samples in this order, to tell whether the order must be made anew for somebody
            else; None for an order that came out of a checkpoint and stands as it is.
    """

    arrangement: Hashable | None

    def __len__(self) -> int:
        """How many samples the epoch has in all."""
        ...

    def batch(self, position: int, batch_size: int) -> list[int]:
        """The batch that starts at `position`; empty at the end of the epoch."""
        ...

    def samples(self, start: int, stop: int) -> np.ndarray:
        """What lies between two positions, as far as there is something."""
        ...

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """The position at which batches from `start` on end."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers from which the epoch can be made again."""
        ...


class FixedEpoch:
    """An epoch whose order is known from the start.

    Args:
        order: The samples in visiting order.
        cuts: Where batches end, for batches that somebody else has made; None cuts by size.
        arrangement: Who put them in this order.
    """

    def __init__(self, order: np.ndarray, cuts: np.ndarray | None = None, arrangement: Hashable | None = None) -> None:
        self.order = order
        self.cuts = cuts
        self.arrangement = arrangement

    def __len__(self) -> int:
        return len(self.order)

    def batch(self, position: int, batch_size: int) -> list[int]:
        """The batch that starts at `position`; empty at the end of the epoch."""
        stop = position + batch_size
        if self.cuts is not None:
            later = self.cuts[np.searchsorted(self.cuts, position, side="right") :]
            stop = int(later[0]) if len(later) else position
        indices: list[int] = self.order[position:stop].tolist()
        return indices

    def samples(self, start: int, stop: int) -> np.ndarray:
        """What lies between two positions."""
        return self.order[start:stop]

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """The position at which batches from `start` on end."""
        if drop_last and self.cuts is None:
            return start + (len(self.order) - start) // batch_size * batch_size
        return len(self.order)

    def state_dict(self) -> dict[str, Any]:
        """The order and the cuts."""
        return {
            "kind": "fixed",
            "order": torch.tensor(self.order),
            "cuts": None if self.cuts is None else torch.tensor(self.cuts),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> FixedEpoch:
        """The epoch that `state` describes, checked against the number of samples."""
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


class StepwiseEpoch:
    """An epoch whose steps choose when their turn comes, each among its own share of the candidates.

    The candidates are cut into as many shares as there are steps, in proportion to what the steps train on; so
    nothing repeats and the epoch trains on exactly `q` samples. What has been chosen stays chosen: a loader that
    fetches ahead, a second look and a resumed run all get the same batch.

    Args:
        policy: Who chooses.
        table: Where the scores are.
        context: The epoch's context.
        q: How many samples the epoch trains on.
        batch_size: Samples a step.
        drop_last: Whether to leave out a last, smaller step.
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
        """The batch that starts at `position`; empty at the end of the epoch."""
        indices: list[int] = self.samples(position, position + batch_size).tolist()
        return indices

    def samples(self, start: int, stop: int) -> np.ndarray:
        """What lies between two positions, chosen if it has not been yet."""
        stop = min(stop, self._total)
        while self._n_chosen < stop:
            self._choose()
        return self._chosen[start:stop]

    def freeze(self, scores: np.ndarray) -> None:
        """Lets all later choices go by these scores.

        Processes that choose together must know the same. Little is lost: a candidate's score does not change before
        its turn, unless somebody observes it.
        """
        if self._frozen is None:
            self._frozen = scores

    def end(self, start: int, batch_size: int, drop_last: bool) -> int:
        """The position at which batches from `start` on end."""
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
        self._chosen[start:stop] = self._policy.pick(part, scores, stop - start, self._context)
        self._n_chosen = stop

    def state_dict(self) -> dict[str, Any]:
        """The candidates, and what has been chosen from them so far."""
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
    ) -> StepwiseEpoch:
        """The epoch that `state` describes."""
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


def restore_epoch(state: Mapping[str, Any] | None, policy: Policy, table: ScoreTable, context: Context) -> Epoch | None:
    """The epoch that `state` describes, or None where none was open."""
    if state is None:
        return None
    if state["kind"] == "stepwise" and isinstance(policy, StepwisePolicy):
        return StepwiseEpoch.from_state(state, policy, table, context)
    return FixedEpoch.from_state(state, context.n)


def selection_state(selection: Selection) -> dict[str, Any]:
    """Tensors from which a selection can be made again."""
    weights = selection.weights
    return {
        "indices": torch.tensor(selection.indices),
        "weights": None if weights is None else torch.tensor(weights),
    }


def restore_selection(state: Mapping[str, Any] | None, n: int) -> Selection | None:
    """The selection that `state` describes, or None where there was none."""
    if state is None:
        return None
    weights = state["weights"]
    return Selection(_indices(state["indices"], n), None if weights is None else weights.cpu().numpy().copy())


def _indices(values: Any, n: int) -> np.ndarray:
    """An int64 array out of a checkpoint, every value checked to be in [0, n)."""
    fits = isinstance(values, torch.Tensor) and values.dtype == torch.int64 and values.ndim == 1
    if not fits or (len(values) and not (int(values.min()) >= 0 and int(values.max()) < n)):
        raise StateError(
            f"the checkpoint's draw must hold int64 indices below {n}, got something else. "
            "Use a checkpoint of this data set that was written to its end."
        )
    indices: np.ndarray = values.cpu().numpy().copy()
    return indices
