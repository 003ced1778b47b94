"""Where training stands. Only feedback moves it.

Loaders prefetch, frameworks look at a batch before they start, progress bars ask for lengths: none of that is
training, so none of it may move time. A position is counted where losses come back, in samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Clock"]


@dataclass
class Clock:
    """The current epoch and how much of it is done.

    Attributes:
        epoch: The epoch that is open, or the next one where none is.
        trained: Samples of it whose losses have come back; the position from which it is served.
        end: The position at which it ends; None while nobody goes through it.
        cut: How it is cut into batches: samples a batch, and whether a smaller last one is left out; None if unknown.
        step: The most samples whose losses came back at once.
        kept_before: Samples trained on in earlier epochs.
        moved: Whether losses have come back since it was opened or loaded.
        idle_passes: How often it was handed out to its end since then; twice as much where that is certain.
    """

    epoch: int = 0
    trained: int = 0
    end: int | None = None
    cut: tuple[int, bool] | None = None
    step: int = 0
    kept_before: int = 0
    moved: bool = False
    idle_passes: int = 0

    @property
    def epochs_done(self) -> float:
        """Epochs trained, the current one by its share."""
        return self.epoch + (min(1.0, self.trained / self.end) if self.end else 0.0)

    @property
    def kept(self) -> int:
        """Samples trained on so far."""
        return self.kept_before + self.trained

    @property
    def is_remainder(self) -> bool:
        """Whether less is left of a begun epoch than a step takes, for somebody who may leave it out."""
        return self.cut is None and self.end is not None and self.trained > 0 and self.end - self.trained < self.step

    def tick(self, samples: int) -> bool:
        """Counts samples whose losses have come back; says whether that ends the epoch."""
        self.moved = True
        self.step = max(self.step, samples)
        self.trained += samples
        return self.end is not None and self.trained >= self.end

    def next_epoch(self) -> None:
        """Goes on to the start of the next epoch."""
        self.kept_before = self.kept
        self.epoch += 1
        self.trained, self.end = 0, None
        self.moved, self.idle_passes = False, 0

    def state_dict(self) -> dict[str, Any]:
        """Numbers from which the clock can be set again."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Clock:
        """A clock as it was, with nothing trained since."""
        end, cut = state["end"], state.get("cut")
        epoch, trained = int(state["epoch"]), int(state["trained"])
        if epoch < 0 or trained < 0:
            raise ValueError(f"epoch {epoch}, {trained} samples trained")
        return cls(
            epoch=epoch,
            trained=trained,
            end=None if end is None else int(end),
            cut=None if cut is None else (int(cut[0]), bool(cut[1])),
            step=int(state.get("step", 0)),
            kept_before=int(state["kept_before"]),
        )
