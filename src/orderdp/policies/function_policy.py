"""FunctionPolicy and Fixed: a policy in five minutes, and a selection that was made beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from orderdp.errors import ConfigError
from orderdp.policies.kit import shuffled
from orderdp.policy import Context, Selection, Table

__all__ = ["Fixed", "FunctionPolicy"]


@dataclass(frozen=True)
class FunctionPolicy:
    """A policy made of one function that says which samples to keep.

    >>> import numpy as np
    >>> hard_half = FunctionPolicy(lambda scores, context: np.argsort(-scores)[: len(scores) // 2])
    >>> hard_half.select({"score": np.array([1.0, 4.0, 2.0, 3.0])}, Context(n=4, epoch=0)).indices.size
    2

    Args:
        choose: Takes the scores (+inf for unseen) and the context; returns indices, or a mask of True and False.
        name: What checkpoints call it: give it another name when the function changes.
    """

    choose: Callable[[np.ndarray, Context], Any] = field(repr=False)
    _: KW_ONLY
    name: str = "function"

    def __post_init__(self) -> None:
        if not callable(self.choose):
            raise ConfigError(f"choose must be a function of scores and context, got {type(self.choose).__name__}.")

    def size(self, n: int, context: Context) -> None:
        """Nobody knows before it is called."""
        return

    def select(self, table: Table, context: Context) -> Selection:
        """What the function chooses, in a random order."""
        chosen = np.asarray(self.choose(table["score"], context))
        if chosen.dtype == np.bool_:
            if chosen.shape != (context.n,):
                raise ConfigError(
                    f"a mask must have a True or False for each of the {context.n} samples, got shape {chosen.shape}."
                )
            chosen = np.flatnonzero(chosen)
        return Selection(shuffled(_checked(chosen, context.n, "the function").copy(), context))


@dataclass(frozen=True, eq=False)
class Fixed:
    """The same selection every epoch, in a new order each time.

    Args:
        selection: A `Selection` or a list of indices.
    """

    selection: Selection | Any = field(repr=False)

    needs_feedback = False

    def __post_init__(self) -> None:
        if not isinstance(self.selection, Selection):
            given = np.asarray(self.selection)
            if given.size and given.dtype.kind not in "iu":
                raise ConfigError(
                    f"a fixed selection must be a list of indices, got {given.dtype}. "
                    "For a mask of True and False pass np.flatnonzero(mask)."
                )
            object.__setattr__(self, "selection", Selection(given.astype(np.int64)))
        if len(self.selection) == 0:
            raise ConfigError("a fixed selection must hold at least one index, got none.")

    def __repr__(self) -> str:
        # A digest, so that a checkpoint can tell two selections of the same size apart.
        order, weights = np.argsort(self.selection.indices), self.selection.weights
        digest = blake2b(self.selection.indices[order].astype("<i8").tobytes(), digest_size=8)
        if weights is not None:
            digest.update(weights[order].astype("<f4").tobytes())
        return f"Fixed({len(self.selection)} samples, {digest.hexdigest()})"

    def size(self, n: int, context: Context) -> int:
        """As many as were selected."""
        _checked(self.selection.indices, n, "a fixed selection")
        return len(self.selection)

    def select(self, table: Table, context: Context) -> Selection:
        """The selection in a random order, its weights with it."""
        places = shuffled(np.arange(len(self.selection)), context)
        weights = self.selection.weights
        return Selection(self.selection.indices[places], None if weights is None else weights[places])


def _checked(indices: np.ndarray, n: int, who: str) -> np.ndarray:
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ConfigError(f"{who} must give a flat list of indices, got {indices.dtype} of shape {indices.shape}.")
    if indices.size == 0 or indices.min() < 0 or indices.max() >= n or len(np.unique(indices)) != indices.size:
        raise ConfigError(f"{who} must give at least one index, each in [0, {n}) and none twice.")
    return indices.astype(np.int64)
