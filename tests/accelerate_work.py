"""Trainings with Accelerate, in one process and in two, for test_accelerate.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader

import orderdp
from orderdp.errors import OrderDPError
from orderdp.integrations.accelerate import register
from tests.support import toy_dataset

EPOCHS, BATCH_SIZE = 3, 5
N = 75  # 45 are kept: nine batches, which two processes cannot share evenly
DATASET = toy_dataset(N, features=6, classes=4)
POLICIES = {"epoch": orderdp.OrderDP(0.4), "batch": orderdp.OrderDP(0.4, every="batch")}


class Training:
    """The lines of a training loop, with everything that has to be saved."""

    def __init__(self, policy: str = "epoch", *, world: int = 1, drop_last: bool = False, **options: Any) -> None:
        forget()
        loading = DataLoaderConfiguration(
            use_stateful_dataloader=options.pop("stateful", False),
            split_batches=options.pop("split", False),
        )
        self.accelerator = Accelerator(cpu=True, dataloader_config=loading, **options)
        assert self.accelerator.num_processes == world
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        self.pruner = orderdp.Pruner(POLICIES[policy], DATASET, seed=4, epochs=EPOCHS, shard=False)
        loader = self.pruner.loader(DATASET, batch_size=BATCH_SIZE + loading.split_batches, drop_last=drop_last)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        register(self.accelerator, self.pruner)
        self.criterion = torch.nn.CrossEntropyLoss(reduction="none")
        self.visited: list[tuple[int, list[int]]] = []
        self.heard: dict[int, float] = {}  # what each sample's score must be
        self.steps = 0
        self.pause: int | None = None

    def train_on(self, batches: Any, stop_after: int | None = None) -> bool:
        """Goes through batches; says whether it stopped in mid-epoch."""
        for index, (x, y) in batches:
            with self.accelerator.accumulate(self.model):
                self.visited.append((self.pruner.epoch, index.tolist()))
                losses = self.criterion(self.model(x), y)
                self.heard.update(zip(index.tolist(), losses.tolist(), strict=True))
                loss = self.pruner.update(index, losses)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.steps += self.accelerator.sync_gradients
            if len(self.visited) == self.pause:
                self.pruner.sync()
            if len(self.visited) == stop_after:
                return True
        return False

    def run(self, stop_after: int | None = None, skip: int = 0) -> None:
        for _ in range(self.pruner.epoch, EPOCHS):
            batches = self.accelerator.skip_first_batches(self.loader, skip) if skip else self.loader
            skip = 0
            if self.train_on(batches, stop_after):
                return
            self.pruner.end_epoch()

    def result(self) -> dict[str, Any]:
        weights = [weight.detach().clone() for weight in self.accelerator.unwrap_model(self.model).parameters()]
        return {
            "weights": weights,
            "visited": self.visited,
            "report": self.pruner.report(),
            "scores": self.pruner.scores,
            "heard": self.heard,
            "steps": self.steps,
        }


def forget() -> None:
    """Accelerate keeps its settings in singletons; another training needs other ones."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    PartialState._reset_state()


def straight(policy: str = "epoch", pause: int | None = None, **options: Any) -> dict[str, Any]:
    """Trains without an interruption; or with a pause in which the processes meet, as they do to save."""
    training = Training(policy, **options)
    training.pause = pause
    training.run()
    training.pruner.sync()
    return training.result()


def resumed(folder: Path, stop_after: int, skips: bool, policy: str = "epoch", **options: Any) -> dict[str, Any]:
    """Stops after so many batches, and goes on from what save_state has stored.

    Where the framework skips, it is told how many batches as a program knows it that counts its steps.
    """
    first = Training(policy, **options)
    first.run(stop_after)
    first.accelerator.save_state(str(folder))
    first.accelerator.wait_for_everyone()
    second = Training(policy, **options)
    second.accelerator.load_state(str(folder))
    skip = 0
    if skips:
        second.pruner.rewind()
        if not options.get("stateful"):
            skip = stop_after % len(second.loader)
    second.run(skip=skip)
    second.pruner.sync()
    return {**second.result(), "visited": first.visited + second.visited}


# -- two processes -----------------------------------------------------------------------------------------------------


def two(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """All that needs two processes, in one go: starting them takes longer than what they do."""
    # As a launcher sets them. The processes have met already, through a file, so no port is opened.
    ranks, sizes = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)), ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
    os.environ.update(ranks, **dict.fromkeys(sizes, str(world)), OMP_NUM_THREADS="1")
    results: dict[str, Any] = {}
    for name, options in SHARED.items():
        results[name] = straight(world=world, **options)
    for name, (twin, stop_after, skips, more) in RESUMED.items():
        options = SHARED[twin]
        results[name] = resumed(folder / name, stop_after, skips, world=world, **options, **more)
        # Where Accelerate repeats samples, which of their losses is remembered depends on when the processes meet.
        results[f"{name}, straight"] = straight(pause=stop_after, world=world, **options)
    results["errors"] = {name: refused(case) for name, case in REFUSED.items()}
    return results


SHARED: dict[str, dict[str, Any]] = {
    "even_batches": {},
    "drop_last": {"drop_last": True},
    "every step": {"policy": "batch"},
    "split": {"split": True},
    "accumulate": {"gradient_accumulation_steps": 2},
}
# Which training, after how many batches of each process it stops, whether the framework skips, and what else is set.
RESUMED: dict[str, tuple[str, int, bool, dict[str, Any]]] = {
    "skips, mid-epoch": ("even_batches", 7, True, {}),
    "skips, between epochs": ("even_batches", 5, True, {}),
    "skips, every step": ("every step", 8, True, {}),
    "goes on": ("drop_last", 6, False, {}),
    "goes on after an epoch": ("drop_last", 4, False, {}),
    "stateful": ("even_batches", 7, True, {"stateful": True}),
}


def refused(case: Callable[[], Any]) -> str:
    """What an error says, where one is raised."""
    forget()
    try:
        case()
    except OrderDPError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def sharding_twice() -> None:
    register(Accelerator(cpu=True), orderdp.Pruner(orderdp.OrderDP(0.4), N))


def dispatching() -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    register(accelerator, orderdp.Pruner(orderdp.OrderDP(0.4), N, shard=False))


def sharding_twice_unregistered() -> None:
    """No check of the settings: it shows when an epoch is over that has lost more than it can."""
    pruner = orderdp.Pruner(orderdp.OrderDP(0.4), N)
    loader = Accelerator(cpu=True).prepare(pruner.loader(DATASET, batch_size=BATCH_SIZE))
    for _ in range(2):
        for index, _batch in loader:
            pruner.update(index, index.float())


def going_on_apart() -> None:
    """Only one process says that the framework skips."""
    pruner = orderdp.Pruner(orderdp.OrderDP(0.4), N, shard=False)
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(pruner.loader(DATASET, batch_size=BATCH_SIZE))
    for index, _batch in islice(loader, 2):
        pruner.update(index, index.float())
    pruner.sync()
    pruner.load_state_dict(pruner.state_dict())
    if accelerator.is_main_process:
        pruner.rewind()
    next(iter(loader))


REFUSED: dict[str, Callable[[], None]] = {
    "sharding twice": sharding_twice,
    "dispatching": dispatching,
    "sharding twice, unregistered": sharding_twice_unregistered,
    "rewinding alone": going_on_apart,
}


def plain_loader() -> DataLoader[Any]:
    """One that does not say which samples it gives."""
    return DataLoader(DATASET, batch_size=BATCH_SIZE)
