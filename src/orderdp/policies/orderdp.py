"""OrderDP: a uniform pool, and of it the samples with the largest last-seen loss."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from orderdp import draw
from orderdp.errors import ConfigError
from orderdp.planning import check_dials, is_count, pool_sizes
from orderdp.policies.kit import shuffled, streams, tie_key
from orderdp.policy import Context, Selection, Table

__all__ = ["OrderDP"]


@dataclass(frozen=True, repr=False)
class OrderDP:
    """Each round draws a uniform pool of s of the n samples and keeps the q with the largest last-seen loss.

    Say how much is pruned, or set the two dials of the method, or say how much is pruned and set one dial:

    >>> OrderDP(prune_ratio=0.4).sizes(50_000)
    (44006, 30000)
    >>> OrderDP(exploration=0.8, exploitation=0.75).sizes(50_000)
    (40000, 30000)
    >>> OrderDP(prune_ratio=0.4, exploration=0.8).sizes(50_000)
    (40000, 30000)

    Args:
        prune_ratio: Share of the data set left out each epoch, in [0, 1). The share kept is exact.
        exploration: Size of the pool as a share of the data set, s/n, in (0, 1]. At 1 the rule is plain top-q.
        exploitation: Share of the pool that is kept, q/s, in (0, 1]. At 1 the rule is plain random.
        every: "epoch" draws once and goes through the kept samples in ordinary batches. "batch" lets every step
            take the next share of the pool and train on its hardest samples, by the scores of that moment.

    With `prune_ratio` alone, exploration is ``(1 - prune_ratio) ** 0.25``: 0.88 at 40 % pruned, 0.84 at 50 %,
    0.74 at 70 %. On Fashion-MNIST and CIFAR-10 pools of that size were as good as any or better, and markedly
    better than small ones, at the same number of samples trained on.
    """

    prune_ratio: float | None = None
    _: KW_ONLY
    exploration: float | None = None
    exploitation: float | None = None
    every: Literal["epoch", "batch"] = "epoch"

    def __post_init__(self) -> None:
        check_dials(self.prune_ratio, self.exploration, self.exploitation)
        if self.every not in ("epoch", "batch"):
            raise ConfigError(f'every must be "epoch" or "batch", got {self.every!r}.')

    def __repr__(self) -> str:
        given = {name: getattr(self, name) for name in ("prune_ratio", "exploration", "exploitation")}
        parts = [f"{name}={float(value)!r}" for name, value in given.items() if value is not None]
        if self.every != "epoch":
            parts.append(f"every={self.every!r}")
        return f"OrderDP({', '.join(parts)})"

    @property
    def needs_feedback(self) -> bool:
        """Whether a draw depends on the losses: not where the whole pool is kept."""
        return not (self.prune_ratio == 0 or self.exploitation == 1)

    def sizes(self, n: int) -> tuple[int, int]:
        """The size s of the pool and the number q kept of it, out of `n` samples."""
        if not is_count(n):
            raise ConfigError(f"n must be a whole number of samples, at least 1, got {n!r}.")
        s, q = pool_sizes(int(n), self.prune_ratio, self.exploration, self.exploitation)
        if q < 1:
            raise ConfigError(f"{self} keeps {q} of {n} samples; at least one must be left. Prune less.")
        if not q <= s <= n:
            raise ConfigError(
                f"{self} would keep {q} out of a pool of {s} of {n} samples; it must be q <= s <= n. "
                "Choose a larger exploration or prune more."
            )
        return s, q

    def size(self, n: int, context: Context) -> int:
        """How many of `n` samples an epoch trains on."""
        return self.sizes(n)[1]

    def select(self, table: Table, context: Context) -> Selection:
        """Draws a pool, keeps its largest scores, shuffles them."""
        s, q = self.sizes(context.n)
        if s == q:  # the whole pool is kept, whatever its scores
            return Selection(self.candidates(context))
        kept = draw.top_of_pool(draw.pool_scores(table["score"], s, streams(context)), q, tie_key(context))
        return Selection(shuffled(kept, context))

    def candidates(self, context: Context) -> np.ndarray:
        """The pool in random order."""
        s, _ = self.sizes(context.n)
        return shuffled(np.flatnonzero(draw.pool_mask(context.n, s, streams(context))), context)

    def pick(self, part: np.ndarray, scores: np.ndarray, count: int, context: Context) -> np.ndarray:
        """The `count` largest scores of one step's share of the pool."""
        return draw.top_of_part(part, scores, count, tie_key(context))
