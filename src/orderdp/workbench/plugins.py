"""What users bring from their own modules, as ``module:name``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orderdp.errors import ConfigError
from orderdp.naming import suggestion

__all__ = ["from_outside"]


def from_outside(place: str, what: str) -> Callable[..., Any]:
    """The function called `place`, ``module:name`` or ``file.py:name``; modules beside the current folder are found."""
    module_name, _, name = place.rpartition(":")
    if not module_name or not name:
        raise ConfigError(f"a {what} of your own must be given as module:name, got {place!r}.")
    if module_name.endswith(".py"):
        path = Path(module_name)
        if not path.exists():
            raise ConfigError(f"there is no file {module_name!r} to take the {what} from.")
        folder, module_name = str(path.parent.resolve()), path.stem
    else:
        folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the module of {what} {place!r} cannot be imported: {error}.") from None
    if not callable(getattr(module, name, None)):
        known = [entry for entry in vars(module) if not entry.startswith("_") and callable(getattr(module, entry))]
        raise ConfigError(f"module {module_name!r} has no function {name!r}.{suggestion(name, known)}")
    found: Callable[..., Any] = getattr(module, name)
    return found
