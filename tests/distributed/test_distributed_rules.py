"""Many ranks decide and remember what one process would, with ranks that are threads."""

from __future__ import annotations

import warnings
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import Column, OrderDP, Pruner
from orderdp.errors import ConfigError, GroupError, NonFiniteLossError, NonFiniteLossWarning
from orderdp.policies import RS2, UCB, InfoBatch, Mixed
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import KeepAll, Undecided, Weighted, fake_losses, toy_dataset

# InfoBatch says once what it really leaves out.
pytestmark = pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")


class Remembering(OrderDP):
    """Remembers an average and two sums besides."""

    columns = (Column("mean", 0.0), Column("hits", 0, "int32", "sum"), Column("total", 0.5, "float64", "sum"))

    def compute_columns(self, rows, losses):
        return {
            "score": losses,
            "mean": rows["mean"] * 0.7 + losses * 0.3,
            "hits": torch.ones_like(losses),
            "total": losses / 3,
        }


POLICIES = [
    OrderDP(0.4),
    OrderDP(0.4, select=Mixed(top=0.7, uniform=0.3), unbiased=True),
    Remembering(0.3),
    UCB(0.4),
    InfoBatch(0.5, annealing=None),
    Undecided(),
    Weighted(),
    RS2(0.3),
]


def contents(pruner: Pruner) -> dict[str, np.ndarray]:
    return {name: pruner._table[name].copy() for name in pruner._table.declared}


def assert_same_contents(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert np.array_equal(a[name], b[name]), name


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def go_through(pruner: Pruner, batch_size: int, step: int, drop_last: bool = False) -> list[int]:
    trained: list[int] = []
    for batch in pruner.batch_sampler(batch_size, drop_last):
        index = torch.tensor(batch)
        pruner.update(index, fake_losses(index, step))
        trained += batch
    return trained


def one_process(policy: Any, n: int, seed: int, epochs: int, world: int, step_size: int) -> tuple[list, Pruner]:
    """The oracle: a single process that leaves out what cannot be sharded evenly."""
    pruner = Pruner(policy, n, seed=seed)
    visited = []
    for step in range(epochs):
        if getattr(policy, "every", "epoch") == "batch":
            order = [i for batch in pruner.batch_sampler(step_size) for i in batch]
        else:
            order = list(pruner.sampler)
        order = order[: len(order) // world * world]
        index = torch.tensor(order)
        pruner.update(index, fake_losses(index, step))
        visited.append(order)
    iter(pruner.batch_sampler(step_size))
    return visited, pruner


@pytest.mark.parametrize("policy", [*POLICIES, OrderDP(0.4, every="batch")], ids=repr)
def test_ranks_train_on_what_one_process_would_and_remember_the_same(policy: Any) -> None:
    @settings(max_examples=15, deadline=None)
    @given(n=st.integers(20, 70), world=st.integers(2, 4), batch_size=st.integers(1, 6), seed=st.integers(0, 3))
    def check(n: int, world: int, batch_size: int, seed: int) -> None:
        epochs = 4

        def work(group: MemoryRank) -> tuple:
            pruner = Pruner(policy, n, seed=seed, process_group=group)
            visited = [go_through(pruner, batch_size, step) for step in range(epochs)]
            iter(pruner.batch_sampler(batch_size))
            return visited, contents(pruner), pruner.epoch, pruner.report()

        expected, single = one_process(policy, n, seed, epochs, world, batch_size * world)
        results = all_fine(in_threads(world, work))
        for step in range(epochs):
            shares = [visited[step] for visited, *_ in results]
            assert len({len(share) for share in shares}) == 1
            assert sorted(i for share in shares for i in share) == sorted(expected[step])
        for _, table, epoch, report in results:
            assert_same_contents(table, contents(single))
            assert epoch == epochs
            assert report["kept"] == single.report()["kept"]
            assert report["saved"] == single.report()["saved"]

    check()


def test_shares_written_out() -> None:
    def work(group: MemoryRank) -> list:
        pruner = Pruner(KeepAll(), 7, process_group=group)
        assert len(pruner.sampler) == 3
        assert len(pruner.batch_sampler(2)) == 2
        assert len(pruner.batch_sampler(2, drop_last=True)) == 1
        return list(pruner.batch_sampler(2))

    assert all_fine(in_threads(2, work)) == [[[0, 2], [4]], [[1, 3], [5]]]


def test_padded_shares_written_out() -> None:
    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(KeepAll(), 7, process_group=group, pad=True)
        assert len(pruner.batch_sampler(2)) == 2
        batches = list(pruner.batch_sampler(2))
        for batch in batches:
            pruner.update(torch.tensor(batch), torch.ones(len(batch)))
        iter(pruner.sampler)
        return batches, pruner.report()["repeated"], pruner.usage.tolist()

    results = all_fine(in_threads(2, work))
    assert [batches for batches, *_ in results] == [[[0, 2], [4, 6]], [[1, 3], [5, 0]]]
    assert {repeated for _, repeated, _ in results} == {1}
    assert all(usage == [2, 1, 1, 1, 1, 1, 1] for *_, usage in results)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("pad", [False, True])
def test_lengths_and_steps_are_what_is_served(world: int, pad: bool) -> None:
    @settings(max_examples=12, deadline=None)
    @given(st.integers(10, 40), st.integers(1, 5), st.booleans())
    def check(n: int, batch_size: int, drop_last: bool) -> None:
        def work(group: MemoryRank) -> list[int]:
            pruner = Pruner(OrderDP(0.2), n, process_group=group, pad=pad)
            sampler = pruner.batch_sampler(batch_size, drop_last)
            steps = pruner.steps(1, batch_size, drop_last=drop_last, world_size=world)
            if steps == 0:
                return [0]
            assert len(sampler) == steps == len(list(sampler))
            return [len(batch) for batch in sampler]

        sizes = all_fine(in_threads(world, work))
        assert all(size == sizes[0] for size in sizes), "a rank with more steps than the others waits for ever"

    check()


# -- what ranks tell each other ------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(data=st.data(), world=st.integers(2, 4))
def test_ragged_feedback_of_many_ranks_is_merged_as_if_one_had_written_it_all(data: Any, world: int) -> None:
    """Whichever rank has written what: disjoint rows are those of one process, and all ranks end with one table."""
    n, policy = 30, Remembering(0.3)
    owner = data.draw(st.lists(st.integers(0, world), min_size=n, max_size=n))  # `world` is no rank
    rounds = data.draw(st.integers(1, 3))
    trained = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))

    def write(pruner: Pruner, rows: list[int], step: int) -> None:
        for training in (True, False):
            index = torch.tensor([i for i in rows if trained[i] is training], dtype=torch.int64)
            if training:
                pruner.update(index, fake_losses(index, step))
            else:
                pruner.observe(index, fake_losses(index, step))

    def work(group: MemoryRank) -> list:
        pruner, seen = Pruner(policy, n, process_group=group), []
        for step in range(rounds):
            write(pruner, [i for i in range(n) if owner[i] == (group.rank + step) % world], step)
            pruner.sync()
            seen.append(contents(pruner))
        return seen

    single, expected = Pruner(policy, n), []
    for step in range(rounds):
        write(single, [i for i in range(n) if owner[i] < world], step)
        expected.append(contents(single))
    for seen in all_fine(in_threads(world, work)):
        for ours, theirs in zip(seen, expected, strict=True):
            assert_same_contents(ours, theirs)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), world=st.integers(2, 4))
def test_where_several_ranks_write_the_same_row_all_end_with_one_of_theirs_and_counts_add_up(
    data: Any, world: int
) -> None:
    n = 12
    rows = [data.draw(st.lists(st.integers(0, n - 1), max_size=15)) for _ in range(world)]

    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(Remembering(0.3), n, process_group=group)
        own = fake_losses(torch.arange(n), group.rank)
        for i in rows[group.rank]:
            pruner.update(torch.tensor([i]), own[i : i + 1])
        pruner.sync()
        return contents(pruner), own.numpy()

    results = all_fine(in_threads(world, work))
    table = results[0][0]
    for other, _ in results:
        assert_same_contents(table, other)
    for i in range(n):
        counts = [row.count(i) for row in rows]
        assert table["usage"][i] == table["hits"][i] == sum(counts)
        if not sum(counts):
            assert np.isinf(table["score"][i])
            continue
        winner = counts.index(max(counts))
        assert table["score"][i] == results[winner][1][i]
        total = 0.5 + sum(count * results[rank][1][i] / 3 for rank, count in enumerate(counts))
        assert table["total"][i] == pytest.approx(total, rel=1e-5)


def test_an_epoch_takes_three_collectives_and_bytes_in_proportion_to_what_was_kept() -> None:
    n, world, batch_size = 4000, 2, 50
    policy = OrderDP(0.75)
    dataset = toy_dataset(n)

    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(policy, dataset, process_group=group)
        loader = pruner.loader(dataset, batch_size=batch_size)
        counts, reported = [], []
        for step in range(4):
            before = len(group.sizes)
            for index, _ in loader:
                pruner.update(index, fake_losses(index, step))
                pruner.report(), len(loader), pruner.progress if pruner.epochs else None
            counts.append(group.sizes[before:])
            reported.append(pruner.report()["exchanged_bytes"])
        return counts, reported

    for counts, reported in all_fine(in_threads(world, work)):
        assert [len(sizes) for sizes in counts] == [2, 3, 3, 3]  # nothing to tell before the first epoch
        q = policy.sizes(n)[1]
        for sizes, told in zip(counts[1:], reported[1:], strict=True):
            assert told == world * sum(sizes)
            assert told <= 24 * q + 2000, "20 bytes a sample trained on, and a header"
            assert told >= 12 * q


def test_looking_asking_and_storing_exchange_nothing() -> None:
    """Each of these may be done by one rank alone, by a progress bar or a logger."""

    def work(group: MemoryRank) -> int:
        pruner = Pruner(OrderDP(0.4), 40, epochs=3, process_group=group)
        sampler = pruner.batch_sampler(4)
        for batch in sampler:
            pruner.update(torch.tensor(batch), torch.rand(len(batch)))
        if group.rank == 0:
            before = len(group.sizes)
            len(sampler), len(pruner.sampler), pruner.report(), pruner.progress, pruner.epoch, pruner.lr_scale
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pruner.state_dict()
            pruner.scores, pruner.usage, pruner.hardest(3), pruner.steps(3, 4, world_size=2)
            assert len(group.sizes) == before
        iter(sampler)
        return pruner.epoch

    assert all_fine(in_threads(2, work)) == [1, 1]


def test_a_length_that_depends_on_other_ranks_losses_is_known_once_the_epoch_begins() -> None:
    def work(group: MemoryRank) -> list[int]:
        pruner = Pruner(Undecided(), 40, process_group=group)
        sampler, lengths = pruner.batch_sampler(4), []
        for step in range(3):
            with pytest.raises(TypeError, match=r"Call len\(\) after iter\(loader\)"):
                len(sampler)
            batches = list(sampler)
            assert len(sampler) == len(batches)
            for batch in batches:
                index = torch.tensor(batch)
                pruner.update(index, fake_losses(index, step))
            lengths.append(len(batches))
        return lengths

    first, second = all_fine(in_threads(2, work))
    assert first == second
    assert first[1] < first[0]


def test_workers_of_different_ranks_get_different_seeds() -> None:
    def work(group: MemoryRank) -> int:
        pruner = Pruner(OrderDP(0.4), 40, process_group=group)
        loader = pruner.loader(toy_dataset(40), batch_size=4)
        next(iter(loader))
        return loader.generator.initial_seed()

    seeds = all_fine(in_threads(3, work))
    assert len(set(seeds)) == 3


def test_choices_at_every_step_ignore_what_only_one_rank_has_observed() -> None:
    def work(group: MemoryRank) -> list[int]:
        pruner = Pruner(OrderDP(0.4, every="batch"), 60, process_group=group)
        trained = []
        for step in range(3):
            for number, batch in enumerate(pruner.batch_sampler(3)):
                index = torch.tensor(batch)
                pruner.update(index, fake_losses(index, step))
                if number == 1 and group.rank == 1:
                    pruner.observe(torch.arange(60), torch.rand(60))
                trained.append(batch)
        return trained

    for first, second in zip(*all_fine(in_threads(2, work)), strict=True):
        assert not set(first) & set(second)


# -- a framework deals out the samples -----------------------------------------------------------------------------


def sharded(batches: list, rank: int, world: int, even: bool) -> list:
    """As Accelerate does: whole rounds of batches, and the last round completed from the start or left ragged."""
    if even and batches:
        batches = list(islice(cycle(batches), -(-len(batches) // world) * world))
    return batches[rank::world]


@pytest.mark.parametrize("every", ["epoch", "batch"])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("batch_size", [4, 30])
def test_where_a_framework_deals_out_batches_ranks_agree_whatever_they_got(
    every: str, even: bool, batch_size: int
) -> None:
    """Also where a rank gets nothing at all."""
    n, world = 50, 3

    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(OrderDP(0.4, every=every), n, process_group=group, shard=False)
        visited = []
        for step in range(3):
            batches = list(pruner.batch_sampler(batch_size))
            mine = sharded(batches, group.rank, world, even)
            assert not even or len(mine) == pruner.steps(1, batch_size, world_size=world, split="batches")
            for batch in mine:
                index = torch.tensor(batch)
                pruner.update(index, fake_losses(index, step))
            visited.append(sorted(i for batch in batches for i in batch))
        pruner.sync()
        iter(pruner.batch_sampler(batch_size))
        return visited, contents(pruner), pruner.epoch, pruner.report()["kept"]

    results = all_fine(in_threads(world, work))
    for visited, table, epoch, kept in results:
        assert visited == results[0][0]
        assert_same_contents(table, results[0][1])
        assert epoch == 3
        assert kept == table["usage"].sum()
    assert all(len(set(chosen)) == 30 for chosen in results[0][0])


def test_shards_that_are_sharded_again_are_noticed() -> None:
    def work(group: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), 200, process_group=group)
        for step in range(2):
            for batch in sharded(list(pruner.batch_sampler(4)), group.rank, 2, even=True):
                index = torch.tensor(batch)
                pruner.update(index, fake_losses(index, step))

    for error in in_threads(2, work):
        assert isinstance(error, GroupError)
        assert "losses for 64 of the 120 samples of epoch 0" in str(error)
        assert "shard=False" in str(error)


def test_leaving_an_epoch_early_is_no_sign_of_that() -> None:
    def work(group: MemoryRank) -> int:
        pruner = Pruner(OrderDP(0.4), 200, process_group=group)
        for step in range(2):
            for number, batch in enumerate(pruner.batch_sampler(4)):
                if number == 5:
                    break
                index = torch.tensor(batch)
                pruner.update(index, fake_losses(index, step))
        return pruner.epoch

    assert all_fine(in_threads(2, work)) == [1, 1]


# -- a sampler of the user's own -----------------------------------------------------------------------------------


def test_a_sampler_of_the_users_own_is_sharded_too() -> None:
    def work(group: MemoryRank) -> list:
        pruner = Pruner(OrderDP(0.4), 40, process_group=group)
        inner = torch.utils.data.BatchSampler(range(40), 4, drop_last=False)
        filtered = pruner.filter(inner, repack=True)
        assert len(filtered) == 3
        assert len(pruner.filter(range(40))) == 12
        batches = list(filtered)
        assert [i for batch in batches for i in batch] == list(pruner.filter(range(40)))
        return batches

    first, second = all_fine(in_threads(2, work))
    chosen = sorted(flat([*first, *second]))
    assert chosen == sorted(Pruner(OrderDP(0.4), 40).sampler)
    in_order = [sample for pair in zip(flat(first), flat(second), strict=True) for sample in pair]
    assert in_order == chosen


def test_batches_of_different_sizes_are_not_sharded() -> None:
    def work(group: MemoryRank) -> None:
        inner = torch.utils.data.BatchSampler(range(40), 4, drop_last=False)
        iter(Pruner(OrderDP(0.4), 40, process_group=group).filter(inner))

    for error in in_threads(2, work):
        assert isinstance(error, ConfigError)
        assert "repack=True" in str(error)


def test_samplers_that_are_shuffled_differently_on_each_rank_are_noticed() -> None:
    def work(group: MemoryRank) -> None:
        generator = torch.Generator().manual_seed(group.rank)
        inner = torch.utils.data.RandomSampler(range(40), generator=generator)
        iter(Pruner(OrderDP(0.4), 40, process_group=group).filter(inner))

    for error in in_threads(2, work):
        assert isinstance(error, GroupError)
        assert "must have the same seed in every process" in str(error)


# -- what goes wrong -----------------------------------------------------------------------------------------------


def open_with(group: MemoryRank, batch_size: int = 4, **changes: Any) -> None:
    options: dict[str, Any] = {"policy": OrderDP(0.4), "dataset_or_length": 40, "seed": 0, "process_group": group}
    if group.rank == 1:
        options.update(changes)
    policy, length = options.pop("policy"), options.pop("dataset_or_length")
    iter(Pruner(policy, length, **options).batch_sampler(batch_size))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed: 0 on ranks 0, 2, 1 on rank 1"),
        ({"seed": 1 << 70}, "seed: 0 on ranks 0, 2"),
        ({"policy": OrderDP(0.5)}, r"policy: OrderDP(prune_ratio=0.4) on ranks 0, 2, OrderDP(prune_ratio=0.5) on"),
        ({"dataset_or_length": 41}, "length of the data set: 40 on ranks 0, 2, 41 on rank 1"),
        ({"epochs": 3}, "epochs: None on ranks 0, 2, 3 on rank 1"),
        ({"labels": list(range(40))}, "labels: "),
        ({"shard": False}, "shard: True on ranks 0, 2, False on rank 1"),
        ({"pad": True}, "pad: False on ranks 0, 2, True on rank 1"),
        ({"on_nan": "raise"}, "on_nan: warn on ranks 0, 2, raise on rank 1"),
        ({"seed": 1, "dataset_or_length": 41}, "length of the data set: 40 on ranks 0, 2"),
    ],
    ids=str,
)
def test_ranks_that_were_set_up_differently_all_say_what_differs(changes: dict, message: str) -> None:
    for error in in_threads(3, lambda group: open_with(group, **changes)):
        assert isinstance(error, GroupError)
        assert message in str(error)


def test_different_batch_sizes_are_noticed_before_somebody_waits() -> None:
    for error in in_threads(2, lambda group: open_with(group, batch_size=4 + group.rank)):
        assert "batch_size: 4 on rank 0, 5 on rank 1" in str(error)


def test_a_rank_that_does_something_else_is_noticed() -> None:
    def work(group: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), 40, process_group=group)
        pruner.sync() if group.rank else iter(pruner.sampler)

    for error in in_threads(2, work):
        assert "iter() on rank 0, sync() on rank 1" in str(error)


def test_a_rank_that_fails_before_an_epoch_does_not_leave_the_others_waiting() -> None:
    def work(group: MemoryRank) -> None:
        dataset = list(range(40))
        pruner = Pruner(OrderDP(0.4), dataset, process_group=group)
        loader = pruner.loader(dataset, batch_size=4)
        if group.rank == 1:
            dataset.append(40)
        iter(loader)

    first, second = in_threads(2, work)
    assert "rank 1 failed" in str(first)
    assert "must have the 40 samples" in str(second)


def test_a_rank_whose_policy_fails_does_not_leave_the_others_waiting() -> None:
    def work(group: MemoryRank) -> None:
        class Fragile(KeepAll):
            def select(self, table, context):
                if group.rank == 1:
                    raise ZeroDivisionError("no")
                return super().select(table, context)

            def __repr__(self) -> str:
                return "Fragile()"

        iter(Pruner(Fragile(), 40, process_group=group).sampler)

    first, second = in_threads(2, work)
    assert isinstance(first, GroupError)
    assert "rank 1 failed" in str(first)
    assert isinstance(second, ZeroDivisionError)


def test_a_policy_that_is_no_function_of_the_table_is_noticed() -> None:
    def work(group: MemoryRank) -> None:
        class Moody(KeepAll):
            def select(self, table, context):
                selection = super().select(table, context)
                selection.indices[:] = np.roll(selection.indices, group.rank)
                return selection

            def __repr__(self) -> str:
                return "Moody()"

        iter(Pruner(Moody(), 40, process_group=group).sampler)

    for error in in_threads(2, work):
        assert "must select the same samples for epoch 0" in str(error)


def test_a_rank_that_never_comes_is_waited_for_no_longer_than_the_group_allows() -> None:
    def work(group: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), 40, process_group=group)
        go_through(pruner, 4, 0)
        if group.rank == 0:
            iter(pruner.sampler)

    error, _ = in_threads(2, work, wait=0.5)
    assert isinstance(error, GroupError)
    assert "all_gather failed on rank 0 of 2 at epoch 1" in str(error)


@pytest.mark.parametrize("strict", [False, True])
def test_losses_that_are_not_finite_are_reported_by_all_ranks_once_per_epoch(strict: bool) -> None:
    def work(group: MemoryRank) -> tuple:
        pruner = Pruner(OrderDP(0.4), 40, process_group=group, on_nan="raise" if strict else "warn")
        found = []
        for bad in (1, 0, 2, 1):
            for batch in pruner.batch_sampler(4):
                losses = torch.rand(len(batch))
                if group.rank == 1:
                    losses[:bad] = torch.nan
                pruner.update(torch.tensor(batch), losses)
            found.append(error_text(lambda: iter(pruner.sampler)))
            found.append(error_text(lambda: iter(pruner.sampler)))  # complained about once
        return found, pruner.report()["nonfinite"]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = all_fine(in_threads(2, work))
    warned = [str(warning.message) for warning in caught if issubclass(warning.category, NonFiniteLossWarning)]
    assert [nonfinite for _, nonfinite in results] == [12, 12]
    if strict:
        for found, _ in results:
            assert ["".join(text.split()[:2]) for text in found] == [
                "3losses",
                "",
                "",
                "",
                "6losses",
                "",
                "3losses",
                "",
            ]
    else:
        assert sorted(message.split()[0] for message in warned) == ["3", "3", "3", "3", "6", "6"]


def error_text(act: Any) -> str:
    try:
        act()
    except NonFiniteLossError as error:
        return str(error)
    return ""


def test_an_epoch_with_fewer_samples_than_ranks_is_refused_by_all_or_padded() -> None:
    def work(group: MemoryRank, pad: bool) -> list:
        return list(Pruner(KeepAll(), 3, process_group=group, pad=pad).batch_sampler(2))

    for error in in_threads(4, lambda group: work(group, pad=False)):
        assert isinstance(error, ConfigError)
        assert "an epoch of 3 samples is too small to give every process a batch" in str(error)
    assert all_fine(in_threads(4, lambda group: work(group, pad=True))) == [[[0]], [[1]], [[2]], [[0]]]


@pytest.mark.parametrize("group", [object(), "world", torch.distributed.GroupMember.NON_GROUP_MEMBER])
def test_what_is_no_process_group_is_refused(group: Any) -> None:
    with pytest.raises(ConfigError, match="process_group must be"):
        Pruner(OrderDP(0.4), 40, process_group=group)


def test_a_column_of_true_and_false_is_exchanged() -> None:
    class Right(KeepAll):
        columns = (Column("right", initial=0, dtype="bool"),)

        def compute_columns(self, rows: Any, losses: torch.Tensor, *, right: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"score": losses, "right": right}

    def work(rank: MemoryRank) -> list[bool]:
        pruner = Pruner(Right(), 20, process_group=rank)
        for batch in pruner.batch_sampler(5):
            index = torch.tensor(batch)
            pruner.update(index, torch.rand(len(batch)), right=index % 2 == 1)
        pruner.sync()
        return pruner._table["right"].tolist()

    assert all_fine(in_threads(2, work)) == [[i % 2 == 1 for i in range(20)]] * 2


# -- one rank iterates more often than the others ---------------------------------------------------------------------


@pytest.mark.parametrize("shard", [True, False])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_rank_that_looks_at_a_batch_alone_is_named(shard: bool, resumed: bool) -> None:
    state = None
    if resumed:
        first = Pruner(OrderDP(0.5), 96)
        batch = next(iter(first.batch_sampler(4)))
        first.update(batch, fake_losses(torch.tensor(batch)))
        state = first.state_dict()

    def work(rank: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.5), 96, process_group=rank, shard=shard)
        if state is not None:
            pruner.load_state_dict(state)
        batches = pruner.batch_sampler(4)
        if rank.rank == 1:
            next(iter(batches))
        for epoch in range(2):
            for number, batch in enumerate(batches):
                if shard or number % 3 == rank.rank:  # as a framework deals them out
                    pruner.update(batch, fake_losses(torch.tensor(batch), epoch))

    for error in in_threads(3, work):
        assert isinstance(error, GroupError)
        assert "rank 1 called iter(loader) once more than the other processes" in str(error)
        assert "trained on nothing of epoch 0" in str(error)


def test_looks_of_all_ranks_are_free() -> None:
    def work(rank: MemoryRank) -> tuple[list, int]:
        pruner = Pruner(OrderDP(0.5), 48, process_group=rank)
        batches = pruner.batch_sampler(4)
        looks = [next(iter(batches)) for _ in range(2)]
        epoch = list(batches)
        for batch in epoch:
            pruner.update(batch, fake_losses(torch.tensor(batch)))
        return [look == epoch[0] for look in looks], pruner.epoch

    assert all_fine(in_threads(3, work)) == [([True, True], 1)] * 3


# -- a framework deals out the batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("trained", [1, 2, 3])
def test_ranks_rewind_though_one_gets_none_of_the_rest(trained: int) -> None:
    """Four batches for three ranks; all ranks skip those that were trained on before."""
    first = Pruner(OrderDP(0.5), 32)
    whole = list(first.batch_sampler(4))
    for batch in whole[:trained]:
        first.update(batch, fake_losses(torch.tensor(batch)))
    straight = Pruner(OrderDP(0.5), 32)
    for _ in range(2):
        for batch in straight.batch_sampler(4):
            straight.update(batch, fake_losses(torch.tensor(batch)))

    def work(rank: MemoryRank) -> tuple[list, int, torch.Tensor]:
        pruner = Pruner(OrderDP(0.5), 32, process_group=rank, shard=False)
        pruner.load_state_dict(first.state_dict())
        pruner.rewind()
        mine = []
        for skipped in (trained, 0):
            for number, batch in enumerate(list(pruner.batch_sampler(4))[skipped:]):
                if number % 3 == rank.rank:
                    pruner.update(batch, fake_losses(torch.tensor(batch)))
                    mine += batch
        list(pruner.batch_sampler(4))
        return mine, pruner.epoch, pruner.usage

    results = all_fine(in_threads(3, work))
    assert [epoch for _, epoch, _ in results] == [2] * 3
    assert len([index for mine, _, _ in results for index in mine]) == 32 - 4 * trained
    assert all(torch.equal(usage, straight.usage) for _, _, usage in results)


# -- lengths and steps ------------------------------------------------------------------------------------------------


def test_a_length_that_losses_decide_stays_known_while_an_epoch_is_iterated() -> None:
    def work(rank: MemoryRank) -> list[list[int]]:
        pruner = Pruner(InfoBatch(0.5), 40, process_group=rank, epochs=4)
        batches, lengths = pruner.batch_sampler(4), []
        with pytest.raises(TypeError, match="depends on losses of other processes"):
            len(batches)
        for epoch in range(3):
            lengths.append([])
            for batch in batches:
                lengths[-1].append(len(batches))
                pruner.update(batch, fake_losses(torch.tensor(batch), epoch))
                lengths[-1].append(len(batches))
        return lengths

    for lengths in all_fine(in_threads(2, work)):
        assert lengths == [[len(each) // 2] * len(each) for each in lengths]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(40, 80),
    world=st.integers(1, 4),
    batch_size=st.integers(1, 4),
    pad=st.booleans(),
    drop_last=st.booleans(),
    every=st.sampled_from(["epoch", "batch"]),
)
def test_ranks_make_as_many_steps_as_were_promised(
    n: int, world: int, batch_size: int, pad: bool, drop_last: bool, every: Any
) -> None:
    def work(rank: MemoryRank) -> tuple[int, int, list[list[int]]]:
        pruner = Pruner(OrderDP(0.5, every=every), n, process_group=rank, pad=pad)
        batches = pruner.batch_sampler(batch_size, drop_last)
        promised = pruner.steps(1, batch_size, drop_last=drop_last, world_size=world)
        length, made = len(batches), []
        for batch in batches:
            pruner.update(batch, fake_losses(torch.tensor(batch)))
            made.append(batch)
        assert pruner.epoch == 1
        return promised, length, made

    results = all_fine(in_threads(world, work))
    for promised, length, made in results:
        assert promised == length == len(made)
        assert not drop_last or {len(batch) for batch in made} == {batch_size}
    visited = [index for _, _, made in results for batch in made for index in batch]
    left_out = world * batch_size - 1 if drop_last else 0 if pad else world - 1
    assert n // 2 - left_out <= len(set(visited)) <= n // 2 + 1
    assert len(visited) - len(set(visited)) <= (world - 1 if pad else 0)
