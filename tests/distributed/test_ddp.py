"""Several processes that train one model follow one process that trains it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests import ddp_work as work
from tests.ranks import in_processes


def alone(policy: str) -> dict[str, Any]:
    training = work.Training(work.POLICIES[policy], 1)
    training.run()
    return training.result()


def assert_follows(ranks: list[dict[str, Any]], single: dict[str, Any]) -> None:
    assert work.samples_of_steps(ranks) == work.samples_of_steps([single])
    for rank in ranks:
        for name, weight in single["weights"].items():
            assert torch.allclose(rank["weights"][name], weight, rtol=1e-9, atol=1e-11), name
        assert rank["report"]["kept"] == single["report"]["kept"] == 96 * work.EPOCHS


@pytest.fixture(scope="module")
def ddp_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_processes(2, tmp_path_factory.mktemp("ddp"), work.ddp)


@pytest.mark.parametrize("policy", work.POLICIES)
def test_ddp_with_half_the_batch_each_follows_one_process_with_the_whole(
    ddp_ranks: list[dict[str, Any]], policy: str
) -> None:
    assert_follows([rank[policy] for rank in ddp_ranks], alone(policy))


def test_weights_would_differ_if_the_samples_did() -> None:
    """The comparison can fail: another seed is another training."""
    training = work.Training(work.POLICIES["once an epoch"], 1)
    training.pruner._manager.seed = 2
    training.run()
    other, single = training.result()["weights"], alone("once an epoch")["weights"]
    assert not any(torch.allclose(other[name], single[name], rtol=1e-3) for name in single)


def test_fsdp_trains_with_the_same_lines(tmp_path: Path) -> None:
    assert_follows(in_processes(2, tmp_path, work.fsdp), alone("once an epoch"))


def test_a_distributed_checkpoint_brings_the_pruner_back(tmp_path: Path) -> None:
    assert_follows(in_processes(2, tmp_path, work.through_a_distributed_checkpoint), alone("once an epoch"))
