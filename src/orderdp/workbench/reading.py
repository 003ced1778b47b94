"""Records read back, with patience for a kill in mid-line and none for damage elsewhere."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orderdp.errors import RecordError

__all__ = [
    "FILE_NAME",
    "SCHEMA",
    "Run",
    "read_run",
    "read_runs",
    "records_file",
    "seconds_of",
    "seen_by",
    "with_further_tests",
]

SCHEMA = 1
FILE_NAME = "records.jsonl"
_PARTS = ("training_seconds", "selection_seconds", "overhead_seconds", "proxy_seconds")


@dataclass
class Run:
    """One run as its records tell it.

    Attributes:
        id: The name of its folder.
        config: All that is needed to run it again.
        versions: Of the libraries.
        host: What it ran on.
        epochs: One record for each epoch, in order.
        summary: How it ended, or None if it has not.
        started: ISO time.
        command: What was typed, where that was recorded.
        tests: The metric of the trained model on further test sets, by the names of their data.
        tested_on: The further test set this is the view of, if it is one.
    """

    id: str
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    started: str = ""
    command: str | None = None
    tests: dict[str, float] = field(default_factory=dict)
    tested_on: str | None = None

    @property
    def done(self) -> bool:
        """Whether it reached its end."""
        return self.summary is not None and self.summary["status"] == "done"

    @property
    def failed(self) -> bool:
        """Whether it gave up."""
        return self.summary is not None and self.summary["status"] != "done"

    @property
    def reason(self) -> str:
        """Why it gave up."""
        return str((self.summary or {}).get("reason") or "no reason was recorded")

    @property
    def final_metric(self) -> float | None:
        """The metric at the end, never the best one on the way; None where there is none."""
        value = (self.summary or {}).get("metric")
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def label(self) -> str:
        """The name to show."""
        return str(self.config.get("label") or self.config.get("policy") or self.id)

    @property
    def seed(self) -> Any:
        """The seed, by which runs are paired."""
        return self.config.get("seed")

    @property
    def seconds(self) -> float:
        """What it cost: training, selection, overhead and the proxy of a coreset. Evaluation is not counted."""
        return seconds_of(self.summary or {})


def seconds_of(record: dict[str, Any]) -> float:
    """The cost in the record of an epoch or in a summary."""
    return float(sum(record.get(part) or 0.0 for part in _PARTS))


def records_file(path: str | os.PathLike[str]) -> Path:
    """The file of records, given it or its folder."""
    path = Path(path)
    return path if path.suffix == ".jsonl" else path / FILE_NAME


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads the records of one run.

    A last line without its newline is what a kill leaves; it does not count. An epoch that is recorded again takes
    the place of the first and of all that followed it: the run went back to a checkpoint. A summary that is followed
    by more records is not the end.

    Args:
        path: The folder of the run, or the file in it.
    """
    file = records_file(path)
    try:
        *lines, _torn = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise RecordError(f"there are no records at {os.fspath(file)!r}.") from None
    run = Run(id=file.parent.name)
    for number, line in enumerate(lines, start=1):
        where = f"{os.fspath(file)}, line {number}"
        record = _parsed(line, where)
        try:
            _take(run, record, first=number == 1)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(where, f"{type(error).__name__}: {error}") from error
    return run


def read_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """Reads all runs of a folder, sorted by their names.

    Args:
        directory: The folder that was given to ``orderdp train`` or ``orderdp compare``.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise RecordError(f"there is no folder {os.fspath(directory)!r}. Give the one the runs were written to.")
    files = sorted(directory.glob(f"runs/*/{FILE_NAME}"))
    if not files:
        raise RecordError(
            f"there are no records in {os.fspath(directory)!r}: no file matches runs/*/{FILE_NAME}. "
            "`orderdp train` and `orderdp compare` write them; `orderdp compare --help` has examples."
        )
    return [read_run(file) for file in files]


def with_further_tests(runs: list[Run]) -> list[Run]:
    """The runs, then each of them as every further test set saw it: the same training with another metric."""
    names = dict.fromkeys(name for run in runs for name in run.tests)
    return runs + [seen_by(name, run) for name in names for run in runs if name in run.tests]


def seen_by(test: str, run: Run) -> Run:
    """A run as a further test set saw it. Its epochs are left out: they were tested elsewhere."""
    return replace(
        run,
        config={**run.config, "data": f"{run.config.get('data')}, tested on {test}"},
        summary={**(run.summary or {}), "metric": run.tests[test]},
        epochs=[],
        tests={},
        tested_on=test,
    )


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _damaged(where, f"it is no JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("schema"), int):
        raise _damaged(where, "it is no record with a schema")
    if record["schema"] > SCHEMA:
        raise RecordError(
            f"{where}: the record has schema {record['schema']}, this version of orderdp reads up to {SCHEMA}. "
            "Install a newer orderdp to read it."
        )
    return record


def _take(run: Run, record: dict[str, Any], first: bool) -> None:
    kind = record["kind"]
    if first and kind != "start":
        raise ValueError(f"the first record must be a start, it is {kind!r}")
    if kind == "start":
        run.config, run.versions, run.host = (dict(record[name]) for name in ("config", "versions", "host"))
        run.started, run.command, run.summary = str(record.get("started", "")), record.get("command"), None
        run.tests = {}
    elif kind == "epoch":
        number = int(record["epoch"])
        while run.epochs and run.epochs[-1]["epoch"] >= number:
            run.epochs.pop()
        run.epochs.append(record)
        run.summary = None
    elif kind == "summary":
        if record["status"] not in ("done", "failed"):
            raise ValueError(f'the status must be "done" or "failed", it is {record["status"]!r}')
        run.summary = record
    elif kind == "test":
        run.tests[str(record["data"])] = float(record["metric"])


def _damaged(where: str, what: str) -> RecordError:
    return RecordError(
        f"{where}: the record is damaged: {what}. Remove that line to go on without it, or run it again."
    )
