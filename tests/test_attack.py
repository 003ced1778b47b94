"""A short attack finds nothing, and each of its checks can fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tools.attack import states
from tools.attack.__main__ import ATTACKS, attack, one_case

import orderdp
from orderdp.score_table import ScoreTable
from orderdp.streaming.worker_channel import WorkerChannel


def test_a_short_attack_finds_nothing() -> None:
    counts, faults = attack(seed=7, minutes=2, most=12)
    assert faults == []
    assert set(counts) == set(ATTACKS)


@pytest.mark.parametrize("kind", states.KINDS)
def test_a_damaged_state_is_refused_whole_or_a_bounded_epoch_runs(kind: str) -> None:
    faults = [states.fault_of(kind, random.Random(f"{kind} {case}")) for case in range(60)]
    assert [fault for fault in faults if fault] == []


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "machine": lambda patch: patch.setattr(ScoreTable, "_count", lambda self, index, epoch: None),
    "extremes": lambda patch: patch.setattr(orderdp.Pruner, "scores", torch.tensor([torch.nan])),
    "ranks": lambda patch: patch.setattr(orderdp.Pruner, "sync", lambda self: None),
    "streams": lambda patch: patch.setattr(WorkerChannel, "pass_over", lambda self, decisions, mark: False),
    "states": lambda patch: patch.setattr(ScoreTable, "check_state", lambda self, state: None),
    "files": lambda patch: patch.setattr(
        orderdp, "load_checkpoint", partial(orderdp.load_checkpoint, verify=False), raising=False
    ),
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_a_broken_library_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[kind](monkeypatch)
    assert any(one_case(0, kind, number) for number in range(100))
