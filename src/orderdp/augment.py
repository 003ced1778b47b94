"""Augmentation by the number of visits: a sample is mirrored on every other visit."""

from __future__ import annotations

from typing import Any

import torch

from orderdp._draw import key64
from orderdp._validation import checked_seed
from orderdp.errors import FeedbackError
from orderdp.pruner import checked_index

__all__ = ["alternate_flip"]


def alternate_flip(index: Any, visits: Any, seed: int = 0) -> torch.Tensor:
    """Return which samples of a batch to mirror, so that each is mirrored on every other visit.

    Whether the first visit is mirrored is a hash of (seed, index); every later visit is the opposite of the one before.
    It counts visits and not epochs: a pruned sample skips epochs, and would otherwise show one side more often.

    ::

        flips = orderdp.alternate_flip(index, pruner.visits(index), seed).to(x.device)
        x = torch.where(flips[:, None, None, None], x.flip(-1), x)
        loss = pruner.update(index, criterion(model(x), y))

    >>> first = alternate_flip([3, 5, 8], [0, 0, 0])
    >>> bool((alternate_flip([3, 5, 8], [1, 2, 3]) == (first ^ torch.tensor([True, False, True]))).all())
    True

    Args:
        index: The samples.
        visits: How often each of them was trained on before: ``pruner.visits(index)``, before `update`.
        seed: Seed of the first visits.

    Returns:
        True for samples to mirror, on the device of `visits`. Does not wait for the device.
    """
    index, visits = checked_index(index), torch.as_tensor(visits)
    if visits.shape != index.shape or visits.is_floating_point():
        raise FeedbackError(
            f"visits must be one whole number for each of the {len(index)} indices, got {visits.dtype} of shape "
            f"{tuple(visits.shape)}. Pass pruner.visits(index)."
        )
    # Non-blocking only to a device: a non-blocking copy to the host may be read before it is complete.
    index = index.to(visits.device, non_blocking=not visits.is_cpu)
    first = _hash(index, key64(checked_seed(seed), "flip")) < 0  # its top bit
    mirrored: torch.Tensor = first ^ (visits & 1).bool()
    return mirrored


def _hash(index: torch.Tensor, key: int) -> torch.Tensor:
    """Return the bits of `orderdp._draw.fair_hash`, on the device of the index; int64 wraps around as uint64 does."""
    h = index * _signed(0x9E3779B97F4A7C15) + _signed(key)
    h = (h ^ _shifted(h, 30)) * _signed(0xBF58476D1CE4E5B9)
    h = (h ^ _shifted(h, 27)) * _signed(0x94D049BB133111EB)
    return h ^ _shifted(h, 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(h: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right with zeros, where torch would fill with the sign bit."""
    return (h >> bits) & ((1 << (64 - bits)) - 1)
