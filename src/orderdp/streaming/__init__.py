"""Data that cannot be indexed, and data that grow.

- `KeyFilter`: a stream that repeats, of samples with stable keys. What is left out of an epoch is dropped before it is
  decoded.
- `OnePass`, `TopHeap`: data that are seen once. Of every window of candidates the hardest are trained on.
- `GrowingPruner`: a data set to which samples are appended, and of which some are removed, while it is trained on.

Names are loaded when they are first used: worker processes need little of this.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderdp.streaming.growing import GrowingPruner
    from orderdp.streaming.key_filter import KeyFilter
    from orderdp.streaming.one_pass import OnePass, TopK
    from orderdp.streaming.worker_channel import FilteredIterableDataset, KeyFilterStage

__all__ = ["FilteredIterableDataset", "GrowingPruner", "KeyFilter", "KeyFilterStage", "OnePass", "TopK"]


_HOMES = {
    "KeyFilterStage": "worker_channel",
    "GrowingPruner": "growing",
    "FilteredIterableDataset": "worker_channel",
    "KeyFilter": "key_filter",
    "OnePass": "one_pass",
    "TopK": "one_pass",
}

if not TYPE_CHECKING:  # a type checker would take any misspelled name for one that exists

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'orderdp.streaming' has no attribute {name!r}")
        value = getattr(import_module(f"orderdp.streaming.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
