"""Files of a data set: checksums, folder and archive sources, atomic writes."""

from __future__ import annotations

import errno
import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Protocol

from orderdp._files import replacing
from orderdp.datasets.catalog import DATASETS, DatasetInfo
from orderdp.errors import DatasetError

__all__ = [
    "ArchiveSource",
    "FileSource",
    "FolderSource",
    "check",
    "is_archive",
    "made_folder",
    "open_source",
    "recognized",
    "sha256",
    "sha256_of_file",
    "unzipped",
    "write_whole",
    "writing_to",
]


def sha256(data: bytes) -> str:
    """Return the checksum of some bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the checksum of a file, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check(known: DatasetInfo, files: Mapping[str, bytes], path: Path) -> None:
    """Raise unless the original files at `path` are the published ones."""
    for name, expected in known.files.items():
        found = sha256(files[name])
        if found != expected:
            raise DatasetError(
                f"{path}: {name} is not the {known.name} that was published. Its SHA-256 must be {expected}, got "
                f"{found} ({len(files[name]):,} bytes).{_whose(found)} Delete it and run `orderdp data fetch "
                f"{known.name}`; or, if it is meant to differ, load it by its path instead of by its name."
            )


def recognized(files: Mapping[str, bytes]) -> DatasetInfo | None:
    """Return the named data set that these original files belong to, if any."""
    # The smallest file first: other data already differs there, at little cost.
    names = sorted(files, key=lambda name: len(files[name]))
    for known in DATASETS.values():
        if set(names) == set(known.files) and all(sha256(files[name]) == known.files[name] for name in names):
            return known
    return None


def _whose(digest: str) -> str:
    for known in DATASETS.values():
        for name, expected in known.files.items():
            if digest == expected:
                return f" It is {name} of {known.name}."
    return ""


_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space, or name another folder with --data-dir.",
    errno.EDQUOT: "Your quota is used up: free some space, or name another folder with --data-dir.",
}


_ELSEWHERE = "Name a folder that can be written to with --data-dir or in ORDERDP_DATA."


@contextmanager
def writing_to(path: Path, *, kept: str = "") -> Iterator[None]:
    """Turn operating-system errors about writing `path` into errors that say what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, _ELSEWHERE)
        raise DatasetError(f"cannot write {path}: {error.strerror or error}. {advice}{kept}") from error


def made_folder(path: Path) -> Path:
    """Return the folder, created if missing; raise if it is not writable."""
    with writing_to(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission to write there")
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it, so that no process ever reads half of the file."""
    with writing_to(path, kept=" The partial file was removed."), replacing(path) as temporary:
        temporary.write_bytes(data)


#: Suffixes of archive names.
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


# No file of a named data set is nearly as large; a damaged archive can state any size.
_LARGEST = 1 << 31


class FileSource(Protocol):
    """A folder or archive that holds the files of a data set."""

    path: Path

    def names(self) -> frozenset[str]:
        """Return the names of all files, without their folders."""
        ...

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Read these files."""
        ...


class FolderSource:
    """The files of a folder, without subfolders."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> frozenset[str]:
        """Return the names of all files."""
        return frozenset(entry.name for entry in self.path.iterdir() if entry.is_file())

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Read these files."""
        return {name: (self.path / name).read_bytes() for name in names}


class ArchiveSource:
    """The files of a tar archive, at any depth. Nothing is unpacked to disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: frozenset[str] | None = None

    def names(self) -> frozenset[str]:
        """Return the names of all files, without their folders."""
        if self._names is None:
            self._names = frozenset(self._scan(frozenset()))
        return self._names

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Read these files in one pass: seeking back in a compressed archive starts from its beginning."""
        return {name: data for name, data in self._scan(frozenset(names)).items() if data is not None}

    def _scan(self, wanted: frozenset[str]) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        try:
            with tarfile.open(self.path) as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if not member.isfile() or name.startswith("._"):
                        continue
                    if name in wanted and member.size <= _LARGEST:
                        stream = archive.extractfile(member)
                        found[name] = None if stream is None else stream.read()
                    elif name not in wanted:
                        found.setdefault(name, None)
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError) as error:
            raise DatasetError(
                f"{self.path} must be a whole tar archive, but reading it failed: {_first_line(error)}. It may have "
                "been cut short; get it again."
            ) from None
        return found


def open_source(path: Path) -> FileSource | None:
    """Open a folder or an archive; return None if the path is neither."""
    if path.is_dir():
        return FolderSource(path)
    return ArchiveSource(path) if path.is_file() and is_archive(path) else None


def is_archive(path: Path) -> bool:
    """Whether a file has the suffix of an archive."""
    return path.name.endswith(ENDINGS)


def unzipped(name: str, data: bytes, path: Path) -> bytes:
    """Decompress `data` if it is gzip data; the file name does not matter."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(
            f"{path / name} must be a whole gzip file, but decompressing it failed: {error}. It may have been cut "
            "short; get it again."
        ) from None


def _first_line(error: Exception) -> str:
    """Return the first line of the message; the next lines of tarfile's list all archive types that were tried."""
    return str(error).partition("\n")[0].rstrip(":")
