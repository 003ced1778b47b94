"""Training on a budget: it ends when the samples are spent, to the step, resumed or not, alone or together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from orderdp import Budget, Indexed, OrderDP, Pruner, Unlearned
from orderdp.errors import ConfigError, StateError, UnknownSizeError
from orderdp.policies import DynamicRandom, FullData, InfoBatch, LossBelow, UniformTail
from tests.ranks import FullRank, MemoryRank, all_fine, in_threads
from tests.support import toy_dataset

POLICIES = [
    Budget(0.5),
    Budget(0.7, learned=LossBelow(0.3), refresh=0.3),
    Budget(0.4, policy=FullData()),
    Budget(0.5, policy=InfoBatch(0.5, annealing=None)),
    UniformTail(Budget(0.5, learned=0.8), 0.4),
]


def share_of(policy: Any) -> float:
    return policy.policy.share if isinstance(policy, UniformTail) else policy.share


def possible_steps(pruner: Pruner, epochs: int, batch_size: int) -> tuple[int, int]:
    try:
        steps = pruner.steps(epochs, batch_size)
    except UnknownSizeError as error:
        return error.lower, error.upper
    return steps, steps


def falling(index: torch.Tensor, epoch: int) -> torch.Tensor:
    """Losses that fall, each sample's at its own pace, and now and then rise again."""
    pace = 0.2 + (index.float() * 0.61803).frac()
    return 2.5 * torch.exp(-pace * epoch) + 0.3 * ((index + epoch) % 11 == 0)


def train(pruner: Pruner, batch_size: int, *, drop_last: bool, stop: int | None = None) -> tuple[list[list[int]], Any]:
    """The batches of a whole training, or of one that is stopped; and its state then."""
    batches: list[list[int]] = []
    for epoch in pruner.remaining_epochs():
        for batch in pruner.batch_sampler(batch_size, drop_last):
            pruner.update(torch.tensor(batch), falling(torch.tensor(batch), epoch))
            batches.append(batch)
            if len(batches) == stop:
                return batches, pruner.state_dict()
    return batches, None


@pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(60, 200), epochs=st.integers(1, 12), batch_size=st.integers(1, 6), drop_last=st.booleans())
def test_a_budget_is_spent_to_the_sample_or_the_full_step(policy, n, epochs, batch_size, drop_last) -> None:
    pruner = Pruner(policy, n, epochs=epochs)
    total = round(share_of(policy) * epochs * n)
    batches, _ = train(pruner, batch_size, drop_last=drop_last)
    spent = sum(map(len, batches))
    assert spent == (total - total % batch_size if drop_last else total)
    assert pruner.done
    assert pruner.progress == 1.0
    assert list(pruner.batch_sampler(batch_size, drop_last)) == []  # and again
    assert pruner.report()["kept"] == spent
    assert pruner.report()["saved"] == pytest.approx(1 - spent / (epochs * n))
    if drop_last:
        assert {len(batch) for batch in batches} <= {batch_size}
        assert pruner.steps(epochs, batch_size, drop_last=True) == len(batches)
    else:
        fewest, most = possible_steps(pruner, epochs, batch_size)
        assert fewest <= len(batches) <= most


@pytest.mark.parametrize("policy", POLICIES[:2], ids=repr)
def test_where_nothing_is_learned_it_is_fewer_epochs_batch_for_batch(policy: Any) -> None:
    def batches(policy: Any) -> list[list[int]]:
        pruner, found = Pruner(policy, 100, epochs=8, seed=3), []
        for _ in pruner.remaining_epochs():
            for batch in pruner.batch_sampler(8, drop_last=True):
                pruner.update(torch.tensor(batch), torch.ones(len(batch)))
                found.append(batch)
        return found

    found = batches(policy)
    fewer = batches(Budget(policy.share, policy=FullData()))
    assert found == fewer


def test_where_all_is_learned_epochs_are_short_and_there_are_many() -> None:
    pruner = Pruner(Budget(0.5), 100, epochs=4)
    sizes: list[int] = []
    for _ in pruner.remaining_epochs():
        sizes.append(0)
        for batch in pruner.batch_sampler(5):
            pruner.update(torch.tensor(batch), torch.zeros(len(batch)))
            sizes[-1] += len(batch)
    assert sizes == [100] + [10] * 10
    assert pruner.report()["learned"] == 1.0


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")
def test_a_resumed_training_is_the_straight_one(policy: Any, drop_last: bool) -> None:
    def fresh() -> Pruner:
        return Pruner(policy, 90, epochs=6, seed=1)

    straight, _ = train(fresh(), 7, drop_last=drop_last)
    for stop in (1, 12, len(straight) // 2, len(straight) - 1, len(straight)):
        first, state = train(fresh(), 7, drop_last=drop_last, stop=stop)
        resumed = fresh()
        resumed.load_state_dict(state)
        assert resumed.progress == pytest.approx(sum(map(len, first)) / sum(map(len, straight)))
        second, _ = train(resumed, 7, drop_last=drop_last)
        assert first + second == straight
        assert resumed.done


def test_a_schedule_of_exactly_so_many_steps_ends_with_the_training() -> None:
    dataset = toy_dataset(100)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Pruner(Budget(0.6), dataset, epochs=5)
    loader = pruner.loader(dataset, batch_size=8, drop_last=True)
    schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=pruner.steps(5, 8, drop_last=True))
    progress = [pruner.progress]
    for _ in pruner.remaining_epochs():
        for index, (x, y) in loader:
            loss = pruner.update(index, torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()  # raises at one too many
            progress.append(pruner.progress)
    assert schedule.last_epoch == schedule.total_steps
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == (0.0, 1.0)
    assert len(set(progress)) == len(progress)  # every step is progress


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")
def test_ranks_spend_a_budget_together(policy: Any, world: int, drop_last: bool) -> None:
    n, epochs, batch_size = 137, 5, 4

    def work(group: MemoryRank) -> tuple[list[list[int]], float, dict[str, float]]:
        pruner = Pruner(policy, n, epochs=epochs, process_group=group)
        batches, _ = train(pruner, batch_size, drop_last=drop_last)
        assert list(pruner.batch_sampler(batch_size, drop_last)) == []
        return batches, pruner.progress, pruner.report()

    results = all_fine(in_threads(world, work))
    steps = {len(batches) for batches, *_ in results}
    assert len(steps) == 1
    total = round(share_of(policy) * epochs * n)
    unit = batch_size * world if drop_last else world
    spent = sum(len(batch) for batches, *_ in results for batch in batches)
    assert spent == total - total % unit
    for _, progress, report in results:
        assert progress == 1.0
        assert report["kept"] == spent
    if drop_last:
        pruner = Pruner(policy, n, epochs=epochs)
        assert steps == {pruner.steps(epochs, batch_size, drop_last=True, world_size=world)}


@pytest.mark.parametrize("sharding", ["exact", "stratified"])
@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[2], UniformTail(Budget(0.5, learned=0.8), 0.4)], ids=repr)
def test_a_budget_is_spent_from_a_table_in_parts_and_resumed(policy: Any, sharding: Any) -> None:
    n, epochs, batch_size, world = 120, 4, 5, 2

    def fresh(group: FullRank) -> Pruner:
        return Pruner(policy, n, epochs=epochs, process_group=group, table="sharded", sharding=sharding)

    def straight(group: FullRank) -> list[list[int]]:
        return train(fresh(group), batch_size, drop_last=True)[0]

    def stopped(group: FullRank) -> tuple[list[list[int]], Any]:
        return train(fresh(group), batch_size, drop_last=True, stop=9)

    def resumed(group: FullRank) -> list[list[int]]:
        pruner = fresh(group)
        pruner.load_state_dict(states)
        batches, _ = train(pruner, batch_size, drop_last=True)
        assert pruner.progress == 1.0
        return batches

    whole = all_fine(in_threads(world, straight, kind=FullRank))
    total = round(share_of(policy) * epochs * n)
    assert {len(batches) for batches in whole} == {total // (batch_size * world)}
    first, states = zip(*all_fine(in_threads(world, stopped, kind=FullRank)), strict=True)
    second = all_fine(in_threads(world, resumed, kind=FullRank))
    assert [a + b for a, b in zip(first, second, strict=True)] == whole


# -- loops over epochs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [OrderDP(0.5), DynamicRandom(0.5), FullData(), Unlearned(0.5)], ids=repr)
def test_remaining_epochs_are_all_epochs_of_a_plain_training(policy: Any) -> None:
    pruner, seen = Pruner(policy, 20, epochs=3), []
    for epoch in pruner.remaining_epochs():
        seen.append(epoch)
        for batch in pruner.batch_sampler(5):
            pruner.update(torch.tensor(batch), torch.ones(len(batch)))
    assert seen == [0, 1, 2]
    assert list(pruner.remaining_epochs()) == []


def test_leaving_an_epoch_early_ends_it() -> None:
    pruner, seen = Pruner(OrderDP(0.5), 20, epochs=3), []
    for epoch in pruner.remaining_epochs():
        for batch in pruner.batch_sampler(5):
            pruner.update(torch.tensor(batch), torch.ones(len(batch)))
            seen.append(epoch)
            break
    assert seen == [0, 1, 2]


def test_a_loop_without_feedback_ends_with_an_error_and_not_never() -> None:
    pruner = Pruner(OrderDP(0.5), 20, epochs=3)
    passes = (list(pruner.batch_sampler(5)) for _ in pruner.remaining_epochs())
    with pytest.raises(StateError, match=r"received no losses.*pruner\.update"):
        list(passes)


def test_a_policy_without_feedback_needs_none_in_such_a_loop() -> None:
    pruner, seen = Pruner(DynamicRandom(0.5), 20, epochs=3), []
    for epoch in pruner.remaining_epochs():
        seen.append(epoch)
        list(DataLoader(Indexed(range(20)), batch_sampler=pruner.batch_sampler(5)))
    assert seen == [0, 1, 2]


def test_without_a_number_of_epochs_nothing_is_done() -> None:
    pruner = Pruner(OrderDP(0.5), 20)
    for ask in (lambda: pruner.done, lambda: next(pruner.remaining_epochs())):
        with pytest.raises(ConfigError, match=r"Use Pruner\(\.\.\., epochs=\.\.\.\)"):
            ask()


def test_a_loop_over_a_fixed_number_of_epochs_gets_nothing_more_when_the_budget_is_spent() -> None:
    pruner, sizes = Pruner(Budget(0.5), 20, epochs=4), []
    for _ in range(4):
        sizes.append(0)
        for batch in pruner.batch_sampler(5):
            pruner.update(torch.tensor(batch), torch.ones(len(batch)))
            sizes[-1] += len(batch)
    assert sizes == [20, 20, 0, 0]


def test_an_epoch_that_may_become_smaller_than_a_step_is_refused_before_anything_is_trained() -> None:
    pruner = Pruner(Budget(0.5), 1000, epochs=10)
    with pytest.raises(ConfigError, match=r"may have 100 samples, fewer than the 128 of a step.*smaller batch_size"):
        iter(pruner.batch_sampler(128, drop_last=True))
    assert len(next(iter(pruner.batch_sampler(128)))) == 128


# -- as many steps as full data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (OrderDP(0.5), (64, 0.5)),
        (OrderDP(0.7), (38, 38 / 128)),
        (FullData(), (128, 1.0)),
        (Budget(0.3), (38, 38 / 128)),
        (UniformTail(Unlearned(0.5), 0.3), (64, 0.5)),
        (OrderDP(0.999), (1, 1 / 128)),
    ],
    ids=repr,
)
def test_the_batch_and_the_learning_rate_are_smaller_by_the_share_kept(policy: Any, expected: tuple) -> None:
    assert tuple(Pruner(policy, 10_000, epochs=10).same_steps(128)) == expected


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.7, 0.9])
def test_that_makes_as_many_steps_as_full_data(ratio: float) -> None:
    full = Pruner(FullData(), 10_000).steps(10, 100, drop_last=True)
    pruner = Pruner(OrderDP(ratio), 10_000)
    assert pruner.steps(10, pruner.same_steps(100).batch_size, drop_last=True) == full


def test_a_share_that_changes_or_is_not_known_has_no_such_batch() -> None:
    from orderdp.policies import Adaptive, Linear, Scheduled

    for policy in (Scheduled(OrderDP(0.5), Linear(0.2, 0.8)), Adaptive(0.1)):
        with pytest.raises(ConfigError, match="Choose a batch size yourself"):
            Pruner(policy, 1000, epochs=5).same_steps(100)


def test_what_is_left_over_is_a_uniform_part_of_the_last_epoch() -> None:
    counts = np.zeros(20)
    for seed in range(600):
        pruner = Pruner(Budget(0.55, policy=FullData()), 20, epochs=2, seed=seed)
        batches, _ = train(pruner, 1, drop_last=False)
        counts += np.bincount([i for batch in batches for i in batch], minlength=20) - 1
    assert counts.sum() == 600 * 2
    assert abs(counts / 600 - 0.1).max() < 5 * (0.1 * 0.9 / 600) ** 0.5
