"""Files of a sharded checkpoint: a folder with one for each rank, each written whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderdp.errors import StateError
from orderdp.sharded.table import ShardTable
from orderdp.state import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from orderdp.pruner import Pruner

__all__ = ["load_parts", "save_parts"]

_NAME = "pruner-{rank:05d}-of-{world:05d}.pt"
_PATTERN = re.compile(r"pruner-(\d{5})-of-(\d{5})\.pt")


def save_parts(pruner: Pruner, folder: str | os.PathLike[str], *, dataset: str = "") -> Path:
    """Writes this rank's part to a folder, under a temporary name first. Every rank calls it, after the same step.

    Args:
        pruner: Whose state; one with ``table="sharded"``.
        folder: Where to, the same for all ranks and one of its own for each checkpoint. Made where it is missing.
        dataset: A name or version of the data set, to be compared when it is loaded.

    Returns:
        The file of this rank.
    """
    _check_sharded(pruner)
    table = pruner._table
    assert isinstance(table, ShardTable)
    state = pruner._state_around(table.state_dict(copy=False))
    about = state["timeline"]["shard"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / _NAME.format(rank=about["rank"], world=about["world_size"])
    save_checkpoint(path, {"dataset": dataset, "pruner": state})
    return path


def load_parts(pruner: Pruner, folder: str | os.PathLike[str], *, dataset: str = "") -> None:
    """Puts a pruner back where `save_parts` was called, whatever the number of processes then and now.

    Raises, and changes nothing, where a part is missing or belongs to something else. Not a collective.

    Args:
        pruner: One with ``table="sharded"``, for the same data set and policy.
        folder: Where the parts are. All ranks must be able to read all of them.
        dataset: What `save_parts` was given.
    """
    _check_sharded(pruner)
    parts = []
    for path in _paths(Path(folder)):
        part: dict[str, Any] = load_checkpoint(path, mmap=True)
        if set(part) != {"dataset", "pruner"}:
            raise StateError(f"{os.fspath(path)!r} is no part that save_parts has written. Use another checkpoint.")
        if part["dataset"] != dataset:
            raise StateError(
                f"{os.fspath(path)!r} is of the data set {part['dataset']!r}, not {dataset!r}. "
                "Resume with the data set it was written for."
            )
        parts.append(part["pruner"])
    pruner.load_state_dict(parts)


def _paths(folder: Path) -> list[Path]:
    """The files of all ranks, or an error that names the missing ones."""
    found = {match.groups(): path for path in folder.glob("*.pt") if (match := _PATTERN.fullmatch(path.name))}
    if not found:
        raise StateError(f"there are no parts of a checkpoint in {os.fspath(folder)!r}.")
    worlds = sorted({int(world) for _, world in found})
    if len(worlds) > 1:
        raise StateError(
            f"{os.fspath(folder)!r} holds parts of checkpoints by {' and '.join(map(str, worlds))} processes. "
            "Use a folder of its own for each checkpoint."
        )
    names = [_NAME.format(rank=rank, world=worlds[0]) for rank in range(worlds[0])]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise StateError(
            f"{os.fspath(folder)!r} must hold the parts of all {worlds[0]} processes; missing: "
            f"{', '.join(missing[:8])}. A process died before it wrote its part, or its disk is not here: use an "
            "earlier checkpoint, or bring the file."
        )
    return [folder / name for name in names]


def _check_sharded(pruner: Pruner) -> None:
    if pruner.table != "sharded":
        raise StateError(
            'parts are written and read by pruners with table="sharded". Use save_checkpoint(path, '
            '{"pruner": pruner.state_dict()}) and load_checkpoint(path).'
        )
