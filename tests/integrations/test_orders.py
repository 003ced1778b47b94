"""Order for FFCV, DALI and Grain, by their documented protocols; ``make test-vision`` has DALI and Grain themselves."""

from __future__ import annotations

import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from orderdp import OrderDP, Pruner
from orderdp.errors import ConfigError, DatasetError, NoFeedbackWarning
from orderdp.integrations.orders import DaliBatches, GrainSampler, ffcv_order
from orderdp.policies import DynamicRandom
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import Undecided, fake_losses

# A loop that takes its samples from a pruner never gives back losses while no epoch is open.
pytestmark = pytest.mark.filterwarnings("error::orderdp.errors.NoOpenEpochWarning")

N, BATCH_SIZE, EPOCHS = 50, 8, 3


def make(policy: Any = None, **options: Any) -> Pruner:
    return Pruner(policy or OrderDP(0.4), N, seed=2, **options)


def expected_epochs(policy: Any = None, drop_last: bool = False) -> list[list[list[int]]]:
    pruner = make(policy)
    epochs = []
    for epoch in range(EPOCHS):
        epochs.append([])
        for batch in pruner.batch_sampler(BATCH_SIZE, drop_last):
            epochs[-1].append(batch)
            pruner.update(batch, fake_losses(torch.tensor(batch), epoch))
    return epochs


# -- FFCV ------------------------------------------------------------------------------------------------------------


class FfcvLoader:
    """The part of FFCV's loader that deals with the order: asks for it when it is made, and with every iterator."""

    def __init__(self, order: Any, batch_size: int = BATCH_SIZE, drop_last: bool = False, n: int = N) -> None:
        self.batch_size, self.drop_last, self.seed, self.distributed = batch_size, drop_last, 0, False
        self.indices = np.arange(n, dtype="uint64")
        self.traversal_order = order(self)
        self.next_epoch = 0
        self.first_traversal_order = self.traversal_order.sample_order(self.next_epoch)

    def __len__(self) -> int:
        count = len(self.first_traversal_order) / self.batch_size
        return int(np.floor(count) if self.drop_last else np.ceil(count))

    def __iter__(self) -> Iterator[list[int]]:
        order = self.traversal_order.sample_order(self.next_epoch)
        assert order.dtype == self.indices.dtype
        chosen = order[: len(self) * self.batch_size].tolist()
        self.next_epoch += 1
        return iter([chosen[i : i + self.batch_size] for i in range(0, len(chosen), self.batch_size)])


@pytest.fixture
def ffcv(monkeypatch: pytest.MonkeyPatch) -> None:
    class TraversalOrder(ABC):
        def __init__(self, loader: Any) -> None:
            self.loader, self.indices, self.seed = loader, loader.indices, loader.seed

        @abstractmethod
        def sample_order(self, epoch: int) -> Any: ...

    base = ModuleType("ffcv.traversal_order.base")
    base.TraversalOrder = TraversalOrder  # type: ignore[attr-defined]
    for name, module in (("ffcv", ModuleType("ffcv")), ("ffcv.traversal_order", ModuleType("ffcv.traversal_order"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "ffcv.traversal_order.base", base)


def ffcv_epoch(pruner: Pruner, loader: FfcvLoader, epoch: int, stop: int | None = None) -> list[list[int]]:
    visited = []
    batches = pruner.index_batches(loader.batch_size, drop_last=loader.drop_last)
    for index, batch in islice(zip(batches, loader, strict=False), stop):
        assert index.tolist() == batch
        pruner.update(index, fake_losses(index, epoch))
        visited.append(batch)
    return visited


@pytest.mark.usefixtures("ffcv")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("policy", [OrderDP(0.4), DynamicRandom(0.3), Undecided()], ids=repr)
def test_ffcv_reads_the_samples_of_every_epoch_in_the_order_of_the_indices(policy: Any, drop_last: bool) -> None:
    pruner = make(policy)
    loader = FfcvLoader(ffcv_order(pruner), drop_last=drop_last)
    assert [ffcv_epoch(pruner, loader, epoch) for epoch in range(EPOCHS)] == expected_epochs(policy, drop_last)
    assert pruner.epoch == EPOCHS


@pytest.mark.usefixtures("ffcv")
def test_ffcv_goes_on_in_mid_epoch_and_reads_whole_epochs_afterwards() -> None:
    first, second = make(), make()
    loader = FfcvLoader(ffcv_order(first))
    parts = [ffcv_epoch(first, loader, 0, stop=2)]
    second.load_state_dict(first.state_dict())
    loader = FfcvLoader(ffcv_order(second))
    parts += [ffcv_epoch(second, loader, epoch) for epoch in range(EPOCHS)]
    assert [parts[0] + parts[1], *parts[2:]] == expected_epochs()


@pytest.mark.usefixtures("ffcv")
def test_ffcv_without_losses_reads_the_same_epoch_again_with_a_warning() -> None:
    pruner = make()
    loader = FfcvLoader(ffcv_order(pruner))
    first = list(loader)
    with pytest.warns(NoFeedbackWarning, match="the same samples are served again"):
        assert list(loader) == first
    indifferent = make(DynamicRandom(0.3))
    loader = FfcvLoader(ffcv_order(indifferent))
    assert list(loader) != list(loader)


@pytest.mark.usefixtures("ffcv")
def test_ffcv_with_other_samples_or_one_selection_per_step_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"must have the 50 samples .* the loader has 49"):
        FfcvLoader(ffcv_order(make()), n=49)
    with pytest.raises(ConfigError, match='every="batch"'):
        FfcvLoader(ffcv_order(make(OrderDP(0.4, every="batch"))))


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigError, match="needs FFCV"):
        ffcv_order(make())
    with pytest.raises(ConfigError, match=r"\.\[grain\]"):
        GrainSampler(make(), 8)[0]


@pytest.mark.usefixtures("ffcv")
def test_each_rank_of_ffcv_gets_its_shard() -> None:
    def work(rank: MemoryRank) -> list[int]:
        pruner = make(process_group=rank)
        loader = FfcvLoader(ffcv_order(pruner), batch_size=4)
        return [index for batch in ffcv_epoch(pruner, loader, 0) for index in batch]

    mine, theirs = all_fine(in_threads(2, work))
    assert (len(mine), len(theirs), len({*mine, *theirs})) == (15, 15, 30)


# -- DALI ------------------------------------------------------------------------------------------------------------


class ExternalSource:
    """As `external_source` treats an iterable with cycle="raise": at its end it makes the next iterator, and raises."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.running = iter(source)

    def run(self) -> tuple[Any, ...]:
        try:
            return next(self.running)
        except StopIteration:
            self.running = iter(self.source)
            raise


def read(index: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(index % 5 + 1, index, dtype=np.uint8), np.array(index % 3)


@pytest.mark.parametrize("ahead", [0, 2])
def test_dali_gets_batches_of_arrays_with_their_indices(ahead: int) -> None:
    """A pipeline prefetches: it may be `ahead` batches before the one that is trained on."""
    pruner = make()
    source = DaliBatches(pruner, read, BATCH_SIZE)
    assert len(source) == 4
    pipeline, epochs = ExternalSource(source), []
    for epoch in range(EPOCHS):
        queue, visited, over = [], [], False
        while not over or queue:
            while not over and len(queue) <= ahead:
                try:
                    queue.append(pipeline.run())
                except StopIteration:
                    over = True
            if queue:
                index, values, classes = queue.pop(0)
                assert [value.tolist() for value in values] == [[i] * (i % 5 + 1) for i in index.tolist()]
                assert [int(label) for label in classes] == [i % 3 for i in index.tolist()]
                pruner.update(index, fake_losses(torch.as_tensor(index), epoch))
                visited.append(index.tolist())
        epochs.append(visited)
    assert epochs == expected_epochs()


# -- Grain -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def grain(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class RecordMetadata:
        index: int
        record_key: int | None = None
        rng: np.random.Generator | None = None

    module = ModuleType("grain")
    module.RecordMetadata = RecordMetadata  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "grain", module)


def keys(sampler: GrainSampler) -> list[int]:
    return [sampler[position].record_key for position in range(len(sampler))]


@pytest.mark.usefixtures("grain")
@pytest.mark.parametrize("drop_last", [False, True])
def test_grain_looks_up_the_samples_of_an_epoch_by_position(drop_last: bool) -> None:
    pruner = make()
    for epoch, batches in enumerate(expected_epochs(drop_last=drop_last)):
        sampler = GrainSampler(pruner, BATCH_SIZE, drop_last)
        assert keys(sampler) == [index for batch in batches for index in batch]
        assert sampler[3].index == 3
        with pytest.raises(IndexError, match=f"got {len(sampler)}"):
            sampler[len(sampler)]
        for batch in batches:
            pruner.update(batch, fake_losses(torch.tensor(batch), epoch))


@pytest.mark.usefixtures("grain")
def test_grain_augments_a_resumed_epoch_as_the_straight_one() -> None:
    first, second = make(), make()
    straight = GrainSampler(first, BATCH_SIZE)
    index = torch.tensor(keys(straight)[:16])
    first.update(index, fake_losses(index))
    second.load_state_dict(first.state_dict())
    rest = pickle.loads(pickle.dumps(GrainSampler(second, BATCH_SIZE)))
    assert keys(rest) == keys(straight)[16:]
    assert [rest[i].rng.random() for i in range(5)] == [straight[16 + i].rng.random() for i in range(5)]
    assert repr(rest) != repr(straight)


@pytest.mark.usefixtures("grain")
def test_grain_without_losses_gets_the_same_epoch_again_with_a_warning() -> None:
    pruner = make()
    first = keys(GrainSampler(pruner, BATCH_SIZE))
    with pytest.warns(NoFeedbackWarning, match="the same samples are served again"):
        again = GrainSampler(pruner, BATCH_SIZE)
    assert keys(again) == first
