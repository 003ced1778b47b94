"""What comes back is compared with what was served, once per epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from orderdp import Indexed, OrderDP, Pruner
from orderdp.errors import FeedbackMismatchWarning
from orderdp.policies import DynamicRandom
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import fake_losses, toy_dataset

N = 60
LABELS = torch.arange(N) % 3
Change = Callable[[Pruner, torch.Tensor], None]


def train(pruner: Pruner, epochs: int, step: Change, batch_size: int = 6, **options: Any) -> list[str]:
    """Trains with a step of its own; returns the messages about what came back."""
    with warnings.catch_warnings(record=True) as given_warnings:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for index in pruner.batch_sampler(batch_size, **options):
                step(pruner, torch.tensor(index))
    return [str(one.message) for one in given_warnings if one.category is FeedbackMismatchWarning]


def rightly(pruner: Pruner, index: torch.Tensor) -> None:
    pruner.update(index, fake_losses(index))


def by_label(pruner: Pruner, index: torch.Tensor) -> None:
    pruner.update(LABELS[index], fake_losses(index))


def by_position(pruner: Pruner, index: torch.Tensor) -> None:
    pruner.update(torch.arange(len(index)), fake_losses(index))


def by_another_numbering(pruner: Pruner, index: torch.Tensor) -> None:
    pruner.update((index * 7 + 1) % N, fake_losses(index))


def twice(pruner: Pruner, index: torch.Tensor) -> None:
    pruner.update(index, fake_losses(index))
    pruner.update(index, fake_losses(index))


@pytest.mark.parametrize("every", ["epoch", "batch"])
@pytest.mark.parametrize("wrongly", [by_label, by_position, by_another_numbering])
def test_labels_or_positions_in_place_of_indices_are_noticed(wrongly: Change, every: Any) -> None:
    told = train(Pruner(OrderDP(0.4, every=every), N), 3, wrongly)
    assert len(told) == 1  # once, not in every epoch
    assert "update() received 36 losses" in told[0]
    assert "36 samples were served" in told[0]
    assert "labels or positions" in told[0]


@pytest.mark.parametrize("every", ["epoch", "batch"])
def test_update_twice_for_a_batch_is_noticed_with_both_numbers(every: Any) -> None:
    told = train(Pruner(OrderDP(0.4, every=every), N), 1, twice)
    assert len(told) == 1
    assert "received 36 losses" in told[0]
    assert "only 18 of the samples served" in told[0]
    assert "more than once for a batch" in told[0]


def test_a_single_batch_that_comes_back_twice_is_noticed() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    done: list[int] = []

    def step(pruner: Pruner, index: torch.Tensor) -> None:
        rightly(pruner, index)
        if not done:
            rightly(pruner, index)
        done.append(1)

    told = train(pruner, 1, step)
    assert len(told) == 1
    assert "only 30 of the samples served" in told[0]


def test_an_epoch_that_is_left_early_is_compared_too() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    for index in pruner.batch_sampler(6):
        by_position(pruner, torch.tensor(index))
        break
    with pytest.warns(FeedbackMismatchWarning, match="received 6 losses"):
        pruner.end_epoch()


@given(
    seed=st.integers(0, 1000),
    n=st.integers(8, 80),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    every=st.sampled_from(["epoch", "batch"]),
    leave_after=st.integers(1, 12),
    how=st.sampled_from(["whole", "left", "resumed", "observed", "split"]),
)
@settings(max_examples=60, deadline=None)
def test_a_loop_that_is_right_is_never_warned(
    seed: int, n: int, batch_size: int, drop_last: bool, every: Any, leave_after: int, how: str
) -> None:
    pruner = Pruner(OrderDP(0.3, every=every), n, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(4):
            if how == "observed" and epoch % 2:
                pruner.observe(torch.arange(n), torch.rand(n))
            if not n * 0.6 // batch_size:
                break
            for step, batch in enumerate(pruner.batch_sampler(batch_size, drop_last)):
                index = torch.tensor(batch)
                parts = index.split(2) if how == "split" else [index]
                for part in parts:
                    pruner.update(part, fake_losses(part))
                if how in ("left", "resumed") and step + 1 == leave_after:
                    break
            if how == "resumed":
                state = pruner.state_dict()
                pruner = Pruner(OrderDP(0.3, every=every), n, seed=seed)
                pruner.load_state_dict(state)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: WeightedRandomSampler(torch.linspace(0.01, 1, N).tolist(), N),
        lambda: RandomSampler(range(N), replacement=True, num_samples=2 * N),
    ],
)
def test_a_sampler_that_repeats_samples_is_not_warned(sampler: Callable[[], Any]) -> None:
    pruner = Pruner(DynamicRandom(0.4), N)
    dataset = toy_dataset(N)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FeedbackMismatchWarning)
        loader = DataLoader(Indexed(dataset), sampler=pruner.filter(sampler()), batch_size=6)
        for _ in range(3):
            for index, _ in loader:
                rightly(pruner, index)


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("shard", [False, True])
def test_ranks_that_are_right_are_not_warned_and_wrong_ones_are(pad: bool, shard: bool) -> None:
    def work(group: MemoryRank, step: Change) -> None:
        pruner = Pruner(OrderDP(0.4), N + 1, process_group=group, pad=pad, shard=shard)
        for epoch in range(4):
            for number, index in enumerate(pruner.batch_sampler(5)):
                step(pruner, torch.tensor(index if shard else index[group.rank :: group.world]))
                if number == 2 and epoch == 1:
                    pruner.sync()

    def told(step: Change) -> list[type[Warning]]:
        with warnings.catch_warnings(record=True) as given_warnings:
            warnings.simplefilter("always")
            all_fine(in_threads(3, lambda group: work(group, step)))
        return [one.category for one in given_warnings if one.category is FeedbackMismatchWarning]

    assert not told(rightly)
    assert told(by_position)


def test_the_comparison_issues_no_operation_in_a_step_that_does_not_end_the_epoch() -> None:
    from tests.test_no_sync import Spy

    pruner = Pruner(OrderDP(0.4), N)
    batches = iter(pruner.batch_sampler(6))
    with Spy() as spy:
        for _ in range(5):
            pruner.update(torch.tensor(next(batches)), torch.rand(6, device="meta"))
    assert not spy.waits
