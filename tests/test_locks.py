"""Locks between processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orderdp._files import in_turn, try_lock
from orderdp.errors import StateError

HOLD = """
import sys
from pathlib import Path
from orderdp._files import try_lock
with try_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_folder_is_locked_against_other_processes_until_the_one_that_holds_it_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(StateError, match="another process is training in"), try_lock(tmp_path):
            raise AssertionError("two processes hold the lock")
        process.kill()
    with try_lock(tmp_path):
        pass


def test_a_lock_is_released_by_an_error_inside(tmp_path: Path) -> None:
    with pytest.raises(KeyError), try_lock(tmp_path):
        raise KeyError
    with try_lock(tmp_path):
        pass


def test_the_second_waits_and_says_so_once(tmp_path: Path) -> None:
    said, entered = threading.Event(), []

    def second() -> None:
        with in_turn(tmp_path, said.set):
            entered.append("second")

    with in_turn(tmp_path, lambda: entered.append("waited")):
        thread = threading.Thread(target=second)
        thread.start()
        assert said.wait(30)
        entered.append("first")
    thread.join(30)
    assert entered == ["first", "second"]


@pytest.mark.parametrize("lock", [try_lock, in_turn])
def test_there_are_locks_also_where_this_package_finds_no_fcntl(lock, tmp_path: Path, monkeypatch) -> None:
    import filelock

    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows, where filelock has another way
    with lock(tmp_path), pytest.raises(filelock.Timeout):
        filelock.FileLock(tmp_path / ".lock").acquire(timeout=0)
