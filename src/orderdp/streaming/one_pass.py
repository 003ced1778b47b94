"""OnePass: data that are seen once; the hardest of every window of candidates are trained on."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import default_collate

from orderdp._draw import key64, top_of_part
from orderdp._validation import checked_seed, is_count, stored_count, stored_flag
from orderdp.errors import ConfigError, DatasetError, FeedbackError, StateError

__all__ = ["OnePass", "TopK"]


_Item = TypeVar("_Item")


class TopK(Generic[_Item]):
    """Keep the `q` candidates with the largest scores, in memory for `q` candidates.

    A candidate that is too easy costs one comparison; a candidate that is kept costs O(log q), or one comparison for
    q = 1. Ties are broken fairly, by a hash of the order of arrival. NaN is never among the largest.

    >>> heap = TopK(2)
    >>> for item, score in (("a", 0.3), ("b", 2.0), ("c", 0.9), ("d", 0.1)):
    ...     heap.push(item, score)
    >>> heap.drain()
    ['b', 'c']

    Args:
        q: How many to keep.
        seed: Seed for ties.
    """

    def __init__(self, q: int, seed: int = 0) -> None:
        if not is_count(q):
            raise ConfigError(f"q must be a whole number of samples, at least 1, got {q!r}.")
        self.q = int(q)
        self.seed = checked_seed(seed)
        self.pushed = 0  # since the heap was made
        self._entries: list[tuple[float, int, int, _Item]] = []  # the easiest first

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, item: _Item, score: float) -> None:
        """Add the candidate `item` with this `score`."""
        self.pushed += 1
        if math.isnan(score):
            score = -math.inf
        if len(self._entries) == self.q and score < self._entries[0][0]:
            return
        # The order of arrival is unique, so that items themselves are never compared.
        entry = (score, key64(self.seed, "tie", self.pushed), self.pushed, item)
        if len(self._entries) < self.q:
            heapq.heappush(self._entries, entry)
        elif entry > self._entries[0]:
            heapq.heapreplace(self._entries, entry)

    def drain(self) -> list[_Item]:
        """Return the kept items, hardest first, and empty the heap."""
        entries, self._entries = sorted(self._entries, reverse=True), []
        return [item for *_, item in entries]


_FORMAT = "orderdp.OnePass"


class OnePass:
    """Score windows of `window` candidates and yield the `keep` hardest of each as a batch.

    ::

        batches = OnePass(samples, lambda batch: criterion(model(batch[0]), batch[1]), window=128, keep=32)
        for x, y in batches:
            loss = criterion(model(x), y).mean()

    This is Algorithm 1 of the paper with current scores: it costs one forward pass of the whole window, without
    gradients, and saves the rest of the step for candidates that are not kept. It can be iterated again if the stream
    can.

    Args:
        stream: Single samples: any iterable, for example a DataLoader with ``batch_size=None``.
        score: Maps a collated window to one number per candidate, larger for those to train on. Called without
            gradients.
        window: Candidates per window, s.
        keep: Candidates per window that are trained on, q.
        collate: Builds a batch from a list of samples.
        drop_last: Whether to drop candidates that do not fill a window. Otherwise the same fraction of them is kept,
            rounded.
        seed: Seed for ties.
    """

    def __init__(
        self,
        stream: Iterable[Any],
        score: Callable[[Any], torch.Tensor],
        *,
        window: int,
        keep: int,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        if not is_count(window) or not is_count(keep) or keep > window:
            raise ConfigError(
                f"window and keep must be whole numbers with 1 <= keep <= window, got window={window!r} and "
                f"keep={keep!r}."
            )
        self.window, self.keep = int(window), int(keep)
        self._stream, self._score = stream, score
        self._collate = collate or default_collate
        self._drop_last = bool(drop_last)
        self._seed = checked_seed(seed)
        self.offered = self.kept = 0
        self._loaded = False  # whether the next pass resumes a loaded one
        self._to_skip = 0
        self._over = False  # whether the pass has ended

    def __iter__(self) -> Iterator[Any]:
        """Yield batches of the hardest samples.

        A batch counts as trained on when it is yielded: save a checkpoint after its step, not before.
        """
        candidates = iter(self._stream)
        skipped = sum(1 for _ in islice(candidates, self._to_skip))
        if skipped < self._to_skip:
            raise StateError(
                f"the checkpoint was written after {self._to_skip} samples of the stream, but the stream has "
                f"{skipped}. Resume with the same stream; if the stream continues by itself, use "
                "load_state_dict(state, skip=False)."
            )
        if not self._loaded:
            self.offered = self.kept = 0
        self._loaded, self._to_skip, self._over = False, 0, False
        while part := list(islice(candidates, self.window)):
            if len(part) < self.window and not self.offered:
                raise DatasetError(
                    f"the stream must have at least a window of {self.window} samples, it ended after {len(part)}. "
                    "Choose a smaller window."
                )
            count = self._share(len(part))
            places = self._hardest(part, count) if count else []
            self.offered += len(part)
            self.kept += count
            if count:
                yield self._collate([part[place] for place in places])
        self._over = True

    def _share(self, candidates: int) -> int:
        if candidates == self.window:
            return self.keep
        return 0 if self._drop_last else round(self.keep * candidates / self.window)

    def _hardest(self, part: list[Any], count: int) -> list[int]:
        """Positions of the hardest candidates, in order of arrival."""
        with torch.no_grad():
            scores = self._score(self._collate(part))
        if not isinstance(scores, torch.Tensor) or scores.shape != (len(part),):
            came = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise FeedbackError(
                f"score must return a tensor with one number for each of the {len(part)} candidates, it returned "
                f'{came}. Compute the losses with reduction="none".'
            )
        values = scores.detach().to("cpu", torch.float64).numpy()
        ranked = np.where(np.isnan(values), -np.inf, values)
        # The key depends on the window too: otherwise the same positions would win all ties of a training.
        places = top_of_part(np.arange(len(part)), ranked, count, key64(self._seed, "window", self.offered))
        listed: list[int] = places.tolist()
        return listed

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of samples offered and kept, and whether the pass has ended, as plain values."""
        counts = {"offered": self.offered, "kept": self.kept, "over": self._over}
        return {"format": _FORMAT, **counts, "window": self.window, "keep": self.keep}

    def load_state_dict(self, state: Mapping[str, Any], *, skip: bool = True) -> None:
        """Resume after the windows that had been yielded; after a whole pass, with the next one.

        Args:
            state: Result of `state_dict`.
            skip: Whether to skip the samples already offered; False if the stream resumes by itself.
        """
        wanted = {"format": _FORMAT, "window": self.window, "keep": self.keep}
        if not isinstance(state, Mapping) or any(state.get(name) != value for name, value in wanted.items()):
            raise StateError(f"the checkpoint must come from a OnePass with window={self.window} and keep={self.keep}.")
        try:
            offered = stored_count(state, "offered")
            kept, over = stored_count(state, "kept", most=offered), stored_flag(state, "over", default=False)
        except (LookupError, ValueError) as error:
            raise StateError(f"the checkpoint is damaged ({error!r}). Use another one.") from error
        self.offered, self.kept, self._over = offered, kept, over
        self._loaded = not self._over
        self._to_skip = self.offered if skip and self._loaded else 0
