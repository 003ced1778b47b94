"""Changed data sets: smaller ones, a validation split, wrong labels, a long tail. The seed decides everything.

Mean and std stay those of the data as they were read, so that runs on different parts see the same numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from orderdp.checks import checked_seed
from orderdp.errors import ConfigError
from orderdp.planning import is_count
from orderdp.randomness import generator
from orderdp.workbench.data.sets import ImageData, Split

__all__ = ["hold_out", "long_tailed", "subset", "with_label_noise"]


def hold_out(data: ImageData, share: float, seed: int) -> ImageData:
    """The same data with a part of the *training* split as its test split, for choices that must not see the test set.

    Args:
        data: What to divide. Its own test split is left out.
        share: Of the training samples that are held out, between 0 and 1. The count is exact and every class gives
            its share, to one sample.
        seed: Which samples are held out.
    """
    _check_share("share", share)
    n = len(data.train)
    count = round(share * n)
    if not 0 < count < n:
        raise ConfigError(f"share must leave samples on both sides, got {share}, which is {count} of {n} samples.")
    held = np.zeros(n, dtype=np.bool_)
    held[_proportional(data.train.labels.numpy(), count, seed, "hold-out")] = True
    return replace(data, train=_at(data.train, ~held), test=_at(data.train, held))


def subset(data: ImageData, n_train: int | None, n_test: int | None, seed: int) -> ImageData:
    """Fewer samples, in their old order, every class giving its share; None keeps a split whole."""
    return replace(
        data,
        train=_fewer(data.train, n_train, seed, "train"),
        test=_fewer(data.test, n_test, seed, "test"),
    )


def with_label_noise(data: ImageData, share: float, seed: int) -> ImageData:
    """A share of the training labels, exactly, replaced by other classes, all of them equally likely."""
    _check_share("share", share)
    if data.classes < 2:
        raise ConfigError(f"label noise needs at least two classes, got {data.classes}.")
    n = len(data.train)
    rng = generator(checked_seed(seed), "data", "label-noise")
    wrong = torch.from_numpy(rng.permutation(n)[: round(share * n)])
    labels = data.train.labels.clone()
    # A step of 1 to classes - 1 round the circle of classes never comes back to where it began.
    steps = torch.from_numpy(rng.integers(1, data.classes, len(wrong)))
    labels[wrong] = (labels[wrong] + steps) % data.classes
    return replace(data, train=Split(data.train.images, labels))


def long_tailed(data: ImageData, imbalance: float, seed: int) -> ImageData:
    """Training classes that shrink exponentially, from the first label, kept whole, to the last.

    Class k of K keeps ``round(largest * imbalance ** (-k / (K - 1)))`` samples, at least one, at most all it has.

    Args:
        data: What to thin out.
        imbalance: How many times as large the first class is as the last; 100 is usual.
        seed: Which samples are kept.
    """
    if not isinstance(imbalance, int | float | np.number) or not 1 <= imbalance < float("inf"):
        raise ConfigError(f"imbalance must be a number of at least 1 (largest class to smallest), got {imbalance!r}.")
    labels = data.train.labels.numpy()
    largest = int(np.bincount(labels, minlength=data.classes).max())
    kept = []
    for k in range(data.classes):
        members = np.flatnonzero(labels == k)
        target = max(1, round(largest * float(imbalance) ** (-k / max(1, data.classes - 1))))
        kept.append(_shuffled(members, seed, "tail", k)[:target])
    mask = np.zeros(len(labels), dtype=np.bool_)
    mask[np.concatenate(kept)] = True
    return replace(data, train=_at(data.train, mask))


def _fewer(split: Split, count: int | None, seed: int, what: str) -> Split:
    if count is None:
        return split
    if not is_count(count) or count > len(split):
        raise ConfigError(
            f"the {what} split has {len(split):,} samples; {what} must be a whole number from 1 to that, got {count!r}."
        )
    mask = np.zeros(len(split), dtype=np.bool_)
    mask[_proportional(split.labels.numpy(), int(count), seed, what)] = True
    return _at(split, mask)


def _proportional(labels: np.ndarray, count: int, seed: int, what: str) -> np.ndarray:
    """Exactly `count` samples, each class giving its share: rounded down, the largest remainders one more."""
    classes, sizes = np.unique(labels, return_counts=True)
    # In whole numbers: shares that are equal must have equal remainders.
    quotas, remainders = np.divmod(sizes.astype(np.int64) * count, len(labels))
    quotas[np.argsort(-remainders, kind="stable")[: count - int(quotas.sum())]] += 1
    parts = [
        _shuffled(np.flatnonzero(labels == k), seed, what, int(k))[:quota]
        for k, quota in zip(classes, quotas, strict=True)
    ]
    return np.concatenate(parts)


def _shuffled(members: np.ndarray, seed: int, *tags: int | str) -> np.ndarray:
    return generator(checked_seed(seed), "data", *tags).permutation(members)


def _at(split: Split, mask: np.ndarray) -> Split:
    return split.at(torch.from_numpy(np.flatnonzero(mask)))


def _check_share(name: str, share: Any) -> None:
    if not isinstance(share, int | float | np.number) or isinstance(share, bool) or not 0 <= share < 1:
        raise ConfigError(f"{name} must be in [0, 1), got {share!r}. It is a fraction, not a percentage.")
