"""What a run leaves behind: one JSON line for its start, for each epoch and for its end.

Lines are only ever added, and each is on the disk before the run goes on, so a run that is killed loses at most the
line it was writing. The fields are listed in ``docs/guides/report.md``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from orderdp.errors import RecordError
from orderdp.workbench.plain import plain
from orderdp.workbench.reading import FILE_NAME, SCHEMA, Run, read_run, read_runs, records_file

__all__ = ["FILE_NAME", "SCHEMA", "Run", "RunLog", "read_run", "read_runs"]


class RunLog:
    """Writes the records of one run.

    Args:
        path: The folder of the run, ``DIR/runs/<run-id>``, which is made if need be, or the file in it. Records that
            are there already are kept and added to; half a line at the end, left by a kill, is cut off.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = records_file(path)

    def start(
        self,
        config: Mapping[str, Any],
        *,
        versions: Mapping[str, str],
        host: Mapping[str, Any],
        started: str | None = None,
        **extra: Any,
    ) -> None:
        """Says what is about to be run. A resumed run says it again.

        Args:
            config: All that is needed to run it again.
            versions: Of the libraries.
            host: What it runs on.
            started: ISO time; now, if not given.
            **extra: Anything else worth keeping; ``command``, what was typed, is shown on the page.
        """
        fields = {"config": config, "versions": versions, "host": host, "started": started or _now()}
        self._append("start", {**fields, **extra})

    def epoch(
        self,
        *,
        epoch: int,
        samples: int,
        loss: float,
        metric: float | None,
        lr: float,
        training_seconds: float,
        selection_seconds: float,
        evaluation_seconds: float,
        overhead_seconds: float,
        saved: float,
        nominal_saved: float,
        coverage: float,
        staleness: float,
        diagnostics: Mapping[str, float | None] | None = None,
        **extra: Any,
    ) -> None:
        """Says what an epoch did. One that is done again after a kill is said again; the last one counts."""
        fields = {name: value for name, value in locals().items() if name not in ("self", "extra")}
        self._append("epoch", {**fields, "diagnostics": diagnostics or {}, **extra})

    def summary(
        self,
        status: str,
        *,
        reason: str | None = None,
        metric: float | None = None,
        samples: int,
        full_samples: int,
        saved: float,
        training_seconds: float,
        selection_seconds: float,
        evaluation_seconds: float,
        overhead_seconds: float,
        node_hours: float,
        proxy_seconds: float | None = None,
        usage: Any = (),
        finished: str | None = None,
        **extra: Any,
    ) -> None:
        """Says how the run ended: "done", or "failed" with a reason."""
        if status not in ("done", "failed"):
            raise RecordError(f'status must be "done" or "failed", got {status!r}.')
        fields = {name: value for name, value in locals().items() if name not in ("self", "extra")}
        self._append("summary", {**fields, "finished": finished or _now(), **extra})

    def test(self, *, data: str, metric: float, samples: int) -> None:
        """Says what a further test set says of the trained model. One that is judged again is said again."""
        self._append("test", {"data": data, "metric": metric, "samples": samples, "finished": _now()})

    def _append(self, kind: str, fields: Mapping[str, Any]) -> None:
        record = {"schema": SCHEMA, "kind": kind, **fields}
        line = json.dumps(plain(record), allow_nan=False, ensure_ascii=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "r+b" if self.path.exists() else "x+b", buffering=0) as file:
                _write_whole(file, line)
        except OSError as error:
            raise RecordError(
                f"a record could not be written to {os.fspath(self.path)!r}: {error.strerror or error}. "
                "The records before it are whole. Make room or choose another folder, then resume the run."
            ) from error


def _write_whole(file: Any, line: bytes) -> None:
    """Adds a line after the last whole one, or leaves the file at that."""
    end = _end_of_last_line(file)
    file.truncate(end)
    file.seek(end)
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)  # half a line would be cut off later anyway, but may be what fills the disk
        raise


def _end_of_last_line(file: Any, block: int = 65536) -> int:
    """Where the last newline ends, looked for from the back; 0 where there is none."""
    end: int = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - block)
        file.seek(begin)
        place: int = file.read(end - begin).rfind(b"\n")
        if place >= 0:
            return begin + place + 1
        end = begin
    return 0


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
