"""Input checks that need neither numpy nor torch, and suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from orderdp.errors import ConfigError

__all__ = [
    "check_batch_size",
    "check_dials",
    "check_ratio",
    "checked_epochs",
    "checked_name",
    "checked_seed",
    "is_count",
    "is_number",
    "stored_count",
    "stored_flag",
    "suggestion",
]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the closest known name, or with all known names; it starts with a space."""
    choices = list(known)
    close = difflib.get_close_matches(name, choices, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" There {'is' if len(choices) == 1 else 'are'} {', '.join(choices) or 'none'}."


def checked_name(name: str, known: Iterable[str], kind: str) -> str:
    """Return the name if it is known, or raise an error that suggests the closest one.

    >>> checked_name("orderpd", ["orderdp", "rs2"], "policy")
    Traceback (most recent call last):
    orderdp.errors.ConfigError: there is no policy 'orderpd'. Did you mean 'orderdp'?
    """
    choices = list(known)
    if name not in choices:
        raise ConfigError(f"there is no {kind} {name!r}.{suggestion(name, choices)}")
    return name


def checked_seed(seed: Any) -> int:
    """Return a seed, or raise an error."""
    if not is_count(seed, least=0):
        raise ConfigError(f"seed must be a whole number, at least 0, got {seed!r}.")
    return int(seed)


def checked_epochs(epochs: Any) -> int | None:
    """Return a number of epochs or None, or raise an error."""
    if epochs is not None and not is_count(epochs):
        raise ConfigError(f"epochs must be a whole number, at least 1, or None, got {epochs!r}.")
    return None if epochs is None else int(epochs)


def is_count(value: Any, least: int = 1) -> bool:
    """Return True if `value` is a whole number, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return int(value) >= least


def stored_count(state: Mapping[str, Any], name: str, *, default: int | None = None, most: int = 2**62) -> int:
    """Return a count from a checkpoint; raise a ValueError unless it is a whole number from 0 to `most`.

    Args:
        state: The part of the checkpoint that holds it.
        name: Its name there.
        default: The value if it is missing; None if it must be there.
        most: The largest possible value.
    """
    value = state[name] if default is None else state.get(name, default)
    if not is_count(value, least=0) or value > most:
        raise ValueError(f"{name} must be a whole number from 0 to {most}, it is {value!r}")
    return int(value)


def stored_flag(state: Mapping[str, Any], name: str, *, default: bool | None = None) -> bool:
    """Return a flag from a checkpoint; raise a ValueError unless it is True or False.

    Args:
        state: The part of the checkpoint that holds it.
        name: Its name there.
        default: The value if it is missing; None if it must be there.
    """
    value = state[name] if default is None else state.get(name, default)
    if value is not True and value is not False:
        raise ValueError(f"{name} must be True or False, it is {value!r}")
    return bool(value)


def check_dials(prune_ratio: Any, exploration: Any, exploitation: Any) -> None:
    """Raise unless a prune ratio, or both of the others, are given, and those given agree."""
    if prune_ratio is not None:
        check_ratio("prune_ratio", prune_ratio)
    _check_dial("exploration", exploration, "the size of the pool as a fraction of the data set, s/n")
    _check_dial("exploitation", exploitation, "the fraction of the pool that is kept, q/s")
    if prune_ratio is None:
        if exploration is None or exploitation is None:
            raise ConfigError(
                f"give prune_ratio, or both exploration and exploitation, got exploration={exploration} and "
                f"exploitation={exploitation}. OrderDP(prune_ratio=0.4) trains on 60 % of the data."
            )
        return
    keep = 1 - prune_ratio
    if exploration is not None and exploitation is not None and abs(exploration * exploitation - keep) > 1e-9:
        raise ConfigError(
            f"prune_ratio={prune_ratio} keeps a fraction of {keep:g}, but exploration={exploration} times "
            f"exploitation={exploitation} keeps {exploration * exploitation:g}. Leave one of the three out."
        )
    for name, dial in (("exploration", exploration), ("exploitation", exploitation)):
        if dial is not None and dial < keep - 1e-9:
            raise ConfigError(
                f"{name} must be at least the kept fraction, {keep:g} at prune_ratio={prune_ratio}, got {dial}. Choose "
                "it larger, or prune more."
            )


def check_ratio(name: str, value: Any, *, zero_allowed: bool = True, one_allowed: bool = False) -> None:
    """Raise unless `value` is a number in [0, 1), or in the interval with the other ends allowed."""
    fits = is_number(value) and 0 <= value <= 1
    if not fits or (value == 0 and not zero_allowed) or (value == 1 and not one_allowed):
        hint = " It is a fraction, not a percentage." if is_number(value) and 1 < value <= 100 else ""
        interval = f"{'[' if zero_allowed else '('}0, 1{']' if one_allowed else ')'}"
        raise ConfigError(f"{name} must be in {interval}, got {value!r}.{hint}")


def _check_dial(name: str, value: Any, meaning: str) -> None:
    if value is not None and (not is_number(value) or not 0 < value <= 1):
        raise ConfigError(f"{name} must be in (0, 1], got {value!r}. It is {meaning}.")


def is_number(value: object) -> bool:
    """Return True if `value` is a number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_batch_size(batch_size: Any) -> int:
    """Return a valid batch size, or raise an error."""
    if not is_count(batch_size):
        raise ConfigError(
            f"batch_size must be a whole number, at least 1, got {batch_size!r}. "
            "For samples one by one use DataLoader(Indexed(dataset), sampler=pruner.sampler, batch_size=None)."
        )
    return int(batch_size)
