"""Records of runs: one JSON line per epoch. A kill loses no written line, and reading checks every line."""

from __future__ import annotations

import json
import math
import os
import platform
import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from orderdp._files import write_text
from orderdp.errors import RecordError

__all__ = [
    "FILE_NAME",
    "OLD_NAMES",
    "SCHEMA",
    "Run",
    "RunLog",
    "RunRecords",
    "describe_host",
    "notable_samples",
    "pack_runs",
    "plain",
    "read_run",
    "read_runs",
    "records_file",
    "seconds_of",
    "seen_by",
    "unpack_runs",
    "versions",
    "with_further_tests",
    "with_new_names",
]


def plain(value: Any) -> Any:
    """Convert a value to dicts, lists, strings and numbers; NaN and infinity, which JSON lacks, become None.

    >>> plain({"loss": float("nan"), "sizes": (1, 2)})
    {'loss': None, 'sizes': [1, 2]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return plain(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise RecordError(
        f"a record must be made of numbers, strings, lists and dicts, got {type(value).__name__}. Convert it first."
    )


_LIBRARIES = ("orderdp", "torch", "numpy", "pytorch_optimizer", "timm", "torchvision", "scikit-learn")


def describe_host(device: torch.device) -> dict[str, Any]:
    """Return processor, cores, threads, device and operating system."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "os": platform.platform(terse=True),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


_SHOWN = 8  # of each kind


_WIDEST = 32  # pixels of a picture, to either side


def notable_samples(task: Any, usage: torch.Tensor, scores: torch.Tensor) -> dict[str, list[dict[str, Any]]]:
    """Return the samples that were kept most and least often, and the hardest: those with the largest stored scores.

    Each has its index, how often it was trained on and its score, its label where the task has ``labels``, and a small
    picture, a PNG in base64, where its training samples are images. At most eight of each kind are returned. Where all
    were trained on equally often, only the hardest are.

    Args:
        task: The task.
        usage: How often each sample was trained on.
        scores: The score of each sample; those that are not finite are passed over.
    """
    finite = torch.isfinite(scores)
    hardest = torch.where(finite, scores, -torch.inf).argsort(descending=True, stable=True)
    kinds = {"hardest": hardest[: min(_SHOWN, int(finite.sum()))]}
    if len(usage) and usage.min() < usage.max():
        often = usage.argsort(descending=True, stable=True)
        kinds = {"most": often[:_SHOWN], "least": usage.argsort(stable=True)[:_SHOWN], **kinds}
    with torch.random.fork_rng(devices=[]):  # a data set of the user may draw
        return {kind: [_shown(task, index, usage, scores) for index in found.tolist()] for kind, found in kinds.items()}


def _shown(task: Any, index: int, usage: torch.Tensor, scores: torch.Tensor) -> dict[str, Any]:
    score = float(scores[index])
    shown: dict[str, Any] = {"index": index, "used": int(usage[index])}
    shown["score"] = score if math.isfinite(score) else None
    labels, names = getattr(task, "labels", None), getattr(getattr(task, "data", None), "class_names", None)
    with suppress(Exception):  # labels and samples of a user's task may be anything, and a run that is done must end
        if labels is not None:
            label = int(labels[index])
            shown["label"] = str(names[label]) if names and 0 <= label < len(names) else str(label)
        pixels = _pixels(_image(task, index))
        if pixels is not None:
            shown["picture"] = b64encode(_png(pixels)).decode()
    return shown


def _image(task: Any, index: int) -> Any:
    """Return the image of a training sample without augmentation where the task has it so, else the sample's input."""
    data = getattr(task, "data", None)
    images = getattr(getattr(data, "train", None), "images", None)
    if images is not None:
        return images[index]
    sample = getattr(data, "plain", task.train_set)[index]
    return sample[0] if isinstance(sample, tuple | list) and sample else sample


def _pixels(image: Any) -> torch.Tensor | None:
    """Return bytes of shape (height, width, 1 or 3), at most 32 to either side; None if it is no image."""
    if not isinstance(image, torch.Tensor) or image.ndim not in (2, 3):
        return None
    image = image.detach().cpu()
    image = image[None] if image.ndim == 2 else image
    if image.shape[0] not in (1, 3) or min(image.shape[1:]) < 4:
        return None
    step = math.ceil(max(image.shape[1:]) / _WIDEST)
    image = image[:, ::step, ::step]
    if image.dtype != torch.uint8:  # normalized: from its darkest to its brightest value
        image = torch.nan_to_num(image.float())
        image = (255 * (image - image.min()) / (image.max() - image.min()).clamp(min=1e-12)).round().to(torch.uint8)
    pixels: torch.Tensor = image.permute(1, 2, 0).contiguous()
    return pixels


def _png(pixels: torch.Tensor) -> bytes:
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, width * channels).numpy()

    def part(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(lines, 9)) + part(b"IEND", b"")


SCHEMA = 1


FILE_NAME = "records.jsonl"


_PARTS = ("training_seconds", "selection_seconds", "overhead_seconds", "proxy_seconds")


@dataclass
class Run:
    """The records of one run.

    Attributes:
        id: Name of the run's folder.
        config: Settings; they are enough to repeat the run.
        versions: Versions of the libraries.
        host: Machine and device of the run.
        epochs: One record per epoch, in order.
        summary: Result of the run, or None if the run has not ended.
        started: Start time, in ISO format.
        command: Command line, if it was recorded.
        tests: Metric of the trained model on further test sets, by data-set name.
        tested_on: Further test set whose metric this view of the run shows, if any.
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
        """Whether the run is finished."""
        return self.summary is not None and self.summary["status"] == "done"

    @property
    def failed(self) -> bool:
        """Whether the run failed."""
        return self.summary is not None and self.summary["status"] != "done"

    @property
    def reason(self) -> str:
        """Why the run failed."""
        return str((self.summary or {}).get("reason") or "no reason was recorded")

    @property
    def final_metric(self) -> float | None:
        """Metric at the end of the run, never the best one on the way; None if there is none."""
        value = (self.summary or {}).get("metric")
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def label(self) -> str:
        """Name of the run in tables and charts."""
        return str(self.config.get("label") or self.config.get("policy") or self.id)

    @property
    def seed(self) -> Any:
        """Seed of the run; runs are paired by seed."""
        return self.config.get("seed")

    @property
    def seconds(self) -> float:
        """Cost in seconds: training, selection, overhead and the proxy of a coreset. Evaluation is not counted."""
        return seconds_of(self.summary or {})


#: Earlier names of settings in records and checkpoints.
OLD_NAMES = {"optimizer": "optimiser"}


def with_new_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record or checkpoint under their current names."""
    new = {old: name for name, old in OLD_NAMES.items()}
    renamed = {new.get(name, name): value for name, value in config.items()}
    parameters = renamed.get("policy_parameters")
    if isinstance(parameters, Mapping) and "normalise" in parameters:
        renamed["policy_parameters"] = {
            "normalize" if key == "normalise" else key: parameters[key] for key in parameters
        }
    return renamed


def seconds_of(record: dict[str, Any]) -> float:
    """Return the cost in seconds from the record of an epoch or from a summary."""
    return float(sum(record.get(part) or 0.0 for part in _PARTS))


def records_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of the records file, given the file or its folder."""
    path = Path(path)
    return path if path.suffix == ".jsonl" else path / FILE_NAME


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read the records of one run.

    A last line without a newline is left by a kill and ignored. An epoch that is recorded again replaces its first
    record and all later ones, because the run went back to a checkpoint. A summary followed by more records is not
    the end of the run.

    Args:
        path: Folder of the run, or the records file in it.
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
    """Read all runs of a folder, or of a file made by `pack_runs`, sorted by name.

    Args:
        directory: Output folder of ``orderdp train`` or ``orderdp compare``, or the packed file.
    """
    directory = Path(directory)
    return _read_packed(directory) if directory.is_file() else RunRecords(directory).all()


class RunRecords:
    """The records of all runs of a folder. Each run is read once, and again only after it has changed.

    Args:
        directory: Output folder of ``orderdp train`` or ``orderdp compare``.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._runs: dict[str, Run] = {}

    def get(self, run_id: str) -> Run | None:
        """Return a run; None if it has no records."""
        if run_id not in self._runs:
            file = self.directory / "runs" / run_id / FILE_NAME
            if not file.exists():
                return None
            self._runs[run_id] = read_run(file)
        return self._runs[run_id]

    def finished(self, run_id: str) -> Run | None:
        """Return a run that is done or failed; None for any other."""
        run = self.get(run_id)
        return None if run is None or run.summary is None else run

    def changed(self, run_id: str) -> None:
        """Read the run again when it is requested next, because records were added to it."""
        self._runs.pop(run_id, None)

    def all(self) -> list[Run]:
        """Return all runs, sorted by name; raise if there are none."""
        if not self.directory.is_dir():
            raise RecordError(
                f"there is no folder {os.fspath(self.directory)!r}. Give the one the runs were written to."
            )
        files = sorted(self.directory.glob(f"runs/*/{FILE_NAME}"))
        if not files:
            raise RecordError(
                f"there are no records in {os.fspath(self.directory)!r}: no file matches runs/*/{FILE_NAME}. "
                "`orderdp train` and `orderdp compare` write them; `orderdp compare --help` has examples."
            )
        return [run for file in files if (run := self.get(file.parent.name)) is not None]


def pack_runs(directory: str | os.PathLike[str], file: str | os.PathLike[str]) -> int:
    """Write the records of all runs of a folder to one file, one line per record; return the number of runs.

    Pictures of samples are left out: published records need them the least, and they are larger than the rest.

    Args:
        directory: Output folder of ``orderdp train`` or ``orderdp compare``.
        file: The file to write; an existing one is replaced.
    """
    read_runs(directory)  # raises where a record is damaged, before anything is written
    files = sorted(Path(directory).glob(f"runs/*/{FILE_NAME}"))
    lines = []
    for records in files:
        whole = records.read_text(encoding="utf-8").split("\n")[:-1]
        packed = (_without_pictures(json.loads(line)) for line in whole)
        lines += [json.dumps({"run": records.parent.name, **record}) + "\n" for record in packed]
    write_text(Path(file), "".join(lines))
    return len(files)


def _without_pictures(record: dict[str, Any]) -> dict[str, Any]:
    kinds = record.get("notable")
    if not isinstance(kinds, dict):
        return record
    bare = {
        kind: [{name: value for name, value in shown.items() if name != "picture"} for shown in found]
        for kind, found in kinds.items()
    }
    return {**record, "notable": bare}


def unpack_runs(file: str | os.PathLike[str], directory: str | os.PathLike[str]) -> None:
    """Write the records of a packed file back to folders, one per run, so that a comparison can be resumed there."""
    read_runs(file)
    by_run: dict[str, list[str]] = {}
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        by_run.setdefault(record.pop("run"), []).append(json.dumps(record) + "\n")
    for name, lines in by_run.items():
        folder = Path(directory) / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE_NAME, "".join(lines))


def _read_packed(file: Path) -> list[Run]:
    if file.suffix != ".jsonl":
        raise RecordError(
            f"{os.fspath(file)!r} must be a folder of runs or a file of packed records that ends in .jsonl. "
            "`orderdp train` and `orderdp compare` write folders."
        )
    if file.name == FILE_NAME:
        raise RecordError(
            f"{os.fspath(file)!r} holds the records of one run. Give the folder of its comparison, "
            f"{os.fspath(file.parent.parent.parent)!r}."
        )
    runs: dict[str, Run] = {}
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], start=1):
        where = f"{os.fspath(file)}, line {number}"
        record = _parsed(line, where)
        name = record.pop("run", None)
        if not isinstance(name, str):
            raise _damaged(where, "it does not name its run")
        is_first = name not in runs
        try:
            _take(runs.setdefault(name, Run(id=name)), record, first=is_first)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(where, f"{type(error).__name__}: {error}") from error
    if not runs:
        raise RecordError(f"{os.fspath(file)!r} holds no records: it is empty.")
    return [runs[name] for name in sorted(runs)]


def with_further_tests(runs: list[Run]) -> list[Run]:
    """Return the runs, followed by one view per run and further test set: the same training with another metric."""
    names = dict.fromkeys(name for run in runs for name in run.tests)
    return runs + [seen_by(name, run) for name in names for run in runs if name in run.tests]


def seen_by(test: str, run: Run) -> Run:
    """Return the view of a run with the metric of a further test set, without epochs: another test set tested those."""
    return replace(
        run,
        config={**run.config, "data": f"{run.config.get('data')}, tested on {test}"},
        summary={**(run.summary or {}), "metric": run.tests[test], "test_samples": None},
        epochs=[],
        tests={},
        tested_on=test,
    )


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _damaged(where, f"it is not JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("schema"), int):
        raise _damaged(where, "it is not a record with a schema")
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
        run.config = with_new_names(record["config"])
        run.versions, run.host = dict(record["versions"]), dict(record["host"])
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
        f"{where}: the record is damaged: {what}. Remove that line to continue without it, or train the run again."
    )


class RunLog:
    """Writes the records of one run.

    Args:
        path: Folder of the run, ``DIR/runs/<run-id>``, created if missing, or the records file in it. New records are
            appended to existing ones; half a line at the end, left by a kill, is cut off.
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
        """Write the record of the start. A resumed run writes another one.

        Args:
            config: Settings; they are enough to repeat the run.
            versions: Versions of the libraries.
            host: Machine and device of the run.
            started: Start time, in ISO format; the current time if not given.
            **extra: Further fields; the page shows ``command``, the command line.
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
        """Write the record of an epoch. An epoch repeated after a kill is written again; the last record counts."""
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
    ) -> dict[str, Any]:
        """Write the result of the run: "done", or "failed" with a reason; return the record."""
        if status not in ("done", "failed"):
            raise RecordError(f'status must be "done" or "failed", got {status!r}.')
        fields = {name: value for name, value in locals().items() if name not in ("self", "extra")}
        return self._append("summary", {**fields, "finished": finished or _now(), **extra})

    def test(self, *, data: str, metric: float, samples: int) -> None:
        """Write the metric of the trained model on a further test set. A repeated test is written again."""
        self._append("test", {"data": data, "metric": metric, "samples": samples, "finished": _now()})

    def _append(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        record: dict[str, Any] = plain({"schema": SCHEMA, "kind": kind, **fields})
        line = json.dumps(record, allow_nan=False, ensure_ascii=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "r+b" if self.path.exists() else "x+b", buffering=0) as file:
                _write_whole(file, line)
        except OSError as error:
            raise RecordError(
                f"a record could not be written to {os.fspath(self.path)!r}: {error.strerror or error}. The records "
                "before it are complete. Free some space or choose another folder, then resume the run."
            ) from error
        return record


def _write_whole(file: Any, line: bytes) -> None:
    """Append a line after the last whole one; on failure the file keeps its whole lines only."""
    end = _end_of_last_line(file)
    file.truncate(end)
    file.seek(end)
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)  # half a line would be cut off later anyway, but it may fill the disk
        raise


def _end_of_last_line(file: Any, block: int = 65536) -> int:
    """Return the offset after the last newline, searched from the end; 0 if there is none."""
    end: int = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - block)
        file.seek(begin)
        newline: int = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
