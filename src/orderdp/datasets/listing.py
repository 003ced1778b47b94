"""The table of ``orderdp data list``."""

from __future__ import annotations

import os

from orderdp.datasets.cache import where
from orderdp.datasets.catalog import DATASETS, DatasetInfo

__all__ = ["list_rows"]


def list_rows(data_dir: str | os.PathLike[str] | None = None) -> list[tuple[str, str, str, str, str]]:
    """Return one row per named data set: name, samples, shape, its path or "not here", how to get it."""
    return [_row(known, data_dir) for known in DATASETS.values()]


def _row(known: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> tuple[str, str, str, str, str]:
    samples = f"{known.n_train:,} + {known.n_test:,}"
    shape = " x ".join(map(str, known.shape))
    get = "pip install 'orderdp[demo]'" if known.family == "digits" else f"orderdp data fetch {known.name}"
    place = where(known.name, data_dir)
    return known.name, samples, shape, "not here" if place is None else str(place), get
