"""Search path of data: the given folder, then the user's cache, then the folders of system packages."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from orderdp.datasets.catalog import DatasetInfo, dataset_info
from orderdp.datasets.files import ArchiveSource, FileSource, open_source
from orderdp.datasets.formats import find_format
from orderdp.errors import DatasetError

__all__ = ["cache_root", "find", "home_of", "places", "where"]


def cache_root() -> Path:
    """Return the user's cache: ``$ORDERDP_DATA``, else ``$XDG_CACHE_HOME/orderdp``, else ``~/.cache/orderdp``."""
    own = os.environ.get("ORDERDP_DATA")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "orderdp"


def home_of(data: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder that `fetch` fills."""
    return (cache_root() if data_dir is None else Path(data_dir).expanduser()) / data.name


def places(data: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yield every folder and archive that may hold the data set, in the order of the search."""
    bases = [cache_root()] if data_dir is None else [Path(data_dir).expanduser(), cache_root()]
    for base in bases:
        yield base / data.name
        yield base
        for inside in (*data.folders, *data.archives):
            yield base / inside
    yield from (Path(folder) for folder in data.system)


def find(data: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> FileSource:
    """Return the first file source that holds the whole data set; the error lists the searched paths and the fix."""
    for path in places(data, data_dir):
        shelf = open_source(path)
        if shelf is not None and find_format(shelf, data.family) is not None:
            return shelf
    bases = [cache_root()] if data_dir is None else [Path(data_dir).expanduser(), cache_root()]
    looked = ", ".join(str(base) for base in (*bases, *data.system))
    option = "" if data_dir is None else f" --data-dir {os.fspath(data_dir)}"
    raise DatasetError(
        f"{data.name} is not here. Looked in {looked}. Get it with `orderdp data fetch {data.name}{option}`; or, if "
        "you have it, name its folder with --data-dir."
    )


def where(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder or archive that holds the data set called `name`, or None. Contents are not checked."""
    data = dataset_info(name)
    if data.family == "digits":
        return _inside_scikit_learn()
    for path in places(data, data_dir):
        shelf = open_source(path)
        # Listing an archive takes seconds; its name is enough here.
        if isinstance(shelf, ArchiveSource) or (shelf is not None and find_format(shelf, data.family) is not None):
            return path
    return None


def _inside_scikit_learn() -> Path | None:
    found = importlib.util.find_spec("sklearn")
    return None if found is None or found.origin is None else Path(found.origin).parent / "datasets"
