"""What each process of a gloo group does in test_sharded_processes.py. Apart, so that processes import little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from orderdp import OrderDP, Pruner
from orderdp.distributed import load_parts, save_parts
from tests.distributed_work import CountedCollectives, error_of
from tests.support import fake_losses, toy_dataset

N, EPOCHS = 120, 4  # 72 of 120 are kept: 2 and 3 ranks share them evenly
GROUP_TIMEOUT = 2.0  # of a group in which a rank does not come


def losses_of(index: torch.Tensor, step: int) -> torch.Tensor:
    """Larger for late samples, so that picks have to move."""
    return fake_losses(index, step) + index / 30


def make(sharding: Any = "exact", n: int = N) -> Pruner:
    return Pruner(OrderDP(0.4), n, seed=5, table="sharded", sharding=sharding)


def train(sharding: Any) -> dict[str, Any]:
    dataset, pruner, visited, told = toy_dataset(N), make(sharding), [], []
    loader = pruner.loader(dataset, batch_size=4)
    with CountedCollectives() as counted:
        for step in range(EPOCHS):
            epoch = []
            for index, _ in loader:
                pruner.update(index, losses_of(index, step))
                epoch += index.tolist()
            visited.append(epoch)
            told.append(pruner.report())
        pruner.sync()
    return {"visited": visited, "scores": pruner.scores, "told": told, "collectives": counted.calls}


def everything(rank: int, world: int, folder: Path, checkpoint: Path) -> dict[str, Any]:
    results: dict[str, Any] = {sharding: train(sharding) for sharding in ("exact", "stratified")}
    results["length"] = error_of(lambda: iter(make(n=N + rank).sampler))
    pruner = make()
    steps = iter(pruner.batch_sampler(4))
    results["first"] = []
    for _ in range(5):
        batch = next(steps)
        pruner.update(torch.tensor(batch), losses_of(torch.tensor(batch), 0))
        results["first"] += batch
    save_parts(pruner, checkpoint)
    # Last, since it breaks the group: all but the first never come.
    if rank:
        time.sleep(GROUP_TIMEOUT + 2)
    results["never"] = "elsewhere" if rank else error_of(lambda: iter(pruner.sampler))
    return results


def go_on(rank: int, world: int, folder: Path, checkpoint: Path) -> dict[str, Any]:
    pruner = make()
    load_parts(pruner, checkpoint)
    rest = [sample for batch in pruner.batch_sampler(4) for sample in batch]
    return {"rest": rest, "used": int(pruner.usage.sum())}
