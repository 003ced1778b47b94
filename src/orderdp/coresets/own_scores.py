"""OwnScores: the largest, or smallest, of scores that were made elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from orderdp.coresets.method import ScoreMethod
from orderdp.coresets.needs import Needs
from orderdp.coresets.source import Source
from orderdp.errors import ConfigError

__all__ = ["OwnScores"]


@dataclass(frozen=True, kw_only=True)
class OwnScores(ScoreMethod):
    """Keeps the largest of the scores in `Arrays`.

    Args:
        keep: "largest" or "smallest".
    """

    keep: Literal["largest", "smallest"] = "largest"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep not in ("largest", "smallest"):
            raise ConfigError(f'keep must be "largest" or "smallest", got {self.keep!r}.')

    @property
    def needs(self) -> Needs:
        """Scores."""
        return Needs(scores=True)

    def rate(self, source: Source, seed: int) -> np.ndarray:
        """The scores, turned round where the smallest are kept."""
        return source.scores() if self.keep == "largest" else -source.scores()
