"""Files are written whole or not at all."""

from __future__ import annotations

import os
import threading
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


def test_two_writers_of_one_path_never_share_a_file(tmp_path: Path) -> None:
    """Threads have one process number, and so have processes of two containers."""
    path = tmp_path / "numbers.txt"
    contents = [bytes([kind]) * 200_000 for kind in range(4)]
    write_text(path, "")
    torn = []

    def write(content: bytes) -> None:
        for _ in range(20):
            with flushed(path) as file:
                for start in range(0, len(content), 10_000):
                    file.write(content[start : start + 10_000])

    def read() -> None:
        for _ in range(300):
            content = path.read_bytes()
            torn.extend([content] if content not in contents and content else [])

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not torn
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    old, new, of_another = (tmp_path / name for name in (".numbers.txt.1.tmp", ".numbers.txt.2.tmp", ".more.txt.1.tmp"))
    for file in (old, new, of_another):
        file.write_text("half")
    for file in (old, of_another):
        os.utime(file, (0, 0))

    write_text(path, "whole")

    assert sorted(tmp_path.iterdir()) == sorted([path, new, of_another])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "missing" / "numbers.txt", "new")
