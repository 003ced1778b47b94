"""GeneralizationPruning: leaves out the set whose joint removal would move the parameters least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderdp.coresets.influence import check_influence, parameter_influence
from orderdp.coresets.method import Method, Task
from orderdp.coresets.needs import Needs
from orderdp.errors import ConfigError
from orderdp.planning import is_count
from orderdp.policy import Selection

__all__ = ["GeneralizationPruning", "anneal"]


def anneal(
    vectors: np.ndarray, removed: list[np.ndarray], kept: list[np.ndarray], moves: int, rng: np.random.Generator
) -> float:
    """Exchanges samples between `removed` and `kept`, in place, until the sum over the removed ones is short.

    Simulated annealing of the squared norm: an exchange within a group that shortens the sum is made, one that
    lengthens it with probability exp(-growth / temperature). The temperature falls from the mean growth of the
    first exchanges to a millionth of it. Ends at the best set that was met; returns its squared norm.

    Args:
        vectors: One row for each sample.
        removed: For each group the samples left out.
        kept: For each group the others.
        moves: How many exchanges are tried.
        rng: Proposes and accepts.
    """
    total = sum((vectors[group].sum(0, dtype=np.float64) for group in removed), np.zeros(vectors.shape[1]))
    value = best = float(total @ total)
    movable = np.array([len(r) * len(k) > 0 for r, k in zip(removed, kept, strict=True)])
    if moves == 0 or not movable.any():
        return value
    sizes = np.where(movable, [len(r) for r in removed], 0)
    groups = rng.choice(len(removed), moves, p=sizes / sizes.sum())
    draws, chances = rng.random((moves, 2)), -np.log(rng.random(moves))
    hot, undone = _typical_growth(vectors, removed, kept, total, groups, draws), []
    for move in range(moves):
        out, rest = removed[groups[move]], kept[groups[move]]
        i, j = int(draws[move, 0] * len(out)), int(draws[move, 1] * len(rest))
        difference = vectors[rest[j]].astype(np.float64) - vectors[out[i]]
        growth = float(difference @ (2 * total + difference))
        if growth < chances[move] * hot * 1e-6 ** (move / moves):
            total += difference
            value += growth
            out[i], rest[j] = rest[j], out[i]
            undone.append((groups[move], i, j))
            if value < best:
                best, undone = value, []
    for group, i, j in reversed(undone):
        removed[group][i], kept[group][j] = kept[group][j], removed[group][i]
    return best


def _typical_growth(
    vectors: np.ndarray,
    removed: list[np.ndarray],
    kept: list[np.ndarray],
    total: np.ndarray,
    groups: np.ndarray,
    draws: np.ndarray,
) -> float:
    growths = []
    for group, (first, second) in zip(groups[:200], draws[:200], strict=True):
        out, rest = removed[group], kept[group]
        difference = vectors[rest[int(second * len(rest))]] - vectors[out[int(first * len(out))]]
        growths.append(abs(float(difference @ (2 * total + difference))))
    return float(np.mean(growths))


@dataclass(frozen=True, kw_only=True)
class GeneralizationPruning(Method):
    """Removes the samples whose summed parameter influence is shortest, by simulated annealing.

    Args:
        damping: What is added to the diagonal of the Hessian.
        probes: How many random projections stand for a gradient that has more numbers than that.
        moves: How many exchanges the annealing tries.
    """

    damping: float = 0.01
    probes: int = 128
    moves: int = 200_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_influence(self.damping, self.probes)
        if not is_count(self.moves, least=0):
            raise ConfigError(f"moves must be a whole number, at least 0, got {self.moves!r}.")

    @property
    def needs(self) -> Needs:
        """Features and logits."""
        return Needs(features=True, logits=True, labels=True)

    def choose(self, task: Task) -> Selection:
        """Starts with the shortest vectors of each group out, and anneals over all groups together."""
        vectors = parameter_influence(task.source, self.damping, self.probes, task.rng("probes"))
        lengths = np.linalg.norm(vectors, axis=1)
        removed, kept = [], []
        for group in task.groups:
            order = group.members[np.argsort(lengths[group.members], kind="stable")]
            leave = len(order) - group.count
            removed.append(order[:leave])
            kept.append(order[leave:])
        # Classes that keep nothing are removed too: part of the sum, though nothing of them can be exchanged.
        removed.append(np.setdiff1d(np.arange(task.source.n), np.concatenate([*removed, *kept])))
        kept.append(np.empty(0, dtype=np.int64))
        anneal(vectors, removed, kept, self.moves, task.rng("anneal"))
        return Selection(np.sort(np.concatenate(kept)))
