"""Loaders: a stock DataLoader, any batch, any workers, the right index."""

from __future__ import annotations

import pickle
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, TensorDataset

from orderdp import Indexed, OrderDP, Pruner
from orderdp.errors import ConfigError, DatasetError
from orderdp.testing import global_generators_untouched
from tests.support import fake_losses, toy_dataset, train_epoch

Point = namedtuple("Point", ["x", "y"])


class Items(Dataset):
    """A data set of items made by a function of the index."""

    def __init__(self, n: int, make) -> None:
        self.n, self.make = n, make

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int):
        return self.make(index)


class ByBatch(Items):
    """A data set that fetches a batch at once, and only so."""

    def __getitem__(self, index: int):
        raise AssertionError("fetched one by one")

    def __getitems__(self, indices: list[int]):
        return [self.make(i) for i in indices]


def as_tuple(i):
    return torch.tensor(float(i)), i


def as_tensor(i):
    return torch.tensor(float(i))


def as_dict(i):
    return {"x": torch.tensor(float(i)), "name": f"sample {i}"}


def as_list(i):
    return [torch.tensor(float(i)), torch.tensor(-float(i))]


def as_point(i):
    return Point(torch.tensor(float(i)), i)


def join(items):
    return "+".join(str(item) for item in items)


def first_of(batch):
    if isinstance(batch, dict):
        return batch["x"]
    return batch if isinstance(batch, torch.Tensor) else batch[0]


@pytest.mark.parametrize("make", [as_tuple, as_tensor, as_dict, as_list, as_point])
@pytest.mark.parametrize("dataset_type", [Items, ByBatch])
def test_batches_of_every_kind_come_with_their_indices(make, dataset_type) -> None:
    dataset = dataset_type(20, make)
    pruner = Pruner(OrderDP(0.4), dataset)
    n_batches = 0
    for index, batch in pruner.loader(dataset, batch_size=5):
        assert index.dtype == torch.int64
        assert first_of(batch).tolist() == [float(i) for i in index]
        if make is as_point:
            assert isinstance(batch, Point)
        if make is as_dict:
            assert batch["name"] == [f"sample {i}" for i in index]
        n_batches += 1
    assert n_batches == 3


class Epochs(Items):
    """A data set that wants to know which epoch it is."""

    def __init__(self, n: int) -> None:
        super().__init__(n, self.with_epoch)
        self.epoch = -1

    def with_epoch(self, index: int) -> int:
        return 100 * self.epoch + index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_wants_to_know_the_epoch_hears_it_and_no_other_is_asked(workers: int) -> None:
    inner = Epochs(6)
    indexed = pickle.loads(pickle.dumps(Indexed(inner)))
    assert hasattr(indexed, "set_epoch")
    indexed.set_epoch(3)
    assert (indexed.dataset.epoch, inner.epoch) == (3, -1)
    indexed.dataset = inner
    indexed.set_epoch(4)
    assert [item for _, item in DataLoader(indexed, num_workers=workers, batch_size=None)] == [
        400 + i for i in range(6)
    ]
    plain = Indexed(Items(6, as_tuple))
    assert not hasattr(plain, "set_epoch")
    with pytest.raises(AttributeError, match="'Items' object has no attribute 'set_epoch'"):
        plain.set_epoch(1)
    assert hasattr(Indexed(indexed), "set_epoch")
    assert not hasattr(Indexed(plain), "set_epoch")


def test_a_custom_collate_gets_the_items_as_they_are() -> None:
    dataset = Items(10, str)
    pruner = Pruner(OrderDP(0.4), dataset)
    for index, batch in pruner.loader(dataset, batch_size=3, collate_fn=join):
        assert batch == "+".join(str(int(i)) for i in index)


def test_the_loader_is_a_stock_data_loader_and_passes_its_arguments_on() -> None:
    dataset = toy_dataset(50)
    pruner = Pruner(OrderDP(0.4), dataset)
    loader = pruner.loader(dataset, 8, num_workers=2, prefetch_factor=3, persistent_workers=True, timeout=30)
    assert type(loader) is DataLoader
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert loader.timeout == 30
    sampler = loader.batch_sampler
    assert (sampler.batch_size, sampler.drop_last) == (8, False)
    assert list(sampler.sampler)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4},
        {"num_workers": 1, "drop_last": True},
        {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
    ],
    ids=["fork", "persistent", "drop-last", "spawn"],
)
def test_workers_serve_the_same_batches_as_one_process(options: dict) -> None:
    dataset = Items(60, as_tuple)
    runs = []
    for extra in (options, {k: v for k, v in options.items() if k == "drop_last"}):
        pruner = Pruner(OrderDP(0.5), dataset, seed=3)
        loader = pruner.loader(dataset, batch_size=7, **extra)
        runs.append([train_epoch(pruner, loader, step=100 * epoch) for epoch in range(2)])
    assert runs[0] == runs[1]
    assert all(len(batch) == 7 for batch in runs[0][0][:4])


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_memory_can_be_pinned() -> None:
    dataset = toy_dataset(20)
    pruner = Pruner(OrderDP(0.4), dataset)
    for index, (x, _) in pruner.loader(dataset, batch_size=6, pin_memory=True):
        assert torch.equal(x, dataset.tensors[0][index])


def test_batches_are_lists_of_plain_ints() -> None:
    for batch in Pruner(OrderDP(0.4), 20).batch_sampler(5):
        assert type(batch) is list
        assert all(type(i) is int for i in batch)
    assert all(type(i) is int for i in Pruner(OrderDP(0.4), 20).sampler)


def test_the_draw_is_made_by_iter_and_not_by_the_first_next() -> None:
    pruner = Pruner(OrderDP(0.4), 20)
    order = iter(pruner.batch_sampler(5))
    pruner.observe(torch.arange(20), torch.rand(20))  # too late to matter
    other = Pruner(OrderDP(0.4), 20)
    assert list(order) == list(other.batch_sampler(5))


def test_an_iterator_is_its_own_iterator() -> None:
    pruner = Pruner(OrderDP(0.4), 20)
    for sampler in (pruner.sampler, pruner.batch_sampler(3)):
        iterator = iter(sampler)
        first = next(iterator)
        assert iter(iterator) is iterator
        assert first not in [next(iter(iterator)) for _ in range(3)]


def test_people_can_build_their_own_loader() -> None:
    dataset = toy_dataset(40)
    pruners = [Pruner(OrderDP(0.5), dataset) for _ in range(3)]
    by_sampler = DataLoader(Indexed(dataset), sampler=pruners[0].sampler, batch_size=6)
    by_batches = DataLoader(Indexed(dataset), batch_sampler=pruners[1].batch_sampler(6))
    ours = pruners[2].loader(dataset, batch_size=6)
    assert len(by_sampler) == len(by_batches) == len(ours) == 4
    batches = [[index.tolist() for index, _ in loader] for loader in (by_sampler, by_batches, ours)]
    assert batches[0] == batches[1] == batches[2]


def test_an_index_can_travel_in_a_dict() -> None:
    dataset = Indexed(Items(20, as_dict), key="index")
    pruner = Pruner(OrderDP(0.4), dataset)
    for batch in DataLoader(dataset, batch_sampler=pruner.batch_sampler(4)):
        assert batch["x"].tolist() == batch["index"].double().tolist()
    for index, batch in pruner.loader(dataset, batch_size=4):
        assert torch.equal(index, batch["index"])
    with pytest.raises(DatasetError, match="needs items that are dicts"):
        Indexed(Items(3, as_tuple), key="index")[0]
    with pytest.raises(DatasetError, match="have an entry 'x' already"):
        Indexed(Items(3, as_dict), key="x")[0]
    with pytest.raises(ConfigError, match="key must be"):
        Indexed(Items(3, as_dict), key=1)  # type: ignore[arg-type]


def test_an_indexed_data_set_is_not_wrapped_twice() -> None:
    dataset = Indexed(toy_dataset(20))
    pruner = Pruner(OrderDP(0.4), dataset)
    index, batch = next(iter(pruner.loader(dataset, batch_size=4)))
    assert torch.equal(batch[0], dataset.dataset.tensors[0][index])


def test_an_indexed_data_set_pickles_and_forwards_nothing() -> None:
    dataset = Indexed(toy_dataset(20))
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[3][0] == 3
    assert len(copy) == 20
    assert not hasattr(dataset, "tensors")
    assert not hasattr(dataset, "state_dict")


def test_fetching_a_batch_at_once_must_return_one_item_for_each_index() -> None:
    class Short(Items):
        def __getitems__(self, indices):
            return indices[:-1]

    with pytest.raises(DatasetError, match="returned 2 for 3"):
        Indexed(Short(5, as_tuple)).__getitems__([0, 1, 2])


def test_parts_joined_to_one_data_set_go_by_their_global_index() -> None:
    parts = [Items(10, as_tensor), Items(5, lambda i: torch.tensor(100.0 + i))]
    dataset = ConcatDataset(parts)
    pruner = Pruner(OrderDP(0), dataset)
    for index, batch in pruner.loader(dataset, batch_size=4):
        expected = [float(i) if i < 10 else 100.0 + i - 10 for i in index.tolist()]
        assert batch.tolist() == expected


def test_pruners_and_loaders_do_not_disturb_each_other() -> None:
    dataset = toy_dataset(60)

    def alone(seed: int) -> list:
        pruner = Pruner(OrderDP(0.4), dataset, seed=seed)
        loader = pruner.loader(dataset, batch_size=7)
        return [train_epoch(pruner, loader, epoch) for epoch in range(3)]

    expected = [alone(1), alone(2)]
    pruners = [Pruner(OrderDP(0.4), dataset, seed=seed) for seed in (1, 2)]
    loaders = [pruner.loader(dataset, batch_size=7) for pruner in pruners]
    plain = DataLoader(dataset, batch_size=7)
    got: list[list] = [[], []]
    for epoch in range(3):
        iterators = [iter(loader) for loader in loaders]
        batches: list[list] = [[], []]
        for step, (x, _) in zip(range(6), plain, strict=False):
            assert len(x) == 7
            for who in (0, 1):
                index, _ = next(iterators[who])
                pruners[who].update(index, fake_losses(index, epoch + step))
                batches[who].append(index.tolist())
        for who in (0, 1):
            got[who].append(batches[who])
    assert got == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_global_generators_are_left_alone(workers: int) -> None:
    dataset = toy_dataset(30)
    with global_generators_untouched():
        pruner = Pruner(OrderDP(0.4), dataset)
        loader = pruner.loader(dataset, batch_size=4, num_workers=workers)
        for epoch in range(2):
            train_epoch(pruner, loader, epoch)
        pruner.load_state_dict(pruner.state_dict())
        pruner.report()


def worker_seed(items) -> int:
    return torch.initial_seed()


def test_workers_get_other_seeds_each_epoch_and_the_same_ones_after_a_resume() -> None:
    dataset = toy_dataset(30)

    def seeds(pruner: Pruner) -> set[int]:
        found = set()
        for index, seed in pruner.loader(dataset, batch_size=30, num_workers=1, collate_fn=worker_seed):
            found.add(seed)
            pruner.update(index, fake_losses(index))
        return found

    pruner = Pruner(OrderDP(0.4), dataset)
    first = seeds(pruner)
    state = pruner.state_dict()
    second = seeds(pruner)
    assert first.isdisjoint(second)
    resumed = Pruner(OrderDP(0.4), dataset)
    resumed.load_state_dict(state)
    assert seeds(resumed) == second


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))


def test_pruning_nothing_trains_bit_for_bit_as_the_plain_loop_does_with_the_same_order() -> None:
    dataset = toy_dataset(50)
    orders: list[list[int]] = []

    def pruned() -> torch.nn.Module:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        criterion = torch.nn.CrossEntropyLoss(reduction="none")
        pruner = Pruner(OrderDP(prune_ratio=0), dataset, seed=5)
        loader = pruner.loader(dataset, batch_size=8)
        for _ in range(3):
            order = []
            for index, (x, y) in loader:
                loss = pruner.update(index, criterion(model(x), y))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                order += index.tolist()
            orders.append(order)
        return model

    def plain() -> torch.nn.Module:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        criterion = torch.nn.CrossEntropyLoss()
        for order in orders:
            loader = DataLoader(dataset, batch_size=8, sampler=order, generator=torch.Generator())
            for x, y in loader:
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model

    ours, theirs = pruned(), plain()
    assert [sorted(order) for order in orders] == [list(range(50))] * 3
    assert orders[0] != orders[1]
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": [1, 2]}, "takes no sampler"),
        ({"batch_sampler": [[1, 2]]}, "takes no batch_sampler"),
        ({"shuffle": False}, "always shuffled"),
        ({"in_order": False}, "in the order in which they are selected"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": None}, "batch_size must be"),
        ({"batch_size": 2.0}, "batch_size must be"),
    ],
)
def test_a_loader_refuses_another_order(options: dict, message: str) -> None:
    dataset = toy_dataset(10)
    with pytest.raises(ConfigError, match=message):
        Pruner(OrderDP(0.4), dataset).loader(dataset, **options)


def test_shuffle_true_is_what_a_loader_does_anyway() -> None:
    dataset = toy_dataset(10)
    assert len(Pruner(OrderDP(0.4), dataset).loader(dataset, 2, shuffle=True)) == 3


def test_an_epoch_without_a_full_batch_is_refused_with_the_numbers() -> None:
    dataset = toy_dataset(10)
    loader = Pruner(OrderDP(0.4), dataset).loader(dataset, batch_size=8, drop_last=True)
    with pytest.raises(ConfigError, match="an epoch of 6 samples has no full batch of 8"):
        iter(loader)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


@pytest.mark.parametrize("dataset", [Stream(), iter([1, 2]), object()])
def test_data_without_length_or_index_is_refused(dataset) -> None:
    for attempt in (lambda: Pruner(OrderDP(0.4), dataset), lambda: Indexed(dataset)):
        with pytest.raises(DatasetError, match="must have a length and items by index"):
            attempt()
    with pytest.raises(DatasetError, match="must have a length and items by index"):
        Pruner(OrderDP(0.4), 10).loader(dataset, 2)


@pytest.mark.parametrize("empty", [0, [], TensorDataset(torch.empty(0, 3)), -4])
def test_empty_data_is_refused(empty) -> None:
    with pytest.raises(DatasetError, match="at least one sample"):
        Pruner(OrderDP(0.4), empty)


@pytest.mark.parametrize("length", [10.0, True, np.float32(3)])
def test_a_length_must_be_a_whole_number(length) -> None:
    with pytest.raises(DatasetError, match="whole number"):
        Pruner(OrderDP(0.4), length)


def test_a_data_set_that_has_changed_its_length_is_noticed() -> None:
    items = list(range(10))
    pruner = Pruner(OrderDP(0.4), items)
    loader = pruner.loader(items, batch_size=2)
    items.append(10)
    with pytest.raises(DatasetError, match="must have the 10 samples the pruner was created for, it has 11"):
        iter(loader)
    with pytest.raises(DatasetError, match="it has 11"):
        pruner.loader(items, batch_size=2)


def test_arrays_tensors_and_lists_are_data_sets_too() -> None:
    for dataset in (np.arange(12.0), torch.arange(12.0), [float(i) for i in range(12)]):
        pruner = Pruner(OrderDP(0.5), dataset)
        for index, batch in pruner.loader(dataset, batch_size=3):
            assert [float(b) for b in batch] == [float(i) for i in index]
