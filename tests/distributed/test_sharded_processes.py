"""Tables in parts over real process groups: gloo, meeting through a file, with every wait bounded."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from orderdp import OrderDP, Pruner
from tests import sharded_work as work
from tests.ranks import in_processes
from tests.sharded_work import EPOCHS, GROUP_TIMEOUT, N, losses_of

_RESULTS: dict[int, tuple[list[dict[str, Any]], Path]] = {}


@pytest.fixture(params=[2, 3], ids=lambda world: f"world-{world}")
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """What every rank reports, and where they wrote a checkpoint; a group is started once for all tests."""
    world = request.param
    if world not in _RESULTS:
        folder = tmp_path_factory.mktemp(f"shards{world}")
        arguments = (world, folder / "run", work.everything, folder / "checkpoint")
        _RESULTS[world] = in_processes(*arguments, group_timeout=GROUP_TIMEOUT + 8), folder / "checkpoint"
    return _RESULTS[world]


def test_processes_with_a_part_each_train_on_what_one_with_all_would(group: tuple[list[Any], Path]) -> None:
    ranks, _ = group
    whole = Pruner(OrderDP(0.4), N, seed=5)
    for step in range(EPOCHS):
        order = list(whole.sampler)
        shares = [rank["exact"]["visited"][step] for rank in ranks]
        assert len({len(share) for share in shares}) == 1
        assert sorted(chain(*shares)) == sorted(order)
        whole.update(torch.tensor(order), losses_of(torch.tensor(order), step))
    assert torch.equal(torch.cat([rank["exact"]["scores"] for rank in ranks]), whole.scores)


def test_sums_and_swaps_are_collectives_of_torch_and_none_pickles(group: tuple[list[Any], Path]) -> None:
    ranks, _ = group
    for rank in ranks:
        assert set(rank["exact"]["collectives"]) == {"all_gather", "all_reduce", "all_to_all_single"}
        assert set(rank["stratified"]["collectives"]) == {"all_gather"}
        assert sum(report["moved_picks"] for report in rank["exact"]["told"]) >= 0
        assert all(report["selection_bytes"] <= 9 * 8 * 4096 for report in rank["exact"]["told"])
        assert all(report["selection_bytes"] == 0 for report in rank["stratified"]["told"])
    assert sum(report["moved_picks"] for rank in ranks for report in rank["exact"]["told"]) > 0


def test_processes_that_disagree_on_the_length_are_told_so(group: tuple[list[Any], Path]) -> None:
    for rank in group[0]:
        assert rank["length"].startswith("GroupError: all processes must have the same settings")
        assert "length of the data set: 120 on rank 0, 121 on rank 1" in rank["length"]


def test_a_process_that_never_comes_is_waited_for_as_long_as_the_group_says(group: tuple[list[Any], Path]) -> None:
    assert group[0][0]["never"].startswith("GroupError")


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_checkpoint_in_files_goes_on_at_another_number_of_processes(
    group: tuple[list[Any], Path], after: int, tmp_path: Path
) -> None:
    ranks, checkpoint = group
    first = list(chain(*(rank["first"] for rank in ranks)))
    results = in_processes(after, tmp_path, work.go_on, checkpoint)
    rest = list(chain(*(result["rest"] for result in results)))
    assert sum(result["used"] for result in results) == len(first) == 5 * 4 * len(ranks)
    assert not set(first) & set(rest)
    assert len({len(result["rest"]) for result in results}) == 1
    order = list(Pruner(OrderDP(0.4), N, seed=5).sampler)
    assert set(first) | set(rest) <= set(order)
    assert len(order) - len(first) - len(rest) < after
