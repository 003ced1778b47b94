"""Folders and archives, read alike: which files there are, and their bytes."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Protocol

from orderdp.errors import DatasetError

__all__ = ["ArchiveShelf", "FolderShelf", "Shelf", "is_archive", "open_shelf", "unzipped"]

#: What an archive's name ends in.
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

# No file of a known data set is nearly as large; a damaged archive can claim anything.
_LARGEST = 1 << 31


class Shelf(Protocol):
    """A place that holds files."""

    path: Path

    def names(self) -> frozenset[str]:
        """The files that are there, without their folders."""
        ...

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """What is in each of these files."""
        ...


class FolderShelf:
    """The files of a folder, not of the folders in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> frozenset[str]:
        """The files that are there."""
        return frozenset(entry.name for entry in self.path.iterdir() if entry.is_file())

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """What is in each of these files."""
        return {name: (self.path / name).read_bytes() for name in names}


class ArchiveShelf:
    """The files of a tar archive, wherever in it they are. Nothing is unpacked to the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: frozenset[str] | None = None

    def names(self) -> frozenset[str]:
        """The files that are there, by the last part of their names."""
        if self._names is None:
            self._names = frozenset(self._scan(frozenset()))
        return self._names

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """What is in each of these files, in one pass: going back in a compressed archive starts it over."""
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


def open_shelf(path: Path) -> Shelf | None:
    """The files of a folder or an archive; None where there is neither."""
    if path.is_dir():
        return FolderShelf(path)
    return ArchiveShelf(path) if path.is_file() and is_archive(path) else None


def is_archive(path: Path) -> bool:
    """Whether a file is called as archives are."""
    return path.name.endswith(ENDINGS)


def unzipped(name: str, data: bytes, path: Path) -> bytes:
    """`data` without its gzip compression, if it has any; the name does not matter."""
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
    """What it says; where no kind of archive fits, it goes on with all that were tried."""
    return str(error).partition("\n")[0].rstrip(":")
