"""What follows the name of a data set: ``fashion-mnist?noise=0.2&train=10000``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orderdp.errors import ConfigError
from orderdp.naming import checked_name

__all__ = ["Modifiers", "parse"]


@dataclass(frozen=True, slots=True)
class Modifiers:
    """How a data set is changed after it was read; None for not at all. In the order in which they are applied.

    Attributes:
        holdout: Share of the training split that becomes the test split.
        tail: How many times as large the largest class becomes as the smallest.
        train: Size of the training split.
        test: Size of the test split.
        noise: Share of training labels that become wrong.
        corrupt: What is done to the test images, and how strongly.
        seed: Of all of these.
    """

    holdout: float | None = None
    tail: float | None = None
    train: int | None = None
    test: int | None = None
    noise: float | None = None
    corrupt: tuple[str, int] | None = None
    seed: int = 0


def parse(spec: str) -> tuple[str, Modifiers]:
    """The name or path, and the modifiers after the question mark.

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
    "holdout": (float, "a share between 0 and 1"),
    "tail": (float, "a number of at least 1, largest class to smallest"),
    "train": (int, "a number of samples"),
    "test": (int, "a number of samples"),
    "noise": (float, "a share between 0 and 1"),
    "corrupt": (_corruption, "a kind and a severity, such as blur:3"),
    "seed": (int, "a whole number"),
}
