"""Who owns the position: loaders that skip by themselves, and loops that leave an epoch early."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from orderdp import Indexed, OrderDP, Pruner
from orderdp.errors import ConfigError, GroupError, StateError
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import Undecided, fake_losses, toy_dataset, train_epoch

# A loop that takes its samples from a pruner never gives back losses while no epoch is open.
pytestmark = pytest.mark.filterwarnings("error::orderdp.errors.NoOpenEpochWarning")

N, BATCH_SIZE, EPOCHS = 53, 6, 3
DATASET = toy_dataset(N)


def make(policy: Any = None, **options: Any) -> tuple[Pruner, Any]:
    pruner = Pruner(policy or OrderDP(0.4), N, seed=3, **options)
    return pruner, pruner.loader(DATASET, batch_size=BATCH_SIZE)


def train(pruner: Pruner, batches: Any) -> list[list[int]]:
    """As `fake_losses` of the epoch says, so that a resumed run can do the same."""
    visited = []
    for index, _ in batches:
        pruner.update(index, fake_losses(index, pruner.epoch))
        visited.append(index.tolist())
    return visited


def look(loader: Any) -> list[list[int]]:
    """All six batches, without being told that there are no more: that would count as a pass without feedback."""
    return [index.tolist() for index, _ in islice(loader, 6)]


@settings(max_examples=40, deadline=None)
@given(every=st.sampled_from(["epoch", "batch"]), epoch=st.integers(0, 2), steps=st.integers(0, 6))
def test_a_loader_that_skips_by_itself_goes_on_where_the_straight_run_does(every: Any, epoch: int, steps: int) -> None:
    policy = OrderDP(0.4, every=every)
    straight, loader = make(policy)
    expected = [train(straight, loader) for _ in range(EPOCHS)]

    first, loader = make(policy)
    for _ in range(epoch):
        train(first, loader)
    assert train(first, islice(loader, steps)) == expected[epoch][:steps]

    second, loader = make(policy)
    second.load_state_dict(first.state_dict())
    second.rewind()
    start, skipped = divmod(epoch * 6 + steps, 6)  # as a framework computes it that counts steps
    assert second.epoch == start
    resumed = [
        train(second, islice(loader, skipped if number == start else 0, None)) for number in range(start, EPOCHS)
    ]
    if skipped:
        expected[start] = expected[start][skipped:]
    assert resumed == expected[start:]
    assert torch.equal(second.scores, straight.scores)
    assert second.report() == straight.report()


def test_without_rewinding_a_skip_would_skip_twice() -> None:
    """The property above can fail."""
    first, loader = make()
    train(first, islice(loader, 2))
    second, loader = make()
    second.load_state_dict(first.state_dict())
    assert len(train(second, islice(loader, 2, None))) == 2  # of the four that are left


def test_a_rewound_epoch_is_served_from_its_start_until_something_is_trained() -> None:
    first, loader = make()
    whole = look(loader)
    train(first, islice(loader, 2))
    second, loader = make()
    second.load_state_dict(first.state_dict())
    second.rewind()
    assert look(loader) == whole
    assert second.report()["kept"] == first.report()["kept"] == 12
    assert train(second, islice(loader, 2, None)) == whole[2:]
    assert second.epoch == 1
    assert train_epoch(second, loader) != whole


def test_rewinding_a_checkpoint_between_epochs_changes_nothing() -> None:
    first, loader = make()
    train(first, loader)
    second, second_loader = make()
    second.load_state_dict(first.state_dict())
    second.rewind()
    assert train(second, second_loader) == train(first, loader)
    assert train(second, second_loader) == train(first, loader)


def test_loading_again_takes_the_rewinding_back() -> None:
    first, loader = make()
    whole = look(loader)
    train(first, islice(loader, 2))
    second, loader = make()
    for _ in range(2):
        second.load_state_dict(first.state_dict())
        assert next(iter(loader))[0].tolist() == whole[2]
        second.rewind()
        assert next(iter(loader))[0].tolist() == whole[0]


def test_rewinding_in_the_middle_of_training_is_refused() -> None:
    pruner, loader = make()
    train(pruner, islice(loader, 2))
    with pytest.raises(StateError, match=r"12 samples of epoch 0 .* Leave it out"):
        pruner.rewind()


def rank_that_resumes(rank: MemoryRank, state: Any, rewinds: bool, shard: bool) -> list[int]:
    pruner = Pruner(OrderDP(0.4), N, seed=3, process_group=rank, shard=shard)
    pruner.load_state_dict(state)
    if rewinds:
        pruner.rewind()
    return [index for batch in pruner.batch_sampler(4) for index in batch]


@pytest.mark.parametrize("shard", [True, False])
def test_all_ranks_rewind_together(shard: bool) -> None:
    def half_an_epoch(rank: MemoryRank) -> tuple[list[int], dict]:
        pruner = Pruner(OrderDP(0.4), N, seed=3, process_group=rank, shard=shard)
        served = [index for batch in pruner.batch_sampler(4) for index in batch]
        for batch in islice(pruner.batch_sampler(4), 2):
            pruner.update(batch, fake_losses(torch.tensor(batch)))
        pruner.sync()
        return served, pruner.state_dict()

    whole = all_fine(in_threads(2, half_an_epoch))
    resumed = all_fine(in_threads(2, lambda rank: rank_that_resumes(rank, whole[0][1], True, shard)))
    assert resumed == [served for served, _ in whole]
    for error in in_threads(2, lambda rank: rank_that_resumes(rank, whole[0][1], rank.rank == 0, shard)):
        assert isinstance(error, GroupError)
        assert "whether rewind() was called: True on rank 0, False on rank 1" in str(error)


def test_an_epoch_that_was_ended_early_is_not_gone_on_with_after_a_resume() -> None:
    straight, loader = make()
    expected = [train(straight, islice(loader, 2)) for _ in range(EPOCHS)]

    first, loader = make()
    assert train(first, islice(loader, 2)) == expected[0]
    first.end_epoch()
    assert first.epoch == 1
    second, loader = make()
    second.load_state_dict(first.state_dict())
    assert [train(second, islice(loader, 2)) for _ in range(1, EPOCHS)] == expected[1:]
    assert second.report()["kept"] == EPOCHS * 2 * BATCH_SIZE


def test_ending_an_epoch_that_is_over_or_has_not_begun_does_nothing() -> None:
    pruner, loader = make()
    pruner.end_epoch()
    first = next(iter(loader))[0]
    pruner.end_epoch()
    assert torch.equal(next(iter(loader))[0], first)
    train(pruner, loader)
    assert pruner.epoch == 1
    pruner.end_epoch()
    assert pruner.epoch == 1


def test_ranks_end_an_epoch_early_and_draw_the_next_one_together() -> None:
    def work(rank: MemoryRank) -> list[list[int]]:
        pruner = Pruner(OrderDP(0.4), N, seed=3, process_group=rank)
        epochs = []
        for _ in range(EPOCHS):
            epochs.append([])
            for batch in islice(pruner.batch_sampler(4), 2):
                pruner.update(batch, fake_losses(torch.tensor(batch), pruner.epoch))
                epochs[-1] += batch
            pruner.end_epoch()
            pruner.sync()
        assert pruner.report()["kept"] == EPOCHS * 2 * 4 * 2
        return epochs

    for mine, theirs in zip(*all_fine(in_threads(2, work)), strict=True):
        assert len({*mine, *theirs}) == 16


def test_bounds_of_an_epoch_are_known_before_it() -> None:
    assert Pruner(OrderDP(0.4), 50).size_bounds(7) == (30, 30)
    assert Pruner(Undecided(), 50).size_bounds(0) == (12, 50)
    with pytest.raises(ConfigError, match="epoch must be a whole number"):
        Pruner(OrderDP(0.4), 50).size_bounds(-1)


# -- what is left of an epoch is less than a step takes ----------------------------------------------------------


def dropping(pruner: Pruner, dataset: Any) -> DataLoader[Any]:
    """A loader that leaves out the rest of an epoch, of which the pruner knows nothing."""
    return DataLoader(Indexed(dataset), sampler=pruner.sampler, batch_size=16, drop_last=True)


@pytest.mark.parametrize("steps", [3, 6, 7, 9])
def test_a_loader_that_drops_the_rest_by_itself_goes_on_with_the_next_epoch(steps: int) -> None:
    """60 of 100 samples in batches of 16: three a epoch, and 12 samples left over."""
    dataset = toy_dataset(100)

    def run(pruner: Pruner, stop: int | None = None) -> list[tuple[int, list[int]]]:
        visited: list[tuple[int, list[int]]] = []
        for epoch in range(pruner.epoch, 5):
            for index, _ in dropping(pruner, dataset):
                pruner.update(index, fake_losses(index, epoch))
                visited.append((epoch, index.tolist()))
                if len(visited) == stop:
                    return visited
        return visited

    straight = run(Pruner(OrderDP(0.4), dataset, seed=3))
    first, second = Pruner(OrderDP(0.4), dataset, seed=3), Pruner(OrderDP(0.4), dataset, seed=3)
    before = run(first, steps)
    second.load_state_dict(first.state_dict())
    assert before + run(second) == straight


def trained_epochs(pruner: Pruner, batch_size: int, stop: int | None = None) -> list[int]:
    """In which epochs steps were made by a loop that counts them."""
    seen: list[int] = []
    for _ in range(pruner.epoch, EPOCHS):
        for batch in pruner.batch_sampler(batch_size, drop_last=True):
            seen.append(pruner.epoch)
            pruner.update(batch, fake_losses(torch.tensor(batch)))
            if len(seen) == stop:
                return seen
    return seen


def test_more_processes_for_whom_too_little_is_left_train_no_epoch_too_many() -> None:
    """Two ranks have trained on 16 of 20 samples, and three take six in a step."""

    def begin(rank: MemoryRank) -> dict[str, Any]:
        pruner = Pruner(OrderDP(0.4), 33, process_group=rank, epochs=EPOCHS)
        trained_epochs(pruner, 2, stop=4)
        pruner.sync()
        return pruner.state_dict()

    state = all_fine(in_threads(2, begin))[0]

    def go_on(rank: MemoryRank) -> tuple[list[int], int]:
        pruner = Pruner(OrderDP(0.4), 33, process_group=rank, epochs=EPOCHS)
        pruner.load_state_dict(state)
        return sorted(set(trained_epochs(pruner, 2))), pruner.epoch

    assert all_fine(in_threads(3, go_on)) == [(list(range(1, EPOCHS)), EPOCHS)] * 3


@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 4), (4, 4), (4, 7)])
def test_batches_of_another_size_train_no_epoch_too_many(before: int, after: int) -> None:
    first, second = Pruner(OrderDP(0.4), 30, epochs=EPOCHS), Pruner(OrderDP(0.4), 30, epochs=EPOCHS)
    trained_epochs(first, before, stop=12 // before)
    second.load_state_dict(first.state_dict())
    left = 18 - (12 // before) * before
    expected = range(0 if left >= after else 1, EPOCHS)
    assert sorted(set(trained_epochs(second, after))) == list(expected)
    assert second.epoch == EPOCHS


def test_ranks_whose_workers_fetch_ahead_may_leave_an_epoch_early() -> None:
    """Half of the losses came back, and the loaders were asked for more than there is: none serves them again."""
    dataset = toy_dataset(200)

    def work(rank: MemoryRank) -> int:
        pruner = Pruner(OrderDP(0.4), dataset, process_group=rank)
        batches = pruner.loader(dataset, batch_size=6, num_workers=1, prefetch_factor=8).batch_sampler
        assert batches is not None
        for _ in range(2):
            fetched = list(batches)  # as the workers do
            for batch in fetched[:5]:
                pruner.update(batch, fake_losses(torch.tensor(batch)))
        return pruner.epoch

    assert all_fine(in_threads(2, work)) == [1, 1]


# -- another number of processes goes on ----------------------------------------------------------------------------


def turns(pruner: Pruner, batch_size: int, drop_last: bool, own_loop: bool, stop: int | None = None) -> list[list[int]]:
    """The samples that each turn of a loop over the epochs that are left trains on, on this rank."""
    trained: list[list[int]] = []
    steps = 0
    for _ in pruner.remaining_epochs() if own_loop else range(pruner.epoch, EPOCHS):
        trained.append([])
        for batch in pruner.batch_sampler(batch_size, drop_last):
            pruner.update(batch, fake_losses(torch.tensor(batch), pruner.epoch))
            trained[-1] += batch
            steps += 1
            if steps == stop:
                return trained
    return trained


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(30, 60),
    before=st.sampled_from([(1, 8), (1, 5), (2, 4), (3, 2), (4, 2)]),
    after=st.sampled_from([(1, 8), (1, 3), (2, 4), (3, 2), (4, 2), (4, 1), (3, 3)]),
    drop_last=st.booleans(),
    pad=st.booleans(),
    stop=st.integers(1, 9),
    own_loop=st.booleans(),
)
@example(n=53, before=(1, 8), after=(4, 2), drop_last=True, pad=False, stop=3, own_loop=False)
@example(n=53, before=(1, 8), after=(4, 2), drop_last=True, pad=False, stop=3, own_loop=True)
@example(n=50, before=(2, 4), after=(3, 3), drop_last=True, pad=False, stop=3, own_loop=True)
def test_any_number_of_processes_trains_every_epoch_that_is_left(
    n: int, before: tuple[int, int], after: tuple[int, int], drop_last: bool, pad: bool, stop: int, own_loop: bool
) -> None:
    def make_rank(rank: MemoryRank) -> Pruner:
        return Pruner(OrderDP(0.4), n, process_group=rank, epochs=EPOCHS, pad=pad)

    def begin(rank: MemoryRank) -> tuple[Any, int, int]:
        pruner = make_rank(rank)
        turns(pruner, before[1], drop_last, own_loop, stop)
        pruner.sync()
        return pruner.state_dict(), pruner.epoch, pruner._manager.progress.trained

    state, epoch, trained = all_fine(in_threads(before[0], begin))[0]

    def go_on(rank: MemoryRank) -> tuple[list[list[int]], int]:
        pruner = make_rank(rank)
        pruner.load_state_dict(state)
        return turns(pruner, after[1], drop_last, own_loop), pruner.epoch

    results = all_fine(in_threads(after[0], go_on))
    assert [end for _, end in results] == [EPOCHS] * after[0]
    size, (world, each) = OrderDP(0.4).size(n, None), after

    def served(samples: int) -> int:
        share = -(-samples // world) if pad else samples // world
        return (share - share % each if drop_last else share) * world

    # The rest of the open epoch, if a step of it is left, and every later epoch as if it were the first.
    rest = [served(size - trained)] if trained else []
    expected = [samples for samples in rest if samples] + [served(size)] * (EPOCHS - epoch - bool(rest))
    counts = [sum(len(part[turn]) for part, _ in results) for turn in range(len(results[0][0]))]
    assert [count for count in counts if count] == expected
