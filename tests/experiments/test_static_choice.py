"""Coresets in a comparison whose runs share a proxy."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orderdp._files import in_turn
from orderdp.coresets import run
from orderdp.experiments import static
from orderdp.experiments.config import RunOptions, Settings
from orderdp.experiments.runner import Runner

CPU = torch.device("cpu")
BASE = Settings(
    data="digits", model="mlp", width=8, policy="margin", prune_ratio=0.5, epochs=2, proxy_epochs=2, drop_last=False
)


def test_runs_at_the_same_time_train_their_proxy_once_and_know_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, inside, most = Runner(RunOptions(tmp_path, device="cpu")).task(BASE), 0, 0
    chosen: dict[str, static.StaticChoice] = {}

    def slowly(*arguments: Any, **options: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.2)
        found = run(*arguments, **options)
        inside -= 1
        return found

    def choose(policy: str) -> None:
        folder = tmp_path / policy
        folder.mkdir()
        chosen[policy] = static.choose(replace(BASE, policy=policy), task, folder, tmp_path / "proxies", CPU)

    monkeypatch.setattr(static, "run", slowly)
    threads = [threading.Thread(target=choose, args=(policy,)) for policy in ("margin", "entropy", "least-confidence")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(chosen) == 3
    assert most == 1
    assert len(list((tmp_path / "proxies").iterdir())) == 1
    assert all(choice.seconds > 0 for choice in chosen.values())


def test_who_needs_no_proxy_waits_for_none(tmp_path: Path) -> None:
    settings = replace(BASE, policy="static-random")
    task, proxies = Runner(RunOptions(tmp_path, device="cpu")).task(settings), tmp_path / "proxies"
    static.choose(settings, task, tmp_path, proxies, CPU)
    (tmp_path / "again").mkdir()
    (shared,) = proxies.iterdir()
    with in_turn(shared):
        waiting = threading.Thread(target=static.choose, args=(settings, task, tmp_path / "again", proxies, CPU))
        waiting.start()
        waiting.join(timeout=60)
        assert not waiting.is_alive()
