"""Files are written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orderdp._files import flushed, replacing, write_text


def test_a_file_is_replaced_when_all_of_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with flushed(path) as file:
        file.write(b"newer")
        assert path.read_text() == "new"
    assert path.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [path]


def half(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyError("in the middle")


def half_on_the_disk(path: Path) -> None:
    with flushed(path) as file:
        file.write(b"half")
        raise KeyError("in the middle")


@pytest.mark.parametrize("write", [half, half_on_the_disk])
def test_what_goes_wrong_leaves_the_old_file_and_nothing_else(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    write_text(path, "old")
    with pytest.raises(KeyError):
        write(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writers_that_go_by_the_ending_get_theirs(tmp_path: Path) -> None:
    with replacing(tmp_path / "chart.png", ".png") as temporary:
        assert temporary.suffix == ".png"
        temporary.touch()
