"""The learning rate as a function of how much of the training is done.

Not of the step: then the same function serves where the number of steps is known in advance, and where a policy decides
by the losses how many there will be and only `Pruner.progress` tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["SCHEDULES", "constant", "cosine", "onecycle", "step"]

# As torch's OneCycleLR has them.
_RISE = 0.3
_FIRST = 25.0
_LAST = 1e4

_STEPS = (0.5, 0.75)
_STEP_FACTOR = 0.1


def onecycle(done: float) -> float:
    """Up to 1 in the first 30 %, then down to almost 0, both along half a cosine."""
    low = 1 / _FIRST
    if done <= _RISE:
        return _half_cosine(low, 1.0, done / _RISE)
    return _half_cosine(1.0, low / _LAST, (done - _RISE) / (1 - _RISE))


def cosine(done: float) -> float:
    """From 1 to 0 along half a cosine."""
    return _half_cosine(1.0, 0.0, done)


def step(done: float) -> float:
    """A tenth after half of the training, and again after three quarters."""
    return _STEP_FACTOR ** sum(done >= place for place in _STEPS)


def constant(done: float) -> float:
    """Always 1."""
    return 1.0


SCHEDULES: dict[str, Callable[[float], float]] = {
    "onecycle": onecycle,
    "cosine": cosine,
    "step": step,
    "constant": constant,
}


def _half_cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, max(0.0, done)))) / 2
