"""Libraries that only some data need, or an error that says how to get them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from orderdp.errors import ConfigError

__all__ = ["extra", "pillow"]


def extra(module: str, what: str, group: str) -> ModuleType:
    """The module, which is part of the extra `group`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} need {error.name or module}, which is not installed: pip install 'orderdp[{group}]'"
        ) from None


def pillow(what: str) -> ModuleType:
    """Pillow's Image module. It decodes all kinds of PNG, and in C: by hand it would take a minute."""
    return extra("PIL.Image", what, "data")
