"""What the published pruning code does, written plainly: the other side of the draw and update benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def draw(scores: np.ndarray, s: int, q: int, counts: np.ndarray | None) -> np.ndarray:
    """A pool without replacement, its `q` largest scores, one count for each of them, a shuffle.

    Args:
        scores: One for each sample.
        s: Size of the pool.
        q: How many of it are kept.
        counts: How often each sample was kept, counted one by one; None leaves the counting out.
    """
    pool = np.random.choice(len(scores), s, replace=False)
    kept = pool[torch.topk(torch.from_numpy(scores[pool]), q).indices.numpy()]
    if counts is not None:
        for index in kept:
            counts[index] += 1
    np.random.shuffle(kept)
    return kept


def update(weights: torch.Tensor, scores: torch.Tensor, index: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
    """Gathers the batch's weights, writes its losses to a table on the CPU, returns the weighted mean."""
    batch_weights = weights[index].to(losses.device)
    remembered = losses.detach().clone()
    scores[index.cpu()] = remembered.cpu()
    return (losses * batch_weights).mean()


@contextmanager
def global_numpy_state_kept() -> Iterator[None]:
    """Puts numpy's global generator, which the published draw uses, back as it was."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
