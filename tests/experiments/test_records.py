"""Records of runs: written line by line, read back whole, whatever happened in between."""

from __future__ import annotations

import base64
import errno
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orderdp.cli import main
from orderdp.errors import OrderDPError, RecordError
from orderdp.experiments import records, runner, trainer
from orderdp.experiments.records import (
    Run,
    RunLog,
    RunRecords,
    notable_samples,
    pack_runs,
    read_run,
    read_runs,
    unpack_runs,
)
from tests.runs import EPOCH, SUMMARY, full, run, start, write


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_notable_samples_are_those_kept_most_and_least_and_the_hardest_with_pictures() -> None:
    images = torch.arange(20 * 3 * 40 * 36, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(20, 3, 40, 36)
    data = SimpleNamespace(train=SimpleNamespace(images=images), class_names=("cat", "dog"))
    task = SimpleNamespace(data=data, labels=[index % 2 for index in range(20)], train_set=range(20))
    usage = torch.arange(20) % 5
    scores = torch.linspace(0, 1, 20)
    scores[19] = torch.inf
    found = notable_samples(task, usage, scores)
    assert [each["index"] for each in found["most"]] == [4, 9, 14, 19, 3, 8, 13, 18]
    assert [each["index"] for each in found["least"]] == [0, 5, 10, 15, 1, 6, 11, 16]
    assert [each["index"] for each in found["hardest"]] == [18, 17, 16, 15, 14, 13, 12, 11]
    assert found["most"][3] == {**found["most"][3], "used": 4, "score": None, "label": "dog"}
    shown = decoded(base64.b64decode(found["hardest"][0]["picture"]))
    assert torch.equal(shown, images[18][:, ::2, ::2].permute(1, 2, 0))
    assert set(notable_samples(task, torch.ones(20), scores)) == {"hardest"}  # full data
    json.dumps(found)


def decoded(content: bytes) -> torch.Tensor:
    """Read a PNG without filters, as the format says."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    parts, place = {}, 8
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        name, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + size]
        assert struct.unpack(">I", content[place + 8 + size : place + 12 + size]) == (zlib.crc32(name + body),)
        parts[name], place = body, place + 12 + size
    width, height, depth, kind, *_ = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    channels = {0: 1, 2: 3}[kind]
    assert depth == 8
    rows = torch.frombuffer(bytearray(zlib.decompress(parts[b"IDAT"])), dtype=torch.uint8)
    rows = rows.reshape(height, 1 + width * channels)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize(
    "sample",
    [torch.zeros(64), torch.zeros(3, 2, 2), torch.zeros(5, 32, 32), "text", (torch.zeros(7), 1), None],
    ids=["a vector", "too small", "five channels", "text", "a pair", "nothing"],
)
def test_samples_that_are_no_images_have_no_pictures(sample: object) -> None:
    task = SimpleNamespace(train_set=[sample] * 3, labels=["not a number"] * 3)
    found = notable_samples(task, torch.tensor([1, 2, 3]), torch.tensor([0.1, 0.2, torch.nan]))
    assert [each["index"] for each in found["hardest"]] == [1, 0]
    assert not any("picture" in each or "label" in each for kind in found.values() for each in kind)


def test_floats_are_shown_from_their_darkest_to_their_brightest() -> None:
    image = torch.linspace(-3, 5, 64).reshape(1, 8, 8)
    found = notable_samples(SimpleNamespace(train_set=[(image, 0)]), torch.tensor([1]), torch.tensor([1.0]))
    pixels = decoded(base64.b64decode(found["hardest"][0]["picture"]))
    assert pixels.shape == (8, 8, 1)
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)


def test_packed_records_have_the_indices_without_the_pictures(tmp_path: Path) -> None:
    method = run(90.0)
    notable = {"hardest": [{"index": 3, "used": 1, "score": 0.5, "picture": "iVBORw0KGgo="}]}
    method.summary = {**(method.summary or {}), "notable": notable}
    write(tmp_path / "runs-of", [method])
    assert read_runs(tmp_path / "runs-of")[0].summary["notable"] == notable
    pack_runs(tmp_path / "runs-of", tmp_path / "packed.jsonl")
    found = read_runs(tmp_path / "packed.jsonl")[0].summary["notable"]
    assert found == {"hardest": [{"index": 3, "used": 1, "score": 0.5}]}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "runs" / "a")
    start(log, label="OrderDP 50 %", seed=3)
    log.epoch(epoch=1, **EPOCH)
    log.epoch(epoch=2, **{**EPOCH, "metric": None, "diagnostics": {"kept_overlap": 0.5}})
    log.summary("done", **{**SUMMARY, "metric": 93.5})
    run = read_run(tmp_path / "runs" / "a")
    assert (run.id, run.label, run.seed) == ("a", "OrderDP 50 %", 3)
    assert [epoch["metric"] for epoch in run.epochs] == [EPOCH["metric"], None]
    assert run.epochs[1]["diagnostics"] == {"kept_overlap": 0.5}
    assert run.done
    assert not run.failed
    assert run.final_metric == 93.5
    assert run.versions == {"orderdp": "0"}
    assert run.host["cores"] == 2
    assert [line["kind"] for line in lines(log.path)] == ["start", "epoch", "epoch", "summary"]
    assert {line["schema"] for line in lines(log.path)} == {1}


def test_a_failed_run_has_a_reason_and_an_unfinished_one_no_summary(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "a")
    start(log)
    assert read_run(tmp_path / "a").summary is None
    log.summary("failed", **{**SUMMARY, "metric": None, "reason": "the loss became NaN in epoch 3"})
    run = read_run(tmp_path / "a")
    assert run.failed
    assert not run.done
    assert run.reason == "the loss became NaN in epoch 3"
    assert run.final_metric is None


def test_only_done_and_failed_are_ends(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match='must be "done" or "failed"'):
        RunLog(tmp_path / "a").summary("finished", **SUMMARY)
    assert not (tmp_path / "a").exists()


@given(st.integers(0, 10**6))
def test_a_file_cut_anywhere_is_read_and_added_to(place: int) -> None:
    """Oracle: whatever stands before the last newline of the cut file counts, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        log = RunLog(folder)
        start(log, label="ä <b>")
        for number in (1, 2, 3):
            log.epoch(epoch=number, **EPOCH)
        whole = log.path.read_bytes()
        cut = whole[: place % (len(whole) + 1)]
        log.path.write_bytes(cut)
        kept = cut[: cut.rfind(b"\n") + 1]
        assert len(read_run(folder).epochs) == max(0, kept.count(b"\n") - 1)
        if not kept:
            start(log)
        log.epoch(epoch=9, **EPOCH)
        assert log.path.read_bytes().startswith(kept)
        assert read_run(folder).epochs[-1]["epoch"] == 9
        assert len(lines(log.path)) == max(1, kept.count(b"\n")) + 1


def test_the_last_newline_is_found_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"first line\n" + b"x" * 100)
    with open(path, "rb") as file:
        assert [records._end_of_last_line(file, block) for block in (1, 7, 50, 1000)] == [11] * 4
    path.write_bytes(b"x" * 100)
    with open(path, "rb") as file:
        assert records._end_of_last_line(file, 7) == 0


@given(st.lists(st.integers(1, 5), max_size=12))
def test_an_epoch_that_is_done_again_counts_once_and_the_last_wins(numbers: list[int]) -> None:
    expected: dict[int, int] = {}  # epoch -> which record of it counts
    for attempt, number in enumerate(numbers):
        expected = {n: a for n, a in expected.items() if n < number} | {number: attempt}
    with tempfile.TemporaryDirectory() as folder:
        log = RunLog(folder)
        start(log)
        for attempt, number in enumerate(numbers):
            log.epoch(epoch=number, **{**EPOCH, "samples": attempt})
        assert {epoch["epoch"]: epoch["samples"] for epoch in read_run(folder).epochs} == expected


def test_a_summary_that_is_followed_by_more_is_not_the_end(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    start(log)
    log.summary("failed", **{**SUMMARY, "reason": "interrupted"})
    start(log)  # resumed
    assert not read_run(tmp_path).failed
    log.epoch(epoch=1, **EPOCH)
    log.summary("done", **SUMMARY)
    assert read_run(tmp_path).done


def test_unknown_fields_are_kept_and_unknown_kinds_ignored(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    start(log, command="orderdp train", weather="rain")
    log.epoch(epoch=1, **EPOCH, temperature=60)
    with open(log.path, "a") as file:
        file.write('{"schema": 1, "kind": "note", "text": "hello"}\n')
    run = read_run(tmp_path)
    assert run.epochs[0]["temperature"] == 60
    assert run.command == "orderdp train"
    assert run.config["weather"] == "rain"


def test_numbers_of_numpy_and_torch_and_non_finite_ones_become_plain(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    start(log, data=Path("digits"))
    log.epoch(epoch=np.int64(1), **{**EPOCH, "loss": float("nan"), "lr": np.float32(0.5), "metric": torch.tensor(90.0)})
    log.summary("done", **{**SUMMARY, "usage": np.array([1, 2]), "metric": float("inf")})
    run = read_run(tmp_path)
    assert (run.epochs[0]["loss"], run.epochs[0]["lr"], run.epochs[0]["metric"]) == (None, 0.5, 90.0)
    assert run.summary is not None
    assert run.summary["usage"] == [1, 2]
    assert run.final_metric is None
    assert "NaN" not in log.path.read_text()


def test_a_value_json_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="got object"):
        start(RunLog(tmp_path / "a"), thing=object())
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 2: the record is damaged: it is not JSON"),
        ("\x00\x00", "line 2: the record is damaged"),
        ("", "line 2: the record is damaged"),
        ("[1]", "line 2: the record is damaged: it is not a record with a schema"),
        ('{"schema": 1}', "line 2: the record is damaged: KeyError: 'kind'"),
        ('{"schema": 1, "kind": "epoch"}', "line 2: the record is damaged: KeyError: 'epoch'"),
        ('{"schema": 1, "kind": "summary", "status": "ok"}', "line 2: the record is damaged.*it is 'ok'"),
        ('{"schema": 2, "kind": "epoch"}', "line 2: the record has schema 2.*reads up to 1. Install a newer"),
    ],
)
def test_damage_in_the_middle_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    log = RunLog(tmp_path)
    start(log)
    with open(log.path, "a") as file:
        file.write(line + "\n")
    log.epoch(epoch=1, **EPOCH)
    with pytest.raises(RecordError, match=message) as caught:
        read_run(tmp_path)
    assert str(log.path) in str(caught.value)


def test_records_must_begin_with_a_start(tmp_path: Path) -> None:
    RunLog(tmp_path).epoch(epoch=1, **EPOCH)
    with pytest.raises(RecordError, match=r"line 1.*first record must be a start, it is 'epoch'"):
        read_run(tmp_path)


def test_a_full_disk_is_said_clearly_and_leaves_the_earlier_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunLog(tmp_path)
    start(log)
    before = log.path.read_bytes()

    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records.os, "fsync", no_room)
        with pytest.raises(
            OrderDPError, match=r"could not be written.*No space left on device.*before it are complete"
        ):
            log.epoch(epoch=1, **EPOCH)
    assert log.path.read_bytes() == before
    log.epoch(epoch=1, **EPOCH)
    assert len(read_run(tmp_path).epochs) == 1


def test_a_file_that_may_not_grow_ends_at_its_last_whole_record(tmp_path: Path) -> None:
    """The system writes as much of the line as fits, as on a full disk."""
    start(RunLog(tmp_path))
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from orderdp.errors import RecordError
from orderdp.experiments.records import RunLog
from tests.runs import EPOCH
log = RunLog({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 500,) * 2)
try:
    for number in range(1, 100):
        log.epoch(epoch=number, **EPOCH)
except RecordError as error:
    print(number, error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    number, message = result.stdout.split(" ", 1)
    assert "File too large" in message
    assert int(number) == 2
    assert (tmp_path / "records.jsonl").read_bytes().endswith(b"}\n")
    assert len(read_run(tmp_path).epochs) == 1


def test_a_run_that_is_killed_loses_no_line_it_had_written(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from orderdp.experiments.records import RunLog
from tests.runs import EPOCH, start
log = RunLog({str(tmp_path)!r})
start(log)
for number in range(1, 10**6):
    log.epoch(epoch=number, **EPOCH)
    print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(20):
            said = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        said = int((process.stdout.read().split() or [said])[-1])
        process.wait(timeout=30)
    assert said - 1 <= len(read_run(tmp_path).epochs) <= said + 1
    RunLog(tmp_path).epoch(epoch=said + 1, **EPOCH)
    assert [epoch["epoch"] for epoch in read_run(tmp_path).epochs] == list(range(1, said + 2))


def test_runs_of_a_folder_come_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        start(RunLog(tmp_path / "runs" / name))
    assert [run.id for run in read_runs(tmp_path)] == ["a", "b"]


def test_a_folder_that_is_not_there_or_empty_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no folder"):
        read_runs(tmp_path / "nowhere")
    with pytest.raises(RecordError, match=r"no records in .*`orderdp compare` write them"):
        read_runs(tmp_path)
    with pytest.raises(RecordError, match="there are no records at"):
        read_run(tmp_path)


def test_times_are_recorded_with_their_zone(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    start(log)
    log.summary("done", **SUMMARY)
    first, last = lines(log.path)
    assert datetime.fromisoformat(first["started"]).utcoffset() == timedelta(0)
    assert datetime.fromisoformat(first["started"]) <= datetime.fromisoformat(last["finished"])


def test_packed_records_are_the_same_runs_and_come_back_to_folders(tmp_path: Path) -> None:
    write(tmp_path, [run(91.0, 1), run(92.0, 0), full(93.0, 0)])
    file = tmp_path / "study.jsonl"
    assert pack_runs(tmp_path, file) == 3
    assert read_runs(file) == read_runs(tmp_path)
    unpack_runs(file, tmp_path / "again")
    assert read_runs(tmp_path / "again") == read_runs(tmp_path)
    assert pack_runs(tmp_path / "again", tmp_path / "second.jsonl") == 3
    assert (tmp_path / "second.jsonl").read_bytes() == file.read_bytes()
    with pytest.raises(RecordError, match="does not name its run"):
        read_runs(_with_a_nameless_record(file))


def test_report_takes_packed_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [run(91.0, 1), run(92.0, 0), full(93.0, 0)])
    pack_runs(tmp_path, tmp_path / "study.jsonl")
    outputs = []
    for source in (tmp_path, tmp_path / "study.jsonl"):
        assert main(["report", str(source), "--markdown"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert "Full data" in outputs[0]
    assert main(["report", str(tmp_path / "study.jsonl")]) == 0
    assert str(tmp_path / "study.html") in capsys.readouterr().out
    assert "<html" in (tmp_path / "study.html").read_text()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("notes.txt", "", "must be a folder of runs or a file of packed records that ends in .jsonl"),
        ("records.jsonl", "", "holds the records of one run. Give the folder of its comparison"),
        ("study.jsonl", "", "holds no records: it is empty"),
        ("study.jsonl", "no JSON\n", "line 1: the record is damaged: it is not JSON"),
        ("study.jsonl", '{"schema": 1, "kind": "epoch"}\n', "it does not name its run"),
    ],
)
def test_report_says_what_is_wrong_with_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["report", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def test_a_run_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [run(91.0, 1), full(93.0, 0)])
    read = _counted(monkeypatch)
    known = RunRecords(tmp_path)
    first, second = known.all()
    assert known.get(first.id) is first
    assert known.finished(second.id) is second
    assert known.get("another") is None
    assert sorted(read) == sorted([first.id, second.id])
    RunLog(tmp_path / "runs" / first.id).test(data="other", metric=50.0, samples=10)
    assert known.get(first.id).tests == {}
    known.changed(first.id)
    assert known.get(first.id).tests == {"other": 50.0}
    assert len(read) == 3


def test_compare_reads_finished_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner, the table and the page work on one reading of the records."""
    line = ["compare", "--data", "digits", "--model", "mlp", "--epochs", "1", "--seeds", "0", "--prune-ratios", "0.5"]
    line += ["--policies", "full,orderdp", "--no-controls", "--quiet", "--device", "cpu", "--out", str(tmp_path)]
    assert main(line) == 0
    read = _counted(monkeypatch)
    assert main(line) == 0
    assert len(read) == len(set(read)) == 2


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are read from now on."""
    read, real = [], records.read_run

    def counted(path: Path) -> Run:
        found = real(path)
        read.append(found.id)
        return found

    for module in (records, runner, trainer):
        monkeypatch.setattr(module, "read_run", counted)
    return read


def _with_a_nameless_record(file: Path) -> Path:
    file.write_text(file.read_text() + '{"schema": 1, "kind": "epoch"}\n')
    return file
