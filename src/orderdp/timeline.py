"""Timeline: which epoch is current, what it holds, and when the next one begins.

Until losses have come back, everybody who goes through the data is served the same draw from where it stands; after
that, whoever starts again starts the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orderdp.clock import Clock
from orderdp.complaints import Complaints
from orderdp.epochs import Epoch, FixedEpoch, StepwiseEpoch, restore_epoch, restore_selection, selection_state
from orderdp.errors import ConfigError, StateError
from orderdp.origin import whole_state
from orderdp.policy import Context, Policy, Selection, StepwisePolicy, describe, nominal_ratio, size_bounds
from orderdp.sampling import Serving, View
from orderdp.scores import ScoreTable
from orderdp.selecting import Selector
from orderdp.team import Team, TeamOptions

if TYPE_CHECKING:
    from orderdp.distributed.meeting import Decision, Meeting
    from orderdp.distributed.share import Share
    from orderdp.distributed.standing import Standing

__all__ = ["Timeline"]


class Timeline:
    """The epochs of one training, one after the other.

    Args:
        policy: Who draws them.
        table: What it draws by.
        seed: The training's seed.
        epochs: How many are planned, or None.
        labels: One class for each sample, or None.
        raise_on_nan: Whether losses that are not finite are an error.
        options: How it works together with other processes.
        team: Those processes, where it is not the usual way.
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
        options: TeamOptions | None = None,
        team: Team | None = None,
    ) -> None:
        self.n = table.n
        self.seed = seed
        self.stepwise = getattr(policy, "every", "epoch") == "batch"
        self.clock = Clock()
        self.complaints = Complaints(policy, table, raise_on_nan)
        self.selector = Selector(policy, table, epochs, labels, self.complaints)
        self._policy = policy
        self._table = table
        self._epochs = epochs
        self._epoch: Epoch | None = None  # the open one, in the order of whoever goes through it
        self._rewound = False  # whether somebody else skips what has been trained on of the open epoch
        self.team = team or Team(policy, table, epochs, labels, raise_on_nan, options or TeamOptions())
        self._share: Share | None = None  # of the open epoch, for this process
        self._world = 1  # how many processes go through the open epoch
        self._repeated_before = 0

    def context(self, epoch: int) -> Context:
        """What the policy may know in that epoch."""
        return self.selector.context(epoch, self.seed, self.clock.kept_before)

    def size_bounds(self, epoch: int) -> tuple[int, int]:
        """The fewest and the most samples that epoch can have."""
        return size_bounds(self._policy, self.n, self.context(epoch))

    def check_sizes(self) -> None:
        """Raises what the policy has against one of the epochs that are left: now, and not when it begins."""
        for epoch in range(self.clock.epoch, self._epochs or self.clock.epoch + 1):
            self.size_bounds(epoch)

    def nominal_ratio(self, epoch: int) -> float | None:
        """The share that the policy says it leaves out of that epoch; None where it does not say."""
        return nominal_ratio(self._policy, self.selector.offered, self.context(epoch))

    def nominal_saved(self) -> float:
        """The share that the policy says it leaves out of the current epoch; where it does not say, the middle."""
        epoch = self._planned()
        n = self.selector.offered
        nominal = self.nominal_ratio(epoch)
        return 1 - sum(self.size_bounds(epoch)) / (2 * n) if nominal is None else nominal

    def _planned(self) -> int:
        """The current epoch, or the last: policies and schedules need not know what comes after it."""
        if self._epochs is None or self.selector.total is not None:
            return self.clock.epoch
        return min(self.clock.epoch, self._epochs - 1)

    # -- how much there is in all ------------------------------------------------------------------------------

    @property
    def total(self) -> int | None:
        """Samples that the whole training is trained on, where a budget decides when it is over; else None.

        Where smaller batches are left out, it is what full steps make of the budget; where processes take equal
        shares, what goes round.
        """
        total = self.selector.total
        if total is None:
            return None
        batch_size, drop_last = self.clock.cut or (1, False)
        return total - total % self.team.smallest_step(batch_size, drop_last)

    @property
    def progress(self) -> float | None:
        """Share of the planned training that is done, in [0, 1]; None where nothing was planned."""
        total = self.total
        if total is not None:
            return min(1.0, self.clock.kept / total) if total else 1.0
        return None if self._epochs is None else min(1.0, self.clock.epochs_done / self._epochs)

    @property
    def done(self) -> bool:
        """Whether all that was planned has been trained on."""
        total = self.total
        if total is not None:
            return self.clock.kept >= total
        return self._epochs is not None and self.epoch >= self._epochs

    @property
    def full_samples(self) -> float:
        """Samples that training on all data would have been trained on until now."""
        total = self.total
        if total is None or self._epochs is None:
            return self.clock.epochs_done * self.n
        return self._epochs * self.n * min(1.0, self.clock.kept / total) if total else 0.0

    # -- going through an epoch --------------------------------------------------------------------------------

    def open(self, view: View) -> Serving:
        """The epoch that is served to somebody who starts going through the data now, and from where."""
        meeting = self.team.meeting(self.clock.kept)
        if meeting is None:
            self.team.goes_on_alone()
            view.check()
            if self._wanted(view) > self.clock.epoch:
                self._next_epoch()
            if not self._is_spent(view):
                self._arrange(view)
        else:
            self._open_together(view, meeting)
        if self._epoch is None:  # the budget is spent
            return Serving(FixedEpoch(np.empty(0, dtype=np.int64)), self.clock.epoch, 0, 0)
        self._share, start = self.team.share(), self._start
        self.clock.end, self.clock.cut = view.end(self._epoch, start), view.cut
        self._world = 1 if meeting is None or meeting.exchange is None else meeting.exchange.world
        self.team.tally.opened(self.clock.trained)
        return Serving(self._epoch, self.clock.epoch, start, self.clock.end, self._share)

    @property
    def epoch(self) -> int:
        """The epoch that whoever starts now goes through.

        Right after a checkpoint was loaded, less may be left of the open one than there are processes, or than they
        take in a step: then it is the next, and a loop over the epochs that are left must know.
        """
        if self._epoch is None or not self.clock.trained or self.clock.moved or self._rewound:
            return self.clock.epoch
        if isinstance(self._epoch, StepwiseEpoch):  # goes on in the steps it was begun with, or not at all
            left = len(self._epoch) - self.clock.trained
            return self.clock.epoch + (self.team.share_of(left) == 0)
        end = self.team.end_of(self._epoch, self.clock.trained, *(self.clock.cut or (1, False)))
        return self.clock.epoch + self._ends_at(end)

    def _is_spent(self, view: View) -> bool:
        """Whether nothing is left of a budget, or less than makes a step."""
        if self._epoch is not None or self.selector.total is None:
            return False
        self.clock.cut = view.cut
        if not self.clock.kept:
            self._check_shortest(view)
        return self.done

    def _check_shortest(self, view: View) -> None:
        """Raises, before anything is trained, where an epoch may become smaller than a step that is left out then."""
        if view.cut is None or not view.cut[1]:
            return
        step, (fewest, _) = self.team.step_size(view.cut[0]), self.size_bounds(0)
        if 1 < fewest < step:  # 1 is what policies have that do not say
            raise ConfigError(
                f"under {describe(self._policy)} an epoch may have {fewest} samples, fewer than the {step} of a step, "
                "and smaller steps are left out. Choose a smaller batch_size, refresh more, or set drop_last=False."
            )

    @property
    def _start(self) -> int:
        """The position from which the open epoch is served."""
        return 0 if self._rewound else self.clock.trained

    def rewind(self) -> None:
        """Serves the open epoch from its start until it is over; what has been trained on stays counted."""
        if self.clock.moved:
            raise StateError(
                f"rewind() belongs between load_state_dict() and the first step, and {self.clock.trained} samples of "
                f"epoch {self.clock.epoch} have been trained on here. Leave it out if nothing was loaded."
            )
        self._rewound = True

    def end_epoch(self) -> None:
        """The open epoch is over, though not all of it has been trained on. One that has not begun stays."""
        if self._epoch is not None and self.clock.trained:
            self._over()

    def leave(self, epoch: int) -> None:
        """A loop over epochs goes on to the next one, whether or not all of this one was trained on."""
        if self.epoch != epoch or self.done:
            return
        if self.clock.moved:
            self.end_epoch()
        elif self.clock.idle_passes and not getattr(self._policy, "needs_feedback", True):
            self._over()
        else:
            raise StateError(
                f"epoch {epoch} has passed and no loss came back, so the loop would never end. Call "
                "loss = pruner.update(index, losses) in every step."
            )

    def _over(self) -> None:
        """Nothing more of the open epoch is trained on."""
        self._next_epoch()
        if self.team.exchange() is None:  # processes complain together, when the next epoch begins
            self.complaints.hear()

    def _wanted(self, view: View) -> int:
        """The number of the epoch that is to be served: the open one, or the next."""
        over = self._epoch is not None and (self._is_over() or self._nothing_left(self._epoch, view))
        return self.clock.epoch + over

    def _nothing_left(self, epoch: Epoch, view: View) -> bool:
        # Of a resumed epoch there may be less left than there are processes, or than makes a batch.
        if not self.clock.trained or not self._ends_at(view.end(epoch, self._start)):
            return False
        # Where batches were of another size before, a loop that counts by `epoch` still counts this one: it is then
        # served once, with nothing in it.
        return self._rewound or self.epoch > self.clock.epoch or self.clock.idle_passes > 0

    def _ends_at(self, end: int) -> bool:
        """Whether somebody for whom the open epoch has this end gets nothing more of it."""
        return self.clock.trained >= end

    def _arrange(self, view: View) -> None:
        if self._epoch is None or self._epoch.arrangement not in (None, view.arrangement):
            self._epoch = view.arrange()
            self.clock.idle_passes = 0

    def handed_out(self, epoch: Epoch, certainly: bool) -> None:
        """Somebody has come to the end of `epoch`.

        Or may have: prefetching workers use up a short epoch when somebody only looks at its first batch. Where a
        loader does not say how far it prefetches, the end is believed when it is reached for the second time.
        """
        if epoch is self._epoch:
            self.clock.idle_passes += 2 if certainly else 1

    def ran_dry(self, epoch: Epoch) -> None:
        """Somebody wanted more of `epoch` than there is."""
        if epoch is self._epoch:
            self.team.tally.ran_dry = True

    def trained_on(self, samples: int) -> None:
        """Losses of so many samples have come back.

        They count only while an epoch is open: a user's own loader, before the first one, makes no progress.
        """
        if self._epoch is None:
            return
        if self._epochs is not None and self.clock.epoch >= self._epochs and self.selector.total is None:
            self.complaints.say_beyond(self._epochs)
        self.team.tally.came_back(samples)
        # All processes are at the same step, so each knows how far they are together.
        if self.clock.tick(samples * self._world):
            self._over()

    def _is_over(self) -> bool:
        if self.clock.moved:
            return True
        if self.clock.idle_passes and not getattr(self._policy, "needs_feedback", True):
            return True
        if self.clock.idle_passes and self.clock.is_remainder:
            return True
        if self.clock.idle_passes >= 2:
            self.complaints.say_idle()
        return False

    def _next_epoch(self) -> None:
        self._table.settle()
        self._repeated_before = self.repeated
        self.clock.next_epoch()
        self.selector.forget()
        self._epoch, self._rewound = None, False

    # -- together with other processes -------------------------------------------------------------------------

    def sync(self) -> None:
        """Exchanges what the processes have learnt, now. A collective."""
        meeting = self.team.meeting(self.clock.kept)
        if meeting is not None:
            self._follow(meeting.decide(True, self.clock.epoch, self.seed, self._standing))

    def _open_together(self, view: View, meeting: Meeting) -> None:
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
        if isinstance(self._epoch, StepwiseEpoch):
            self._epoch.freeze(meeting.agreed_scores())
        if self.team.sharded and view.end(self._epoch, self._start) <= self._start == 0:
            raise ConfigError(
                f"an epoch of {len(self._epoch)} samples is too small to give every process a batch. Prune less, use "
                "fewer processes or smaller batches, set drop_last=False, or fill up with Pruner(..., pad=True)."
            )

    def _standing(self) -> Standing:
        from orderdp.distributed.standing import Standing

        return Standing.now(self.clock, self.team.tally, is_open=self._epoch is not None)

    def _standing_before(self, view: View) -> Standing:
        from orderdp.distributed.standing import Standing

        view.check()
        wanted = self._wanted(view)
        return Standing.before(wanted, view, self._epoch, self.clock, self.team.tally, rewound=self._rewound)

    def _follow(self, decision: Decision) -> None:
        if decision.epoch > self.clock.epoch:
            self._next_epoch()
        if decision.kept is not None:
            self.team.tally.fed = 0
            self.clock.trained = decision.trained
            self.clock.kept_before = decision.kept - decision.trained

    def _drawn(self, view: View) -> int:
        from orderdp.distributed.header import digest

        self._arrange(view)
        assert self._epoch is not None
        parts = [value.numpy() for value in self._epoch.state_dict().values() if isinstance(value, torch.Tensor)]
        selection = self.selector.current
        if selection is not None and selection.weights is not None:
            parts.append(selection.weights)
        return digest(*(part.tobytes() for part in parts))

    @property
    def repeated(self) -> int:
        """Samples that were trained on twice in an epoch, to fill up shares."""
        pads = self._epoch is not None and self._share is not None and self._share.pad
        return self._repeated_before + (max(0, self.clock.trained - len(self._epoch or ())) if pads else 0)

    # -- what an epoch holds -----------------------------------------------------------------------------------

    def select(self) -> Selection:
        """The current epoch's selection; drawn the first time it is asked for."""
        return self.selector.select(self.context(self.clock.epoch))

    def preview(self) -> Selection:
        """The open epoch's selection, or what the next one would be if it were drawn now. Keeps nothing of it."""
        if self.selector.current is None and isinstance(self._epoch, FixedEpoch):
            return Selection(self._epoch.order)  # out of a checkpoint; one with weights would have its selection
        return self.selector.preview(self.context(self.clock.epoch))

    def as_drawn(self, arrangement: Hashable) -> Epoch:
        """The current epoch in the order in which it was drawn."""
        return FixedEpoch(self.select().indices, arrangement=arrangement)

    def step_by_step(self, batch_size: int, drop_last: bool) -> Epoch:
        """The current epoch, with a choice at every step."""
        self.selector.prepare(self.clock.epoch)
        assert isinstance(self._policy, StepwisePolicy)
        context = self.context(self.clock.epoch)
        size = self._policy.size(self.n, context)
        together = self.team.step_size(batch_size)
        size = len(self.select()) if size is None else size
        return StepwiseEpoch(self._policy, self._table, context, size, together, drop_last)

    def epoch_size(self) -> int:
        """Samples in the whole epoch that is being served, or would be if it were drawn now."""
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
        """Whether a draw that depends on losses needs what other processes know."""
        return self.team.exchange() is not None

    def is_in_batches(self, view: View) -> bool:
        """Whether the current epoch, as `view` goes through it, was cut into batches by somebody else."""
        return self.arranged_size(view) is not None and getattr(self._epoch, "cuts", None) is not None

    def arranged_size(self, view: View) -> int | None:
        """Samples in the current epoch as `view` goes through it; None where it has not begun to."""
        if self._epoch is None or self._epoch.arrangement not in (None, view.arrangement):
            return None
        return len(self._epoch)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values from which the timeline can be put back."""
        # An epoch holds its order; the selection is needed beside it only for its weights.
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
        """One state of a pruner, out of one or out of the parts of all processes, each of the right kind."""
        return whole_state(state, self._table.declared)

    def restorer(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Reads and checks `state` and returns what puts it in place, so that nothing is half restored."""
        clock, seed, nonfinite = Clock.from_state(state["clock"]), int(state["seed"]), int(state["nonfinite"])
        repeated = int(state.get("repeated", 0))
        context = self.selector.context(clock.epoch, seed)
        selection = restore_selection(state["selection"], self.n)
        epoch = restore_epoch(state["epoch"], self._policy, self._table, context)

        def restore() -> None:
            self.clock, self.seed, self.complaints.nonfinite = clock, seed, nonfinite
            self.selector.keep(selection)
            self._epoch, self._rewound = epoch, False
            self._repeated_before, self._share = repeated, None
            self.team.restored(clock.kept)

        return restore
