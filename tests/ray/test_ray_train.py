"""With Ray Train: a job whose worker is killed ends where two processes without Ray end."""

from __future__ import annotations

import faulthandler
import multiprocessing
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import ray_train

import orderdp

EPOCHS = 4
SAMPLES = 1347
LIMIT = 600  # seconds; Ray itself waits for ever

# Ray leaves files and sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore")


def without_ray(rank: int, folder: Path) -> None:
    """The same training, by processes that are not killed."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    train_set, test_set = ray_train.load()
    run = ray_train.Run(train_set, 2)
    config = {"epochs": EPOCHS, "kill_in_epoch": None}
    reported: list[dict[str, float]] = []

    def report(metrics: dict[str, float]) -> None:
        run.pruner.sync()
        reported.append(metrics)

    ray_train.train_epochs(run, test_set, rank, config, report)
    if rank == 0:
        state = {name: part.state_dict() for name, part in run.parts().items()}
        orderdp.save_checkpoint(folder / "run.pt", {"state": state, "metrics": reported[-1]})


@pytest.fixture
def straight(tmp_path: Path) -> dict[str, Any]:
    """What two plain processes come to. Forked, so that they need not load torch again, and before Ray starts."""
    folder = tmp_path / "straight"
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=without_ray, args=(rank, folder), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    return orderdp.load_checkpoint(folder / "run.pt")


@pytest.fixture
def ray(tmp_path: Path, straight: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray, with a temporary home, because it keeps files there."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    with ray_train.local_ray():
        yield
    faulthandler.cancel_dump_traceback_later()


def test_a_job_survives_a_killed_worker_and_ends_as_if_nothing_had_happened(
    straight: dict[str, Any], ray: None, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    result = ray_train.train(EPOCHS, storage, kill_in_epoch=EPOCHS - 1)
    assert (storage / "killed").exists()
    metrics, wanted = result.metrics, straight["metrics"]
    # From the last checkpoint that Ray had taken in when the worker died; that may be one of the last few.
    assert wanted["began_at"] == 0 < metrics["began_at"] <= EPOCHS - 1
    assert metrics["epoch"] == wanted["epoch"] == EPOCHS - 1
    assert metrics["kept"] == wanted["kept"] == EPOCHS * (round(0.6 * SAMPLES) // 2 * 2)
    assert metrics["accuracy"] == wanted["accuracy"] > 0.5
    state = orderdp.load_checkpoint(Path(result.checkpoint.path) / "run.pt")
    weights = straight["state"]["model"]
    assert all(weight.equal(state["model"][name]) for name, weight in weights.items())
    scores = [part["pruner"]["table"]["columns"]["score"] for part in (state, straight["state"])]
    assert scores[0].equal(scores[1])
