"""Scores, counts and the kept set as files for other tools, and scores from such files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from orderdp._files import flushed
from orderdp._validation import check_ratio, checked_name, is_count
from orderdp.checkpoint import FORMAT
from orderdp.errors import ConfigError, DatasetError, StateError

__all__ = [
    "By",
    "columns_of_state",
    "find_state",
    "fingerprint",
    "read_kept",
    "read_scores",
    "static_subset",
    "write_columns",
]

By = Literal["usage", "score"]

_FORMATS = (".npz", ".csv", ".parquet")


def fingerprint(kept: np.ndarray, n: int) -> str:
    """Return a short text that identifies a selection of a data set, whatever its order.

    >>> fingerprint(np.array([3, 1]), 5) == fingerprint(np.array([1, 3]), 5) != fingerprint(np.array([1, 2]), 5)
    True

    Args:
        kept: Indices of the selected samples.
        n: Number of samples in the data set.
    """
    digest = sha256(np.array([n], dtype="<i8").tobytes())
    digest.update(np.sort(kept).astype("<i8").tobytes())
    return digest.hexdigest()[:32]


def static_subset(usage: np.ndarray, scores: np.ndarray, keep: float, by: By, offered: np.ndarray) -> np.ndarray:
    """Return the samples that a static subset keeps, ascending: those trained on most often, or with largest scores.

    Equal samples are ranked by the other of the two, then by index. Unseen samples have the smallest score.

    Args:
        usage: How often each sample was trained on.
        scores: One score per sample; infinite for unseen ones.
        keep: Number of samples to keep as an int, or a fraction of the offered ones as a float.
        by: "usage" or "score".
        offered: One flag per sample that may be kept.
    """
    checked_name(by, ("usage", "score"), "order")
    n = int(np.count_nonzero(offered))
    if is_count(keep):
        count = int(keep)
        if count > n:
            raise ConfigError(f"keep must be at most the {n} samples there are, got {keep}.")
    else:
        check_ratio("keep", keep, zero_allowed=False, one_allowed=True)
        count = max(1, round(keep * n))
    known = np.where(np.isposinf(scores), -np.inf, scores)
    keys = (-known, -usage.astype(np.int64)) if by == "usage" else (-usage.astype(np.int64), -known)
    ranked = np.lexsort((np.arange(len(usage)), *keys, ~offered))
    chosen: np.ndarray = np.sort(ranked[:count])
    return chosen


# -- files ---------------------------------------------------------------------------------------------------------


def _ending(path: Path) -> str:
    if path.suffix not in _FORMATS:
        raise ConfigError(f"the file must end in {', '.join(_FORMATS)}, got {str(path)!r}.")
    return path.suffix


def _parquet() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError("a .parquet file needs pyarrow. Install it, or use .npz or .csv.") from None


def write_columns(path: str | os.PathLike[str], columns: Mapping[str, np.ndarray], selection: str) -> None:
    """Write one row per sample; the file replaces an old one when it is complete.

    Args:
        path: The file: .npz, .csv or .parquet.
        columns: The columns, of equal length.
        selection: Fingerprint of the kept set: an entry of an .npz file, metadata of a .parquet file.
    """
    path = Path(path)
    ending = _ending(path)
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of the file must exist, {str(path.parent)!r} does not. Create it first.")
    if ending == ".parquet":
        parquet = _parquet()
        pyarrow = import_module("pyarrow")
        table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
        table = table.replace_schema_metadata({"orderdp.fingerprint": selection})
        with flushed(path) as file:
            parquet.write_table(table, file)
    elif ending == ".npz":
        arrays: dict[str, Any] = {**columns, "fingerprint": np.array(selection)}
        with flushed(path) as file:
            np.savez_compressed(file, **arrays)
    else:
        text = io.StringIO(newline="")
        rows = csv.writer(text)
        rows.writerow(columns)
        rows.writerows(zip(*(_as_text(values) for values in columns.values()), strict=True))
        with flushed(path) as file:
            file.write(text.getvalue().encode())


def _as_text(values: np.ndarray) -> list[Any]:
    if values.dtype.kind == "f":
        return [f"{value:.9g}" for value in values.tolist()]  # enough digits for single precision
    texts: list[Any] = (values.astype(np.int64) if values.dtype == np.bool_ else values).tolist()
    return texts


def _read(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return those of the named columns that the file has."""
    ending = _ending(path)
    if not path.is_file():
        raise DatasetError(f"there is no file {str(path)!r}.")
    try:
        if ending == ".parquet":
            table = _parquet().read_table(path)
            return {name: table.column(name).to_numpy() for name in names if name in table.column_names}
        if ending == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in names if name in arrays}
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            have = [name for name in names if name in (rows.fieldnames or ())]
            values: dict[str, list[float]] = {name: [] for name in have}
            for row in rows:
                for name in have:
                    values[name].append(float(row[name] or "nan"))
            return {name: np.array(column) for name, column in values.items()}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DatasetError(f"{str(path)!r} cannot be read ({error}). Use another file.") from error


def read_kept(path: str | os.PathLike[str]) -> list[int]:
    """Return the kept samples of a file written by ``Pruner.export``, for `Subset` or ``dataset.select``.

    Args:
        path: The file.
    """
    found = _read(Path(path), ("index", "kept"))
    if set(found) != {"index", "kept"}:
        raise DatasetError(f"{str(path)!r} must have the columns index and kept, it has not. Use a file of export().")
    kept: list[int] = found["index"][found["kept"].astype(np.bool_)].astype(np.int64).tolist()
    return kept


def read_scores(source: Any, n: int, column: str = "score") -> tuple[np.ndarray, np.ndarray]:
    """Return samples and their scores, from an array of `n` numbers or from a file; NaN becomes +inf, for unseen.

    Args:
        source: An array, or the path of an .npz, .csv or .parquet file.
        n: Number of samples.
        column: Column, or entry, that holds the scores. A column "index" says which samples they belong to.
    """
    index = None
    if isinstance(source, str | os.PathLike):
        found = _read(Path(source), (column, "index"))
        if column not in found:
            raise DatasetError(f"{os.fspath(source)!r} has no column {column!r}. Name another one: column=...")
        scores, index = found[column], found.get("index")
    else:
        scores = np.asarray(source.detach().cpu() if isinstance(source, torch.Tensor) else source)
    if scores.ndim != 1 or scores.dtype.kind not in "fiu":
        raise DatasetError(f"scores must be a flat array of numbers, got {scores.dtype} of shape {scores.shape}.")
    if index is None and len(scores) != n:
        raise DatasetError(
            f"scores must be {n} numbers, one for each sample, got {len(scores)}. In a file, a column 'index' says "
            "which samples they belong to."
        )
    where = np.arange(n) if index is None else np.asarray(index, dtype=np.float64)
    places = where.astype(np.int64)
    if len(places) and not (np.array_equal(places, where) and places.min() >= 0 and places.max() < n):
        raise DatasetError(f"the column 'index' must hold whole numbers in [0, {n}).")
    if len(np.unique(places)) != len(places):
        raise DatasetError("the column 'index' must name each sample once, it names some twice.")
    values = scores.astype(np.float64)
    return places, np.where(np.isnan(values), np.inf, values)


# -- checkpoints ---------------------------------------------------------------------------------------------------


def find_state(checkpoint: Any) -> Mapping[str, Any]:
    """Return the state of the pruner in a checkpoint, wherever in its dicts it is.

    Args:
        checkpoint: What `load_checkpoint` returned.
    """
    waiting, found = [checkpoint], []
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if part.get("format") == FORMAT:
                found.append(part)
            else:
                waiting += part.values()
    if len(found) != 1:
        raise StateError(f"the checkpoint must hold the state of one pruner, it holds {len(found)}.")
    state: Mapping[str, Any] = found[0]
    return state


def columns_of_state(
    state: Mapping[str, Any], keep: float | None = None, by: By = "usage"
) -> tuple[dict[str, np.ndarray], str]:
    """Return one row per sample from the state of a pruner, and the fingerprint of what is kept.

    Args:
        state: What ``Pruner.state_dict()`` returned.
        keep: As in `static_subset`; None for the selection of the open epoch.
        by: As in `static_subset`.
    """
    if "shard" in state["timeline"] or state.get("group") is not None:
        raise StateError("the checkpoint holds the part of one rank. Use one of a replicated table, after sync().")
    stored, timeline, n = state["table"]["columns"], state["timeline"], int(state["n"])
    values = {name: stored[name].cpu().numpy() for name in ("score", "usage", "seen")}
    gone = (state.get("excluded") or state.get("roster") or {}).get("removed")
    offered = np.ones(n, np.bool_)
    if gone is not None:
        offered[gone.cpu().numpy()] = False
    if keep is not None:
        kept = static_subset(values["usage"], values["score"], keep, by, offered)
    else:
        selection, epoch = timeline["selection"], timeline["epoch"]
        served = selection["indices"] if selection is not None else epoch and epoch.get("order")
        if served is None:
            raise StateError(
                "no epoch is open in the checkpoint, or its steps select one by one, so it has no selection. Say how "
                "many samples to keep."
            )
        kept = np.unique(served.cpu().numpy())
    return _columns(values["score"], values["usage"], values["seen"], kept)


def _columns(
    score: np.ndarray, usage: np.ndarray, seen: np.ndarray, kept: np.ndarray
) -> tuple[dict[str, np.ndarray], str]:
    n = len(score)
    flags = np.zeros(n, np.bool_)
    flags[kept] = True
    columns: dict[str, np.ndarray] = {
        "index": np.arange(n),
        "score": score.astype(np.float32),
        "usage": usage.astype(np.int64),
        "last_seen_epoch": seen.astype(np.int64),
        "kept": flags,
    }
    return columns, fingerprint(kept, n)
