"""Checkpoint files: damage is noticed, and what cannot be written is said."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orderdp
from orderdp import OrderDP, Pruner, checkpoint
from orderdp.errors import StateError
from tests.test_bad_input import assert_same_state


def a_state() -> dict[str, Any]:
    pruner = Pruner(OrderDP(0.4), 300, seed=1)
    for index in list(pruner.batch_sampler(16))[:5]:
        pruner.update(index, torch.rand(len(index)))
    model = torch.nn.Linear(20, 5)
    return {"model": OrderedDict(model.state_dict()), "pruner": pruner.state_dict(), "epoch": 3, "name": "a run"}


@pytest.mark.parametrize("mmap", [False, True])
def test_every_flipped_bit_is_refused_or_changes_nothing(mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    state = a_state()
    orderdp.save_checkpoint(path, state)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for bit in random.choice(8 * len(whole), 300, replace=False).tolist():
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            loaded = orderdp.load_checkpoint(path, mmap=mmap)
        except StateError:
            refused += 1
        else:
            assert_same_state(loaded, state)
    assert refused > 150


@pytest.mark.parametrize(("place", "value"), [(10, 8), (38, 16)], ids=["compressed", "a folder"])
def test_a_part_that_seems_to_be_something_else_is_refused(place: int, value: int, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    orderdp.save_checkpoint(path, a_state())
    whole = path.read_bytes()
    entries = [found.start() for found in re.finditer(rb"PK\x01\x02", whole)]  # the list of contents
    assert len(entries) > 5
    for entry in entries:
        assert whole[entry + place] == 0
        path.write_bytes(whole[: entry + place] + bytes([value]) + whole[entry + place + 1 :])
        for verify in (True, False):  # the list is read first: torch would read memory that was never written
            with pytest.raises(StateError, match=r"its list of contents calls .* compressed or a folder"):
                orderdp.load_checkpoint(path, verify=verify)


def test_the_damaged_part_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    state = a_state()
    state["pruner"]["table"]["columns"]["score"][:] = 1.2345
    orderdp.save_checkpoint(path, state)
    marked = path.read_bytes()
    at = marked.index(np.float32(1.2345).tobytes() * 3)
    path.write_bytes(marked[:at] + b"\0" + marked[at + 1 :])

    with pytest.raises(StateError, match=r"is damaged: pruner\.table\.columns\.score differs from what was written"):
        orderdp.load_checkpoint(path)
    unverified = orderdp.load_checkpoint(path, verify=False)
    assert float(unverified["pruner"]["table"]["columns"]["score"][0]) != np.float32(1.2345)


def test_the_old_format_of_torch_has_no_checksums_and_loads(tmp_path: Path) -> None:
    state = a_state()
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_same_state(orderdp.load_checkpoint(tmp_path / "old.pt"), state)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"the folder of a checkpoint must exist, .*missing. does not. Create it"):
        orderdp.save_checkpoint(tmp_path / "missing" / "checkpoint.pt", {})


class Full:
    """A file on a disk that takes no more."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.name = file.name

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_is_said_and_the_old_file_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    orderdp.save_checkpoint(path, {"epoch": 1})
    whole = torch.save
    monkeypatch.setattr(checkpoint.torch, "save", lambda state, file: whole(state, Full(file)))
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: type("", (), {"free": 3 * 2**20})())

    with pytest.raises(StateError) as caught:
        orderdp.save_checkpoint(path, {"scores": torch.zeros(2**20)})

    said = str(caught.value)
    assert "the disk is full" in said
    assert "needs about 4.0 MiB" in said
    assert "has 3.0 MiB free" in said
    assert "The previous checkpoint is unchanged." in said
    assert orderdp.load_checkpoint(path) == {"epoch": 1}
    assert list(tmp_path.iterdir()) == [path]


LIMITED = """
import resource, signal, sys
import torch, orderdp
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    orderdp.save_checkpoint(sys.argv[1], {"scores": torch.zeros(100_000)})
except orderdp.errors.StateError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on the size of files there")
def test_a_write_that_fails_for_another_reason_is_said_with_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True)
    assert "of about 0.4 MiB could not be written" in done.stdout
    assert not list(tmp_path.iterdir())
