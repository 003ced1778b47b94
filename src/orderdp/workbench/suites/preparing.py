"""A suite at a scale, made to fit: with data and seeds of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orderdp.errors import ConfigError, DatasetError
from orderdp.naming import checked_name
from orderdp.workbench.suites.suite import Part, Suite

__all__ = ["BROUGHT", "prepare"]

#: What the user has to bring, by the names that suites have for it.
BROUGHT = {"imagenet": "ImageNet as a folder with train/CLASS/ and val/CLASS/"}


def prepare(
    suite: Suite, scale: str, *, data: Sequence[str] = (), seeds: Sequence[int] | None = None
) -> tuple[Part, ...]:
    """The parts of a suite, ready to be run.

    Args:
        suite: Which.
        scale: One of `SCALES`.
        data: What to use in place of the suite's data sets: one name or path for all of them, or ``NAME=D`` for the one
            called NAME.
        seeds: In place of the suite's own.
    """
    checked_name(scale, suite.scales, "scale")
    parts = suite.scales[scale].parts
    names = [str(part.base["data"]) for part in parts]
    chosen = {name: _chosen(name, names, data) for name in names}
    missing = [name for name in chosen if chosen[name] in BROUGHT]
    if missing:
        what = " and ".join(BROUGHT[name] for name in missing)
        raise DatasetError(
            f"{suite.id} at scale {scale!r} needs {what}, which this library cannot fetch. "
            f"Name it with --data {missing[0]}=DIR."
        )
    ready: dict[tuple[str, ...], Part] = {}
    for part in parts:
        base = {**part.base, "data": chosen[str(part.base["data"])]}
        fitted = replace(part, base=base, seeds=part.seeds if seeds is None else tuple(dict.fromkeys(seeds)))
        # With one data set in place of several, parts may become the same.
        ready.setdefault(_identity(fitted), fitted)
    return tuple(ready.values())


def _chosen(name: str, names: Sequence[str], data: Sequence[str]) -> str:
    """What takes the place of a data set: what was given for it by name, else for all, else itself."""
    for_all = name
    for given in data:
        key, equals, rest = given.partition("=")
        if equals and key in names:
            if key == name:
                return rest
        else:
            for_all = given
    return for_all


def _identity(part: Part) -> tuple[str, ...]:
    runs = tuple(planned.settings.run_id for planned in part.runs())
    if not runs:
        raise ConfigError("a suite needs at least one seed.")
    return runs
