"""Metrics of any unit and direction, from the user's task to the words on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from orderdp.cli import main
from orderdp.errors import ConfigError
from orderdp.experiments.config import Settings
from orderdp.experiments.records import read_runs
from orderdp.experiments.statistics import Metric, compare
from orderdp.experiments.tasks import load_task
from orderdp.experiments.trainer import evaluate
from orderdp.report.page import markdown_report, write_report

TASK = """
import torch
from examples.own_task import Regression

class Own(Regression):
    metric_name = "RMSE"
    metric_unit = "K"
    higher_is_better = False

    def evaluate(self, model):
        x, y = self.test_set.tensors
        return ((model(x).squeeze(1) - y) ** 2).mean().sqrt()

class Each(Regression):
    metric_name, metric_unit, higher_is_better = "squared error", "", False

    def metric(self, model, batch):
        x, y = batch
        return (model(x).squeeze(1) - y) ** 2

class Wrong(Regression):
    def evaluate(self, model):
        return "much"
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(TASK)
    return path


def test_a_task_may_return_one_number_or_one_for_each_sample_in_its_own_unit(task: Path) -> None:
    settings, cpu = Settings(policy="full"), torch.device("cpu")
    whole, each = load_task(f"{task}:Own"), load_task(f"{task}:Each")
    model: nn.Module = whole.build_model(0)
    found = evaluate(model, whole, settings, cpu)
    assert found.samples == 500
    assert found.metric**2 == pytest.approx(evaluate(model, each, settings, cpu).metric, rel=1e-5)
    with pytest.raises(ConfigError, match=r"evaluate\(model\) must return one number, the metric, got str"):
        evaluate(model, load_task(f"{task}:Wrong"), settings, cpu)


def test_words_follow_the_direction_of_the_metric(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["compare", "--task", f"{task}:Own", "--policies", "orderdp", "--prune-ratios", "0.9", "--epochs", "4"]
    assert main([*options, "--seeds", "0,1", "--threads", "1", "--out", str(out)]) == 0
    shown, said = capsys.readouterr()
    assert "RMSE (K)" in shown
    assert re.search(r"full data, seed 0: 0\.\d+ K, ", said)
    rows = compare(read_runs(out))
    full, orderdp = rows[0], rows[1]
    assert full.measure == Metric("RMSE", "K", higher_is_better=False, digits=4)
    assert orderdp.against_full is not None
    assert orderdp.against_full.mean > 0  # a tenth of the training leaves a larger error
    assert "worse" in orderdp.word or orderdp.word == "not settled"
    assert re.search(rf"{orderdp.label}: \+0\.\d{{4}} \(.* to .*\), {orderdp.word}", shown)
    text = markdown_report(out)
    page = write_report(out).read_text()
    assert "RMSE (K)" in text
    assert "lower is better" in page
    assert f"{full.metric:.4f} K on full data" in text
    assert "points" not in text
    record = json.loads((next(out.glob("runs/full*")) / "records.jsonl").read_text().splitlines()[-1])
    assert (record["metric_unit"], record["higher_is_better"], record["test_samples"]) == ("K", False, None)
