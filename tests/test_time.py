"""Only `update` moves time."""

from __future__ import annotations

import warnings
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from orderdp import Indexed, OrderDP, Pruner
from orderdp.errors import ConfigError, NoFeedbackWarning, UnknownSizeError
from tests.support import Undecided, Weighted, fake_losses, toy_dataset, train_epoch


def batches_of(loader) -> list[list[int]]:
    return [index.tolist() for index, _ in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_looking_at_batches_does_not_move_time(workers: int) -> None:
    """Also not where two workers use up a whole short epoch for one look at its first batch."""
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5), dataset)
    loader = pruner.loader(dataset, batch_size=10, num_workers=workers)
    looks = [next(iter(loader))[0].tolist() for _ in range(3)]
    epoch = train_epoch(pruner, loader)
    assert looks == [epoch[0]] * 3
    assert pruner.epoch == 1


def test_an_epoch_starts_when_somebody_starts_again_after_training() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5), dataset)
    loader = pruner.loader(dataset, batch_size=5)
    for index, _ in islice(loader, 2):
        pruner.update(index, fake_losses(index))
    assert pruner.epoch == 0
    batches_of(loader)
    assert pruner.epoch == 1


def test_an_epoch_ends_with_its_last_losses() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5), dataset)
    loader = pruner.loader(dataset, batch_size=6)
    counts = []
    for index, _ in loader:
        pruner.update(index, fake_losses(index))
        counts.append(pruner.epoch)
    assert counts == [0, 0, 0, 1]


def test_lengths_are_those_of_a_whole_epoch_at_any_time() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5), dataset)
    loader = pruner.loader(dataset, batch_size=6)
    for _ in range(2):
        assert len(loader) == 4
        for index, _ in loader:
            assert len(loader) == 4
            pruner.update(index, fake_losses(index))
    iterator = iter(loader)
    for index, _ in islice(iterator, 2):
        pruner.update(index, fake_losses(index))
    resumed = Pruner(OrderDP(0.5), dataset)
    resumed.load_state_dict(pruner.state_dict())
    rest = resumed.loader(dataset, batch_size=6)
    assert len(rest) == 4
    assert len(batches_of(rest)) == 2
    assert len(rest) == 4


def test_an_epoch_without_feedback_is_served_again_with_one_warning_that_names_update() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5), dataset)
    loader = pruner.loader(dataset, batch_size=6)
    first = batches_of(loader)
    with pytest.warns(NoFeedbackWarning, match=r"pruner\.update\(index, losses\)") as caught:
        second = batches_of(loader)
    assert len(caught) == 1
    assert first == second
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert batches_of(loader) == first
    assert pruner.epoch == 0


@pytest.mark.parametrize("batch_size", [10, 2])
def test_workers_that_fetch_ahead_do_not_hide_that_no_feedback_comes(batch_size: int) -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5), dataset)
    loader = pruner.loader(dataset, batch_size=batch_size, num_workers=2)
    batches_of(loader)
    with pytest.warns(NoFeedbackWarning):
        batches_of(loader)


def test_a_loader_that_does_not_say_how_far_it_fetches_ahead_is_believed_the_second_time() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5), dataset)
    loader = DataLoader(Indexed(dataset), batch_sampler=pruner.batch_sampler(10), num_workers=2)
    next(iter(loader))
    batches_of(loader)
    with pytest.warns(NoFeedbackWarning):
        batches_of(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", [OrderDP(0.5), OrderDP(0.5, exploitation=1)])
def test_a_look_at_the_last_batch_of_a_resumed_epoch_does_not_move_time(workers: int, policy: OrderDP) -> None:
    """Also not where the policy needs no feedback: losses have come back before, and will again."""
    dataset = toy_dataset(40)

    def make() -> tuple[Pruner, DataLoader]:
        pruner = Pruner(policy, dataset)
        return pruner, pruner.loader(dataset, batch_size=5, num_workers=workers)

    (first, loader), (second, rest) = make(), make()
    for index, _ in islice(loader, 3):
        first.update(index, fake_losses(index))
    second.load_state_dict(first.state_dict())
    look = next(iter(rest))[0].tolist()
    assert train_epoch(second, rest) == [look]
    assert second.epoch == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("passed", [1, 2, 3])
def test_without_update_a_checkpoint_between_epochs_goes_on_with_the_next(workers: int, passed: int) -> None:
    dataset = toy_dataset(40)

    def make() -> tuple[Pruner, DataLoader]:
        pruner = Pruner(OrderDP(0.5, exploitation=1), dataset, epochs=3)
        return pruner, pruner.loader(dataset, batch_size=6, num_workers=workers)

    _, loader = make()
    straight = [batches_of(loader) for _ in range(3)]
    (first, loader), (second, rest) = make(), make()
    before = [batches_of(loader) for _ in range(passed)]
    assert first.epoch == passed
    second.load_state_dict(first.state_dict())
    assert second.epoch == passed
    assert second.done == first.done == (passed == 3)
    assert before + [batches_of(rest) for _ in range(second.epoch, 3)] == straight


def test_a_policy_that_needs_no_feedback_goes_on_when_used_up() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5, exploitation=1), dataset)
    loader = pruner.loader(dataset, batch_size=6)
    assert batches_of(loader) != batches_of(loader)
    list(islice(loader, 1))
    assert pruner.epoch == 2


def test_losses_of_somebody_elses_loader_are_remembered_but_no_progress() -> None:
    pruner = Pruner(OrderDP(0.5), 40, epochs=2)
    pruner.update(torch.arange(40), torch.rand(40))
    assert pruner.epoch == 0
    assert pruner.progress == 0
    assert torch.isfinite(pruner.scores).all()


def test_progress_goes_from_0_to_1() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.5), dataset, epochs=2)
    loader = pruner.loader(dataset, batch_size=5)
    seen = [pruner.progress]
    for _ in range(2):
        for index, _ in loader:
            pruner.update(index, fake_losses(index))
            seen.append(pruner.progress)
    assert seen == [i / 8 for i in range(9)]
    with pytest.raises(ConfigError, match="epochs="):
        _ = Pruner(OrderDP(0.5), 40).progress


def test_stepwise_choices_use_the_scores_of_their_moment() -> None:
    n, batch_size = 400, 10
    dataset = toy_dataset(n)
    pruner = Pruner(OrderDP(0.5, exploration=0.8, every="batch"), dataset, seed=1)
    loader = pruner.loader(dataset, batch_size=batch_size)
    assert len(loader) == 20
    train_epoch(pruner, loader)
    trained: list[int] = []
    for step, (index, _) in enumerate(loader):
        if step == 0:
            # From here on, the highest indices are the hardest: later steps must see it.
            pruner.observe(torch.arange(n), torch.arange(n).float())
        trained += index.tolist()
        pruner.update(index, index.float())
    assert len(trained) == len(set(trained)) == 200
    later = torch.tensor(trained[batch_size:]).float()
    assert later.mean() > 0.5 * n * 1.1


def test_stepwise_epochs_train_on_exactly_q_samples_in_as_many_steps() -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(5, 90), st.integers(1, 17), st.booleans(), st.integers(0, 80), st.integers(0, 3))
    def check(n: int, batch_size: int, drop_last: bool, percent: int, seed: int) -> None:
        policies = [OrderDP(percent / 100, every=every) for every in ("epoch", "batch")]
        _, q = policies[0].sizes(n)
        if drop_last and q < batch_size:
            return
        sizes = []
        for policy in policies:
            pruner = Pruner(policy, n, seed=seed)
            sampler = pruner.batch_sampler(batch_size, drop_last)
            for step in range(2):
                batches = []
                for batch in sampler:
                    index = torch.tensor(batch)
                    pruner.update(index, fake_losses(index, step))
                    batches.append(batch)
                trained = [i for batch in batches for i in batch]
                assert len(set(trained)) == len(trained)
                assert len(batches) == len(sampler)
            sizes.append([len(batch) for batch in batches])
        assert sizes[0] == sizes[1]
        assert sum(sizes[0]) == (q // batch_size * batch_size if drop_last else q)

    check()


def test_stepwise_choices_are_those_of_the_definition() -> None:
    n, batch_size = 30, 4
    policy = OrderDP(0.4, exploration=0.9, every="batch")
    s, q = policy.sizes(n)
    pruner = Pruner(policy, n, seed=2)
    pruner.observe(torch.arange(n), torch.arange(n).float())
    candidates = policy.candidates(pruner._manager.context(0)).tolist()
    assert len(set(candidates)) == s
    expected = []
    for start in range(0, q, batch_size):
        stop = min(start + batch_size, q)
        part = candidates[start * s // q : stop * s // q]
        expected.append(set(sorted(part, reverse=True)[: stop - start]))
    assert [set(batch) for batch in pruner.batch_sampler(batch_size)] == expected


def test_stepwise_epochs_need_to_know_their_batches() -> None:
    with pytest.raises(ConfigError, match=r"Use pruner.loader"):
        iter(Pruner(OrderDP(0.4, every="batch"), 10).sampler)


@pytest.mark.parametrize("split", ["samples", "batches"])
def test_steps_are_those_of_dealing_out_and_counting(split: str) -> None:
    @settings(max_examples=300, deadline=None)
    @given(
        n=st.integers(2, 200),
        percent=st.integers(0, 60),
        batch_size=st.integers(1, 40),
        drop_last=st.booleans(),
        world_size=st.integers(1, 5),
        accumulate=st.integers(1, 4),
        epochs=st.integers(0, 3),
    )
    def check(n, percent, batch_size, drop_last, world_size, accumulate, epochs) -> None:
        pruner = Pruner(OrderDP(percent / 100), n)
        _, q = pruner.policy.sizes(n)

        def cut(samples: list, drop: bool) -> list[list]:
            batches = [samples[i : i + batch_size] for i in range(0, len(samples), batch_size)]
            return [b for b in batches if len(b) == batch_size] if drop else batches

        if split == "samples":
            mine = list(range(q))[: q // world_size * world_size][0::world_size]
            batches = len(cut(mine, drop_last))
        else:
            whole = len(cut(list(range(q)), drop_last))
            batches = whole // world_size if drop_last else -(-whole // world_size)
        steps = 0
        for i in range(batches):
            steps += (i + 1) % accumulate == 0 or i == batches - 1
        assert steps * epochs == pruner.steps(
            epochs, batch_size, drop_last=drop_last, world_size=world_size, accumulate=accumulate, split=split
        )

    check()


@pytest.mark.parametrize("every", ["epoch", "batch"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_one_cycle_schedule_made_from_steps_ends_with_training(every: str, drop_last: bool) -> None:
    dataset = toy_dataset(50)
    pruner = Pruner(OrderDP(0.3, every=every), dataset)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    total = pruner.steps(3, 8, drop_last=drop_last)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total + 1)
    steps = 0
    for _ in range(3):
        for index, _ in pruner.loader(dataset, batch_size=8, drop_last=drop_last):
            pruner.update(index, fake_losses(index))
            optimizer.step()
            schedule.step()  # raises if called too often
            steps += 1
    assert steps == total


def test_steps_that_depend_on_the_losses_raise_with_their_bounds() -> None:
    pruner = Pruner(Undecided(), 100)
    with pytest.raises(
        UnknownSizeError, match=r"between 6 and 20\. Let the schedule follow Pruner\.progress"
    ) as caught:
        pruner.steps(2, 10)
    assert (caught.value.lower, caught.value.upper) == (6, 20)


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 0}, {"world_size": 0}, {"accumulate": 0}, {"epochs": -1}, {"epochs": 1.5}, {"split": "tokens"}],
)
def test_steps_refuses_nonsense(arguments: dict) -> None:
    with pytest.raises(ConfigError):
        Pruner(OrderDP(0.4), 100).steps(**{"epochs": 1, "batch_size": 8, **arguments})


def test_a_policy_of_unknown_size_has_a_length_and_trains() -> None:
    dataset = toy_dataset(40)
    pruner = Pruner(Undecided(), dataset)
    loader = pruner.loader(dataset, batch_size=5)
    lengths = []
    for epoch in range(3):
        expected = len(loader)
        lengths.append(len(train_epoch(pruner, loader, epoch)))
        assert lengths[-1] == expected
    assert lengths[0] == 8
    assert lengths[1] < 8


def test_weights_of_a_policy_reach_the_loss_and_its_gradient() -> None:
    pruner = Pruner(Weighted(), 10)
    next(iter(pruner.batch_sampler(10)))
    losses = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    index = torch.tensor([0, 4, 9])
    loss = pruner.update(index, losses)
    assert loss.item() == pytest.approx((1 * 1 + 5 * 2 + 10 * 3) / 3)
    loss.backward()
    assert losses.grad is not None
    assert torch.allclose(losses.grad, torch.tensor([1.0, 5.0, 10.0]) / 3)
    assert pruner.reduce(index, losses).item() == pytest.approx(loss.item())
    assert pruner.update(index, torch.tensor(2.0), reduced=True).item() == pytest.approx(2 * 16 / 3)
    assert pruner.lr_scale == 1.0


def test_a_policy_may_ask_for_another_learning_rate() -> None:
    class Louder(Weighted):
        def lr_scale(self, n: int, kept: int) -> float:
            return n / kept * 2

    assert Pruner(Louder(), 10).lr_scale == 2.0


def test_the_report_counts_what_was_saved() -> None:
    dataset = toy_dataset(50)
    pruner = Pruner(OrderDP(0.4), dataset)
    assert pruner.report()["saved"] == 0
    loader = pruner.loader(dataset, batch_size=8)
    for epoch in range(3):
        train_epoch(pruner, loader, epoch)
    report = pruner.report()
    assert (report["epoch"], report["samples"], report["kept"], report["pruned"]) == (3, 50, 90, 60)
    assert report["nominal_saved"] == pytest.approx(0.4)
    assert report["saved"] == pytest.approx(0.4)
    assert report["coverage"] == float((pruner.usage > 0).float().mean())
    assert int(pruner.usage.sum()) == 90
    assert 1 <= report["staleness"] <= 3
    assert report["nonfinite"] == 0
    assert all(isinstance(value, int | float) for value in report.values())


def test_the_report_of_a_half_trained_epoch_is_of_that_half() -> None:
    dataset = toy_dataset(50)
    pruner = Pruner(OrderDP(0.4), dataset)
    for index, _ in islice(pruner.loader(dataset, batch_size=10), 1):
        pruner.update(index, fake_losses(index))
    assert pruner.report()["saved"] == pytest.approx(0.4)


def test_dropping_the_last_batch_counts_as_saved() -> None:
    dataset = toy_dataset(50)
    pruner = Pruner(OrderDP(0.4), dataset)
    train_epoch(pruner, pruner.loader(dataset, batch_size=8, drop_last=True))
    report = pruner.report()
    assert report["kept"] == 24
    assert report["saved"] == pytest.approx(1 - 24 / 50)
    assert report["nominal_saved"] == pytest.approx(0.4)


def test_the_hardest_samples_can_be_looked_up() -> None:
    pruner = Pruner(OrderDP(0.4), 6)
    pruner.update(torch.tensor([1, 3, 5]), torch.tensor([0.5, 9.0, 2.0]))
    assert pruner.hardest(2).tolist() == [3, 5]
    assert pruner.hardest(6).tolist() == [3, 5, 1]
    assert pruner.hardest(0).tolist() == []
    with pytest.raises(ConfigError, match="k must be"):
        pruner.hardest(-1)


def test_what_is_read_is_a_copy() -> None:
    pruner = Pruner(OrderDP(0.4), 6)
    scores, usage = pruner.scores, pruner.usage
    pruner.update(torch.arange(6), torch.rand(6))
    assert torch.isinf(scores).all()
    assert not usage.any()
