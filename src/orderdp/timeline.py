"""Timeline: which epoch is current, what it holds, and when the next one begins.

Until losses have come back, everybody who goes through the data is served the same draw from where it stands; after
that, whoever starts again starts the next epoch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from orderdp.clock import Clock
from orderdp.epochs import Epoch, StepwiseEpoch, restore_epoch, restore_selection, selection_state
from orderdp.errors import (
    ConfigError,
    IndexRangeError,
    NoFeedbackWarning,
    NonFiniteLossError,
    NonFiniteLossWarning,
    RealRatioWarning,
)
from orderdp.policy import Context, Policy, Selection, StepwisePolicy, describe, nominal_ratio, size_bounds
from orderdp.sampling import Serving, View
from orderdp.scores import ScoreTable

__all__ = ["Timeline"]

# A real ratio this far from the nominal one is worth a remark.
_NOTICEABLE = 0.005


def _refuse_several_processes() -> None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise ConfigError(
            f"this version prunes in one process only, and the process group has {distributed.get_world_size()}: each "
            "would see other losses and so draw other samples. Train in one process."
        )


class Timeline:
    """The epochs of one training, one after the other.

    Args:
        policy: Who draws them.
        table: What it draws by.
        seed: The training's seed.
        epochs: How many are planned, or None.
        labels: One class for each sample, or None.
        raise_on_nan: Whether losses that are not finite are an error.
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
    ) -> None:
        self.n = table.n
        self.seed = seed
        self.stepwise = getattr(policy, "every", "epoch") == "batch"
        self.clock = Clock()
        self.weights: torch.Tensor | None = None
        self.weights_used = _spread(None)
        self.nonfinite = 0
        self._policy = policy
        self._table = table
        self._epochs = epochs
        self._labels = labels
        self._raise_on_nan = raise_on_nan
        self._selection: Selection | None = None  # the current epoch's, where it has been drawn
        self._epoch: Epoch | None = None  # the same, arranged in the order of whoever goes through it
        self._warned_idle = False
        self._said_what_is_real = False

    def context(self, epoch: int) -> Context:
        """What the policy may know in that epoch."""
        return Context(n=self.n, epoch=epoch, seed=self.seed, epochs=self._epochs, labels=self._labels)

    def size_bounds(self, epoch: int) -> tuple[int, int]:
        """The fewest and the most samples that epoch can have."""
        return size_bounds(self._policy, self.n, self.context(epoch))

    def nominal_ratio(self, epoch: int) -> float | None:
        """The share that the policy says it leaves out of that epoch; None where it does not say."""
        return nominal_ratio(self._policy, self.n, self.context(epoch))

    # -- going through an epoch --------------------------------------------------------------------------------

    def open(self, view: View) -> Serving:
        """The epoch that is served to somebody who starts going through the data now, and from where."""
        _refuse_several_processes()
        if self._epoch is not None and self._is_over():
            self._next_epoch()
        if self._epoch is None or self._epoch.arrangement not in (None, view.arrangement):
            self._epoch = view.arrange()
            self.clock.idle_passes = 0
        self.clock.end = view.end(self._epoch, self.clock.trained)
        return Serving(self._epoch, self.clock.epoch, self.clock.trained, self.clock.end)

    def handed_out(self, epoch: Epoch, certainly: bool) -> None:
        """Somebody has come to the end of `epoch`.

        Or may have: prefetching workers use up a short epoch when somebody only looks at its first batch. Where a
        loader does not say how far it prefetches, the end is believed when it is reached for the second time.
        """
        if epoch is self._epoch:
            self.clock.idle_passes += 2 if certainly else 1

    def trained_on(self, samples: int) -> None:
        """Losses of so many samples have come back.

        They count only while an epoch is open: a user's own loader, before the first one, makes no progress.
        """
        if self._epoch is not None and self.clock.tick(samples):
            self._next_epoch()

    def _is_over(self) -> bool:
        if self.clock.moved:
            return True
        if self.clock.idle_passes and not getattr(self._policy, "needs_feedback", True):
            return True
        if self.clock.idle_passes >= 2 and not self._warned_idle:
            self._warned_idle = True
            warnings.warn(
                "an epoch was used up and no loss came back, so the same samples are served again. Call "
                "loss = pruner.update(index, losses) in every step.",
                NoFeedbackWarning,
                stacklevel=2,
            )
        return False

    def _next_epoch(self) -> None:
        self._table.settle()
        self.clock.next_epoch()
        self._epoch, self._selection = None, None

    # -- what an epoch holds -----------------------------------------------------------------------------------

    def select(self) -> Selection:
        """The current epoch's selection; drawn the first time it is asked for."""
        if self._selection is None:
            self._hear_complaints()
            self._selection = self._policy.select(self._table, self.context(self.clock.epoch))
            self.weights = self._selection.dense_weights(self.n)
            self.weights_used = _spread(self._selection.weights)
            self._say_what_is_real(len(self._selection))
        return self._selection

    def _say_what_is_real(self, kept: int) -> None:
        """Once: that a policy leaves out another share than it was asked to. In the first epoch nothing is known."""
        nominal = self.nominal_ratio(self.clock.epoch)
        real = 1 - kept / self.n
        if self._said_what_is_real or self.clock.epoch == 0 or nominal is None or abs(real - nominal) <= _NOTICEABLE:
            return
        self._said_what_is_real = True
        warnings.warn(
            f"{describe(self._policy)} leaves out {real:.1%} of the samples in epoch {self.clock.epoch}, not the "
            f"nominal {nominal:.1%}: how much it can leave out depends on the losses. Pruner.report() "
            "has what is really saved.",
            RealRatioWarning,
            stacklevel=2,
        )

    def step_by_step(self, batch_size: int, drop_last: bool) -> Epoch:
        """The current epoch, with a choice at every step."""
        self._hear_complaints()
        assert isinstance(self._policy, StepwisePolicy)
        context = self.context(self.clock.epoch)
        return StepwiseEpoch(self._policy, self._table, context, self.epoch_size(), batch_size, drop_last)

    def epoch_size(self) -> int:
        """Samples in the whole epoch that is being served, or would be served next."""
        size = self._policy.size(self.n, self.context(self.clock.epoch))
        if size is not None:
            return size
        return len(self.select() if self._epoch is None else self._epoch)

    def arranged_size(self, view: View) -> int | None:
        """Samples in the current epoch as `view` goes through it; None where it has not begun to."""
        if self._epoch is None or self._epoch.arrangement not in (None, view.arrangement):
            return None
        return len(self._epoch)

    def _hear_complaints(self) -> None:
        """Once an epoch: says what the steps have only counted."""
        self._table.make_room(self.clock.epoch)
        nonfinite, outside = self._table.strays()
        self._table.forget_strays()
        self.nonfinite += nonfinite
        if outside:
            raise IndexRangeError(
                f"indices must be in [0, {self.n}), the length of the data set; {outside} of the last epoch were not, "
                "and their losses were ignored. Pass the index that came with the batch, unchanged."
            )
        if not nonfinite:
            return
        message = (
            f"{nonfinite} losses of the last epoch were NaN or infinite; their samples keep the scores they had. "
            "Look at the learning rate and at the data."
        )
        if self._raise_on_nan:
            raise NonFiniteLossError(message + ' With on_nan="warn" training goes on.')
        warnings.warn(message, NonFiniteLossWarning, stacklevel=2)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values from which the timeline can be put back."""
        # An epoch holds its order; the selection is needed beside it only for its weights.
        drawn = self._selection if self._epoch is None or self.weights is not None else None
        return {
            "seed": self.seed,
            "clock": self.clock.state_dict(),
            "nonfinite": self.nonfinite,
            "selection": None if drawn is None else selection_state(drawn),
            "epoch": None if self._epoch is None else self._epoch.state_dict(),
        }

    def restorer(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Reads and checks `state` and returns what puts it in place, so that nothing is half restored."""
        clock, seed, nonfinite = Clock.from_state(state["clock"]), int(state["seed"]), int(state["nonfinite"])
        context = Context(self.n, clock.epoch, seed, self._epochs, self._labels)
        selection = restore_selection(state["selection"], self.n)
        epoch = restore_epoch(state["epoch"], self._policy, self._table, context)

        def restore() -> None:
            self.clock, self.seed, self.nonfinite = clock, seed, nonfinite
            self._selection, self._epoch = selection, epoch
            self.weights = None if selection is None else selection.dense_weights(self.n)
            self.weights_used = _spread(None if selection is None else selection.weights)

        return restore


def _spread(weights: np.ndarray | None) -> dict[str, float]:
    """The smallest, the mean and the largest weight of a selection."""
    if weights is None or len(weights) == 0:
        return {"weight_min": 1.0, "weight_mean": 1.0, "weight_max": 1.0}
    smallest, mean, largest = weights.min(), weights.mean(dtype=np.float64), weights.max()
    return {"weight_min": float(smallest), "weight_mean": float(mean), "weight_max": float(largest)}
