"""What is selected out of a sampler the user already has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from orderdp import Budget, Indexed, OrderDP, Pruner
from orderdp.errors import ConfigError, DatasetError, RealRatioWarning, StateError, UnknownSizeError
from orderdp.policies import Balanced, Fixed, Mixed
from orderdp.streaming import GrowingPruner
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import Undecided, fake_losses, toy_dataset


def selected(seed: int = 0, n: int = 30) -> set[int]:
    return set(Pruner(OrderDP(0.4), n, seed=seed).sampler)


def finish_epoch(pruner: Pruner, served: list[int]) -> None:
    index = torch.tensor(served)
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
        finish_epoch(pruner, epochs[-1])
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


def test_lengths_are_known_where_the_number_of_indices_is() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    assert len(pruner.filter(RandomSampler(range(30)))) == 18
    inner = BatchSampler(RandomSampler(range(30)), 7, drop_last=False)
    assert len(pruner.filter(inner, repack=True)) == 3
    with pytest.raises(TypeError, match="repack=True"):
        len(pruner.filter(inner))
    pairs = [*range(30), *range(30)]
    for batches in ([[0, 1, 2], [3]], [[index] for index in range(30)], BatchSampler(pairs, 2, drop_last=False)):
        with pytest.raises(TypeError, match="the number of filtered batches is not known"):
            len(pruner.filter(batches))


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


def test_batches_without_a_batch_size_have_no_length_once_they_are_known_to_be_batches() -> None:
    pruner = Pruner(OrderDP(0.4), 100)
    filtered = pruner.filter([list(range(i, i + 10)) for i in range(0, 100, 10)])
    assert len(list(filtered)) == 10
    with pytest.raises(TypeError, match="the number of filtered batches is not known"):
        len(filtered)


# -- samplers that do not visit every sample once ------------------------------------------------------------------


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uneven(seed: int = 0) -> dict[str, Any]:
    """Samplers over 1,000 samples that leave some out or repeat some, and how many indices each hands out."""
    rare = [99.0 if index % 100 == 0 else 1.0 for index in range(1000)]
    return {
        "weighted": (WeightedRandomSampler(rare, 1000, generator=seeded(seed)), 1000),
        "subset": (SubsetRandomSampler(range(0, 1000, 2), generator=seeded(seed)), 500),
        "twice over": (RandomSampler(range(1000), True, 2000, generator=seeded(seed)), 2000),
        "oversampled": ([*range(1000), *range(100), *range(100)], 1200),
    }


@pytest.mark.parametrize("name", uneven())
def test_the_fraction_kept_is_exact_for_samplers_that_leave_out_or_repeat(name: str) -> None:
    sampler, count = uneven()[name]
    pruner = Pruner(OrderDP(0.4), 1000, epochs=5)
    filtered = pruner.filter(sampler)
    for epoch in range(5):
        assert len(filtered) == round(0.6 * count)
        kept = torch.tensor(list(filtered))
        assert len(kept) == round(0.6 * count)
        pruner.update(kept, fake_losses(kept, epoch))
        assert pruner.epoch == epoch + 1
    assert pruner.report()["saved"] == pytest.approx(0.4)
    assert pruner.report()["pruned"] == round(5 * 0.4 * count)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 29), min_size=5, max_size=90), st.integers(0, 3))
def test_what_is_kept_is_part_of_what_was_handed_out_in_its_order_and_as_often(order: list[int], epochs: int) -> None:
    pruner = Pruner(OrderDP(0.4), 30, seed=epochs)
    for epoch in range(epochs):
        finish = torch.tensor(list(pruner.sampler))
        pruner.update(finish, fake_losses(finish, epoch))
    kept = list(pruner.filter(order))
    assert len(kept) == OrderDP(0.4).sizes(len(order))[1]
    rest = iter(order)
    assert all(index in rest for index in kept)  # a subsequence: the order is kept, and no repeat is made up


def test_the_hardest_of_what_was_handed_out_are_kept() -> None:
    """With a pool of everything the rule is plain: the largest scores of the positions, repeats included."""
    pruner = Pruner(OrderDP(prune_ratio=0.5, exploration=1.0), 10)
    pruner.observe(torch.arange(10), torch.arange(10.0))
    order = [9, 0, 3, 4, 1, 9, 2, 9]
    assert sorted(pruner.filter(order)) == [4, 9, 9, 9]


def test_a_sampler_that_hands_out_every_sample_once_gets_the_selection_of_the_epoch() -> None:
    shuffled = torch.randperm(30, generator=seeded(3)).tolist()
    pruner = Pruner(OrderDP(0.4), 30)
    kept = list(pruner.filter(shuffled))
    assert sorted(kept) == sorted(selected())
    assert kept == [index for index in shuffled if index in selected()]


def test_other_views_of_an_epoch_are_not_tied_to_what_one_sampler_handed_out() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    assert len(list(pruner.filter(range(10)))) == 6
    assert set(pruner.sampler) == selected()
    twice = list(pruner.filter([*range(30), *range(30)]))
    assert len(twice) == 36
    assert len(set(pruner.filter(range(20, 30))) & set(range(20, 30))) == 6


def test_steps_follow_the_sampler_that_was_filtered() -> None:
    for name, (sampler, count) in uneven().items():
        pruner = Pruner(OrderDP(0.4), 1000, epochs=3)
        batches = pruner.filter(BatchSampler(sampler, 16, drop_last=False), repack=True)
        made = 0
        for epoch in range(3):
            for batch in batches:
                index = torch.tensor(batch)
                pruner.update(index, fake_losses(index, epoch))
                made += 1
        assert pruner.steps(3, 16) == made, name
        assert Pruner(OrderDP(0.4), 1000).steps(3, 16, samples=count) == made
        assert pruner.size_bounds(0) == (round(0.6 * count),) * 2


class OfUnknownLength:
    def __iter__(self):
        return iter(range(0, 30, 2))


def test_steps_of_a_sampler_without_a_length_are_refused_with_bounds() -> None:
    pruner = Pruner(OrderDP(0.4), 30)
    filtered = pruner.filter(OfUnknownLength())
    with pytest.raises(UnknownSizeError, match=r"is not known in advance, .* samples=") as refused:
        pruner.steps(2, 3)
    assert (refused.value.lower, refused.value.upper) == (2, 2 * 64 * 30 * 6 // 10 // 3)
    with pytest.raises(TypeError, match="not known before an epoch starts"):
        len(filtered)
    assert pruner.steps(2, 3, samples=15) == 6
    with pytest.raises(ConfigError, match="samples must be a whole number"):
        pruner.steps(2, 3, samples=0)


def test_steps_that_were_counted_for_another_number_of_samples_are_not_silent() -> None:
    pruner = Pruner(OrderDP(0.4), 1000)
    assert pruner.steps(5, 10) == 300
    with pytest.warns(RealRatioWarning, match=r"steps\(\) counted on 1000 .* yielded 500 .* samples=500"):
        list(pruner.filter(range(500)))


def test_steps_of_losses_that_decide_are_refused_with_the_bounds_of_the_sampler() -> None:
    pruner = Pruner(Undecided(), 100)
    filtered = pruner.filter(range(40))
    with pytest.raises(UnknownSizeError) as refused:
        pruner.steps(3, 5)
    assert (refused.value.lower, refused.value.upper) == (6, 24)
    with pytest.raises(TypeError, match="between 10 and 40"):
        len(filtered)
    assert len(list(filtered)) == len(filtered)


def test_an_epoch_of_a_weighted_sampler_resumes_where_it_was() -> None:
    def run(stop: int | None, pruner: Pruner, seen: list[int]) -> None:
        weights = [1.0 + index % 7 for index in range(60)]
        filtered = pruner.filter(WeightedRandomSampler(weights, 90, generator=seeded(pruner.epoch)))
        batches = DataLoader(range(60), sampler=filtered, batch_size=8)
        for number, batch in enumerate(batches):
            pruner.update(batch, fake_losses(batch))
            seen += batch.tolist()
            if number + 1 == stop:
                return

    straight: list[int] = []
    run(None, whole := Pruner(OrderDP(0.4), 60, seed=1), straight)
    parts: list[int] = []
    run(3, first := Pruner(OrderDP(0.4), 60, seed=1), parts)
    second = Pruner(OrderDP(0.4), 60)
    second.load_state_dict(first.state_dict())
    run(None, second, parts)
    assert parts == straight
    assert second.report() == whole.report()
    assert whole.report()["pruned"] == 36


def test_weights_are_those_among_what_was_handed_out() -> None:
    """A sample that is handed out twice has one weight, and the weighted mean stays unbiased over the handed out."""
    policy = OrderDP(0.5, select=Mixed(top=0.5, uniform=0.5), unbiased=True)
    order = [*range(20), *range(10), *range(10)]
    totals = []
    for seed in range(400):
        pruner = Pruner(policy, 40, seed=seed)
        pruner.observe(torch.arange(40), torch.arange(40.0) + 1)
        index = torch.tensor(list(pruner.filter(order)))
        totals.append(float(pruner.reduce(index, index.float())))
    expected = sum(order) / len(order)
    spread = float(torch.tensor(totals).std()) / 20
    assert abs(sum(totals) / 400 - expected) < 4 * spread


def test_class_balance_goes_by_the_classes_that_were_handed_out() -> None:
    labels = np.repeat([0, 1], [90, 10])
    pruner = Pruner(Balanced(OrderDP(0.4)), 100, labels=labels)
    order = [*range(50), *list(range(90, 100)) * 5]  # as many of either class
    kept = list(pruner.filter(order))
    assert np.bincount(labels[kept]).tolist() == [30, 30]


def test_a_policy_that_names_its_samples_keeps_them_and_says_what_that_leaves_out() -> None:
    pruner = Pruner(Fixed(range(0, 20, 2)), 20)
    with pytest.warns(RealRatioWarning, match=r"keeps 2 of the 8 .* not the nominal"):
        assert list(pruner.filter([1, 3, 4, 5, 4, 7, 9, 11])) == [4, 4]
    twice = Pruner(Fixed(range(0, 20, 2)), 20)
    twice.filter(RandomSampler(range(20), replacement=True))
    with pytest.raises(UnknownSizeError, match="is not known in advance"):
        twice.steps(1, 4)
    with pytest.raises(ConfigError, match="yielded 2 indices, and none of them is among"):
        iter(Pruner(Fixed([0, 2]), 20).filter([1, 3]))


def test_removed_samples_are_not_among_what_a_sampler_may_hand_out() -> None:
    pruner = GrowingPruner(OrderDP(0.5), 20)
    pruner.remove(range(10))
    kept = list(pruner.filter([*range(6, 16), *range(6, 16)]))
    assert len(kept) == 6  # half of the six that are there, twice
    assert min(kept) >= 10


def test_a_budget_is_spent_to_the_sample_under_any_sampler() -> None:
    for order in (list(range(25)), [*range(50), *range(30)]):
        pruner = Pruner(Budget(0.5, policy=OrderDP(0.4)), 50, epochs=4)
        spent = 0
        for epoch in pruner.remaining_epochs():
            index = torch.tensor(list(pruner.filter(order)))
            pruner.update(index, fake_losses(index, epoch))
            spent += len(index)
            assert spent <= 100
        assert spent == 100


def test_ranks_share_what_a_weighted_sampler_handed_out() -> None:
    def work(rank: MemoryRank) -> list[list[int]]:
        pruner = Pruner(OrderDP(0.4), 50, process_group=rank)
        sampler = WeightedRandomSampler([1.0] * 25 + [9.0] * 25, 100, generator=seeded(5))
        filtered, epochs = pruner.filter(sampler), []
        for epoch in range(3):
            index = torch.tensor(list(filtered))
            pruner.update(index, fake_losses(index, epoch))
            epochs.append(index.tolist())
        assert pruner.report()["saved"] == pytest.approx(0.4)
        return epochs

    for parts in zip(*all_fine(in_threads(2, work)), strict=True):
        assert [len(part) for part in parts] == [30, 30]


def test_an_empty_sampler_is_refused() -> None:
    with pytest.raises(ConfigError, match="yielded no index"):
        iter(Pruner(OrderDP(0.4), 10).filter([]))


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
    with pytest.raises(StateError, match=r"started with .* cannot continue with .* same kind of sampler"):
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
