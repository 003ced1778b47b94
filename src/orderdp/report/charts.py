"""Charts as files. Altair describes them, vl-convert draws them; neither needs a browser."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from orderdp.errors import ConfigError
from orderdp.replacing import replacing

__all__ = ["altair", "check_ending", "save"]

_KINDS: dict[str, dict[str, Any]] = {".png": {"scale_factor": 2.0}, ".svg": {}, ".html": {"inline": True}}


def altair() -> ModuleType:
    """The plotting library, or an error that says how to get it."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"figures need {error.name}, which is not installed: pip install 'orderdp[plot]'") from None
    # The rows are handed over as they are; above 5,000 the library would refuse them.
    altair.data_transformers.disable_max_rows()
    module: ModuleType = altair
    return module


def check_ending(path: Path) -> str:
    """The ending of a figure's file, or an error that says which there are."""
    kind = path.suffix.lower()
    if kind not in _KINDS:
        raise ConfigError(f"a figure must end in {', '.join(_KINDS)}, got {os.fspath(path)!r}.")
    return kind


def save(chart: Any, path: Path) -> None:
    """Writes a chart to `path`, as its ending says, under a temporary name that is then renamed."""
    kind = check_ending(path)
    with replacing(path, kind) as temporary:
        chart.save(os.fspath(temporary), **_KINDS[kind])
