"""Where data are looked for: where the user says, then the user's cache, then where packages of the system put them."""

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
    """The user's cache: ``$ORDERDP_DATA``, else ``$XDG_CACHE_HOME/orderdp``, else ``~/.cache/orderdp``."""
    own = os.environ.get("ORDERDP_DATA")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "orderdp"


def home_of(data: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> Path:
    """The folder that `fetch` fills."""
    return (cache_root() if data_dir is None else Path(data_dir).expanduser()) / data.name


def places(data: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Every folder and archive in which the data set may be, in the order in which they are tried."""
    bases = [cache_root()] if data_dir is None else [Path(data_dir).expanduser(), cache_root()]
    for base in bases:
        yield base / data.name
        yield base
        for inside in (*data.folders, *data.archives):
            yield base / inside
    yield from (Path(folder) for folder in data.system)


def find(data: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> FileSource:
    """The first place that holds the whole data set, or an error that says where was looked and how to get it."""
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
    """The folder or archive that holds the data set called `name`, or None. Contents are not checked."""
    data = dataset_info(name)
    if data.family == "digits":
        return _inside_scikit_learn()
    for path in places(data, data_dir):
        shelf = open_source(path)
        # What is in an archive takes seconds to find out; its name is enough to say where it is.
        if isinstance(shelf, ArchiveSource) or (shelf is not None and find_format(shelf, data.family) is not None):
            return path
    return None


def _inside_scikit_learn() -> Path | None:
    found = importlib.util.find_spec("sklearn")
    return None if found is None or found.origin is None else Path(found.origin).parent / "datasets"
