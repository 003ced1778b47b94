"""Readings: what can be asked about a training at any moment. Asking changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from orderdp.checks import checked_index
from orderdp.errors import ConfigError
from orderdp.graphs import outside_graphs
from orderdp.planning import is_count
from orderdp.policies.learned import learned_threshold
from orderdp.policy import Policy, Selection
from orderdp.scores import ScoreTable
from orderdp.timeline import Timeline

__all__ = ["Readings"]


class Readings:
    """What is known about a training: where it stands, what is remembered about its samples, what has been saved.

    Args:
        policy: What decides what is trained on.
        table: What is remembered.
        timeline: Where training stands.
        epochs: How many epochs are planned, or None.
    """

    def __init__(self, policy: Policy, table: ScoreTable, timeline: Timeline, epochs: int | None) -> None:
        self.n = table.n
        self.policy = policy
        self.epochs = epochs
        self._table = table
        self._timeline = timeline
        self._threshold = learned_threshold(policy)

    # -- where training stands -------------------------------------------------------------------------------

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
        """Share of the planned training that is done, in [0, 1]: of its epochs, or of its samples under a `Budget`."""
        progress = self._timeline.progress
        if progress is None:
            raise ConfigError("progress needs to know how many epochs are planned. Give Pruner(..., epochs=...).")
        return progress

    @property
    def done(self) -> bool:
        """Whether all that was planned has been trained on: the epochs, or the samples under a `Budget`."""
        if self.epochs is None:
            raise ConfigError("done needs to know how many epochs are planned. Give Pruner(..., epochs=...).")
        return self._timeline.done

    def remaining_epochs(self) -> Iterator[int]:
        """The numbers of the epochs that are left, one after the other, until training is `done`.

        The same loop serves a new training, a resumed one, and a `Budget`, whose number of epochs is not known in
        advance. Leaving an epoch early ends it. ::

            for epoch in pruner.remaining_epochs():
                for index, (x, y) in loader:
                    ...
        """
        if self.epochs is None:
            raise ConfigError("remaining_epochs needs to know how many are planned. Give Pruner(..., epochs=...).")
        while not self._timeline.done:
            epoch = self.epoch
            yield epoch
            self._timeline.leave(epoch)

    @property
    def lr_scale(self) -> float:
        """A factor on the learning rate that the policy asks for; 1 for most."""
        scale: Callable[[int, int], float] | None = getattr(self.policy, "lr_scale", None)
        return 1.0 if scale is None else float(scale(self.n, self._timeline.epoch_size()))

    # -- samples ---------------------------------------------------------------------------------------------

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
        if "seen" not in self._table.declared:
            raise ConfigError('a sharded table keeps no epochs, to be small. Use table="replicated" to know them.')
        return torch.tensor(self._table["seen"], dtype=torch.int64)

    @outside_graphs
    def visits(self, index: Any) -> torch.Tensor:
        """How often each sample of a batch was trained on so far, on the device of the losses; nothing is waited for.

        Asked before `update`, these are the visits before this one. Unlike `usage` it does not copy the table, which is
        on the CPU until the first `update`.

        Args:
            index: The indices that came with the batch.
        """
        if "seen" not in self._table.declared:
            raise ConfigError(
                "with a sharded table a process does not know how often the samples of others were trained on. Use "
                'table="replicated" to know the visits of any batch.'
            )
        return self._table.uses_of(checked_index(index))

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
        seen = scores.isfinite() & self._there()
        return torch.where(seen, scores, -torch.inf).topk(min(int(k), int(seen.sum()))).indices + self._table.first

    def _there(self) -> torch.Tensor | bool:
        """Which of the `owned` samples are there."""
        return True

    def _learned(self) -> float:
        scores = self._table["score"]
        return float(np.mean(scores <= self._threshold.at(self._table))) if len(scores) else 0.0

    def report(self) -> dict[str, float]:
        """What has been saved so far, as flat numbers.

        Returns:
            epoch: epochs trained to their end. samples: in the data set. kept, pruned: samples trained on and left
            out so far. nominal_saved: the share the policy leaves out of the current epoch by its own account; the
            middle of what is possible where it gives none. saved: the share really left out so far. weight_min,
            weight_mean, weight_max: the weights of the samples selected last, all 1 for most policies. coverage: share
            of the samples trained on at least once. learned: share of the samples whose last loss is at or below the
            policy's threshold; where it has none, that of a right class with probability 0.9 under cross-entropy.
            staleness: mean age of the seen samples' scores, in epochs.
            nonfinite: losses that were NaN or infinite.
            repeated: samples trained on twice in an epoch because shares were padded. exchanged_bytes: what came in
            when the processes last met. Between their meetings a process knows its own feedback only.

            With ``table="sharded"`` coverage is that of the samples this process holds and there is no staleness, but:
            selection_bytes: what came in for the last selection. moved_picks, moved_bytes: samples that came here to
            be trained on, and what came in for them. returned_bytes: losses of such samples, sent and received.
        """
        clock = self._timeline.clock
        kept, full = clock.kept, self._timeline.full_samples
        return {
            "epoch": self.epoch,
            "samples": self.n,
            "kept": kept,
            "pruned": max(0, round(full) - kept),
            "nominal_saved": self._timeline.nominal_saved(),
            "saved": 1 - kept / full if full else 0.0,
            **self._timeline.selector.weights_used,
            **self._table.summary(self.epoch),
            "learned": self._learned(),
            "nonfinite": self._timeline.complaints.nonfinite + self._table.strays()[0],
            "repeated": self._timeline.repeated,
            **self._timeline.team.traffic,
        }
