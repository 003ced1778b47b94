"""Statistics of a comparison: final metrics, differences with intervals, measured costs, and verdicts."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from orderdp.errors import ConfigError
from orderdp.experiments.config import BEFORE, Settings
from orderdp.experiments.intervals import Difference, Spread, differences, pooled_spread
from orderdp.experiments.records import Run

__all__ = [
    "MARGIN",
    "SAME_COST",
    "TASK_FIELDS",
    "Difference",
    "Metric",
    "Row",
    "between",
    "check_margin",
    "compare",
    "more_seeds",
    "seeds_to_settle",
    "spread_of",
    "verdict",
    "word",
]


MARGIN = 0.5
"""The default margin: points of a metric in percent; for other units, percent of full data's metric."""


_ROUNDING = 1e-9  # 92.1 - 92.2 is a little below -0.1


_MOST_SEEDS = 100


_LIKELY = 0.8
"""How likely the number of seeds that is named settles a verdict."""


_MOST_TESTED = 1_000_000


@dataclass(frozen=True)
class Metric:
    """What a metric is.

    Attributes:
        name: Its name.
        unit: Its unit, "%" for a share of the test samples; empty if it has none.
        higher_is_better: Its direction.
        digits: How many digits after the point are shown.
    """

    name: str = "accuracy"
    unit: str = "%"
    higher_is_better: bool = True
    digits: int = 2

    @property
    def titled(self) -> str:
        """The name with the unit, which is set apart from the name.

        >>> Metric().titled, Metric("within 0.1").titled, Metric("RMSE", "K").titled, Metric("perplexity", "").titled
        ('accuracy %', 'within 0.1 (%)', 'RMSE (K)', 'perplexity')
        """
        if not self.unit:
            return self.name
        return f"{self.name} %" if self.unit == "%" and self.name[-1:].isalpha() else f"{self.name} ({self.unit})"

    def amount(self, size: float, form: str = "g") -> str:
        """Return an amount of the metric in words: points for percent, else with the unit.

        >>> Metric().amount(0.5), Metric("RMSE", "K").amount(0.02), Metric("perplexity", "").amount(0.1)
        ('0.5 points', '0.02 K', '0.1')
        """
        return f"{size:{form}} {'points' if self.unit == '%' else self.unit}".strip()

    def written(self, value: float, sign: str = "") -> str:
        """Return a value with its digits.

        >>> Metric().written(89.5), Metric().written(0.071, "+"), Metric("RMSE", "K", digits=4).written(0.012345)
        ('89.50', '+0.07', '0.0123')
        """
        return f"{value:{sign}.{self.digits}f}"

    def interval(self, difference: Difference) -> str:
        """Return the interval of a difference in words."""
        if difference.low is None or difference.high is None:
            return "one seed, no interval" if difference.pairs == 1 else "no interval"
        return f"{self.written(difference.low)} to {self.written(difference.high)}"


ACCURACY = Metric()


def check_margin(margin: float | None) -> None:
    """Raise if the margin is no positive number."""
    if margin is not None and not (margin > 0 and math.isfinite(margin)):
        raise ConfigError(f"--margin must be a number above 0, got {margin}. It is in the unit of the metric.")


def word(difference: Difference, margin: float = MARGIN, metric: Metric = ACCURACY) -> str:
    """Return the verdict on a difference to full data, without its numbers.

    >>> word(Difference(mean=-0.07, low=-0.42, high=0.28, pairs=3))
    'within 0.5 points of full data'
    >>> word(Difference(mean=-0.44, low=-0.79, high=-0.09, pairs=3))
    'worse'
    """
    if difference.low is None or difference.high is None:
        return "one seed, no interval" if difference.pairs == 1 else "no interval"
    low, high = difference.low, difference.high
    if not metric.higher_is_better:
        low, high = -high, -low
    size = f"{margin:g}"
    if high < -margin - _ROUNDING:
        return f"worse by more than {size}"
    if low > margin + _ROUNDING:
        return f"better by more than {size}"
    within = f"within {metric.amount(margin)} of full data"
    if low >= -margin - _ROUNDING:
        if high <= margin + _ROUNDING:
            return within
        return "better" if low > _ROUNDING else f"{within}, or better"
    return "worse" if high < -_ROUNDING else "not settled"


def verdict(difference: Difference, margin: float = MARGIN, metric: Metric = ACCURACY) -> str:
    """Return the verdict on a difference to full data, with its numbers where the word alone says too little.

    >>> verdict(Difference(mean=-0.07, low=-0.42, high=0.28, pairs=3))
    'within 0.5 points of full data'
    >>> verdict(Difference(mean=-2.31, low=-3.33, high=-1.29, pairs=3))
    'worse by more than 0.5'
    >>> verdict(Difference(mean=-0.44, low=-0.79, high=-0.09, pairs=3))
    'worse: -0.44 (-0.79 to -0.09)'
    >>> verdict(Difference(mean=-0.27, low=-0.62, high=0.08, pairs=3))
    'not settled: -0.27 (-0.62 to 0.08)'
    >>> verdict(Difference(mean=0.44, low=0.09, high=0.79, pairs=3))
    'better: +0.44 (0.09 to 0.79)'
    >>> verdict(Difference(mean=-0.3, low=None, high=None, pairs=1))
    'one seed, no interval: -0.30'
    """
    found = word(difference, margin, metric)
    estimate = metric.written(difference.mean, "+")
    if difference.low is None:
        return f"{found}: {estimate}"
    if found in ("worse", "better", "not settled"):
        found = f"{found}: {estimate} ({metric.interval(difference)})"
    return found + more_seeds(difference, margin, metric)


def more_seeds(difference: Difference, margin: float = MARGIN, metric: Metric = ACCURACY) -> str:
    """Return how many seeds would settle a verdict that is not settled, in words; '' for one that is."""
    if difference.deviation is None or word(difference, margin, metric) != "not settled":
        return ""
    found = seeds_to_settle(difference, margin, metric)
    return f"; {_MOST_SEEDS} seeds would not settle it" if found is None else f"; about {found} seeds would settle it"


def seeds_to_settle(difference: Difference, margin: float = MARGIN, metric: Metric = ACCURACY) -> int | None:
    """Return with how many seeds in all a verdict is settled in four cases of five; None if 100 are too few.

    What further seeds do to the estimate is drawn from what the present ones say: with N seeds in place of n it has
    moved by a normal number of variance ``deviation**2 * (1 / n - 1 / N)``. The deviation of a setting that is left out
    of the pool is little known; the probability is the mean over what it may be.
    """
    assert difference.deviation is not None
    mean = difference.mean if metric.higher_is_better else -difference.mean
    factors = difference.likely_factors()

    def settled(seeds: int) -> float:
        """Return the probability that the interval then leaves out a loss of the margin, or no loss."""
        return statistics.fmean(settled_if(seeds, factor) for factor in factors)

    def settled_if(seeds: int, factor: float) -> float:
        """Return that probability if the deviation is larger than it seems, by a factor."""
        reach = max(difference.reach(seeds) * factor, difference.step)
        if reach <= margin / 2:
            return 1.0
        moved = factor * (difference.deviation or 0.0) * math.sqrt(1 / difference.pairs - 1 / seeds)
        if not moved:
            return float(not -reach < mean < reach - margin)
        by_chance = statistics.NormalDist(mean, moved)
        return 1 - (by_chance.cdf(reach - margin) - by_chance.cdf(-reach))

    low, high = difference.pairs, _MOST_SEEDS
    if low >= high or settled(high) < _LIKELY:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if settled(middle) >= _LIKELY else (middle, high)
    return high


_NAMED = ("data", "task", "model", "preset", "batch_size", "optimizer", "lr", "schedule")


_REGULARISED = ("weight_decay", "label_smoothing", "mixup", "cutmix", "augment", "flip")


_DETAILS = ("width", "momentum", "nesterov", "accumulate", "average", "amp", "drop_last", "steps", *_REGULARISED)


_DEFAULTS = {**{entry.name: entry.default for entry in fields(Settings) if entry.name in _DETAILS}, **BEFORE}


TASK_FIELDS = (*_NAMED, *_DETAILS)
"""Runs are compared only if they agree in these settings."""


SAME_COST = 0.05 + 1e-9
"""By how much the measured savings of two rows may differ, so that one is a control of the other."""


@dataclass(frozen=True)
class Row:
    """All runs of one setting, over its seeds.

    Attributes:
        label: Name of the row, unique within its task.
        task: The task, as pairs of `TASK_FIELDS` and their values.
        policy: Name in the registry, "full" or "reduced".
        parameters: Parameters of the policy.
        prune_ratio: Requested prune ratio, or None.
        epochs: Requested number of epochs.
        runs: The runs that count, one per seed, sorted by seed.
        failed: Runs that failed or have no final metric.
        unfinished: Runs that have not ended.
        repeated: Number of earlier runs of the same seeds, which are left out.
        metric: Mean of the final metric, None without runs.
        deviation: Sample standard deviation of the metric, None for fewer than two runs.
        saved: Measured fraction of full data's samples that were not trained on.
        full_samples: Number of samples that full data uses, the budget by which rows find their reference.
        seconds: Mean cost in seconds: training, selection, overhead, proxy.
        evaluation_seconds: Mean time of evaluation, which is not part of the cost.
        saved_time: Measured fraction of full data's time that was saved, same seeds only.
        against_full: Difference to full data.
        against_reduced: Difference to full data with fewer epochs, at the same cost.
        against_random: Difference to dynamic random, at the same cost.
        margin: Differences to full data up to this size count as none.
        measure: What the metric is.
        diverged: Why the row is left out of the pooled variance; empty if it is not.
        word: Verdict, without numbers.
        verdict: Verdict, with the numbers where the word alone says too little.
    """

    label: str
    task: tuple[tuple[str, Any], ...]
    policy: str
    parameters: dict[str, Any]
    prune_ratio: float | None
    epochs: Any
    runs: tuple[Run, ...]
    failed: tuple[Run, ...]
    unfinished: tuple[Run, ...]
    repeated: int = 0
    metric: float | None = None
    deviation: float | None = None
    saved: float | None = None
    full_samples: int | None = None
    seconds: float | None = None
    evaluation_seconds: float | None = None
    saved_time: float | None = None
    against_full: Difference | None = None
    against_reduced: Difference | None = None
    against_random: Difference | None = None
    margin: float = MARGIN
    measure: Metric = ACCURACY
    diverged: str = ""
    word: str = ""
    verdict: str = ""

    @property
    def holds(self) -> bool:
        """Whether the interval leaves out a loss of more than the margin: the row is within it, or better."""
        return self.word.startswith(("within", "better"))


def compare(runs: Iterable[Run], margin: float | None = None, *, comparisons: int = 0) -> list[Row]:
    """Return one row per setting: full data, OrderDP, other methods, then controls; each method sorted by ratio.

    Args:
        runs: The runs.
        margin: Differences to full data up to this size count as none, in the unit of the metric; by default 0.5 points
            of a metric in percent, and 0.5 % of full data's metric for other units.
        comparisons: Least number of comparisons that intervals hold for at once.
    """
    check_margin(margin)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_setting(run), []).append(run)
    rows = sorted(map(_measured, groups.values()), key=_place)
    rows = _with_unique_labels(rows)
    by_task: dict[Any, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    return [row for same in by_task.values() for row in _judged(same, margin, comparisons)]


def _setting(run: Run) -> str:
    names = ("policy", "policy_parameters", "prune_ratio", "epochs", "label", "proxy_epochs", "proxy_inits")
    own = [run.config.get(name) for name in names]
    return json.dumps([_task(run.config), own] if run.config else run.id, sort_keys=True)


def _task(config: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the task of a configuration; a setting that was not recorded counts as the default."""
    known = {**_DEFAULTS, **config} if config else {}
    return tuple((name, _hashable(known.get(name))) for name in TASK_FIELDS)


def _measured(runs: list[Run]) -> Row:
    """Build a row without its comparisons."""
    config = runs[0].config
    counted = {run.seed: run for run in sorted(runs, key=lambda run: (run.started, run.id)) if _counts(run)}
    done = tuple(sorted(counted.values(), key=lambda run: str(run.seed).zfill(20)))
    row = Row(
        label=runs[0].label,
        task=_task(config),
        policy=str(config.get("policy", "")),
        parameters=dict(config.get("policy_parameters") or {}),
        prune_ratio=config.get("prune_ratio"),
        epochs=config.get("epochs"),
        runs=done,
        failed=tuple(run for run in runs if run.failed or (run.done and run.final_metric is None)),
        unfinished=tuple(run for run in runs if run.summary is None),
        repeated=sum(map(_counts, runs)) - len(done),
    )
    if not done:
        return row
    metrics = [_metric(run) for run in done]
    summaries = [run.summary or {} for run in done]
    saved = statistics.fmean(map(_saved, summaries))
    return replace(
        row,
        label=_with_real_cost(row, saved),
        metric=statistics.fmean(metrics),
        deviation=statistics.stdev(metrics) if len(metrics) > 1 else None,
        saved=saved,
        full_samples=summaries[0].get("full_samples"),
        seconds=statistics.fmean(run.seconds for run in done),
        evaluation_seconds=statistics.fmean(summary.get("evaluation_seconds") or 0.0 for summary in summaries),
        measure=_measure(summaries[0], metrics[0]),
    )


def _with_real_cost(row: Row, saved: float) -> str:
    """Return the label; that of fewer epochs names the ratio that was really saved, which was rounded to whole epochs.

    Runs of this version stop in mid-epoch, at the ratio that was asked for.
    """
    asked = "" if row.prune_ratio is None else f"{100 * row.prune_ratio:g}%"
    if row.policy != "reduced" or not row.label.endswith(f" {asked}") or abs(saved - (row.prune_ratio or 0.0)) < 0.01:
        return row.label
    return f"{row.label.removesuffix(asked)}{100 * saved:.0f}%"


def _judged(rows: list[Row], margin: float | None, comparisons: int) -> list[Row]:
    """Add the comparisons between the rows of one task."""
    measured = [row.measure for row in rows if row.runs]
    rows = [replace(row, measure=measured[0]) if row.runs else row for row in rows]  # alike, with as many digits
    references = [_references(row, rows) for row in rows]
    spread = spread_of(rows)
    against = [
        between(rows, [(row, found[kind]) for row, found in zip(rows, references, strict=True)], spread, comparisons)
        for kind in range(3)
    ]
    judged = []
    for row, (full, _, _), full_difference, reduced, random in zip(rows, references, *against, strict=True):
        size = _margin(margin, row if row.policy == "full" else full)
        compared = replace(
            row,
            against_full=full_difference,
            against_reduced=reduced,
            against_random=random,
            saved_time=_saved_time(row, full),
            margin=size,
            diverged=spread.left_out.get(row.label, ""),
        )
        judged.append(_with_words(compared))
    return judged


def _references(row: Row, rows: list[Row]) -> tuple[Row | None, Row | None, Row | None]:
    """Return full data, full data with fewer epochs and dynamic random: what the row is compared with."""
    if row.policy == "full":
        return None, None, None
    budget = [other for other in rows if other.runs and other.full_samples == row.full_samples]
    full = next((other for other in budget if other.policy == "full"), None)
    reduced = _control(row, [other for other in budget if other.policy == "reduced"])
    random = _control(row, [other for other in budget if other.policy == "random"])
    return full, reduced, random


def _margin(margin: float | None, full: Row | None) -> float:
    if margin is not None or full is None or full.metric is None or full.measure.unit == "%":
        return MARGIN if margin is None else margin
    return float(f"{abs(full.metric) * MARGIN / 100:.1g}") or MARGIN


def _with_words(row: Row) -> Row:
    if not row.runs:
        said = "failed" if row.failed else "not finished"
    elif row.policy == "full":
        said = "the reference"
    elif row.against_full is None:
        said = "no full data of the same seeds"
    else:
        words = (row.against_full, row.margin, row.measure)
        return replace(row, word=word(*words), verdict=verdict(*words))
    return replace(row, word=said, verdict=said)


def spread_of(rows: Sequence[Row]) -> Spread:
    """Return how much runs of one setting differ, pooled over the rows of a task."""
    full = next((row for row in rows if row.policy == "full" and row.runs), None)
    return pooled_spread(
        {row.label: _by_seed(row) for row in rows},
        None if full is None else full.label,
        higher_is_better=full is None or full.measure.higher_is_better,
        step=_step([run for row in rows for run in row.runs]),
    )


def between(
    rows: Sequence[Row],
    pairs: Sequence[tuple[Row, Row | None]],
    spread: Spread | None = None,
    comparisons: int = 0,
) -> list[Difference | None]:
    """Return the differences of pairs of rows of one task, with intervals that hold for all pairs at once.

    Args:
        rows: All rows of the task; the variance is pooled over them.
        pairs: Rows, each with the row that is subtracted from it, if there is one.
        spread: The pooled variance, if it is known.
        comparisons: Least number of comparisons that intervals hold for at once.
    """
    named = [None if other is None else (row.label, other.label) for row, other in pairs]
    values: dict[Hashable, dict[Hashable, float]] = {row.label: _by_seed(row) for row in rows}
    return differences(values, named, spread_of(rows) if spread is None else spread, comparisons=comparisons)


def _by_seed(row: Row) -> dict[Hashable, float]:
    return {run.seed: _metric(run) for run in row.runs}


def _step(runs: Sequence[Run]) -> float | None:
    """Return what one test sample changes in a metric in percent; for other metrics None.

    Records of earlier versions lack the number of test samples: the metrics are multiples of the step.
    """
    summaries = [run.summary or {} for run in runs]
    if not summaries or any(summary.get("metric_unit", "%") != "%" for summary in summaries):
        return None
    counts = [summary.get("test_samples") for summary in summaries]
    known = [int(count) for count in counts if count]
    if known:
        return 100 / min(known)
    shares = [Fraction(_metric(run) / 100).limit_denominator(_MOST_TESTED) for run in runs]
    return 100 / min(math.lcm(*(share.denominator for share in shares)), _MOST_TESTED)


def _control(row: Row, controls: list[Row]) -> Row | None:
    """Return the control of the nearest measured cost, whatever ratio was asked for; None if none is near."""
    if row.saved is None or any(other is row for other in controls):
        return None
    gaps = [(abs((other.saved or 0.0) - row.saved), place) for place, other in enumerate(controls)]
    gap, place = min(gaps, default=(math.inf, -1))
    return controls[place] if gap <= SAME_COST else None


def _saved_time(row: Row, full: Row | None) -> float | None:
    theirs = {run.seed: run.seconds for run in full.runs} if full else {}
    pairs = [(run.seconds, theirs[run.seed]) for run in row.runs if run.seed in theirs]
    total = sum(other for _, other in pairs)
    return 1 - sum(mine for mine, _ in pairs) / total if total else None


def _metric(run: Run) -> float:
    return run.final_metric or 0.0  # only called for runs that have one


def _measure(summary: dict[str, Any], metric: float) -> Metric:
    unit = str(summary.get("metric_unit", "%"))
    digits = 2 if unit == "%" or not metric else max(0, 3 - math.floor(math.log10(abs(metric))))  # four that count
    name = str(summary.get("metric_name") or "accuracy")
    return Metric(name, unit, bool(summary.get("higher_is_better", True)), digits)


def _saved(summary: dict[str, Any]) -> float:
    full = summary.get("full_samples")
    return 1 - summary["samples"] / full if full else float(summary.get("saved") or 0.0)


def _hashable(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value


def _counts(run: Run) -> bool:
    return run.done and run.final_metric is not None


def _place(row: Row) -> tuple[str, int, str, float, str]:
    rank = {"full": 0, "orderdp": 1, "random": 3, "reduced": 4}.get(row.policy, 2)
    return json.dumps(row.task), rank, row.policy, row.prune_ratio or 0.0, row.label


def _with_unique_labels(rows: list[Row]) -> list[Row]:
    """Add ratio, epochs and parameters to labels that several rows of one task share."""
    names = [(row.task, row.label) for row in rows]
    taken: set[tuple[Any, str]] = set()
    result = []
    for row in rows:
        label = row.label
        if names.count((row.task, label)) > 1:
            details = {"prune_ratio": row.prune_ratio, "epochs": row.epochs, **row.parameters}
            label = f"{label} ({', '.join(f'{name}={value}' for name, value in details.items() if value is not None)})"
        while (row.task, label) in taken:
            label += "'"
        taken.add((row.task, label))
        result.append(replace(row, label=label))
    return result
