"""A run that was stopped and resumed is the run that was not."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from orderdp import Indexed, OrderDP, Pruner
from orderdp.errors import StateError
from tests.support import Undecided, Weighted, toy_dataset

EPOCHS, BATCH_SIZE = 3, 6
DATASET = toy_dataset(53)
CRITERION = torch.nn.CrossEntropyLoss(reduction="none")

POLICIES = {
    "epoch": OrderDP(0.4),
    "batch": OrderDP(0.4, every="batch"),
    "weighted": Weighted(),
    "undecided": Undecided(),
    "random": OrderDP(0.4, exploitation=1),
}


class Run:
    """A small training with everything that has to be saved."""

    def __init__(self, policy: Any, make_loader: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.3, momentum=0.9)
        self.pruner = Pruner(policy, DATASET, seed=7, epochs=EPOCHS)
        if make_loader is None:
            self.loader = self.pruner.loader(DATASET, batch_size=BATCH_SIZE, **options)
        else:
            self.loader = make_loader(self.pruner)
        self.visited: list[list[int]] = []
        self.steps = 0

    def save(self) -> bytes:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "pruner": self.pruner.state_dict(),
            "steps": self.steps,
        }
        if isinstance(self.loader, StatefulDataLoader):
            state["loader"] = self.loader.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.pruner.load_state_dict(state["pruner"])
        self.steps = state["steps"]
        if isinstance(self.loader, StatefulDataLoader):
            self.loader.load_state_dict(state["loader"])

    def step(self, index: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = self.pruner.update(index, CRITERION(self.model(x), y))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.visited.append(index.tolist())
        self.steps += 1

    def epoch(self, steps: int | None = None) -> None:
        """Trains to the end of an epoch, or for some steps of it."""
        for index, (x, y) in self.loader:
            self.step(index, x, y)
            if len(self.visited) == steps:
                break

    def go(self, stop_after: int | None = None, before_update: bool = False) -> bytes | None:
        """Trains to the end; or to a step, and returns what it would save there."""
        for _ in range(self.pruner.epoch, EPOCHS):
            for index, (x, y) in self.loader:
                if before_update and self.steps == stop_after:
                    return self.save()
                self.step(index, x, y)
                if not before_update and self.steps == stop_after:
                    return self.save()
        return None


def assert_resumes(make_run, stop_after: int, before_update: bool = False, straight: Run | None = None) -> None:
    first, second = make_run(), make_run()
    if straight is None:
        straight = make_run()
        straight.go()
    saved = first.go(stop_after, before_update)
    if saved is None:
        pytest.fail(f"the run has no step {stop_after}")
    second.load(saved)
    second.go()
    assert first.visited + second.visited == straight.visited
    for a, b in zip(second.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(second.pruner.scores, straight.pruner.scores)
    assert torch.equal(second.pruner.usage, straight.pruner.usage)
    assert second.pruner.report() == straight.pruner.report()
    assert second.pruner.progress == straight.pruner.progress == 1.0


STEPS = 6 * EPOCHS  # 32 samples in batches of 6


@cache
def undisturbed(policy: str, drop_last: bool) -> Run:
    run = Run(POLICIES[policy], drop_last=drop_last)
    run.go()
    return run


@settings(max_examples=90, deadline=None)
@given(
    policy=st.sampled_from(["epoch", "batch"]),
    stop_after=st.integers(1, STEPS),
    before_update=st.booleans(),
    drop_last=st.booleans(),
)
@example(policy="epoch", stop_after=6, before_update=False, drop_last=False)
@example(policy="batch", stop_after=12, before_update=False, drop_last=False)
@example(policy="epoch", stop_after=5, before_update=False, drop_last=True)
def test_stopping_anywhere_changes_nothing(policy: str, stop_after: int, before_update: bool, drop_last: bool) -> None:
    steps = EPOCHS * (5 if drop_last else 6)
    if before_update:
        stop_after -= 1  # step 0: before anything was trained
    stop_after = min(stop_after, steps - before_update)
    straight = undisturbed(policy, drop_last)
    assert_resumes(lambda: Run(POLICIES[policy], drop_last=drop_last), stop_after, before_update, straight)


@pytest.mark.parametrize("policy", ["weighted", "undecided", "random"])
@pytest.mark.parametrize("stop_after", [1, 9, 10])
def test_other_policies_resume_too(policy: str, stop_after: int) -> None:
    assert_resumes(lambda: Run(POLICIES[policy]), stop_after)


@pytest.mark.parametrize("policy", ["epoch", "batch"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("stop_after", "before_update"), [(1, False), (5, False), (6, False), (8, True)])
def test_with_workers_that_fetch_ahead(policy: str, persistent: bool, stop_after: int, before_update: bool) -> None:
    assert_resumes(
        lambda: Run(POLICIES[policy], num_workers=2, persistent_workers=persistent), stop_after, before_update
    )


def stateful(workers: int, snapshot_every: int = 1, by_sample: bool = False, prefetch: int | None = None):
    def make(pruner: Pruner) -> StatefulDataLoader:
        how = {"sampler": pruner.sampler, "batch_size": BATCH_SIZE}
        if not by_sample:
            how = {"batch_sampler": pruner.batch_sampler(BATCH_SIZE)}
        how["prefetch_factor"] = prefetch
        return StatefulDataLoader(Indexed(DATASET), num_workers=workers, snapshot_every_n_steps=snapshot_every, **how)

    return make


@pytest.mark.parametrize("policy", ["epoch", "batch"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop_after", [1, 4, 6, 9])
def test_through_a_stateful_data_loader(policy: str, workers: int, stop_after: int) -> None:
    assert_resumes(lambda: Run(POLICIES[policy], stateful(workers)), stop_after)


@pytest.mark.parametrize("stop_after", [2, 6, 10])
def test_through_a_stateful_data_loader_that_takes_snapshots_seldom(stop_after: int) -> None:
    assert_resumes(lambda: Run(POLICIES["epoch"], stateful(2, snapshot_every=4)), stop_after)


@pytest.mark.parametrize(
    ("policy", "snapshot_every", "stops"),
    [
        ("epoch", 4, [6, 7]),  # the loader still has the snapshot of step 4, of the epoch before
        ("batch", 4, [5, 6, 7, 12, 13]),
        ("epoch", 50, [6, 8, 12, 13]),  # it has the snapshot of step 0, two epochs before
        ("random", 50, [6, 12]),
    ],
)
def test_saving_twice_around_the_end_of_an_epoch_loses_nothing(policy: str, snapshot_every: int, stops: list) -> None:
    straight = undisturbed(policy, drop_last=False)
    visited, saved = [], None
    for stop_after in (*stops, None):
        run = Run(POLICIES[policy], stateful(1, snapshot_every))
        if saved is not None:
            run.load(saved)
        saved = run.go(stop_after)
        visited += run.visited
    assert visited == straight.visited
    assert run.pruner.report() == straight.pruner.report()


@pytest.mark.parametrize(("policy", "snapshot_every"), [("epoch", 4), ("random", 4), ("random", 1)])
def test_a_stateful_data_loader_that_has_ended_goes_on_with_the_next_epoch(policy: str, snapshot_every: int) -> None:
    """It fetches ahead in an iterator that it throws away, which here reaches the end of the next epoch."""
    make_loader = stateful(1, snapshot_every, prefetch=9)
    first, second, straight = (Run(POLICIES[policy], make_loader) for _ in range(3))
    straight.go()
    first.epoch()
    second.load(first.save())
    second.go()
    assert first.visited + second.visited == straight.visited


@pytest.mark.parametrize(("workers", "snapshot_every"), [(0, 1), (1, 1), (1, 4)])
def test_an_epoch_left_early_leaves_no_batches_to_skip(workers: int, snapshot_every: int) -> None:
    make_loader = stateful(workers, snapshot_every)
    first, second, straight = (Run(POLICIES["epoch"], make_loader) for _ in range(3))
    for run in (straight, first):
        run.epoch(2)
        run.pruner.end_epoch()
    second.load(first.save())
    for run in (straight, second):
        run.epoch()
    assert first.visited + second.visited == straight.visited


def test_a_filtered_batch_sampler_refuses_to_guess_what_its_loader_skips() -> None:
    def make(pruner: Pruner) -> StatefulDataLoader:
        batches = pruner.filter(BatchSampler(range(len(DATASET)), BATCH_SIZE, drop_last=False))
        return StatefulDataLoader(Indexed(DATASET), batch_sampler=batches, num_workers=1, snapshot_every_n_steps=5)

    first, second = (Run(POLICIES["epoch"], make) for _ in range(2))
    second.load(first.go(9))
    with pytest.raises(StateError, match="Set snapshot_every_n_steps=1"):
        second.go()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop_after", [2, 6, 10])
def test_through_a_stateful_data_loader_with_a_sampler(workers: int, stop_after: int) -> None:
    assert_resumes(lambda: Run(POLICIES["epoch"], stateful(workers, by_sample=True)), stop_after)


@pytest.mark.parametrize("repack", [False, True])
@pytest.mark.parametrize("stop_after", [1, 7, 12])
def test_with_a_sampler_of_the_users_own(repack: bool, stop_after: int) -> None:
    """The order of the interrupted epoch comes out of the checkpoint; later ones from the user's sampler."""

    def make(pruner: Pruner) -> DataLoader:
        class Seeded(RandomSampler):
            def __iter__(self):
                self.generator = torch.Generator().manual_seed(pruner.epoch)
                return super().__iter__()

        inner = BatchSampler(Seeded(DATASET), BATCH_SIZE, drop_last=False)
        return DataLoader(Indexed(DATASET), batch_sampler=pruner.filter(inner, repack=repack))

    assert_resumes(lambda: Run(POLICIES["epoch"], make), stop_after)


def test_a_state_is_a_copy_that_later_training_does_not_change() -> None:
    run = Run(POLICIES["epoch"])
    run.go(4)
    state = run.pruner.state_dict()
    before = {name: value.clone() for name, value in state["table"]["columns"].items()}
    run.go(9)
    assert all(torch.equal(state["table"]["columns"][name], before[name]) for name in before)


def test_a_checkpoint_brings_its_seed_along() -> None:
    run = Run(POLICIES["epoch"])
    run.go(4)
    other = Pruner(POLICIES["epoch"], DATASET, seed=99)
    other.load_state_dict(run.pruner.state_dict())
    assert other.seed == 7


def test_an_epoch_can_go_on_with_another_batch_size() -> None:
    run = Run(POLICIES["epoch"])
    run.go(2)
    pruner = Pruner(POLICIES["epoch"], DATASET)
    pruner.load_state_dict(run.pruner.state_dict())
    rest = [i for index, _ in pruner.loader(DATASET, batch_size=4) for i in index.tolist()]
    assert len(rest) == 32 - 12
    assert not set(rest) & {i for batch in run.visited for i in batch}


def test_between_epochs_nothing_of_the_draw_is_kept() -> None:
    run = Run(POLICIES["epoch"])
    run.go(6)
    timeline = run.pruner.state_dict()["timeline"]
    assert timeline["epoch"] is None
    assert timeline["selection"] is None


@pytest.mark.parametrize("policy", ["epoch", "batch", "weighted"])
@pytest.mark.parametrize("where", ["made", "loaded", "iterated", "synced"])
def test_what_happens_in_inference_mode_does_not_disturb_the_training_after_it(policy: str, where: str) -> None:
    straight, first = Run(POLICIES[policy]), Run(POLICIES[policy])
    straight.go()
    saved = first.go(4)
    with torch.inference_mode(where == "made"):
        second = Run(POLICIES[policy])
    second.model, second.optimizer = first.model, first.optimizer
    with torch.inference_mode(where == "loaded"):
        state = torch.load(io.BytesIO(saved), weights_only=True)
        second.pruner.load_state_dict(state["pruner"])
    second.steps = first.steps
    with torch.inference_mode(where == "iterated"):
        next(iter(second.loader))
    with torch.inference_mode(where == "synced"):
        second.pruner.sync()
    second.go()
    assert first.visited + second.visited == straight.visited
    assert second.pruner.report() == straight.pruner.report()
