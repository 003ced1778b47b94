"""With Ray Train: a job whose worker is killed ends where one that was left alone does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import ray_train

import orderdp

EPOCHS = 4
SAMPLES = 1347

# Ray leaves files and sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray, with a temporary home, because it keeps files there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        with ray_train.local_ray():
            yield


def run(storage: Path, kill_in_epoch: int | None = None) -> dict[str, Any]:
    result = ray_train.train(EPOCHS, storage, kill_in_epoch)
    state = orderdp.load_checkpoint(Path(result.checkpoint.path) / "run.pt")
    return {**result.metrics, "state": state, "killed": (storage / "killed").exists()}


def test_a_job_survives_a_killed_worker_and_ends_as_if_nothing_had_happened(ray: None, tmp_path: Path) -> None:
    straight, killed = (tmp_path / name for name in ("straight", "killed"))
    straight.mkdir()
    killed.mkdir()
    calm, stormy = run(straight), run(killed, kill_in_epoch=EPOCHS - 1)
    assert (calm["killed"], stormy["killed"]) == (False, True)
    # From the last checkpoint that Ray had taken in when the worker died; that may be one of the last few.
    assert calm["began_at"] == 0 < stormy["began_at"] <= EPOCHS - 1
    for result in (calm, stormy):
        assert result["epoch"] == EPOCHS - 1
        assert result["kept"] == EPOCHS * (round(0.6 * SAMPLES) // 2 * 2)
    assert stormy["accuracy"] == calm["accuracy"] > 0.5
    weights = calm["state"]["model"]
    assert all(weight.equal(stormy["state"]["model"][name]) for name, weight in weights.items())
    scores = [result["state"]["pruner"]["table"]["columns"]["score"] for result in (calm, stormy)]
    assert scores[0].equal(scores[1])
