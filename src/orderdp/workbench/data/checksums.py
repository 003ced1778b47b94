"""SHA-256 of the original files of a data set, compared with what is known of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from orderdp.errors import DatasetError
from orderdp.workbench.data.catalogue import KNOWN, Known

__all__ = ["check", "recognised", "sha256", "sha256_of_file"]


def sha256(data: bytes) -> str:
    """The checksum of some bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """The checksum of a file, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check(known: Known, files: Mapping[str, bytes], path: Path) -> None:
    """Raises unless the original files at `path` are those that were published."""
    for name, expected in known.files.items():
        found = sha256(files[name])
        if found != expected:
            raise DatasetError(
                f"{path}: {name} is not the {known.name} that was published. Its SHA-256 must be {expected}, got "
                f"{found} ({len(files[name]):,} bytes).{_whose(found)} Delete it and run `orderdp data fetch "
                f"{known.name}`; or, if it is meant to differ, load it by its path instead of by its name."
            )


def recognised(files: Mapping[str, bytes]) -> Known | None:
    """The known data set these original files are, if any."""
    # The smallest file first: data that are not known differ there already, and cost little.
    names = sorted(files, key=lambda name: len(files[name]))
    for known in KNOWN.values():
        if set(names) == set(known.files) and all(sha256(files[name]) == known.files[name] for name in names):
            return known
    return None


def _whose(digest: str) -> str:
    for known in KNOWN.values():
        for name, expected in known.files.items():
            if digest == expected:
                return f" It is {name} of {known.name}."
    return ""
