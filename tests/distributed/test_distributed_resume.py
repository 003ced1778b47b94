"""Checkpoints of several ranks: whole after sync, refused without, and good for any number of ranks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orderdp import OrderDP, Pruner
from orderdp.distributed import DCPState
from orderdp.errors import GroupError, StateError, UnsyncedStateWarning
from orderdp.policies import UCB, InfoBatch
from tests import distributed_work
from tests.distributed.test_distributed_rules import Remembering, assert_same_contents, contents, go_through
from tests.ranks import MemoryRank, all_fine, in_processes, in_threads
from tests.support import as_on_a_card, fake_losses
from tests.test_bad_input import assert_same_state

N, STEP = 80, 12  # 48 of 80 are kept, in steps of 12 over all ranks: 1, 2, 3 and 4 ranks share them evenly
EPOCHS = 4
POLICIES = [OrderDP(0.4), OrderDP(0.4, every="batch"), Remembering(0.4), UCB(0.4), InfoBatch(0.5, annealing=None)]

# InfoBatch says once what it really leaves out.
pytestmark = pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")


def train(pruner: Pruner, world: int, stop_after: int | None = None) -> list[tuple[int, list[int]]]:
    """Trains to the end or for so many steps; returns epoch and samples of each step."""
    visited: list[tuple[int, list[int]]] = []
    sampler = pruner.batch_sampler(STEP // world)
    while pruner.epoch < EPOCHS:
        for batch in sampler:
            if len(visited) == stop_after:
                return visited
            visited.append((pruner.epoch, batch))
            index = torch.tensor(batch)
            pruner.update(index, fake_losses(index, pruner.epoch))
        if len(visited) == stop_after:
            return visited
    return visited


def by_epoch(parts: list[list[tuple[int, list[int]]]]) -> dict[int, list[int]]:
    """All samples of each epoch, of all ranks and all parts of the run."""
    found: dict[int, list[int]] = {}
    for visited in parts:
        for epoch, batch in visited:
            found.setdefault(epoch, []).extend(batch)
    return {epoch: sorted(samples) for epoch, samples in found.items()}


def saved(state: Any) -> Any:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def straight(policy: Any) -> tuple[dict[int, list[int]], Pruner]:
    pruner = Pruner(policy, N, seed=5)
    return by_epoch([train(pruner, 1)]), pruner


def stopped(policy: Any, world: int, steps: int, sync: bool = True) -> list[tuple]:
    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(policy, N, seed=5, process_group=group)
        visited = train(pruner, world, stop_after=steps)
        if sync:
            pruner.sync()
        return visited, pruner.state_dict(), contents(pruner)

    return all_fine(in_threads(world, work))


def resumed(policy: Any, world: int, state: Any) -> list[tuple]:
    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(policy, N, process_group=group)
        pruner.load_state_dict(state)
        visited = train(pruner, world)
        pruner.sync()
        return visited, pruner.report(), contents(pruner)

    return all_fine(in_threads(world, work))


@pytest.mark.parametrize("policy", POLICIES[:4], ids=repr)
@pytest.mark.parametrize("steps", [1, 3, 4, 6])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (2, 2), (1, 2), (3, 4)])
def test_a_run_goes_on_with_any_number_of_ranks_and_visits_what_it_would_have(
    policy: Any, steps: int, before: int, after: int
) -> None:
    first = stopped(policy, before, steps)
    states = [state for _, state, _ in first]
    for state in states[1:]:
        assert_same_state(states[0], state)
    second = resumed(policy, after, saved(states[-1]))
    expected, single = straight(policy)
    assert by_epoch([visited for visited, *_ in [*first, *second]]) == expected
    for _, report, table in second:
        assert_same_contents(table, contents(single))
        for name in ("epoch", "kept", "saved", "coverage", "staleness"):
            assert report[name] == single.report()[name], name


@pytest.mark.parametrize("steps", [1, 4, 5])
def test_a_policy_of_unknown_size_resumes_with_as_many_ranks(steps: int) -> None:
    policy = InfoBatch(0.5, annealing=None)
    first = stopped(policy, 2, steps)
    second = resumed(policy, 2, saved(first[0][1]))
    whole = resumed(policy, 2, saved(stopped(policy, 2, 0)[0][1]))
    for rank in range(2):
        assert first[rank][0] + second[rank][0] == whole[rank][0]
        assert_same_contents(second[rank][2], whole[rank][2])


def test_the_rest_of_an_epoch_that_does_not_go_round_is_left_out_and_the_next_begins() -> None:
    """Two ranks have left 12 of 48; eight of them are taken up by one step of eight ranks, four are too few."""
    first = stopped(OrderDP(0.4), 2, 3)

    def work(group: MemoryRank) -> list:
        pruner = Pruner(OrderDP(0.4), N, process_group=group)
        pruner.load_state_dict(first[0][1])
        rest = []
        for batch in pruner.batch_sampler(1):
            rest.append((pruner.epoch, batch))
            pruner.update(torch.tensor(batch), torch.ones(1))
        again = Pruner(OrderDP(0.4), N, process_group=group)
        again.load_state_dict({**first[0][1], "timeline": pruner_at(first[0][1], 44)})
        assert [pruner.epoch, again.epoch] == [1, 1], "a loop over what is left must not train an epoch too many"
        iter(again.sampler)
        assert again.epoch == 1
        return rest

    results = all_fine(in_threads(8, work))
    rest = by_epoch(results)
    consumed = by_epoch([visited for visited, *_ in first])
    assert len(rest[0]) == len(set(rest[0])) == 8
    assert not set(rest[0]) & set(consumed[0])


def pruner_at(state: dict, trained: int) -> dict:
    return {**state["timeline"], "clock": {**state["timeline"]["clock"], "trained": trained}}


# -- without sync --------------------------------------------------------------------------------------------------


def unsynced(policy: Any, steps: int = 3, world: int = 2) -> list[dict]:
    with pytest.warns(UnsyncedStateWarning, match=rf"rank \d of {world} and lacks.*pruner\.sync\(\)"):
        return [state for _, state, _ in stopped(policy, world, steps, sync=False)]


def test_a_state_without_sync_is_marked_and_refused_alone() -> None:
    parts = unsynced(OrderDP(0.4))
    pruner = Pruner(OrderDP(0.4), N)
    before = pruner.state_dict()
    with pytest.raises(StateError, match=r"rank 1 of 2 without sync\(\).*load_state_dict\(\[part_0, part_1"):
        pruner.load_state_dict(saved(parts[1]))
    assert_same_state(before, pruner.state_dict())


def test_whoever_goes_on_alone_can_load_what_it_saved() -> None:
    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(OrderDP(0.4), N, process_group=group)
        batches = [go_through(pruner, 4, step) for step in range(2)]
        group.world = 1  # the other is gone
        left = pruner.state_dict()
        batches.append(go_through(pruner, 4, 2))
        return left, pruner.state_dict(), batches

    with pytest.warns(UnsyncedStateWarning):
        results = all_fine(in_threads(2, work))
    for left, alone, batches in results:
        with pytest.raises(StateError, match="without sync"):
            Pruner(OrderDP(0.4), N).load_state_dict(saved(left))
        pruner = Pruner(OrderDP(0.4), N)
        pruner.load_state_dict(saved(alone))
        assert pruner.epoch == 3
        assert len(batches[2]) == round(0.6 * N)
        index = torch.tensor(batches[2])
        assert torch.equal(pruner.scores[index], fake_losses(index, 2))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("steps", [1, 3, 4, 7])
@pytest.mark.parametrize("world", [2, 3])
def test_the_parts_of_all_ranks_make_the_state_that_sync_would_have(policy: Any, steps: int, world: int) -> None:
    parts = unsynced(policy, steps, world)
    whole = stopped(policy, world, steps)[0][1]
    pruner, other = Pruner(policy, N), Pruner(policy, N)
    pruner.load_state_dict([saved(part) for part in reversed(parts)])
    other.load_state_dict(whole)
    assert_same_state(pruner.state_dict(), other.state_dict())
    of_a_card = Pruner(policy, N)
    of_a_card.load_state_dict(as_on_a_card(parts))
    assert_same_state(of_a_card.state_dict(), other.state_dict())


def test_parts_of_ranks_that_wrote_the_same_rows_are_merged_as_sync_would() -> None:
    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(Remembering(0.4), N, process_group=group)
        for round_ in range(2):
            for rows in (torch.arange(10), torch.arange(5 + group.rank)):
                pruner.update(rows, fake_losses(rows, 2 * round_ + group.rank))
            if round_ == 0:
                pruner.sync()
        part = pruner.state_dict()
        pruner.sync()
        return part, pruner.state_dict()

    with pytest.warns(UnsyncedStateWarning):
        results = all_fine(in_threads(2, work))
    pruner, other = Pruner(Remembering(0.4), N), Pruner(Remembering(0.4), N)
    pruner.load_state_dict([part for part, _ in results])
    other.load_state_dict(results[0][1])
    assert_same_state(pruner.state_dict(), other.state_dict())
    assert pruner.usage.tolist()[:6] == [8] * 5 + [6]


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda parts, later, whole: parts[:1], r"all 2 ranks are needed, got those of \[0\]"),
        (lambda parts, later, whole: [parts[0], parts[0]], r"got those of \[0, 0\]"),
        (lambda parts, later, whole: [parts[0], later[1]], "rank 0 has trained 24, rank 1 has 36"),
        (lambda parts, later, whole: [whole, parts[1]], "got a complete state"),
        (lambda parts, later, whole: [parts[0], {"model": 1}], "must come from Pruner.state_dict"),
        (lambda parts, later, whole: [], "got list"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(choose: Any, message: str) -> None:
    parts, later = unsynced(OrderDP(0.4), 2), unsynced(OrderDP(0.4), 3)
    whole = stopped(OrderDP(0.4), 2, 2)[0][1]
    with pytest.raises(StateError, match=message):
        Pruner(OrderDP(0.4), N).load_state_dict(choose(parts, later, whole))


def test_ranks_that_load_different_checkpoints_are_noticed() -> None:
    early, late = (stopped(OrderDP(0.4), 2, steps)[0][1] for steps in (2, 3))

    def work(group: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), N, seed=5, process_group=group)
        pruner.load_state_dict(late if group.rank else early)
        iter(pruner.sampler)

    for error in in_threads(2, work):
        assert isinstance(error, GroupError)
        assert "were different checkpoints loaded?" in str(error)


def test_a_rank_that_did_not_load_the_checkpoint_is_noticed() -> None:
    state = stopped(OrderDP(0.4), 2, 2)[0][1]

    def work(group: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), N, seed=5, process_group=group)
        if group.rank:
            pruner.load_state_dict(state)
        iter(pruner.sampler)

    for error in in_threads(2, work):
        assert isinstance(error, GroupError)


def test_ranks_can_go_back_to_an_earlier_checkpoint_and_take_the_same_way_again() -> None:
    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(OrderDP(0.4), N, process_group=group)
        train(pruner, 2, stop_after=6)
        pruner.sync()
        state = pruner.state_dict()
        ways = []
        for _ in range(2):
            pruner.load_state_dict(state)
            visited = train(pruner, 2)
            pruner.sync()
            ways.append((visited, contents(pruner), pruner.report()["kept"]))
        return ways

    for (visited, table, kept), (again, same_table, same_kept) in all_fine(in_threads(2, work)):
        assert again == visited
        assert kept == same_kept == 48 * EPOCHS
        assert_same_contents(table, same_table)


def test_syncing_after_different_steps_is_noticed() -> None:
    def work(group: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), N, process_group=group)
        train(pruner, 2, stop_after=2 + group.rank)
        pruner.sync()

    for error in in_threads(2, work):
        assert isinstance(error, GroupError)
        assert "rank 0: epoch 0, 24 samples trained; rank 1: epoch 0, 36 samples trained" in str(error)


def test_a_stateful_data_loader_keeps_its_place_in_each_rank(tmp_path: Path) -> None:
    for rank in in_processes(2, tmp_path, distributed_work.through_stateful_loaders, [1, 4, 6]):
        for steps, (straight_way, stopped_and_resumed) in rank.items():
            assert stopped_and_resumed == straight_way, steps


def test_syncing_changes_nothing_else() -> None:
    def work(group: MemoryRank, often: bool) -> tuple:
        pruner, visited = Pruner(OrderDP(0.4), N, process_group=group), []
        for _ in range(3):
            for batch in pruner.batch_sampler(6):
                index = torch.tensor(batch)
                pruner.update(index, fake_losses(index, pruner.epoch))
                visited.append(batch)
                if often:
                    pruner.sync()
        pruner.sync()
        return visited, contents(pruner), pruner.report()["kept"]

    once = all_fine(in_threads(2, lambda group: work(group, often=False)))
    often = all_fine(in_threads(2, lambda group: work(group, often=True)))
    for (visited, table, kept), (expected, same_table, same_kept) in zip(once, often, strict=True):
        assert visited == expected
        assert kept == same_kept
        assert_same_contents(table, same_table)


def test_syncing_alone_does_nothing() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    train(pruner, 1, stop_after=2)
    before = pruner.state_dict()
    pruner.sync()
    assert_same_state(before, pruner.state_dict())


def test_a_packed_state_comes_back_and_nothing_else_is_taken_for_one() -> None:
    pruner, other, third = (Pruner(OrderDP(0.4), N) for _ in range(3))
    train(pruner, 1, stop_after=2)
    DCPState(other).load_state_dict(DCPState(pruner).state_dict())
    third.load_state_dict(pruner.state_dict())
    assert_same_state(other.state_dict(), third.state_dict())
    with pytest.raises(StateError, match="got NoneType"):
        DCPState(other).load_state_dict(pruner.state_dict())


def test_counts_that_outgrow_two_bytes_are_widened_by_what_others_have_counted() -> None:
    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(OrderDP(0.4), N, process_group=group)
        pruner._table._columns["usage"][:] = 30_000
        pruner.sync()
        return pruner.usage.tolist(), contents(pruner)["usage"].dtype

    for usage, dtype in all_fine(in_threads(2, work)):
        assert usage == [60_000] * N
        assert dtype == np.int32
