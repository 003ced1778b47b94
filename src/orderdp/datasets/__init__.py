"""Data sets by name or by path.

``load("fashion-mnist?noise=0.2&train=10000")`` returns arrays; ``fetch("fashion-mnist")`` downloads them first. A name
stands for the published bytes, in any storage format: every file is converted to its original format and checked
against a SHA-256. The data at a path is used as it is. Only `fetch` downloads.

Names are imported on first use: listing the data sets does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderdp.datasets.catalog import NAMES
    from orderdp.datasets.fetching import cache_root, fetch, list_rows, where
    from orderdp.datasets.images import Augment, FolderData, ImageBatches, ImageData, Split, normalize
    from orderdp.datasets.loading import corrupted, hold_out, load, long_tailed, subset, with_label_noise

__all__ = [
    "NAMES",
    "Augment",
    "FolderData",
    "ImageBatches",
    "ImageData",
    "Split",
    "cache_root",
    "corrupted",
    "fetch",
    "hold_out",
    "list_rows",
    "load",
    "long_tailed",
    "normalize",
    "subset",
    "where",
    "with_label_noise",
]


_HOMES = {
    "NAMES": "catalog",
    "Augment": "images",
    "FolderData": "images",
    "ImageData": "images",
    "ImageBatches": "images",
    "Split": "images",
    "cache_root": "fetching",
    "corrupted": "loading",
    "fetch": "fetching",
    "hold_out": "loading",
    "list_rows": "fetching",
    "load": "loading",
    "long_tailed": "loading",
    "normalize": "images",
    "subset": "loading",
    "where": "fetching",
    "with_label_noise": "loading",
}

if not TYPE_CHECKING:  # or a type checker would accept any misspelled name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
