"""Input checks of the theory functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from orderdp._validation import is_count
from orderdp.errors import ConfigError

__all__ = ["check_design", "checked_losses", "checked_positive", "checked_steps"]


def check_design(n: Any, s: Any, q: Any) -> None:
    """Raise unless n, s, q are whole numbers with 1 <= q <= s <= n."""
    if not (is_count(n) and is_count(s) and is_count(q) and q <= s <= n):
        raise ConfigError(f"n, s, q must be whole numbers with 1 <= q <= s <= n, got n={n!r}, s={s!r}, q={q!r}.")


def checked_losses(losses: Any) -> np.ndarray:
    """Return losses as a flat float64 array; tensors are recognized by duck typing."""
    # Numpy has no bfloat16.
    values = losses.detach().cpu().double().numpy() if hasattr(losses, "detach") else losses
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ConfigError(f"losses must be one number for each sample, got shape {array.shape}.")
    wrong = int(np.count_nonzero(~np.isfinite(array)))
    if wrong:
        raise ConfigError(f"losses must be finite, got {wrong} of {array.size} that are NaN or infinite.")
    return array


def checked_positive(name: str, value: Any, *, zero_allowed: bool = False) -> float:
    """Return a finite number above 0 (or 0), or raise an error."""
    fits = isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < 0 or (value == 0 and not zero_allowed):
        raise ConfigError(f"{name} must be {'at least' if zero_allowed else 'above'} 0, got {value!r}.")
    return float(value)


def checked_steps(step_sizes: Any) -> np.ndarray:
    """Return step sizes as a flat array of positive numbers, or raise an error."""
    array = np.asarray(step_sizes, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ConfigError(f"step sizes must be a list of at least one number, got shape {array.shape}.")
    if not (np.isfinite(array).all() and (array > 0).all()):
        bad = array[~(np.isfinite(array) & (array > 0))]
        raise ConfigError(f"step sizes must be above 0 and finite, got {float(bad[0])} ({bad.size} of {array.size}).")
    return array
