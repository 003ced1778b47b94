"""The soak finds what it looks for, and a short one finds nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tools.soak.__main__ import soak
from tools.soak.checks import Life, faults_of, history
from tools.soak.trial import Trial

import orderdp

TRIAL = Trial(number=0, policy={"name": "random", "prune_ratio": 0.5}, n=8, step=2, epochs=1, save_every=1)
STEPS = [(0, [0, 1]), (0, [2, 3])]


def test_nothing_is_lost_in_a_few_disturbed_trainings() -> None:
    counts, faults = soak(minutes=2, seed=3, most=3, console=Console(quiet=True))
    assert faults == []
    assert counts["kills"] > 0
    assert counts["lives"] > counts["trials"] == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two lives of one process: the second step was begun, lost with a kill, and done again."""
    write_steps(tmp_path, 0, [[0, 0, [0, 1]], [1, 0, [5, 6]]])
    write_steps(tmp_path, 1, [[1, 0, [2, 3]]])
    write_result(tmp_path, 0)
    return tmp_path


LIVES = [Life(1, 0), Life(1, 1)]


def write_steps(folder: Path, life: int, steps: list) -> None:
    (folder / f"steps-{life}-0.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))


def write_result(folder: Path, rank: int, usage: tuple[int, ...] = (1, 1, 1, 1, 0, 0, 0, 0), unseen: int = 4) -> None:
    score = torch.where(torch.arange(8) < unseen, 1.0, torch.inf)
    table = {"score": score, "usage": torch.tensor(usage)}
    orderdp.save_checkpoint(folder / f"result-{rank}.pt", {"table": table, "report": {}, "steps": 2})


def test_what_was_done_again_counts_once(folder: Path) -> None:
    with (folder / "steps-1-0.jsonl").open("a") as log:
        log.write("[2, 0, [7")  # torn by a kill
    assert history(folder, LIVES) == STEPS
    assert faults_of(TRIAL, folder, LIVES, (STEPS, {})) == []


def test_other_samples_than_those_of_the_undisturbed_training_are_found(folder: Path) -> None:
    (fault,) = faults_of(TRIAL, folder, LIVES, ([(0, [0, 1]), (0, [2, 4])], {}))
    assert "samples of some step" in fault


def test_another_table_than_that_of_the_undisturbed_training_is_found(folder: Path) -> None:
    (fault,) = faults_of(TRIAL, folder, LIVES, ([], {"score": torch.ones(8), "usage": torch.ones(8)}))
    assert "table is not that" in fault


def test_tables_that_differ_between_ranks_are_found(folder: Path) -> None:
    write_result(folder, 1, unseen=5)
    faults = faults_of(TRIAL, folder, [Life(1, 0), Life(2, 1)], ([], {}))
    assert "rank 1 differs" in faults[0]


def test_wrong_counts_and_lost_samples_are_found(folder: Path) -> None:
    write_result(folder, 0, usage=(1, 1, 1, 0, 0, 0, 0, 0), unseen=3)
    first, second = faults_of(TRIAL, folder, LIVES, ([], {}))
    assert "usage counts" in first
    assert "unseen in the table" in second


def test_epochs_that_are_too_short_or_have_samples_twice_are_found(folder: Path) -> None:
    write_steps(folder, 1, [[1, 0, [1]]])
    faults = faults_of(TRIAL, folder, LIVES, ([], {}))
    assert any("1 samples twice" in fault for fault in faults)
    assert any("has 2 samples, expected 4 to 4" in fault for fault in faults)
