"""The measurements for a GPU run without one, and their page has every number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import gpu


def test_a_trial_on_the_cpu_writes_all_lines_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines
    assert lines[0]["device"] == "cpu"
    runs = [f"gpu-run-{way}-{share}" for share in ("30%", "50%", "70%") for way in ("orderdp", "fewer-epochs")]
    named = [
        "gpu-step",
        "gpu-update",
        "gpu-draw-recipe",
        "gpu-draw-randperm",
        "index-batches",
        "gpu-run-full-data",
        *runs,
    ]
    assert [line["benchmark"] for line in lines[1:]] == named
    assert all(line["ratio"] > 0 for line in lines[1:])
    page = (tmp_path / "gpu.md").read_text()
    assert page.startswith("# Measured on cpu, a trial")
    for line in lines[1:]:
        assert line["what"] in page
        assert str(line["ratio"]) in page
    full = next(line for line in lines[1:] if line["benchmark"] == "gpu-run-full-data")
    assert (full["ratio"], full["points_to_full"]) == (1.0, [0.0])


def test_without_a_gpu_the_benchmark_says_how_to_try_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 2
    assert "--device cpu --tiny" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
