"""What each process of a gloo group does in test_distributed.py. Apart, so that processes import little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from orderdp import Indexed, OrderDP, Pruner
from orderdp.errors import OrderDPError
from orderdp.policies import UCB
from tests.support import KeepAll, fake_losses, toy_dataset

EPOCHS = 4
BATCH_SIZE = 4
GROUP_TIMEOUT = 2.0  # of a group in which a rank does not come
CASES = {
    "ragged": (OrderDP(0.4), 75),  # 45 kept: no number of ranks but one, and no batch size, divides it
    "even": (OrderDP(0.4), 80),
    "remembers more": (UCB(0.3), 67),
    "every step": (OrderDP(0.4, every="batch"), 75),
}


class CountedCollectives:
    """Counts calls of everything in torch.distributed that makes processes wait for each other."""

    NAMES = (
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "reduce",
        "reduce_scatter",
        "scatter",
        "scatter_object_list",
        "send",
        "recv",
    )

    def __enter__(self) -> CountedCollectives:
        self.calls: list[str] = []
        self._originals = {name: getattr(dist, name) for name in self.NAMES}
        for name, original in self._originals.items():
            setattr(dist, name, self._counting(name, original))
        return self

    def _counting(self, name: str, original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            return original(*arguments, **options)

        return call

    def __exit__(self, *error: object) -> None:
        for name, original in self._originals.items():
            setattr(dist, name, original)


def train(case: str, **options: Any) -> dict[str, Any]:
    policy, n = CASES[case]
    dataset = toy_dataset(n)
    pruner = Pruner(policy, dataset, seed=3, **options)
    loader = pruner.loader(dataset, batch_size=BATCH_SIZE)
    visited, counts, told = [], [], []
    for step in range(EPOCHS):
        epoch = []
        with CountedCollectives() as counted:
            for index, _ in loader:
                pruner.update(index, fake_losses(index, step))
                len(loader), pruner.report()
                epoch.append(index.tolist())
        visited.append(epoch)
        counts.append(counted.calls)
        told.append(pruner.report()["exchanged_bytes"])
    pruner.sync()
    table = {name: torch.tensor(pruner._table[name]) for name in pruner._table.declared}
    return {"visited": visited, "collectives": counts, "bytes": told, "table": table, "steps": len(loader)}


def all_cases(rank: int, world: int, folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {case: train(case) for case in CASES}
    results["padded"] = train("ragged", pad=True)
    results["too few"] = error_of(lambda: iter(Pruner(KeepAll(), 1).sampler)) if world > 1 else None
    # Two halves of the world that know nothing of each other.
    halves = [dist.new_group(ranks) for ranks in (range(0, world, 2), range(1, world, 2)) if len(ranks)]
    results["half"] = train("ragged", process_group=halves[rank % 2])
    return results


def error_of(act: Any) -> str:
    try:
        act()
    except OrderDPError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def bad_input(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Each of these must end in an error on every rank, and leave the group usable for the next."""
    results: dict[str, Any] = {}

    def begin(policy: Any = None, n: int = 40, **options: Any) -> None:
        iter(Pruner(policy or OrderDP(0.4), n, **options).batch_sampler(4))

    results["seed"] = error_of(lambda: begin(seed=rank))
    results["policy"] = error_of(lambda: begin(OrderDP(0.4 + 0.1 * rank)))
    results["length"] = error_of(lambda: begin(n=40 + rank))
    results["strict"] = error_of(lambda: one_nan(rank))
    results["twice"] = error_of(lambda: dealt_twice(rank, world))
    results["no index"] = error_of(lambda: Pruner(OrderDP(0.4), 40).update(torch.rand(3), torch.rand(3)))
    results["alone"] = error_of(begin)
    # Last, since it breaks the group: rank 1 never comes.

    if rank:
        time.sleep(GROUP_TIMEOUT + 2)
    results["never"] = "elsewhere" if rank else error_of(begin)

    return results


def one_nan(rank: int) -> None:
    pruner = Pruner(OrderDP(0.4), 40, on_nan="raise")
    for batch in pruner.batch_sampler(4):
        pruner.update(torch.tensor(batch), torch.full((len(batch),), torch.nan if rank else 1.0))
    iter(pruner.sampler)


def dealt_twice(rank: int, world: int) -> None:
    pruner = Pruner(OrderDP(0.4), 400)
    for _ in range(2):
        for number, batch in enumerate(pruner.batch_sampler(4)):
            if number % world == rank:
                pruner.update(torch.tensor(batch), torch.rand(len(batch)))


def late_group(rank: int, world: int, folder: Path) -> list[list[int]]:
    """The pruner, and even its loader, is older than the process group."""
    dist.destroy_process_group()
    dataset = toy_dataset(40)
    pruner = Pruner(OrderDP(0.4), dataset)
    loader = pruner.loader(dataset, batch_size=4)
    alone = len(loader)
    dist.init_process_group("gloo", init_method=f"file://{folder}/later", rank=rank, world_size=world)
    assert (alone, len(loader)) == (6, 3)
    return [index.tolist() for index, _ in loader]


def through_stateful_loaders(rank: int, world: int, folder: Path, stops: list[int]) -> dict[int, tuple[list, list]]:
    """A straight run, and one that is stopped after so many steps and resumed by torchdata's loader."""
    return {stop_after: through_a_stateful_loader(stop_after) for stop_after in stops}


def through_a_stateful_loader(stop_after: int) -> tuple[list, list]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = toy_dataset(80)

    def make() -> tuple[Pruner, Any]:
        pruner = Pruner(OrderDP(0.4), dataset, seed=1)
        batches = pruner.batch_sampler(6)
        return pruner, StatefulDataLoader(Indexed(dataset), batch_sampler=batches)

    def go(pruner: Pruner, loader: Any, steps: int | None = None) -> list[list[int]]:
        visited = []
        for _ in range(pruner.epoch, EPOCHS):
            for index, _ in loader:
                pruner.update(index, fake_losses(index, pruner.epoch))
                visited.append(index.tolist())
                if len(visited) == steps:
                    return visited
        return visited

    straight = go(*make())
    pruner, loader = make()
    first = go(pruner, loader, stop_after)
    pruner.sync()
    states = pruner.state_dict(), loader.state_dict()
    resumed, again = make()
    resumed.load_state_dict(states[0])
    again.load_state_dict(states[1])
    return straight, first + go(resumed, again)
