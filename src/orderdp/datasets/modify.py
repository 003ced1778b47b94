"""Modified data sets: subsets, a validation split, wrong labels, a long tail, corrupted test images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from orderdp._draw import generator
from orderdp._validation import checked_name, checked_seed, is_count
from orderdp.datasets.images import ImageData, Split
from orderdp.errors import ConfigError

__all__ = ["KINDS", "Modifiers", "corrupted", "hold_out", "long_tailed", "parse", "subset", "with_label_noise"]


# Number of images that are widened to float32 at once.
_PART = 1000


def corrupted(data: ImageData, kind: str, severity: int = 3, seed: int = 0) -> ImageData:
    """Corrupt the test images of a data set; training images stay unchanged.

    Args:
        data: Data set of uint8 images.
        kind: "noise" (Gaussian, a standard deviation of 4 % of the range per step), "blur" (Gaussian, 0.4 pixels per
            step), "contrast" (18 % less distance from the image's own mean per step).
        severity: 1 to 5 steps.
        seed: Seed of the noise.
    """
    checked_name(kind, KINDS, "corruption")
    if not is_count(severity) or severity > 5:
        raise ConfigError(f"severity must be a whole number from 1 to 5, got {severity!r}.")
    images = data.test.images
    if images.dtype != torch.uint8:
        raise ConfigError(f"only uint8 images can be corrupted, got {images.dtype} of shape {tuple(images.shape)}.")
    seed = checked_seed(seed)
    worse = torch.empty_like(images)
    for number, start in enumerate(range(0, len(images), _PART)):
        part = images[start : start + _PART].float()
        rng = generator(seed, "data", "corrupt", kind, number)
        worse[start : start + _PART] = KINDS[kind](part, severity, rng).round().clamp(0, 255).to(torch.uint8)
    return replace(data, test=Split(worse, data.test.labels))


def _noise(images: torch.Tensor, severity: int, rng: np.random.Generator) -> torch.Tensor:
    noise = rng.standard_normal(tuple(images.shape), dtype=np.float32)
    return images + torch.from_numpy(noise) * (0.04 * 255 * severity)


def _blur(images: torch.Tensor, severity: int, _: np.random.Generator) -> torch.Tensor:
    sigma = 0.4 * severity
    height, width = images.shape[2:]
    rows = images.reshape(-1, 1, height, width)
    for size, dimension in ((height, 2), (width, 3)):
        radius = min(round(3 * sigma) + 1, size - 1)
        weights = torch.exp(-(torch.arange(-radius, radius + 1).float() ** 2) / (2 * sigma**2))
        kernel = (weights / weights.sum()).reshape((1, 1, -1, 1) if dimension == 2 else (1, 1, 1, -1))
        margin = (0, 0, radius, radius) if dimension == 2 else (radius, radius, 0, 0)
        rows = F.conv2d(F.pad(rows, margin, mode="reflect"), kernel)
    return rows.reshape(images.shape)


def _contrast(images: torch.Tensor, severity: int, _: np.random.Generator) -> torch.Tensor:
    mean = images.mean((2, 3), keepdim=True)
    return mean + (images - mean) * (1 - 0.18 * severity)


#: Kinds of corruption.
KINDS: dict[str, Callable[[torch.Tensor, int, np.random.Generator], torch.Tensor]] = {
    "noise": _noise,
    "blur": _blur,
    "contrast": _contrast,
}


def hold_out(data: ImageData, share: float, seed: int) -> ImageData:
    """Use a part of the *training* split as test split, for choices that must not use the test set.

    Args:
        data: Data set to split. Its own test split is dropped.
        share: Fraction of the training samples to hold out, between 0 and 1. The count is exact, and every class
            contributes its fraction, up to one sample.
        seed: Seed of the selection.
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
    """Keep fewer samples, in their old order, in proportion to the class sizes.

    Args:
        data: The data set.
        n_train: Training samples to keep; None keeps all.
        n_test: Test samples to keep; None keeps all.
        seed: Seed of the draw.
    """
    return replace(
        data,
        train=_fewer(data.train, n_train, seed, "train"),
        test=_fewer(data.test, n_test, seed, "test"),
    )


def with_label_noise(data: ImageData, share: float, seed: int) -> ImageData:
    """Replace an exact fraction of the training labels by other classes, all equally likely.

    Args:
        data: The data set.
        share: Fraction of the labels to replace, in [0, 1].
        seed: Seed of the draw.
    """
    _check_share("share", share)
    if data.classes < 2:
        raise ConfigError(f"label noise needs at least two classes, got {data.classes}.")
    n = len(data.train)
    rng = generator(checked_seed(seed), "data", "label-noise")
    wrong = torch.from_numpy(rng.permutation(n)[: round(share * n)])
    labels = data.train.labels.clone()
    # A step of 1 to classes - 1 around the circle of classes never returns to the same class.
    steps = torch.from_numpy(rng.integers(1, data.classes, len(wrong)))
    labels[wrong] = (labels[wrong] + steps) % data.classes
    return replace(data, train=Split(data.train.images, labels))


def long_tailed(data: ImageData, imbalance: float, seed: int) -> ImageData:
    """Shrink the training classes exponentially, from the first label, which stays whole, to the last.

    Class k of K keeps ``round(largest * imbalance ** (-k / (K - 1)))`` samples, at least one, at most all of them.

    Args:
        data: Data set to reduce.
        imbalance: Size of the first class divided by the size of the last; 100 is usual.
        seed: Seed of the selection.
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
    """Select exactly `count` samples in proportion to the class sizes: rounded down, plus one at large remainders."""
    classes, sizes = np.unique(labels, return_counts=True)
    # In integers: equal fractions must have equal remainders.
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


@dataclass(frozen=True, slots=True)
class Modifiers:
    """Modifiers of a data set, in the order in which they are applied; None for no change.

    Attributes:
        holdout: Fraction of the training split that becomes the test split.
        tail: Size of the largest class divided by the size of the smallest.
        train: Size of the training split.
        test: Size of the test split.
        noise: Fraction of training labels that become wrong.
        corrupt: Kind and severity of the corruption of the test images.
        seed: Seed of all modifiers.
    """

    holdout: float | None = None
    tail: float | None = None
    train: int | None = None
    test: int | None = None
    noise: float | None = None
    corrupt: tuple[str, int] | None = None
    seed: int = 0


def parse(spec: str) -> tuple[str, Modifiers]:
    """Split a specification into the name or path, and the modifiers after the question mark.

    >>> parse("cifar10?train=5000&corrupt=blur:3")[1].corrupt
    ('blur', 3)
    """
    name, mark, query = spec.partition("?")
    if not name:
        raise ConfigError(f"a data set must have a name, got {spec!r}. Write for example fashion-mnist?train=10000.")
    given: dict[str, Any] = {}
    for item in query.split("&") if mark else []:
        key, equals, text = item.partition("=")
        if not equals or not text:
            raise ConfigError(f"what follows the ? must be key=value&key=value, got {item!r} in {spec!r}.")
        checked_name(key, _VALUES, "modifier of data sets")
        if key in given:
            raise ConfigError(f"each modifier must be given once, got {key} twice in {spec!r}.")
        given[key] = _value(key, text)
    return name, Modifiers(**given)


def _value(key: str, text: str) -> Any:
    read, what = _VALUES[key]
    try:
        return read(text)
    except ValueError:
        raise ConfigError(f"{key} must be {what}, got {text!r}.") from None


def _corruption(text: str) -> tuple[str, int]:
    kind, _, severity = text.partition(":")
    return kind, int(severity or 3)


_VALUES: dict[str, tuple[Callable[[str], Any], str]] = {
    "holdout": (float, "a fraction between 0 and 1"),
    "tail": (float, "a number of at least 1, largest class to smallest"),
    "train": (int, "a number of samples"),
    "test": (int, "a number of samples"),
    "noise": (float, "a fraction between 0 and 1"),
    "corrupt": (_corruption, "a kind and a severity, such as blur:3"),
    "seed": (int, "a whole number"),
}
