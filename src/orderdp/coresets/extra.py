"""The library behind the extra ``coresets``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from orderdp.errors import ConfigError

__all__ = ["sklearn"]


def sklearn(module: str) -> Any:
    """A module of scikit-learn, or an error that says how to get it."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise ConfigError(
            "this method needs scikit-learn, which is not installed: pip install 'orderdp[coresets]'"
        ) from None
