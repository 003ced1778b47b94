"""Files and formats of data sets: checksums, folders and archives; idx, CIFAR's binary and Python batches, PNG."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from orderdp._files import replacing
from orderdp.datasets.catalog import DATASETS, DatasetInfo
from orderdp.errors import ConfigError, DatasetError, install_command

__all__ = [
    "FAMILIES",
    "ArchiveSource",
    "Arrays",
    "FileSource",
    "FolderSource",
    "StorageFormat",
    "check",
    "decode",
    "extra",
    "find_format",
    "is_archive",
    "made_folder",
    "open_source",
    "original_files",
    "pillow",
    "read_idx",
    "read_labels_json",
    "read_records",
    "recognized",
    "records_of_pickle",
    "records_of_png",
    "sha256",
    "sha256_of_file",
    "unpickled",
    "unzipped",
    "write_whole",
    "writing_to",
]


# -- files -------------------------------------------------------------------------------------------------------------


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


# -- formats -----------------------------------------------------------------------------------------------------------


def extra(module: str, what: str, group: str) -> ModuleType:
    """Import a module of the extra `group`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} need {error.name or module}, which is not installed: {install_command(group)}"
        ) from None


def pillow(what: str) -> ModuleType:
    """Import Pillow's Image module. It decodes every kind of PNG in C; in Python this would take a minute."""
    return extra("PIL.Image", what, "data")


_UNSIGNED_BYTE = 0x08


_CUT = "It may have been cut short; get it again."


def read_idx(data: bytes, name: str) -> np.ndarray:
    """Return the array of unsigned bytes in an idx file.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels").tolist()
    [7, 8, 9]
    """
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE or data[3] == 0:
        start = data[:4].hex(" ") or "nothing"
        raise DatasetError(f"{name} must be an idx file of unsigned bytes, which starts with 00 00 08, got {start}.")
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise DatasetError(f"{name} must have a header of {header} bytes, got {len(data)} bytes in all. {_CUT}")
    shape = tuple(np.frombuffer(data[4:header], ">u4").tolist())
    if math.prod(shape) != len(data) - header:
        raise DatasetError(
            f"{name} must have {math.prod(shape):,} bytes after its header, got {len(data) - header:,}. {_CUT}"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


_PIXELS = 3 * 32 * 32


def read_records(data: bytes, name: str, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 3, 32, 32) and labels of a binary batch; of several label bytes, the last is the label."""
    size = label_bytes + _PIXELS
    if len(data) == 0 or len(data) % size:
        raise DatasetError(
            f"{name} must be records of {size:,} bytes, got {len(data):,} bytes, which is {len(data) / size:.2f} "
            "records. It may have been cut short; get it again."
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def records_of_pickle(data: bytes, name: str, label_keys: tuple[str, ...]) -> bytes:
    """Convert a Python batch to a binary batch. Reading the pickle runs none of its code."""
    batch = unpickled(data, name)
    missing = [key for key in ("data", *label_keys) if key not in batch]
    if missing:
        raise DatasetError(f"{name} must have the keys data, {', '.join(label_keys)}; missing: {', '.join(missing)}.")
    pixels = batch["data"]
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise DatasetError(f"{name}: data must be an array of n x {_PIXELS:,}, got {getattr(pixels, 'shape', pixels)}.")
    return _records(pixels, [batch[key] for key in label_keys], name)


def records_of_png(data: bytes, name: str, labels: list[int]) -> tuple[bytes, list[int]]:
    """Convert a PNG in which every row is an image to a binary batch; return it and the remaining labels."""
    image = pillow("PNG files")
    try:
        with image.open(io.BytesIO(data), formats=["PNG"]) as picture:
            rows = np.asarray(picture)
    except (OSError, SyntaxError, ValueError) as error:
        raise DatasetError(f"{name} must be a whole PNG file, but reading it failed: {error}. Get it again.") from None
    if rows.ndim != 3 or rows.shape[1:] != (1024, 3) or rows.dtype != np.uint8:
        raise DatasetError(f"{name} must be an RGB image 1,024 pixels wide, got shape {rows.shape}.")
    pixels = rows.transpose(0, 2, 1).reshape(len(rows), _PIXELS)
    return _records(pixels, [labels[: len(rows)]], name), labels[len(rows) :]


def read_labels_json(data: bytes, name: str) -> list[int]:
    """Read a JSON list of labels."""
    try:
        labels = json.loads(data)
    except ValueError as error:
        raise DatasetError(f"{name} must be a JSON list, but reading it failed: {error}. Get it again.") from None
    if not isinstance(labels, list):
        raise DatasetError(f"{name} must be a JSON list of labels, got {type(labels).__name__}.")
    return labels


def _records(pixels: np.ndarray, labels: list[Any], name: str) -> bytes:
    try:
        columns = [np.array(column, dtype=np.uint8) for column in labels]
    except (TypeError, ValueError, OverflowError) as error:
        raise DatasetError(f"{name}: labels must be numbers from 0 to 255: {error}.") from None
    for column in columns:
        if column.shape != (len(pixels),):
            raise DatasetError(
                f"{name}: there must be as many labels as images, got {column.shape} labels and {len(pixels):,} images."
            )
    return np.column_stack([*columns, pixels]).tobytes()


def unpickled(data: bytes, name: str) -> dict[str, Any]:
    """Read a pickled dict of arrays, lists, numbers and strings; raise if the pickle holds any other type."""
    try:
        value = _Reader(io.BytesIO(data), encoding="bytes").load()
    except DatasetError as error:
        raise DatasetError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can make its reader fail in any way
        raise DatasetError(
            f"{name} must be a whole pickle, but reading it failed: {type(error).__name__}: {error}. Get it again."
        ) from None
    if not isinstance(value, dict):
        raise DatasetError(f"{name} must hold a dictionary, got {type(value).__name__}.")
    return {_text(key): _plain(item) for key, item in value.items()}


class _Reader(pickle.Unpickler):
    """Accepts the parts of a byte array, and rejects any other class."""

    def find_class(self, module: str, name: str) -> Any:
        package = module.replace("numpy._core", "numpy.core")
        stand_in = _STAND_INS.get((package, name))
        if stand_in is None:
            raise DatasetError(
                f"the pickle asks for {module}.{name}, which no array needs. It may be malicious; it was not run."
            )
        return stand_in

    def persistent_load(self, pid: Any) -> Any:
        raise DatasetError(f"the pickle refers to something outside of it ({pid!r}), which no array needs.")


class _Array:
    """Placeholder for an array during unpickling."""

    def __init__(self, *_: Any) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, bool(fortran))

    def fill(self, data: Any, dtype: Any, shape: Any, fortran: bool) -> None:
        """Check the file's description of the array, then create the array."""
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "uint8", "|u1"):
            raise DatasetError(f"arrays must be of uint8, got {getattr(dtype, 'code', dtype)!r}.")
        if not isinstance(data, str | bytes | bytearray):
            raise DatasetError(f"an array must come as bytes, got {type(data).__name__}.")
        content = data.encode("latin1") if isinstance(data, str) else bytes(data)
        if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) != len(content):
            raise DatasetError(f"an array of shape {shape} must have as many bytes, got {len(content):,}.")
        self.value = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """Placeholder for the dtype of an array."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = _text(code)

    def __setstate__(self, state: Any) -> None:
        """Ignore the state: byte order and the like mean nothing for bytes."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:
    array = _Array()
    array.fill(data, dtype, shape, _text(order) == "F")
    return array


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """Decode bytes as Python 3 writes them in the older protocols."""
    if _text(encoding) not in ("latin1", "latin-1") or not isinstance(text, str):
        raise DatasetError("the pickle asks for an encoding that no array needs.")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encoded,
}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value


Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StorageFormat:
    """One way to store a data set.

    Attributes:
        title: Name of the format in messages.
        needs: For each file, its possible names.
        convert: Converts these files to the original files; its second argument is the folder, for messages.
    """

    title: str
    needs: tuple[tuple[str, ...], ...]
    convert: Callable[[Files, Path], dict[str, bytes]]

    def chosen(self, names: frozenset[str]) -> list[str] | None:
        """Return the files that make up this format, or None if one is missing."""
        chosen = [next((name for name in choices if name in names), None) for choices in self.needs]
        return None if None in chosen else [name for name in chosen if name is not None]


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


_TEN = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


_HUNDRED = ("train", "test")


def _idx_names(name: str) -> tuple[str, ...]:
    dotted = name.replace("-idx", ".idx")
    return name, f"{name}.gz", dotted, f"{dotted}.gz"


def _from_idx(files: Files, path: Path) -> dict[str, bytes]:
    return {
        name.removesuffix(".gz").replace(".idx", "-idx"): unzipped(name, data, path) for name, data in files.items()
    }


def _from_binary(files: Files, path: Path) -> dict[str, bytes]:
    return dict(files)


def _from_pickles(files: Files, path: Path, label_keys: tuple[str, ...]) -> dict[str, bytes]:
    return {f"{name}.bin": records_of_pickle(data, str(path / name), label_keys) for name, data in files.items()}


def _from_pngs(files: Files, path: Path) -> dict[str, bytes]:
    original = {}
    for split, labels in (("data", "train_lables.json"), ("test", "test_lables.json")):
        rest = read_labels_json(files[labels], str(path / labels))
        for name in sorted(name for name in files if name.startswith(split) and name.endswith(".png")):
            records, rest = records_of_png(files[name], str(path / name), rest)
            original[name.replace(".png", ".bin")] = records
    return original


def _alone(names: tuple[str, ...], ending: str = "") -> tuple[tuple[str, ...], ...]:
    return tuple((name + ending,) for name in names)


#: Storage formats of each family, the fastest to read first.
FAMILIES: Mapping[str, tuple[StorageFormat, ...]] = {
    "idx": (StorageFormat("idx files", tuple(_idx_names(name) for name in _IDX), _from_idx),),
    "cifar10": (
        StorageFormat("binary batches", _alone(_TEN, ".bin"), _from_binary),
        StorageFormat("Python batches", _alone(_TEN), partial(_from_pickles, label_keys=("labels",))),
        StorageFormat(
            "PNG batches", (*_alone(_TEN, ".png"), ("train_lables.json",), ("test_lables.json",)), _from_pngs
        ),
    ),
    "cifar100": (
        StorageFormat("binary batches", _alone(_HUNDRED, ".bin"), _from_binary),
        StorageFormat(
            "Python batches", _alone(_HUNDRED), partial(_from_pickles, label_keys=("coarse_labels", "fine_labels"))
        ),
    ),
}


def find_format(file_source: FileSource, family: str) -> tuple[StorageFormat, list[str]] | None:
    """Return the format in which the file source holds a complete data set of the family, and its files; else None."""
    names = file_source.names()
    for form in FAMILIES[family]:
        chosen = form.chosen(names)
        if chosen is not None:
            return form, chosen
    return None


def original_files(file_source: FileSource, family: str) -> dict[str, bytes] | None:
    """Return the original files of a data set of the family, from any storage format; None if there is none."""
    found = find_format(file_source, family)
    if found is None:
        return None
    form, chosen = found
    return form.convert(file_source.read(chosen), file_source.path)


def decode(files: Files, family: str, path: Path) -> Arrays:
    """Return training images and labels, test images and labels: uint8, images as (n, channels, height, width)."""
    if family == "idx":
        parts = [read_idx(files[name], str(path / name)) for name in _IDX]
        images, labels, test_images, test_labels = parts
        if [part.ndim for part in parts] != [3, 1, 3, 1]:
            raise DatasetError(
                f"{path} must hold images of three and labels of one dimension, got {[part.ndim for part in parts]}."
            )
        return images[:, None], labels, test_images[:, None], test_labels
    names, label_bytes = (_TEN, 1) if family == "cifar10" else (_HUNDRED, 2)
    batches = [read_records(files[f"{name}.bin"], str(path / f"{name}.bin"), label_bytes) for name in names]
    images = np.concatenate([batch[0] for batch in batches[:-1]])
    labels = np.concatenate([batch[1] for batch in batches[:-1]])
    return images, labels, np.ascontiguousarray(batches[-1][0]), batches[-1][1]
