"""Import of users' own objects by path, ``module:name``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from orderdp._validation import suggestion
from orderdp.errors import ConfigError

__all__ = ["import_object"]


def import_object(place: str, what: str) -> Callable[..., Any]:
    """Import the function at `place`, ``module:name`` or ``file.py:name``; the current folder is searched, too."""
    module_name, _, name = place.rpartition(":")
    if not module_name or not name or (module_name.startswith(".") and not module_name.endswith(".py")):
        raise ConfigError(f"a {what} of your own must be given as module:name, got {place!r}.")
    path = Path(module_name) if module_name.endswith(".py") else None
    if path is not None:
        if not path.exists():
            raise ConfigError(f"there is no file {module_name!r} to take the {what} from.")
        folder, module_name = str(path.parent.resolve()), path.stem
    else:
        folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
        if path is not None and not _is_from(module, path):
            # At the front of sys.path, the folder would hide the other module from processes that start later.
            sys.path.remove(folder)
            sys.path.append(folder)
            module = _taken_from(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the module of {what} {place!r} cannot be imported: {error}.") from None
    if not callable(getattr(module, name, None)):
        known = [entry for entry in vars(module) if not entry.startswith("_") and callable(getattr(module, entry))]
        raise ConfigError(f"module {module_name!r} has no function {name!r}.{suggestion(name, known)}")
    found: Callable[..., Any] = getattr(module, name)
    return found


def _is_from(module: ModuleType, path: Path) -> bool:
    found = getattr(module, "__file__", None)
    return found is not None and Path(found).resolve() == path.resolve()


def _taken_from(path: Path) -> ModuleType:
    """Load a file whose name another module already has, such as random.py."""
    name = str(path.resolve())
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
