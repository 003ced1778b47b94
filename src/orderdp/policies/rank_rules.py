"""Which positions of a pool are kept: the OrderDP family.

A rule sees the scores of a pool, -inf for what is outside it and +inf for what was never seen. Unseen samples come
first whatever the rule: one that keeps the easiest would otherwise never see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from orderdp import draw
from orderdp.errors import ConfigError
from orderdp.planning import check_ratio
from orderdp.policies.kit import tie_key, uniform
from orderdp.policy import Context
from orderdp.theory import rules as theory

__all__ = ["Bottom", "Mixed", "Moving", "RankRule", "Top", "Trimmed", "as_rank_rule", "rule_config"]


@runtime_checkable
class RankRule(Protocol):
    """Chooses q of a pool."""

    def choose(self, pooled: np.ndarray, q: int, context: Context) -> np.ndarray:
        """Indices of the `q` samples kept of the pool. May use the memory of `pooled`."""
        ...

    def positions(self, s: int, q: int, context: Context) -> theory.RankRule:
        """The same rule in the words of the theory, for a pool in which every sample was seen."""
        ...


@dataclass(frozen=True)
class Top:
    """The largest losses."""

    def choose(self, pooled: np.ndarray, q: int, context: Context) -> np.ndarray:
        """The `q` largest."""
        return draw.top_of_pool(pooled, q, tie_key(context))

    def positions(self, s: int, q: int, context: Context) -> theory.RankRule:
        """The first q."""
        return theory.Top(q)


@dataclass(frozen=True)
class Bottom:
    """The smallest losses."""

    def choose(self, pooled: np.ndarray, q: int, context: Context) -> np.ndarray:
        """The `q` smallest; unseen ones before them."""
        np.negative(pooled, out=pooled, where=np.isfinite(pooled))
        return draw.top_of_pool(pooled, q, tie_key(context))

    def positions(self, s: int, q: int, context: Context) -> theory.RankRule:
        """The last q."""
        return theory.Bottom(q)


@dataclass(frozen=True)
class Trimmed:
    """The largest losses after a share of the pool's very largest, which may be wrong labels.

    Args:
        share: Share of the pool that is skipped, in [0, 1).
    """

    share: float

    def __post_init__(self) -> None:
        check_ratio("share", self.share)

    def choose(self, pooled: np.ndarray, q: int, context: Context) -> np.ndarray:
        """The `q` largest of what is left; unseen ones before them."""
        seen = np.where(np.isposinf(pooled), np.float32(-np.inf), pooled)
        in_pool, n_seen = int((pooled > -np.inf).sum()), int((seen > -np.inf).sum())
        skip = min(round(self.share * n_seen), in_pool - q)
        if skip > 0:
            pooled[draw.top_of_pool(seen, skip, tie_key(context))] = -np.inf
        return draw.top_of_pool(pooled, q, tie_key(context))

    def positions(self, s: int, q: int, context: Context) -> theory.RankRule:
        """The q after those skipped."""
        return theory.Trimmed(min(round(self.share * s), s - q), q)


@dataclass(frozen=True)
class Mixed:
    """Some of the largest losses, and some drawn uniformly from the rest of the pool.

    Args:
        top: Share of what is kept that goes by loss.
        uniform: Share that is drawn; the two add up to 1.
    """

    _: KW_ONLY
    top: float
    uniform: float

    def __post_init__(self) -> None:
        check_ratio("top", self.top, one_allowed=True)
        check_ratio("uniform", self.uniform, one_allowed=True)
        if abs(self.top + self.uniform - 1) > 1e-9:
            raise ConfigError(f"top and uniform must add up to 1, got {self.top} and {self.uniform}.")

    def choose(self, pooled: np.ndarray, q: int, context: Context) -> np.ndarray:
        """The largest, and some of the others."""
        by_loss = round(self.top * q)
        best = draw.top_of_pool(pooled, by_loss, tie_key(context)) if by_loss else np.empty(0, dtype=np.int64)
        pooled[best] = -np.inf
        drawn = uniform(np.flatnonzero(pooled > -np.inf), q - by_loss, context, "mixed")
        return np.sort(np.concatenate((best, drawn)))

    def positions(self, s: int, q: int, context: Context) -> theory.RankRule:
        """The first of them, and some of the rest."""
        by_loss = round(self.top * q)
        return theory.Mixed(by_loss, q - by_loss)


@dataclass(frozen=True)
class Moving:
    """Hard samples early, easier ones late: a mix whose share by loss goes from `start` to `end` over training.

    Args:
        start: Share of what is kept that goes by loss in the first epoch.
        end: The same in the last.
    """

    start: float = 1.0
    end: float = 0.5

    def __post_init__(self) -> None:
        check_ratio("start", self.start, one_allowed=True)
        check_ratio("end", self.end, one_allowed=True)

    def at(self, context: Context) -> Mixed:
        """The mix of this epoch."""
        if context.epochs is None:
            raise ConfigError("a rule that moves needs to know how long training is. Give Pruner(..., epochs=...).")
        done = context.epoch / max(1, context.epochs - 1)
        top = self.start + (self.end - self.start) * min(1.0, done)
        return Mixed(top=top, uniform=1 - top)

    def choose(self, pooled: np.ndarray, q: int, context: Context) -> np.ndarray:
        """As the mix of this epoch."""
        return self.at(context).choose(pooled, q, context)

    def positions(self, s: int, q: int, context: Context) -> theory.RankRule:
        """As the mix of this epoch."""
        return self.at(context).positions(s, q, context)


_RULES: dict[str, type[RankRule]] = {
    "top": Top,
    "bottom": Bottom,
    "trimmed": Trimmed,
    "mixed": Mixed,
    "moving": Moving,
}


def as_rank_rule(select: object) -> RankRule:
    """A rule; or the one that is called "top" or "bottom"; or the one a config file describes.

    >>> as_rank_rule({"name": "trimmed", "share": 0.1})
    Trimmed(share=0.1)
    """
    if isinstance(select, RankRule) and not isinstance(select, type):
        return select
    if isinstance(select, Mapping) and select.get("name") in _RULES:
        parameters = {key: value for key, value in select.items() if key != "name"}
        try:
            return _RULES[select["name"]](**parameters)
        except TypeError as error:
            raise ConfigError(f"the rule {select['name']!r} cannot be made: {error}.") from None
    if select in ("top", "bottom"):
        return _RULES[str(select)]()
    raise ConfigError(
        'select must be "top", "bottom", Trimmed(share), Mixed(top=..., uniform=...) or Moving(start, end), '
        f"got {select!r}."
    )


def rule_config(rule: RankRule) -> str | dict[str, Any]:
    """What `as_rank_rule` needs to make an equal rule, in plain values."""
    for name, kind in _RULES.items():
        if type(rule) is kind:
            parameters = dict(vars(rule))
            return {"name": name, **parameters} if parameters else name
    raise ConfigError(f"{type(rule).__name__} is no rule with a name; there are {', '.join(_RULES)}.")
