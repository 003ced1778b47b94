"""Real process groups: gloo, meeting through a file, at world sizes 1 to 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from orderdp import Pruner
from tests import distributed_work as work
from tests.distributed_work import BATCH_SIZE, CASES, EPOCHS, GROUP_TIMEOUT
from tests.ranks import in_processes
from tests.support import fake_losses

_RESULTS: dict[int, list[dict[str, Any]]] = {}


@pytest.fixture(params=[1, 2, 3, 4], ids=lambda world: f"world-{world}")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank reports; a group is started once for all tests that look at it."""
    world = request.param
    if world not in _RESULTS:
        _RESULTS[world] = in_processes(world, tmp_path_factory.mktemp(f"world{world}"), work.all_cases)
    return _RESULTS[world]


def one_process(case: str, world: int) -> tuple[list[list[int]], Pruner]:
    """The oracle: all of an epoch that can be sharded evenly, by a pruner that knows of no group."""
    policy, n = CASES[case]
    pruner, visited = Pruner(policy, n, seed=3), []
    for step in range(EPOCHS):
        order = [i for batch in pruner.batch_sampler(BATCH_SIZE * world) for i in batch]
        order = order[: len(order) // world * world]
        index = torch.tensor(order)
        pruner.update(index, fake_losses(index, step))
        visited.append(order)
    return visited, pruner


@pytest.mark.parametrize("case", CASES)
def test_ranks_train_on_what_one_process_would(ranks: list[dict[str, Any]], case: str) -> None:
    world = len(ranks)
    expected, _ = one_process(case, world)
    for step in range(EPOCHS):
        shares = [rank[case]["visited"][step] for rank in ranks]
        assert len({len(share) for share in shares}) == 1, "a rank with more batches would wait for ever"
        assert all(len(share) == rank[case]["steps"] for share, rank in zip(shares, ranks, strict=True))
        for batches in zip(*shares, strict=True):
            assert len({len(batch) for batch in batches}) == 1, "means over unequal batches are no mean over all"
        assert sorted(i for share in shares for batch in share for i in batch) == sorted(expected[step])


@pytest.mark.parametrize("case", [*CASES, "padded", "half"])
def test_all_ranks_remember_the_same(ranks: list[dict[str, Any]], case: str) -> None:
    groups = [ranks[0::2], ranks[1::2]] if case == "half" else [ranks]
    for group in groups:
        for rank in group:
            for name, values in rank[case]["table"].items():
                assert torch.equal(values, group[0][case]["table"][name]), name
    if case in CASES:
        _, pruner = one_process(case, len(ranks))
        for name, values in ranks[0][case]["table"].items():
            assert torch.equal(values, torch.tensor(pruner._table[name])), name


@pytest.mark.parametrize("case", [*CASES, "padded"])
def test_an_epoch_takes_at_most_three_collectives_none_of_which_pickles(ranks: list[dict[str, Any]], case: str) -> None:
    world, (_, n) = len(ranks), CASES.get(case, CASES["ragged"])
    for rank in ranks:
        for calls, told in zip(rank[case]["collectives"], rank[case]["bytes"], strict=True):
            assert len(calls) <= 3
            assert set(calls) <= {"all_gather"}
            assert told <= world * 500 + 24 * n
            assert (told == 0) == (world == 1) == (not calls), "a group of one exchanges nothing"


def test_padding_repeats_less_than_one_round(ranks: list[dict[str, Any]]) -> None:
    world, kept = len(ranks), 45
    for step in range(EPOCHS):
        trained = [i for rank in ranks for batch in rank["padded"]["visited"][step] for i in batch]
        assert len(set(trained)) == kept
        assert len(trained) == kept + -kept % world


def test_groups_that_are_not_the_world_are_worlds_of_their_own(ranks: list[dict[str, Any]]) -> None:
    for group in (ranks[0::2], ranks[1::2]):
        if group:
            expected, _ = one_process("ragged", len(group))
            for step in range(EPOCHS):
                trained = [i for rank in group for batch in rank["half"]["visited"][step] for i in batch]
                assert sorted(trained) == sorted(expected[step])


def test_fewer_samples_than_ranks_is_an_error_on_all(ranks: list[dict[str, Any]]) -> None:
    if len(ranks) > 1:
        assert all("ConfigError: an epoch of 1 samples is too small" in rank["too few"] for rank in ranks)


def test_bad_input_is_an_error_on_every_rank_and_nobody_hangs(tmp_path: Path) -> None:
    results = in_processes(2, tmp_path, work.bad_input, group_timeout=GROUP_TIMEOUT)
    for rank in results:
        assert "GroupError" in rank["seed"]
        assert "seed: 0 on rank 0, 1 on rank 1" in rank["seed"]
        assert "OrderDP(prune_ratio=0.4) on rank 0, OrderDP(prune_ratio=0.5) on rank 1" in rank["policy"]
        assert "length of the data set: 40 on rank 0, 41 on rank 1" in rank["length"]
        assert "NonFiniteLossError: 12 losses" in rank["strict"]
        assert "A framework seems to shard the samples a second time" in rank["twice"]
        assert "FeedbackError: index must hold whole numbers" in rank["no index"]
        assert rank["alone"] == "no error"
    assert "GroupError: all_gather failed on rank 0 of 2 at epoch 0" in results[0]["never"]
    assert "Timed out" in results[0]["never"]


def test_a_group_made_after_the_pruner_is_found(tmp_path: Path) -> None:
    first, second = in_processes(2, tmp_path, work.late_group)
    assert sorted(i for batch in first + second for i in batch) == sorted(Pruner(CASES["even"][0], 40).sampler)
