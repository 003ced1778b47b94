"""What is selected out of a sampler the user already has."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from orderdp import Indexed, OrderDP, Pruner
from orderdp.errors import ConfigError, DatasetError, StateError
from tests.ranks import MemoryRank, in_threads
from tests.support import fake_losses, toy_dataset


def selected(seed: int = 0, n: int = 30) -> set[int]:
    return set(Pruner(OrderDP(0.4), n, seed=seed).sampler)


def finish_epoch(pruner: Pruner) -> None:
    index = torch.arange(pruner.n)
    pruner.update(index, fake_losses(index))


def test_a_sampler_keeps_its_order_and_loses_what_is_pruned() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    kept = list(pruner.filter(SequentialSampler(range(30))))
    assert kept == sorted(selected())


def test_batches_are_filtered_inside_and_empty_ones_left_out() -> None:
    inner = [[0, 1, 2], [3], [4, 5, 6, 7, 8, 9]]
    pruner = Pruner(OrderDP(0.6), 10)
    keep = set(Pruner(OrderDP(0.6), 10).sampler)
    expected = [[i for i in batch if i in keep] for batch in inner]
    assert list(pruner.filter(inner)) == [batch for batch in expected if batch]


def test_repacked_batches_are_full_and_in_the_users_order() -> None:
    inner = BatchSampler(SequentialSampler(range(30)), 7, drop_last=False)
    pruner = Pruner(OrderDP(0.4), 30)
    batches = list(pruner.filter(inner, repack=True))
    assert [len(batch) for batch in batches] == [7, 7, 4]
    assert [i for batch in batches for i in batch] == sorted(selected())


def test_repacking_starts_before_a_stock_batch_sampler_drops_its_end() -> None:
    inner = BatchSampler(SequentialSampler(range(30)), 7, drop_last=True)
    pruner = Pruner(OrderDP(0.4), 30)
    filtered = pruner.filter(inner, repack=True)
    batches = list(filtered)
    assert [len(batch) for batch in batches] == [7, 7] == [7] * len(filtered)
    assert [i for batch in batches for i in batch] == sorted(selected())[:14]


def test_each_epoch_has_its_own_selection_and_the_inner_sampler_its_own_order() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    filtered = pruner.filter(RandomSampler(range(30), generator=torch.Generator().manual_seed(1)))
    epochs = []
    for _ in range(3):
        epochs.append(list(filtered))
        finish_epoch(pruner)
    assert all(len(epoch) == 18 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert set(epochs[0]) == selected()


def test_it_works_in_a_data_loader_with_workers() -> None:
    dataset = toy_dataset(30)
    pruner = Pruner(OrderDP(0.4), dataset)
    inner = BatchSampler(RandomSampler(dataset), 4, drop_last=False)
    for options in ({"batch_sampler": pruner.filter(inner, repack=True)}, {"batch_sampler": pruner.filter(inner)}):
        seen: list[int] = []
        for index, (x, _) in DataLoader(Indexed(dataset), num_workers=2, **options):
            assert torch.equal(x, dataset.tensors[0][index])
            seen += index.tolist()
        assert sorted(seen) == sorted(selected())


def test_lengths_are_known_where_every_sample_is_visited_once() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    assert len(pruner.filter(RandomSampler(range(30)))) == 18
    inner = BatchSampler(RandomSampler(range(30)), 7, drop_last=False)
    assert len(pruner.filter(inner, repack=True)) == 3
    with pytest.raises(TypeError, match="repack=True"):
        len(pruner.filter(inner))
    for sampler in (WeightedRandomSampler([1.0] * 30, 30), SubsetRandomSampler(range(10))):
        filtered = pruner.filter(sampler)
        with pytest.raises(TypeError, match="not known before an epoch starts"):
            len(filtered)
        assert len(list(filtered)) == len(filtered)


class ByLength(RandomSampler):
    """Single indices, put in order by something that needs to know the batch size."""

    batch_size = 7


def test_a_sampler_of_single_indices_may_know_a_batch_size() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    filtered = pruner.filter(ByLength(range(30)))
    loader = DataLoader(Indexed(range(30)), sampler=filtered, batch_size=7)
    assert (len(filtered), len(loader)) == (18, 3)
    assert len(list(loader)) == len(loader)
    assert len(pruner.filter(ByLength(range(30)), repack=True)) == 3


def test_another_filter_has_its_own_order_though_it_takes_the_place_of_the_first_in_memory() -> None:
    pruner, backwards, others = Pruner(OrderDP(0.4), 30), range(29, -1, -1), []
    forwards = pruner.filter(range(30))
    place, expected = id(forwards), list(forwards)
    del forwards
    while len(others) < 100 and place not in map(id, others):
        others.append(pruner.filter(backwards))
    assert list(others[-1]) == expected[::-1]


def test_an_epoch_without_a_full_batch_is_refused() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    inner = BatchSampler(SequentialSampler(range(30)), 20, drop_last=True)
    with pytest.raises(ConfigError, match="an epoch of 18 samples has no full batch of 20"):
        list(pruner.filter(inner, repack=True))
    stepwise = Pruner(OrderDP(0.4, every="batch"), 30)
    with pytest.raises(ConfigError, match="an epoch of 18 samples has no full batch of 20"):
        list(stepwise.batch_sampler(20, drop_last=True))


def test_attributes_that_frameworks_ask_for_are_there() -> None:
    inner = BatchSampler(RandomSampler(range(30)), 7, drop_last=True)
    filtered = Pruner(OrderDP(0.4), 30).filter(inner, repack=True)
    assert (filtered.batch_size, filtered.drop_last, filtered.sampler) == (7, True, inner.sampler)


def test_looking_twice_shows_the_same_and_another_view_the_same_selection() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    filtered = pruner.filter(RandomSampler(range(30)))
    first = list(filtered)
    assert [i for i, _ in zip(filtered, first[:-1], strict=False)] == first[:-1]
    assert set(pruner.sampler) == set(first)


def test_a_sharded_sampler_is_refused() -> None:
    sharded = DistributedSampler(range(30), num_replicas=2, rank=0)
    pruner = Pruner(OrderDP(0.4), 30)
    for sampler in (sharded, BatchSampler(sharded, 3, drop_last=False)):
        with pytest.raises(ConfigError, match="DistributedSampler"):
            pruner.filter(sampler)


def endless():
    while True:
        yield 0


class Endless:
    def __iter__(self):
        return endless()


def test_what_is_no_sampler_over_this_data_is_refused() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    with pytest.raises(ConfigError, match="must be finite"):
        iter(pruner.filter(Endless()))
    with pytest.raises(DatasetError, match="it yielded 0 to 39"):
        iter(pruner.filter(SequentialSampler(range(40))))
    with pytest.raises(ConfigError, match="needs a sampler"):
        pruner.filter(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a batch sampler with a batch_size"):
        pruner.filter(SequentialSampler(range(30)), repack=True)
    with pytest.raises(ConfigError, match='every="batch"'):
        Pruner(OrderDP(0.4, every="batch"), 30).filter(SequentialSampler(range(30)))


def test_what_can_be_gone_through_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="a generator can be iterated once"):
        Pruner(OrderDP(0.4), 10).filter(i for i in range(10))


def test_a_sampler_of_which_nothing_is_selected_is_refused() -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    pruner.observe(torch.arange(10), torch.arange(10.0))
    dropped = sorted(set(range(10)) - set(pruner.preview().indices.tolist()))
    with pytest.raises(ConfigError, match=f"yielded {len(dropped)} indices, and none of them is among the 6"):
        iter(pruner.filter(dropped))


def test_batches_without_a_batch_size_have_no_length_once_they_are_known_to_be_batches() -> None:
    pruner = Pruner(OrderDP(0.4), 100)
    filtered = pruner.filter([list(range(i, i + 10)) for i in range(0, 100, 10)])
    assert len(list(filtered)) == 10
    with pytest.raises(TypeError, match="the number of filtered batches is not known"):
        len(filtered)


# -- an epoch that goes on with another kind of sampler ---------------------------------------------------------------


KINDS = {
    "loader": lambda pruner: pruner.batch_sampler(4),
    "repacked": lambda pruner: pruner.filter(BatchSampler(range(30), 4, drop_last=False), repack=True),
    "batches": lambda pruner: pruner.filter(BatchSampler(range(30), 4, drop_last=False)),
    "list of batches": lambda pruner: pruner.filter([[i, i + 1, i + 2] for i in range(0, 30, 3)]),
    "filtered samples": lambda pruner: BatchSampler(pruner.filter(SequentialSampler(range(30))), 4, drop_last=False),
    "samples": lambda pruner: BatchSampler(pruner.sampler, 4, drop_last=False),
}


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_a_loaded_epoch_goes_on_or_says_why_it_cannot(before: str, after: str) -> None:
    first, second = Pruner(OrderDP(0.4), 30, seed=1), Pruner(OrderDP(0.4), 30, seed=1)
    trained: list[int] = []
    for batch in list(KINDS[before](first))[:2]:
        first.update(batch, fake_losses(torch.tensor(batch)))
        trained += batch
    second.load_state_dict(first.state_dict())
    keeps_batches = {"batches", "list of batches"}
    if after == "samples" or (before in keeps_batches) == (after in keeps_batches):
        rest = [index for batch in KINDS[after](second) for index in batch]
        assert sorted(trained + rest) == sorted(selected(seed=1))
        return
    with pytest.raises(StateError, match=r"begun with .* cannot continue with .* same kind of sampler"):
        list(KINDS[after](second))
    second.end_epoch()
    assert sum(len(batch) for batch in KINDS[after](second)) == 18
    assert second.epoch == 1


def test_a_group_says_on_all_ranks_why_a_loaded_epoch_cannot_go_on() -> None:
    first = Pruner(OrderDP(0.4), 30, seed=1)
    batch = next(iter(KINDS["batches"](first)))
    first.update(batch, fake_losses(torch.tensor(batch)))

    def work(rank: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), 30, process_group=rank)
        pruner.load_state_dict(first.state_dict())
        list(pruner.batch_sampler(4))

    for error in in_threads(2, work):
        assert isinstance(error, StateError)
