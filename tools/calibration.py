"""How often each word of a verdict comes out, by simulation: a comparison of which the truth is known, many times.

    python -m tools.calibration            # prints the tables of docs/guides/compare.md; some minutes
    python -m tools.calibration --trials 200

Each comparison has full data and methods whose true differences to full data are 0, -0.25, -0.5, -1 and +0.75
points, in turn, run with the same seeds. Runs deviate from the mean of their setting by 0.15 points; the seed explains
a sixth of it, as in the published records. Metrics are rounded to whole samples of a test set of 10,000.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np

from orderdp.experiments.intervals import Difference, differences, pooled_spread
from orderdp.experiments.statistics import seeds_to_settle, word

__all__ = ["DESIGNS", "SEEDS", "TRUTHS", "Design", "Rates", "main", "settled", "share", "simulate", "table"]

TRUTHS = (0.0, -0.25, -0.5, -1.0, 0.75)
SEEDS = (2, 3, 5, 10)
_BY_SEED = 0.17
Metrics = np.ndarray[Any, np.dtype[np.float64]]
_STEP = 0.01


@dataclass(frozen=True)
class Design:
    """What is simulated.

    Attributes:
        name: In words.
        spreads: Standard deviation of a run of full data and of each method, in points.
        step: What one test sample changes, in points.
        diverged: Whether a further method ends at chance in one of its runs.
    """

    name: str
    spreads: tuple[float, ...] = (0.15,) * 6
    step: float = _STEP
    diverged: bool = False

    @property
    def truths(self) -> tuple[float, ...]:
        """The true differences of the methods to full data."""
        return tuple(islice(cycle(TRUTHS), len(self.spreads) - 1))


DESIGNS = (
    Design("equal spreads"),
    Design("spreads from 0.1 to 0.3", (0.1, 0.1, 0.15, 0.2, 0.25, 0.3)),
    Design("one method spreads four times as much", (0.15, 0.15, 0.6, 0.15, 0.15, 0.15)),
    Design("full data spread twice as much", (0.3, 0.15, 0.15, 0.15, 0.15, 0.15)),
    Design("four methods, equal spreads", (0.15,) * 5),
    Design("four methods, full data twice as much", (0.3, *(0.15,) * 4)),
    Design("20 methods, equal spreads", (0.15,) * 21),
    Design("20 methods, full data twice as much", (0.3, *(0.15,) * 20)),
    Design("20 methods, one four times as much", (*(0.15,) * 20, 0.6)),
    Design("ties: 200 test samples", step=0.5),
    Design("one run in three of a sixth method diverges", diverged=True),
)


@dataclass(frozen=True)
class Rates:
    """What came out.

    Attributes:
        covered: Share of the comparisons in which all intervals hold the truth.
        wrong: Share of the comparisons with at least one word that is not true.
        words: For each true difference, the share of each word.
    """

    covered: float
    wrong: float
    words: dict[float, dict[str, float]]


def simulate(design: Design, seeds: int, trials: int, seed: int = 0, width: float = 1.0) -> Rates:
    """Run `trials` comparisons of `seeds` seeds each; a `width` other than 1 makes the intervals wrong on purpose."""
    rng = _generator(design, seeds, seed)
    covered = wrong = 0
    found: dict[float, Counter[str]] = {truth: Counter() for truth in design.truths}
    for _ in range(trials):
        said = []
        held = True
        for truth, measured in zip(design.truths, _judged(design, _draw(design, seeds, rng)), strict=False):
            reach = width * measured.reach(seeds)
            result = replace(measured, low=measured.mean - reach, high=measured.mean + reach)
            held &= measured.mean - reach - 1e-9 <= truth <= measured.mean + reach + 1e-9
            said.append((truth, word(result)))
            found[truth][said[-1][1]] += 1
        covered += held
        wrong += not all(_is_true(each, truth) for truth, each in said)
    rates = {truth: {name: count / counts.total() for name, count in counts.items()} for truth, counts in found.items()}
    return Rates(covered / trials, wrong / trials, rates)


def settled(design: Design, seeds: int, trials: int, seed: int = 0, most: int = 100) -> tuple[float, float, int]:
    """Return how often the seeds that a verdict asks for settle it, how often half of them do, and how many asked.

    Verdicts that ask for more than `most` seeds are not tried.
    """
    rng = _generator(design, seeds, seed)
    enough = half = asked = 0
    for _ in range(trials):
        metrics = _draw(design, most, rng)
        for row, measured in enumerate(_judged(design, metrics[:, :seeds])):
            wanted = seeds_to_settle(measured) if word(measured) == "not settled" else None
            if wanted is None or wanted > most:
                continue
            asked += 1
            enough += word(_judged(design, metrics[:, :wanted])[row]) != "not settled"
            halfway = (seeds + wanted) // 2
            half += word(_judged(design, metrics[:, :halfway])[row]) != "not settled"
    return enough / max(asked, 1), half / max(asked, 1), asked


def _generator(design: Design, seeds: int, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, DESIGNS.index(design) if design in DESIGNS else len(DESIGNS), seeds])


def _draw(design: Design, seeds: int, rng: np.random.Generator) -> Metrics:
    """Return final metrics, a row for full data and for each method, a column for each seed."""
    means = 90.0 + np.array((0.0, *design.truths))[:, None]
    common = np.sqrt(_BY_SEED) * rng.standard_normal((1, seeds))
    own = np.sqrt(1 - _BY_SEED) * rng.standard_normal((len(means), seeds))
    metrics = means + np.array(design.spreads)[:, None] * (common + own)
    if design.diverged:
        lost = np.where(rng.random((1, seeds)) < 1 / 3, 10.0, 89.0 + 0.15 * rng.standard_normal((1, seeds)))
        metrics = np.concatenate([metrics, lost])
    return np.asarray(np.round(metrics / design.step) * design.step)


def _judged(design: Design, metrics: Metrics) -> list[Difference]:
    settings = {row: dict(enumerate(values)) for row, values in enumerate(metrics.tolist())}
    spread = pooled_spread(settings, 0, step=design.step)
    found = differences(settings, [(row, 0) for row in range(1, len(settings))], spread)
    return [each for each in found if each is not None]


def _is_true(said: str, truth: float) -> bool:
    """Whether a word holds; at the margin itself, neither "within" nor "by more than" does."""
    if said.startswith("within"):
        return truth > -0.5 and (truth < 0.5 or said.endswith("better"))
    limits = {"worse by more than 0.5": truth < -0.5, "worse": truth < 0, "not settled": True}
    return {**limits, "better": truth > 0, "better by more than 0.5": truth > 0.5}[said]


def table(trials: int, seeds: Sequence[int] = SEEDS, seed: int = 0) -> str:
    """Return the table of the guide: a cell has a share in percent for each number of seeds."""
    heads = ["runs", "all intervals hold the truth", "a wrong word", "0: within", "-0.5: within", "-1: worse"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for design in DESIGNS:
        columns = zip(*(_shares(simulate(design, count, trials, seed)) for count in seeds), strict=True)
        cells = [", ".join("" if share is None else f"{100 * share:.1f}" for share in column) for column in columns]
        cells = ["" if not cell.strip(", ") else cell for cell in cells]
        lines.append(f"| {' | '.join([design.name, *cells])} |")
    return "\n".join(lines)


def _shares(rates: Rates) -> list[float | None]:
    words = [(0.0, "within"), (-0.5, "within"), (-1.0, "worse")]
    named = (share(rates, truth, start) if truth in rates.words else None for truth, start in words)
    return [rates.covered, rates.wrong, *named]


def share(rates: Rates, truth: float, start: str) -> float:
    """Return how often a word came out that begins so, for a method of this true difference."""
    return sum(share for name, share in rates.words.get(truth, {}).items() if name.startswith(start))


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="comparisons for each cell (default: 1000)")
    trials = parser.parse_args(arguments).trials
    print(table(trials))
    for design in DESIGNS[:4]:
        for seeds in (2, 3, 5):
            enough, half, asked = settled(design, seeds, trials // 4)
            print(f"{design.name}, {seeds} seeds: {asked} asked for more, {enough:.0%} settled, {half:.0%} halfway")


if __name__ == "__main__":
    main()
