"""Augmentation that goes by how often a sample was seen: the mirror image the next time."""

from __future__ import annotations

from typing import Any

import torch

from orderdp._draw import key64
from orderdp._validation import checked_seed
from orderdp.errors import FeedbackError
from orderdp.pruner import checked_index

__all__ = ["alternate_flip"]


def alternate_flip(index: Any, visits: Any, seed: int = 0) -> torch.Tensor:
    """Which samples of a batch to mirror, so that each is mirrored every other time it is trained on.

    Whether a sample's first picture is mirrored is a hash of (seed, index); every later one is the opposite of the one
    before. By visits and not by epochs: a pruned sample sits epochs out, and would see one side more often.

    ::

        flips = orderdp.alternate_flip(index, pruner.visits(index), seed).to(x.device)
        x = torch.where(flips[:, None, None, None], x.flip(-1), x)
        loss = pruner.update(index, criterion(model(x), y))

    >>> first = alternate_flip([3, 5, 8], [0, 0, 0])
    >>> bool((alternate_flip([3, 5, 8], [1, 2, 3]) == (first ^ torch.tensor([True, False, True]))).all())
    True

    Args:
        index: Which samples.
        visits: How often each of them was trained on before: ``pruner.visits(index)``, before `update`.
        seed: Of the first pictures.

    Returns:
        True for what is to be mirrored, on the device of `visits`. Nothing is waited for.
    """
    index, visits = checked_index(index), torch.as_tensor(visits)
    if visits.shape != index.shape or visits.is_floating_point():
        raise FeedbackError(
            f"visits must be one whole number for each of the {len(index)} indices, got {visits.dtype} of shape "
            f"{tuple(visits.shape)}. Pass pruner.visits(index)."
        )
    # Not to the host: a copy that nobody waits for may be read before it is there.
    index = index.to(visits.device, non_blocking=not visits.is_cpu)
    first = _hash(index, key64(checked_seed(seed), "flip")) < 0  # its top bit
    mirrored: torch.Tensor = first ^ (visits & 1).bool()
    return mirrored


def _hash(index: torch.Tensor, key: int) -> torch.Tensor:
    """The bits of `orderdp._draw.fair_hash`, on the device of the index; int64 wraps round as uint64 does."""
    h = index * _signed(0x9E3779B97F4A7C15) + _signed(key)
    h = (h ^ _shifted(h, 30)) * _signed(0xBF58476D1CE4E5B9)
    h = (h ^ _shifted(h, 27)) * _signed(0x94D049BB133111EB)
    return h ^ _shifted(h, 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(h: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted to the right with zeros, where torch would fill up with the sign."""
    return (h >> bits) & ((1 << (64 - bits)) - 1)
