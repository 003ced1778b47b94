"""Data that cannot be indexed, and data that grow.

- `KeyFilter`: a stream that repeats, of samples with stable keys. Pruned samples are dropped before they are decoded.
- `OnePass`, `TopK`: data that are seen once. The hardest of every window of candidates are trained on.
- `GrowingPruner`: a data set to which samples are appended, and from which some are removed, during training.

Names are imported on first use, because worker processes need few of them.
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

if not TYPE_CHECKING:  # a type checker would accept any misspelled name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'orderdp.streaming' has no attribute {name!r}")
        value = getattr(import_module(f"orderdp.streaming.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
