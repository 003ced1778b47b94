"""A job whose process is killed without warning ends as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import ddp

from tests import ddp_work as work
from tests.ranks import in_processes

ROOT = Path(__file__).parents[2]


def torchrun(folder: Path, *job: str, restarts: int = 0, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Runs a job as people do; with an agent that meets its processes on the loopback device, at a port of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    options = [f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    source = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        # Or processes that are restarted may be told the addresses of those that were there before.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONPATH": source,
        "ORDERDP_TEST_FOLDER": str(folder),
    }
    return subprocess.run(
        [*command, *options, *job], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_job_that_lost_a_rank_in_mid_epoch_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    run = torchrun(job, "-m", "tests.ddp_work", restarts=1)
    assert run.returncode == 0, run.stderr
    assert (job / "killed").exists(), "no process was killed"
    undisturbed = in_processes(2, tmp_path / "undisturbed", work.elastic)
    for rank, expected in enumerate(undisturbed):
        result = torch.load(job / f"result{rank}.pt", weights_only=True)
        for name, weight in expected["weights"].items():
            assert torch.equal(result["weights"][name], weight), name
        saved_after = work.KILLED_AT // work.SAVE_EVERY * work.SAVE_EVERY
        assert result["visited"] == expected["visited"][saved_after:]
        assert result["report"] == expected["report"]
        assert result["workers"][0] == result["workers"][1], "loaders whose workers fetch ahead give the same batches"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], dict[str, Any]]:
    """A checkpoint of two processes, what each of them did until then, and an undisturbed training by one."""
    stop_after = 3 * work.SAVE_EVERY  # in the middle of the second epoch
    folder = tmp_path_factory.mktemp("first")
    first = in_processes(2, folder, work.elastic, False, stop_after)
    single = work.Training(work.POLICIES["once an epoch"], 1)
    single.run()
    return folder / "job.pt", first, single.result()


@pytest.mark.parametrize("world", [1, 3])
def test_a_checkpoint_of_two_processes_goes_on_in_mid_epoch_with_fewer_and_with_more(
    stopped: tuple[Path, list[Any], dict[str, Any]], tmp_path: Path, world: int
) -> None:
    path, first, expected = stopped
    shutil.copy(path, tmp_path)
    second = in_processes(world, tmp_path, work.elastic)
    assert work.samples_of_steps(first) + work.samples_of_steps(second) == work.samples_of_steps([expected])
    for rank in second:
        assert rank["report"]["kept"] == expected["report"]["kept"]
        for name, weight in expected["weights"].items():
            assert torch.allclose(rank["weights"][name], weight, rtol=1e-9, atol=1e-11), name


def test_the_example_trains_in_one_process_and_goes_on_in_two(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    ddp.main(["--epochs", "2", "--checkpoint", str(path)])
    run = torchrun(tmp_path, "examples/ddp.py", "--epochs", "6", "--checkpoint", str(path))
    assert run.returncode == 0, run.stderr
    assert "goes on at epoch 2 of 6 with 2 processes" in run.stdout
    assert "40.0% fewer samples" in run.stdout
    accuracy = float(run.stdout.split("test accuracy ")[1].split("%")[0])
    assert accuracy > 80
