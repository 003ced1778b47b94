"""One file from the web: goes on where it was cut off, is checked, and gets its name only when it is whole."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from orderdp.workbench.data.checksums import sha256_of_file
from orderdp.workbench.data.writing import writing_to

__all__ = ["Say", "UnavailableError", "download"]

Say = Callable[[str], None]

_PIECE = 1 << 18
_ATTEMPTS = 4
_RANGE_NOT_SATISFIABLE = 416


class UnavailableError(Exception):
    """This source does not have it, or not now: try the next."""


class _BrokenError(Exception):
    """The connection failed in the middle. Not an OSError, which would mean the disk where files are written."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def download(url: str, target: Path, *, sha256: str | None, timeout: float, say: Say) -> None:
    """Gets `url` as the file `target`.

    What came before a connection broke is kept as ``target.part``, and the rest asked for: at once, as long as each
    attempt brings something, and again in a later run. A file whose checksum is wrong is removed.

    Args:
        url: Its address.
        target: Where it goes. Not asked for again where it is there already.
        sha256: Its checksum, or None where its content is checked later.
        timeout: Seconds to wait for a connection, and for each piece of the answer.
        say: Told how far it is.
    """
    if target.exists() and sha256 in (None, sha256_of_file(target)):
        return
    _look_up(url, timeout)
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists()
    _get_all(url, part, timeout, say)
    if sha256 is not None and sha256_of_file(part) != sha256 and resumed:
        # The beginning may be of another version. Once more, from nothing.
        part.unlink()
        _get_all(url, part, timeout, say)
    if sha256 is not None:
        found = sha256_of_file(part)
        if found != sha256:
            part.unlink()
            raise UnavailableError(
                f"{target.name} from {url} has the wrong checksum: SHA-256 must be {sha256}, got {found}; removed it"
            )
    with writing_to(target):
        part.replace(target)


def _get_all(url: str, part: Path, timeout: float, say: Say) -> None:
    for attempt in range(_ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            if _get_rest(url, part, before, timeout, say):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _RANGE_NOT_SATISFIABLE and before:
                return  # there is nothing after what we have
            raise UnavailableError(f"{url} answered {error.code} {error.reason}") from None
        except (_BrokenError, http.client.HTTPException, OSError) as error:
            reason = _plainly(error, timeout)
        now = part.stat().st_size if part.exists() else 0
        if now <= before or attempt == _ATTEMPTS - 1:
            kept = f"; {now:,} bytes are kept in {part}, run it again to go on" if now else ""
            raise UnavailableError(f"{url}: {reason}{kept}")


def _get_rest(url: str, part: Path, have: int, timeout: float, say: Say) -> bool:
    """Appends what comes; whether it was all of it."""
    request = urllib.request.Request(url, headers={"User-Agent": "orderdp"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        if have and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server starts over, so do we
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with (
            writing_to(part, kept=" What came so far is kept for the next try."),
            part.open("ab" if have else "wb") as out,
        ):
            return _copy(answer, out.write, have, total, part.name.removesuffix(".part"), say)


def _copy(
    answer: http.client.HTTPResponse, write: Callable[[bytes], int], done: int, total: int | None, name: str, say: Say
) -> bool:
    told = done
    while True:
        try:
            piece = answer.read(_PIECE)
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenError(error) from None
        if not piece:
            return total is None or done >= total
        write(piece)
        done += len(piece)
        if done - told >= 16 << 20:
            told = done
            say(f"{name}: {done / 1e6:.0f} MB" + ("" if total is None else f" of {total / 1e6:.0f} MB"))


def _look_up(url: str, timeout: float) -> None:
    """Raises where the host's name is not found in time; a look-up by itself can hang for a minute."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return  # the proxy looks names up
    problems: list[str] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, parts.port or parts.scheme)
        except OSError as error:
            problems.append(f"{host} was not found: {error.strerror or error}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise UnavailableError(f"{host} was not found within {timeout:g} s")
    if problems:
        raise UnavailableError(problems[0])


def _plainly(error: Exception, timeout: float) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no answer within {timeout:g} s"
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__)
