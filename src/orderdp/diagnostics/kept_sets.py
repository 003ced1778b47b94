"""Kept sets per epoch and how similar they are; usage counts and ages of scores; curves of a run's records."""

from __future__ import annotations

import math
import os
import statistics
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orderdp._files import flushed
from orderdp._validation import is_count
from orderdp.errors import ConfigError, RecordError

__all__ = [
    "Ages",
    "KeptSets",
    "Stage",
    "TimeToAccuracy",
    "Usage",
    "accuracy_correlation",
    "correlation",
    "coverage_over_time",
    "expected_jaccard",
    "jaccard",
    "score_ages",
    "set_of",
    "shared",
    "stability",
    "time_to_accuracy",
    "usage_counts",
    "usage_summary",
    "value_of",
]


_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.int64)


def jaccard(first: Any, second: Any) -> float:
    """Jaccard similarity of two sets: 1 for equal sets, 0 for disjoint ones.

    >>> jaccard([1, 2, 3], [2, 3, 4, 5])
    0.4

    Args:
        first: Indices, in any order.
        second: Indices, in any order.
    """
    # By sorting instead of masks: indices may be keys of any size.
    one, two = np.unique(set_of(first)), np.unique(set_of(second))
    both = len(np.intersect1d(one, two, assume_unique=True))
    either = len(one) + len(two) - both
    return both / either if either else 1.0


def shared(first: np.ndarray, second: np.ndarray) -> float:
    """Jaccard similarity of two masks of equal length."""
    either = int(np.count_nonzero(first | second))
    return int(np.count_nonzero(first & second)) / either if either else 1.0


def expected_jaccard(n: int, q: int) -> float:
    """Jaccard similarity of two independent uniform draws of `q` of `n` samples: q / (2n - q).

    This is the ratio of the expectations; the expectation of the ratio differs from it by about 1/n.

    >>> expected_jaccard(100, 50)
    0.3333333333333333

    Args:
        n: Number of samples.
        q: Number drawn.
    """
    if not (is_count(n) and is_count(q) and q <= n):
        raise ConfigError(f"n and q must be whole numbers with 1 <= q <= n, got n={n!r}, q={q!r}.")
    return q / (2 * n - q)


class KeptSets:
    """Kept sets by epoch, one bit per sample.

    Args:
        n: Number of samples.
    """

    def __init__(self, n: int) -> None:
        if not is_count(n):
            raise ConfigError(f"n must be a whole number of samples, at least 1, got {n!r}.")
        self.n = int(n)
        self._bits: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._bits)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.at(epoch) for epoch in self.epochs)

    @property
    def epochs(self) -> list[int]:
        """Epochs whose sets are stored, in order."""
        return sorted(self._bits)

    def add(self, epoch: int, indices: Any) -> None:
        """Store the set of an epoch, replacing an existing one.

        Args:
            epoch: The epoch.
            indices: The kept indices.
        """
        mask = np.zeros(self.n, dtype=np.bool_)
        mask[set_of(indices, self.n)] = True
        self._bits[int(epoch)] = np.packbits(mask)

    def at(self, epoch: int) -> np.ndarray:
        """Indices kept in `epoch`, sorted."""
        return np.flatnonzero(np.unpackbits(self._held(epoch), count=self.n))

    def jaccard(self, first: int, second: int) -> float:
        """Jaccard similarity of the sets of epochs `first` and `second`."""
        one, two = self._held(first), self._held(second)
        either = int(_ONES[one | two].sum())
        return int(_ONES[one & two].sum()) / either if either else 1.0

    def consecutive(self) -> list[float]:
        """Jaccard similarity of each set with the previous stored one."""
        return [self.jaccard(*pair) for pair in pairwise(self.epochs)]

    def matrix(self) -> np.ndarray:
        """Jaccard similarities of all pairs, in the order of `epochs`."""
        return np.array([[self.jaccard(one, two) for two in self.epochs] for one in self.epochs]).reshape(
            len(self), len(self)
        )

    def forget_after(self, epoch: int) -> None:
        """Delete the sets of all epochs after `epoch`: a training that resumes from a checkpoint adds them again."""
        self._bits = {number: bits for number, bits in self._bits.items() if number <= epoch}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an .npz file to `path` atomically: ``n``, ``epochs``, and ``bits``, one row per epoch."""
        bits = np.array([self._bits[epoch] for epoch in self.epochs], dtype=np.uint8).reshape(
            len(self), (self.n + 7) // 8
        )
        with flushed(Path(path)) as file:
            np.savez(file, n=np.int64(self.n), epochs=np.array(self.epochs, dtype=np.int64), bits=bits)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeptSets:
        """Load the file at `path`, written by `save`."""
        try:
            with np.load(path, allow_pickle=False) as found:
                return cls._from_arrays(int(found["n"]), found["epochs"], found["bits"])
        except FileNotFoundError:
            raise RecordError(f"there are no kept sets at {os.fspath(path)!r}.") from None
        except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise RecordError(
                f"{os.fspath(path)!r} must hold kept sets, and cannot be read: {error}. Remove it and run again."
            ) from error

    @classmethod
    def _from_arrays(cls, n: int, epochs: np.ndarray, bits: np.ndarray) -> KeptSets:
        sets = cls(n)
        if bits.dtype != np.uint8 or bits.shape != (len(epochs), (n + 7) // 8):
            raise ValueError(f"bits are {bits.dtype} of shape {bits.shape}")
        sets._bits = {int(epoch): row for epoch, row in zip(epochs, bits, strict=True)}
        return sets

    def _held(self, epoch: int) -> np.ndarray:
        if epoch not in self._bits:
            raise ConfigError(f"there is no kept set of epoch {epoch}; there are those of {self.epochs}.")
        return self._bits[epoch]


def set_of(values: Any, n: int | None = None) -> np.ndarray:
    """Return indices as an array; raise if they are no indices, or not all below `n`."""
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(
            f"a set must be given as a flat list of indices, got {array.dtype} of shape {array.shape}. "
            "np.flatnonzero(mask) turns a mask into one."
        )
    if array.min() < 0:
        raise ConfigError(f"indices must be 0 or larger, got {int(array.min())}.")
    if n is not None and array.max() >= n:
        raise ConfigError(f"indices must be in [0, {n}), got {int(array.max())}.")
    return array


_Epochs = Sequence[Mapping[str, Any]]


class Stage(NamedTuple):
    """A stage of training, over all runs.

    Attributes:
        start: Fraction of the epochs after which the stage begins.
        end: Fraction of the epochs with which it ends; the last epoch alone is the stage from 1 to 1.
        runs: Number of runs with a metric in it.
        accuracy: Mean over runs of the metric's mean in the stage.
        accuracy_spread: Standard deviation of that over runs; None for fewer than two.
        gradient: Mean over runs of the gradient norm's mean in the stage; None if it was not recorded.
        gradient_spread: Its standard deviation over runs.
        gradient_swing: Standard deviation of the norm over the steps of an epoch, mean over epochs and runs.
    """

    start: float
    end: float
    runs: int
    accuracy: float | None
    accuracy_spread: float | None
    gradient: float | None
    gradient_spread: float | None
    gradient_swing: float | None


def stability(runs: Iterable[_Epochs], stages: int | Sequence[float] = 3) -> list[Stage]:
    """Accuracy and gradient norm of repeated runs, by stage of training, and at the end.

    >>> runs = [[{"metric": 10.0}, {"metric": 20.0}], [{"metric": 14.0}, {"metric": 20.0}]]
    >>> [(stage.accuracy, round(stage.accuracy_spread, 3)) for stage in stability(runs, 2)]
    [(12.0, 2.828), (20.0, 0.0), (20.0, 0.0)]

    Args:
        runs: One list of epoch records per run: ``[run.epochs for run in read_runs(folder) if run.done]``, of one
            setting. The stages of an unfinished run would be too early.
        stages: Number of stages of equal length; or their ends as fractions: (0.3, 0.5, 0.7, 1.0) in the paper.

    Returns:
        The stages in order, followed by the last epoch alone.
    """
    all_runs = [list(run) for run in runs]
    ends = _ends(stages)
    found = [
        _stage(start, end, [_within(run, start, end) for run in all_runs])
        for start, end in zip([0.0, *ends], ends, strict=False)
    ]
    return [*found, _stage(1.0, 1.0, [run[-1:] for run in all_runs])]


def _ends(stages: int | Sequence[float]) -> list[float]:
    if not isinstance(stages, Sequence):
        if not is_count(stages):
            raise ConfigError(f"stages must be a whole number, at least 1, or a list of fractions, got {stages!r}.")
        return [number / stages for number in range(1, stages + 1)]
    ends = [float(end) for end in stages]
    if not ends or ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] != 1:
        raise ConfigError(f"stages must rise from above 0 to 1, got {list(stages)}.")
    return ends


def _within(run: _Epochs, start: float, end: float) -> _Epochs:
    """Epochs that end after `start` and not after `end`."""
    slack = 1e-9  # without it 3/10 would not be 0.3
    total = len(run)
    return [record for number, record in enumerate(run, start=1) if start + slack < number / total <= end + slack]


def _stage(start: float, end: float, parts: Sequence[_Epochs]) -> Stage:
    metrics, norms, swings = (
        [mean for mean in (_mean(part, name) for part in parts) if mean is not None]
        for name in ("metric", "gradient_norm", "gradient_norm_std")
    )
    return Stage(
        start, end, len(metrics), *_mean_and_spread(metrics), *_mean_and_spread(norms), _mean_and_spread(swings)[0]
    )


def _mean(records: _Epochs, name: str) -> float | None:
    values = [value for value in (value_of(record, name) for record in records) if value is not None]
    return statistics.fmean(values) if values else None


def _mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


class Ages(NamedTuple):
    """Epochs since the scores were refreshed.

    Attributes:
        mean: Mean age of the samples that have a score; None if no sample has one.
        median: Smallest age that half of them do not exceed.
        p95: Smallest age that 95 % of them do not exceed.
        unseen: Fraction of all samples that have no score yet.
    """

    mean: float | None
    median: float | None
    p95: float | None
    unseen: float


def score_ages(seen: Any, epoch: int) -> Ages:
    """Ages of scores between epochs: 1 for those refreshed in the epoch that has just ended.

    >>> score_ages([2, 2, 1, 0, -1], epoch=3)
    Ages(mean=1.75, median=1.0, p95=3.0, unseen=0.2)

    Args:
        seen: Epoch, from 0, in which each sample was last seen, -1 for never: ``pruner.last_seen_epoch``.
        epoch: Number of finished epochs: ``pruner.epoch``.
    """
    last = np.asarray(seen)
    ages = epoch - last[last >= 0]
    unseen = (len(last) - len(ages)) / max(1, len(last))
    if len(ages) == 0:
        return Ages(None, None, None, unseen)
    median, p95 = np.quantile(ages, [0.5, 0.95], method="inverted_cdf")
    return Ages(float(ages.mean()), float(median), float(p95), unseen)


class Usage(NamedTuple):
    """How often samples were trained on.

    Attributes:
        coverage: Fraction of the samples trained on at least once.
        fewest: Smallest count.
        mean: Mean count.
        most: Largest count.
    """

    coverage: float
    fewest: int
    mean: float
    most: int


def usage_summary(usage: Any) -> Usage:
    """Summary of usage counts.

    >>> usage_summary([0, 2, 2, 4])
    Usage(coverage=0.75, fewest=0, mean=2.0, most=4)

    Args:
        usage: How often each sample was trained on: ``pruner.usage``.
    """
    counts = np.asarray(usage)
    return Usage(float((counts > 0).mean()), int(counts.min()), float(counts.mean()), int(counts.max()))


def usage_counts(sets: Iterable[Any], n: int) -> np.ndarray:
    """How often each of `n` samples is in the sets, one set per epoch.

    >>> usage_counts([[0, 1], [1, 2]], n=4).tolist()
    [1, 2, 1, 0]

    Args:
        sets: Indices of each epoch.
        n: Number of samples.
    """
    counts = np.zeros(n, dtype=np.int64)
    for indices in sets:
        counts[np.unique(set_of(indices, n))] += 1
    return counts


def coverage_over_time(sets: Iterable[Any], n: int) -> np.ndarray:
    """Fraction of `n` samples that were in at least one set so far, after each set.

    >>> coverage_over_time([[0, 1], [1, 2], [0]], n=4).tolist()
    [0.5, 0.75, 0.75]

    Args:
        sets: Indices of each epoch.
        n: Number of samples.
    """
    used = np.zeros(n, dtype=np.bool_)
    shares = []
    for indices in sets:
        used[set_of(indices, n)] = True
        shares.append(used.mean())
    return np.array(shares)


# -- curves: metrics computed from the records of a run ----------------------------------------------------------------


_COST = ("training_seconds", "selection_seconds", "overhead_seconds")


class TimeToAccuracy(NamedTuple):
    """Cost of reaching a target.

    Attributes:
        epochs: The first epoch after which the metric was at or above the target.
        samples: Samples trained on until then.
        seconds: Time of training, selection and overhead until then, without tests and diagnostics.
    """

    epochs: int
    samples: int
    seconds: float


def time_to_accuracy(
    epochs: Iterable[Mapping[str, Any]], target: float, *, proxy_seconds: float = 0.0
) -> TimeToAccuracy | None:
    """Cost until a run first reached a target; None if it never did.

    >>> run = [{"epoch": 1, "metric": 80.0, "samples": 600, "training_seconds": 2.0},
    ...        {"epoch": 2, "metric": 91.0, "samples": 600, "training_seconds": 2.5}]
    >>> time_to_accuracy(run, 90.0)
    TimeToAccuracy(epochs=2, samples=1200, seconds=4.5)

    Args:
        epochs: One record per epoch, in order: ``read_run(...).epochs``.
        target: Target of the metric, in its own unit.
        proxy_seconds: Time spent before the first epoch, as by coreset methods.
    """
    samples, seconds = 0, proxy_seconds
    for record in epochs:
        samples += int(record.get("samples") or 0)
        seconds += sum(float(record.get(part) or 0.0) for part in _COST)
        metric = value_of(record, "metric")
        if metric is not None and metric >= target:
            return TimeToAccuracy(int(record["epoch"]), samples, seconds)
    return None


def correlation(first: Iterable[float], second: Iterable[float]) -> float | None:
    """Pearson correlation; None for fewer than three pairs, or if one side is constant or not finite.

    >>> correlation([1, 2, 3], [6, 4, 2])
    -1.0

    Args:
        first: One side of the pairs.
        second: The other side, of the same length.
    """
    one, two = np.asarray(list(first), dtype=np.float64), np.asarray(list(second), dtype=np.float64)
    if len(one) != len(two):
        raise ConfigError(f"a correlation needs pairs, got {len(one)} and {len(two)} numbers.")
    if len(one) < 3 or not all(np.isfinite(side).all() and np.ptp(side) > 0 for side in (one, two)):
        return None
    one, two = one - one.mean(), two - two.mean()
    scale = math.sqrt(float(one @ one) * float(two @ two))
    return max(-1.0, min(1.0, float(one @ two) / scale)) if scale else None


def accuracy_correlation(epochs: Iterable[Mapping[str, Any]], name: str = "gradient_norm") -> float | None:
    """Correlation of a diagnostic with the metric, over the epochs that have both.

    Args:
        epochs: One record per epoch, or ``Diagnostics.history`` with a metric in each.
        name: Name of the diagnostic.
    """
    pairs = [(value_of(record, name), value_of(record, "metric")) for record in epochs]
    whole = [(one, two) for one, two in pairs if one is not None and two is not None]
    return correlation([one for one, _ in whole], [two for _, two in whole])


def value_of(record: Mapping[str, Any], name: str) -> float | None:
    """A number of an epoch's record, or of the diagnostics in it; None if there is none."""
    value = record.get(name, (record.get("diagnostics") or {}).get(name))
    usable = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    return float(value) if usable else None
