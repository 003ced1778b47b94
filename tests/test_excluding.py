"""Samples that are excluded are never served again, and the rest is as exact as a data set without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from orderdp import Budget, OrderDP, Policy, Pruner
from orderdp.errors import ConfigError, DatasetError, GroupError, StateError
from orderdp.policies import RS2, UCB, Balanced, DynamicRandom, Fixed, FullData, InfoBatch
from orderdp.streaming import GrowingPruner
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import Weighted, fake_losses

N = 40
POLICIES: list[Policy] = [
    OrderDP(0.4),
    OrderDP(0.4, every="batch"),
    FullData(),
    DynamicRandom(0.3),
    RS2(0.5),
    UCB(0.4),
    InfoBatch(0.5),
    Balanced(OrderDP(0.4)),
    Budget(0.5, policy=OrderDP(0.4)),
    Weighted(),
]
quiet = pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")


def made(policy: Policy, **options: Any) -> Pruner:
    labels = np.arange(N) % 4 if isinstance(policy, Balanced) else None
    return Pruner(policy, N, seed=1, epochs=8, labels=labels, **options)


def epoch_of(pruner: Pruner, leave_after: int | None = None, batch_size: int = 5) -> list[int]:
    visited = []
    for step, batch in enumerate(pruner.batch_sampler(batch_size), 1):
        pruner.update(torch.tensor(batch), fake_losses(torch.tensor(batch), step))
        visited += batch
        if step == leave_after:
            break
    return visited


@quiet
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_an_excluded_sample_is_never_served_again_by_any_policy(policy: Policy) -> None:
    pruner = made(policy)
    epoch_of(pruner)
    pruner.exclude(7)
    pruner.exclude(torch.tensor([9, 11, 7]))
    assert pruner.excluded.tolist() == [7, 9, 11]
    for _ in range(4):
        assert not {7, 9, 11} & set(epoch_of(pruner))
    report = pruner.report()
    assert (report["excluded"], report["samples"]) == (3, N - 3)
    assert not {7, 9, 11} & set(pruner.hardest(N).tolist())
    assert not {7, 9, 11} & set(pruner.preview().indices.tolist())


@quiet
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_pruner_selects_from_the_rest_as_from_a_data_set_without_the_excluded(policy: Policy) -> None:
    """The slow version: a data set that never had the samples, with the indices renumbered."""
    gone = [0, 3, 17, 39]
    rest = np.setdiff1d(np.arange(N), gone)
    pruner = made(policy)
    pruner.exclude(gone)
    labels = rest % 4 if isinstance(policy, Balanced) else None
    without = Pruner(policy, len(rest), seed=1, epochs=8, labels=labels)
    for _ in range(4):
        assert pruner.size_bounds(pruner.epoch) == without.size_bounds(without.epoch)
        assert pruner.lr_scale == without.lr_scale
        visited = []
        for batch in without.batch_sampler(5):
            index = torch.from_numpy(rest[batch])
            without.update(torch.tensor(batch), fake_losses(index, len(visited)))
            visited += index.tolist()
        here: list[int] = []
        for batch in pruner.batch_sampler(5):
            pruner.update(torch.tensor(batch), fake_losses(torch.tensor(batch), len(here)))
            here += batch
        if policy.every == "batch":  # ties within a step are broken by index, which the other data set renumbers
            assert len(here) == len(visited)
        else:
            assert here == visited
        assert pruner.progress == without.progress
    ours, theirs = pruner.report(), without.report()
    assert {**ours, "excluded": 0} == theirs or policy.every == "batch"


@given(
    st.sets(st.integers(0, N - 1), min_size=1, max_size=20),
    st.integers(1, 4),
    st.sampled_from(["filter", "batches", "samples"]),
)
@settings(max_examples=40, deadline=None)
def test_the_rest_of_an_open_epoch_loses_the_excluded_samples(gone: set[int], left_after: int, kind: str) -> None:
    pruner = Pruner(OrderDP(0.4), N, seed=4)

    def batches() -> Any:
        if kind == "batches":
            return pruner.batch_sampler(5)
        if kind == "filter":
            return pruner.filter(BatchSampler(SequentialSampler(range(N)), 5, drop_last=False))
        return BatchSampler(pruner.sampler, 5, drop_last=False)

    whole = [index for batch in batches() for index in batch]
    before: list[int] = []
    for step, batch in enumerate(batches(), 1):
        pruner.update(torch.tensor(batch), torch.rand(len(batch)))
        before += batch
        if step == left_after:
            break
    pruner.exclude(sorted(gone))
    loaded = Pruner(OrderDP(0.4), N)
    loaded.load_state_dict(pruner.state_dict())
    for again in (pruner, loaded):
        again.resume()
        if again.epoch:
            continue
        if kind == "filter":
            served = again.filter(BatchSampler(SequentialSampler(range(N)), 5, drop_last=False))
        else:
            served = again.batch_sampler(5)
        rest = [index for batch in served for index in batch]
        assert rest == [index for index in whole[len(before) :] if index not in gone]


@quiet
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("leave_after", [None, 2])
def test_a_checkpoint_keeps_the_excluded_samples(policy: Policy, leave_after: int | None) -> None:
    pruner, other = made(policy), made(policy)
    pruner.exclude([1, 2, 30])
    epoch_of(pruner)
    epoch_of(pruner, leave_after)
    other.exclude([5])
    other.load_state_dict(pruner.state_dict())
    pruner.resume()
    assert other.excluded.tolist() == [1, 2, 30]
    ours, theirs = pruner.report(), other.report()
    assert all(ours[name] == theirs[name] for name in ours if "weight" not in name)  # those of a closed epoch are gone
    assert [epoch_of(pruner) for _ in range(2)] == [epoch_of(other) for _ in range(2)]


def test_a_state_without_exclusions_is_as_before_and_clears_those_of_a_pruner() -> None:
    plain, pruner = Pruner(OrderDP(0.4), N), Pruner(OrderDP(0.4), N)
    assert "excluded" not in plain.state_dict()
    pruner.exclude(3)
    pruner.load_state_dict(plain.state_dict())
    assert pruner.excluded.tolist() == []
    assert epoch_of(pruner) == epoch_of(plain)


def test_a_damaged_state_changes_no_exclusions() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    pruner.exclude(3)
    state = pruner.state_dict()
    broken = {**state, "excluded": {**state["excluded"], "removed": torch.tensor([N])}}
    other = Pruner(OrderDP(0.4), N)
    other.exclude(5)
    with pytest.raises(StateError):
        other.load_state_dict(broken)
    with pytest.raises(StateError):
        other.load_state_dict({**state, "timeline": {}})
    assert other.excluded.tolist() == [5]


def test_a_reset_brings_excluded_samples_back() -> None:
    pruner = Pruner(FullData(), N)
    pruner.exclude(3)
    pruner.reset()
    assert 3 in epoch_of(pruner)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0.5], "indices must be whole numbers"),
        ([N], r"indices must be in \[0, 40\), got 40 to 40"),
        ([-1], r"indices must be in \[0, 40\)"),
        (range(N), "at least one of the 40 samples must remain"),
    ],
)
def test_wrong_exclusions_are_refused_and_change_nothing(index: Any, message: str) -> None:
    pruner = Pruner(OrderDP(0.4), N)
    with pytest.raises(DatasetError, match=message):
        pruner.exclude(list(index))
    assert pruner.excluded.tolist() == []
    pruner.exclude([])
    assert "excluded" not in pruner.state_dict()


def test_a_mask_excludes_too() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    pruner.exclude(np.arange(N) < 3)
    assert pruner.excluded.tolist() == [0, 1, 2]


def test_what_cannot_exclude_says_why() -> None:
    with pytest.raises(ConfigError, match="Leave the samples out of the data set"):
        Pruner(OrderDP(0.4), N, table="sharded").exclude(0)
    for policy in (Fixed([1, 2, 3]), Budget(0.1, policy=Fixed([1, 2, 3]))):
        with pytest.raises(ConfigError, match="refers to samples by index"):
            Pruner(policy, N, epochs=2).exclude(0)


def test_a_growing_pruner_excludes_by_removing() -> None:
    pruner = GrowingPruner(OrderDP(0.4), N)
    pruner.exclude([3])
    assert pruner.removed.tolist() == pruner.excluded.tolist() == [3]
    assert pruner.report()["excluded"] == 1


@pytest.mark.parametrize("shard", [True, False])
def test_ranks_that_exclude_alike_train_without_the_samples(shard: bool) -> None:
    def work(group: MemoryRank) -> list[int]:
        pruner = Pruner(FullData(), N, process_group=group, shard=shard)
        pruner.exclude([2, 3])
        return epoch_of(pruner, batch_size=3)

    ranks = all_fine(in_threads(2, work))
    assert {*ranks[0], *ranks[1]} == set(range(N)) - {2, 3}


def test_ranks_that_exclude_differently_are_told_so() -> None:
    def work(group: MemoryRank) -> str:
        pruner = Pruner(OrderDP(0.4), N, process_group=group)
        pruner.exclude([group.rank])
        with pytest.raises(GroupError, match="excluded samples") as raised:
            iter(pruner.sampler)
        return str(raised.value)

    all_fine(in_threads(2, work))
