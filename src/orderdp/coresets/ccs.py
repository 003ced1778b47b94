"""CCS: coverage-centric selection: the hardest are dropped, then every range of scores gets its part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orderdp.coresets.budgets import even_budgets
from orderdp.coresets.el2n import EL2N
from orderdp.coresets.forgetting import Forgetting
from orderdp.coresets.grand import GraNd
from orderdp.coresets.method import Group, Method, ScoreMethod, Task, checked_scores
from orderdp.coresets.needs import Needs
from orderdp.coresets.own_scores import OwnScores
from orderdp.errors import ConfigError
from orderdp.naming import checked_name
from orderdp.planning import check_ratio, is_count
from orderdp.policy import Selection

__all__ = ["CCS", "stratified"]

_SCORES: dict[str, type[ScoreMethod]] = {"el2n": EL2N, "grand": GraNd, "forgetting": Forgetting, "scores": OwnScores}


def stratified(scores: np.ndarray, count: int, drop: float, strata: int, rng: np.random.Generator) -> np.ndarray:
    """The places of `count` samples: without the hardest, evenly over ranges of equal width of the score.

    Args:
        scores: One number for each sample, largest for the hardest; infinite ones count as just above the largest, or
            just below the smallest.
        count: How many.
        drop: Share of the samples, the hardest, that is left out; less where too few would be left.
        strata: Number of ranges. What a range cannot fill is shared among the others.
        rng: Draws within a range, and among equally hard ones.
    """
    finite = scores[np.isfinite(scores)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    scores = np.nan_to_num(scores, posinf=high + 1.0, neginf=low - 1.0)
    order = rng.permutation(len(scores))
    easiest_first = order[np.argsort(scores[order], kind="stable")]
    kept = easiest_first[: max(count, len(scores) - round(drop * len(scores)))]
    low, high = scores[kept[0]], scores[kept[-1]]
    width = (high - low) / strata or 1.0
    stratum = np.minimum(((scores[kept] - low) / width).astype(np.int64), strata - 1)
    given = even_budgets(np.bincount(stratum, minlength=strata), count)
    parts = [rng.choice(kept[stratum == s], given[s], replace=False) for s in range(strata) if given[s]]
    return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class CCS(Method):
    """Drops the hardest share, then keeps equal numbers from ranges of equal width of a score.

    Args:
        score: What is hard: "el2n", "grand", "forgetting", "scores" for those of `Arrays`, or a method with scores.
        drop: Share that is dropped from the hard end.
        strata: Number of ranges.
    """

    score: Any = "el2n"
    drop: float = 0.1
    strata: int = 50
    rating: ScoreMethod = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("drop", self.drop)
        if not is_count(self.strata):
            raise ConfigError(f"strata must be a whole number, at least 1, got {self.strata!r}.")
        rating = _SCORES[checked_name(self.score, _SCORES, "score")]() if isinstance(self.score, str) else self.score
        if not isinstance(rating, ScoreMethod):
            raise ConfigError(f"score must be a name or a method with scores, got {type(rating).__name__}.")
        object.__setattr__(self, "rating", rating)

    @property
    def needs(self) -> Needs:
        """Those of the score."""
        return self.rating.needs

    def choose(self, task: Task) -> Selection:
        """Within each group, in the order of the samples."""
        scores = np.asarray(self.rating.rate(task.source, task.seed))
        checked_scores(scores, task.source.n, type(self.rating).__name__)

        def picks(group: Group) -> np.ndarray:
            return stratified(scores[group.members], group.count, self.drop, self.strata, task.rng(group.name))

        return Selection(np.sort(task.pick(picks).indices))
