"""How many samples each class or stratum may keep. Always exact in total."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from orderdp.errors import ConfigError
from orderdp.policies.kit import proportional

__all__ = ["Balance", "budgets", "check_balance", "class_members", "even_budgets", "proportional_budgets"]

#: True: each class keeps its share. "equal": each class keeps as many. False: classes do not matter.
Balance: TypeAlias = bool | Literal["equal"]


def check_balance(balanced: Any) -> None:
    """Raises unless `balanced` is one of the three ways to share a budget."""
    if not (isinstance(balanced, bool) or balanced == "equal"):
        raise ConfigError(
            f'balanced must be True (each class keeps its share), "equal" (each class keeps as many) or False, '
            f"got {balanced!r}."
        )


def budgets(labels: np.ndarray, k: int, balanced: Literal[True, "equal"] = True) -> dict[int, int]:
    """How many of each class are kept, `k` in all.

    >>> budgets(np.array([0, 0, 0, 0, 0, 0, 1, 1, 2]), 4)
    {0: 2, 1: 1, 2: 1}
    >>> budgets(np.array([0, 0, 0, 0, 0, 0, 1, 1, 2]), 6, "equal")
    {0: 3, 1: 2, 2: 1}

    Args:
        labels: One class for each sample.
        k: How many are kept in all.
        balanced: True for shares, "equal" for equal numbers; see `proportional_budgets` and `even_budgets`.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    shared = even_budgets(sizes, k) if balanced == "equal" else proportional_budgets(sizes, k)
    return dict(zip(classes.tolist(), shared.tolist(), strict=True))


def class_members(labels: np.ndarray) -> dict[int, np.ndarray]:
    """The samples of each class, ascending. One sort, however many classes there are.

    >>> {label: members.tolist() for label, members in class_members(np.array([2, 0, 2])).items()}
    {0: [1], 2: [0, 2]}
    """
    classes, sizes = np.unique(labels, return_counts=True)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    return dict(zip(classes.tolist(), members, strict=True))


def proportional_budgets(sizes: np.ndarray, k: int) -> np.ndarray:
    """Budgets in proportion to `sizes`, `k` in all, by the rule of `orderdp.policies.kit.proportional`.

    Whole parts first, then the largest remainders; as long as there is one for each, no group goes without. Equal
    remainders go to the larger group, then to the earlier one. A group never gets more than it has.
    """
    sizes = _checked(sizes, k)
    given = np.zeros_like(sizes)
    if k:
        largest_first = np.argsort(-sizes, kind="stable")
        given[largest_first] = proportional(sizes[largest_first], k)
    return given


def even_budgets(sizes: np.ndarray, k: int) -> np.ndarray:
    """Equal budgets, `k` in all; what a small group cannot fill is shared equally among the others.

    Where it does not divide, the larger groups get one more, then the later ones.
    """
    sizes = _checked(sizes, k)
    given = np.zeros_like(sizes)
    open_groups, left = np.lexsort((np.arange(len(sizes)), sizes)), k
    # From the smallest group up: once one can take its equal share, so can all that follow.
    for place, group in enumerate(open_groups):
        given[group] = min(int(sizes[group]), left // (len(sizes) - place))
        left -= int(given[group])
    return given


def _checked(sizes: np.ndarray, k: int) -> np.ndarray:
    sizes = np.asarray(sizes, dtype=np.int64)
    if not 0 <= k <= sizes.sum():
        raise ConfigError(f"a budget must be between 0 and the {int(sizes.sum())} samples there are, got {k}.")
    return sizes
