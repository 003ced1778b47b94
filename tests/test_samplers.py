"""Indices without a DataLoader, the position in an epoch, groups of similar length."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from orderdp import Budget, Indexed, OrderDP, Pruner
from orderdp.errors import ConfigError, NoFeedbackWarning, NoOpenEpochWarning, RestartedEpochWarning
from orderdp.policies import DynamicRandom, UniformTail
from orderdp.samplers import grouped
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import fake_losses, toy_dataset

# A loop that takes its samples from a pruner never gives back losses while no epoch is open.
pytestmark = pytest.mark.filterwarnings("error::orderdp.errors.NoOpenEpochWarning")

N, BATCH_SIZE, EPOCHS = 53, 6, 3
DATASET = toy_dataset(N)


def make(policy: Any = None, **options: Any) -> Pruner:
    return Pruner(policy or OrderDP(0.4), N, seed=3, **options)


def train(pruner: Pruner, batches: Any) -> list[list[int]]:
    visited = []
    for index in batches:
        index = torch.as_tensor(index)
        pruner.update(index, fake_losses(index, pruner.epoch))
        visited.append(index.tolist())
    return visited


# -- index_batches and indices -------------------------------------------------------------------------------------

POLICIES = [
    OrderDP(0.4),
    OrderDP(0.4, every="batch"),
    DynamicRandom(0.3),
    UniformTail(OrderDP(0.5), 0.4),
    Budget(0.5, policy=OrderDP(0.4)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_indices_are_those_of_the_loader(policy: Any, drop_last: bool) -> None:
    pruner, other = make(policy, epochs=EPOCHS), make(policy, epochs=EPOCHS)
    batches = pruner.index_batches(BATCH_SIZE, drop_last=drop_last)
    loader = other.loader(DATASET, BATCH_SIZE, drop_last=drop_last)
    for _ in range(EPOCHS):
        ours = train(pruner, batches)
        assert ours == train(other, (index for index, _ in loader))
    assert torch.equal(pruner.scores, other.scores)
    assert pruner.report() == other.report()


def test_a_batch_of_indices_is_an_int64_tensor_that_selects_rows() -> None:
    pruner = make()
    x = torch.arange(N) * 10
    batches = pruner.index_batches(BATCH_SIZE, device="cpu")
    assert len(batches) == 6
    for index in batches:
        assert (index.dtype, index.device.type, index.ndim) == (torch.int64, "cpu", 1)
        assert x[index].tolist() == [10 * i for i in index.tolist()]
    onto_meta = next(iter(make().index_batches(BATCH_SIZE, device="meta")))
    assert (onto_meta.device.type, onto_meta.shape) == ("meta", (BATCH_SIZE,))


def test_what_is_done_to_a_batch_of_indices_does_not_change_the_epoch() -> None:
    pruner = make()
    first = [index.tolist() for index in islice(pruner.index_batches(BATCH_SIZE), 2)]
    for index in islice(pruner.index_batches(BATCH_SIZE), 2):
        index.zero_()
    assert [index.tolist() for index in islice(pruner.index_batches(BATCH_SIZE), 2)] == first


@settings(max_examples=30, deadline=None)
@given(every=st.sampled_from(["epoch", "batch"]), steps=st.integers(0, 17))
def test_a_loop_without_a_loader_resumes_in_mid_epoch(every: Any, steps: int) -> None:
    policy = OrderDP(0.4, every=every)

    def run(pruner: Pruner, stop: int | None = None) -> list[list[int]]:
        visited: list[list[int]] = []
        for _ in range(pruner.epoch, EPOCHS):
            rest = None if stop is None else stop - len(visited)
            visited += train(pruner, islice(pruner.index_batches(BATCH_SIZE), rest))
            if rest is not None and len(visited) == stop:
                return visited
        return visited

    straight = run(make(policy))
    first, second = make(policy), make(policy)
    parts = run(first, steps)
    second.load_state_dict(first.state_dict())
    assert parts + run(second) == straight


@pytest.mark.parametrize("options", [{}, {"pad": True}, {"table": "sharded"}], ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_get_the_batches_of_indices_that_their_loaders_get(options: Any, drop_last: bool) -> None:
    def work(rank: MemoryRank) -> None:
        pruner, other = (Pruner(OrderDP(0.4), N, seed=3, process_group=rank, **options) for _ in range(2))
        for _ in range(2):
            ours = train(pruner, pruner.index_batches(4, drop_last=drop_last))
            assert ours == train(other, other.batch_sampler(4, drop_last))
            assert pruner.epoch == other.epoch

    all_fine(in_threads(3, work))


def test_a_whole_epoch_at_once_is_the_epoch_of_the_sampler() -> None:
    pruner, other = make(), make()
    for epoch in range(EPOCHS):
        index = pruner.indices()
        assert index.dtype == torch.int64
        assert index.tolist() == list(other.sampler)
        pruner.update(index, fake_losses(index, epoch))
        other.update(index, fake_losses(index, epoch))
        assert pruner.epoch == epoch + 1
    first = pruner.indices()
    pruner.update(first[:12], fake_losses(first[:12]))
    again = make()
    again.load_state_dict(pruner.state_dict())
    assert torch.equal(again.indices(), first[12:])


def test_a_whole_epoch_at_once_without_losses_is_the_same_again_with_a_warning() -> None:
    pruner = make()
    first = pruner.indices()
    with pytest.warns(NoFeedbackWarning, match="the same samples are served again"):
        assert torch.equal(pruner.indices(), first)
    indifferent = make(DynamicRandom(0.5))
    assert not torch.equal(indifferent.indices(), indifferent.indices())


def test_one_selection_per_step_has_no_whole_epoch() -> None:
    with pytest.raises(ConfigError, match='every="batch"'):
        make(OrderDP(0.4, every="batch")).indices()


def test_losses_without_an_open_epoch_are_stored_with_a_warning() -> None:
    pruner = make()
    index = pruner.preview().indices
    with pytest.warns(NoOpenEpochWarning, match=r"the losses of 32 samples .* pruner\.index_batches"):
        pruner.update(index, fake_losses(torch.as_tensor(index)))
    assert (pruner.epoch, pruner.report()["kept"]) == (0, 0)
    assert pruner.scores.isfinite().sum() == 32
    pruner.update(index, fake_losses(torch.as_tensor(index)))  # once


# -- the position in an epoch --------------------------------------------------------------------------------------


def views(pruner: Pruner) -> dict[str, Any]:
    inner = BatchSampler(range(N), BATCH_SIZE, drop_last=False)
    return {
        "loader": pruner.loader(DATASET, BATCH_SIZE),
        "loader, drop_last": pruner.loader(DATASET, BATCH_SIZE, drop_last=True),
        "sampler": DataLoader(Indexed(DATASET), sampler=pruner.sampler, batch_size=BATCH_SIZE),
        "filter": DataLoader(Indexed(DATASET), batch_sampler=pruner.filter(inner, repack=True)),
        "grouped": pruner.loader(DATASET, BATCH_SIZE, group_by=np.arange(N) % 7),
    }


@pytest.mark.parametrize("view", views(make()))
@pytest.mark.parametrize("steps", range(6))
def test_counting_from_the_position_ends_at_the_length_of_the_loader(view: str, steps: int) -> None:
    first = make()
    assert first.batches_done == 0
    for number, (index, _) in enumerate(islice(views(first)[view], steps)):
        assert first.batches_done == number
        first.update(index, fake_losses(index))
    second = make()
    second.load_state_dict(first.state_dict())
    loader = views(second)[view]
    assert second.batches_done == (0 if steps == len(loader) else steps)
    numbers = []
    for number, (index, _) in enumerate(loader, start=second.batches_done):
        second.update(index, fake_losses(index))
        numbers.append(number)
    assert numbers[-1] + 1 == len(loader)
    assert second.batches_done == 0


def test_every_rank_knows_its_position() -> None:
    def work(rank: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), N, seed=3, process_group=rank)
        for number, batch in enumerate(islice(pruner.batch_sampler(4), 3)):
            assert pruner.batches_done == number
            pruner.update(batch, fake_losses(torch.tensor(batch)))
        pruner.sync()
        again = Pruner(OrderDP(0.4), N, process_group=rank)
        again.load_state_dict(pruner.state_dict())
        batches = again.batch_sampler(4)
        assert again.batches_done == 3
        assert again.batches_done + sum(1 for _ in batches) == len(batches)

    all_fine(in_threads(2, work))


def test_a_step_of_one_selection_per_step_counts_like_any_other() -> None:
    pruner = make(OrderDP(0.4, every="batch"))
    for number, index in enumerate(islice(pruner.index_batches(BATCH_SIZE), 3)):
        assert pruner.batches_done == number
        pruner.update(index, fake_losses(index))


# -- a second pass in mid-epoch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["loader", "workers", "sampler", "index_batches"])
def test_a_second_pass_in_mid_epoch_is_noticed(kind: str) -> None:
    pruner = make()
    loader: Any = {
        "loader": lambda: pruner.loader(DATASET, BATCH_SIZE),
        "workers": lambda: pruner.loader(DATASET, 2, num_workers=1, prefetch_factor=2),
        "sampler": lambda: DataLoader(Indexed(DATASET), sampler=pruner.sampler, batch_size=BATCH_SIZE),
        "index_batches": lambda: pruner.index_batches(BATCH_SIZE),
    }[kind]()

    def index_of(batch: Any) -> torch.Tensor:
        return batch if kind == "index_batches" else batch[0]

    def loop() -> None:
        for number, batch in enumerate(loader):
            index = index_of(batch)
            pruner.update(index, fake_losses(index))
            if number == 1:
                next(iter(loader))  # a train-accuracy pass

    with pytest.warns(RestartedEpochWarning, match=r"in the middle of epoch 0, .* began epoch 1.*a plain DataLoader"):
        loop()


def test_an_epoch_that_is_left_early_and_a_pass_between_epochs_are_no_second_pass() -> None:
    pruner = make()
    loader = pruner.loader(DATASET, BATCH_SIZE)
    for epoch in range(3):
        for number, (index, _) in enumerate(loader):
            pruner.update(index, fake_losses(index, epoch))
            if epoch < 2 and number == 2:
                break
    assert pruner.epoch == 3
    for index, _ in loader:
        pruner.update(index, fake_losses(index))
        if pruner.epoch == 4:
            assert len(next(iter(loader))[0]) == BATCH_SIZE  # the last step is done: a look at the next epoch


# -- groups of similar length --------------------------------------------------------------------------------------

LENGTHS = np.random.default_rng(0).integers(10, 500, 2000)


def spread(batches: list[list[int]]) -> float:
    """How much of each batch is padding, on average."""
    return float(np.mean([1 - LENGTHS[batch].mean() / LENGTHS[batch].max() for batch in batches]))


def test_batches_are_full_hold_similar_lengths_and_the_samples_of_the_epoch() -> None:
    pruner, plain = Pruner(OrderDP(0.4), 2000, seed=1), Pruner(OrderDP(0.4), 2000, seed=1)
    for _ in range(3):
        batches = train(pruner, pruner.batch_sampler(16, group_by=LENGTHS))
        expected = train(plain, plain.batch_sampler(16))
        assert [len(batch) for batch in batches] == [16] * 75
        assert sorted(chain.from_iterable(batches)) == sorted(chain.from_iterable(expected))
        assert spread(expected) > 0.3
        assert spread(batches) < 0.06
        means = [LENGTHS[batch].mean() for batch in batches]
        assert abs(np.corrcoef(means, np.arange(75))[0, 1]) < 0.5  # not from short to long


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 400), step=st.integers(1, 40), seed=st.integers(0, 9))
def test_a_grouped_order_is_a_permutation_with_the_rest_at_its_end(count: int, step: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    indices = rng.permutation(2000)[:count]
    order = grouped(indices, LENGTHS, step, rng)
    whole = count // step * step
    assert sorted(order[:whole]) == sorted(indices[:whole])
    assert order[whole:].tolist() == indices[whole:].tolist()


def test_groups_are_deterministic_and_change_from_epoch_to_epoch() -> None:
    runs = []
    for _ in range(2):
        pruner = Pruner(DynamicRandom(0.0), 2000, seed=1)
        runs.append([train(pruner, pruner.batch_sampler(16, group_by=LENGTHS.tolist())) for _ in range(2)])
    assert runs[0] == runs[1]
    together = [{tuple(sorted(batch)) for batch in epoch} for epoch in runs[0]]
    assert len(together[0] & together[1]) < 5


@pytest.mark.parametrize("steps", [0, 1, 30, 75, 80])
def test_a_grouped_training_resumes_where_it_was(steps: int) -> None:
    def run(pruner: Pruner, stop: int | None = None) -> list[list[int]]:
        visited: list[list[int]] = []
        for _ in range(pruner.epoch, 2):
            loader = pruner.loader(range(2000), 16, group_by=torch.as_tensor(LENGTHS))
            for index, _ in loader:
                pruner.update(index, fake_losses(index, pruner.epoch))
                visited.append(index.tolist())
                if len(visited) == stop:
                    return visited
        return visited

    straight = run(Pruner(OrderDP(0.4), 2000, seed=1))
    first, second = Pruner(OrderDP(0.4), 2000, seed=1), Pruner(OrderDP(0.4), 2000)
    before = run(first, steps) if steps else []
    second.load_state_dict(first.state_dict())
    assert len(straight) == 150
    assert before + run(second) == straight or steps == 0  # with another seed where nothing was stored yet


def test_ranks_share_the_groups() -> None:
    def work(rank: MemoryRank) -> list[list[int]]:
        pruner = Pruner(OrderDP(0.4), 2000, seed=1, process_group=rank)
        return train(pruner, pruner.batch_sampler(8, group_by=LENGTHS))

    mine, theirs = all_fine(in_threads(2, work))
    steps = [a + b for a, b in zip(mine, theirs, strict=True)]
    assert spread(steps) < 0.06
    assert len({index for step in steps for index in step}) == 1200
    alone = Pruner(OrderDP(0.4), 2000, seed=1)
    expected = train(alone, alone.batch_sampler(16, group_by=LENGTHS))
    assert [sorted(step) for step in steps] == [sorted(batch) for batch in expected]


@pytest.mark.parametrize("wrong", [LENGTHS[:-1], ["a"] * 2000, LENGTHS.reshape(2, 1000), [float("nan")] * 2000, 7])
def test_what_is_no_length_per_sample_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="group_by must be one number for each of the 2000 samples"):
        Pruner(OrderDP(0.4), 2000).batch_sampler(4, group_by=wrong)


def test_groups_need_the_whole_selection_of_an_epoch() -> None:
    with pytest.raises(ConfigError, match='every="epoch"'):
        make(OrderDP(0.4, every="batch")).batch_sampler(4, group_by=range(N))
    with pytest.raises(ConfigError, match='table="replicated"'):
        make(table="sharded").batch_sampler(4, group_by=range(N))
