"""A stream of named samples in shards, and what each process of a gloo group does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import orderdp
from orderdp.errors import OrderDPError
from orderdp.streaming import KeyFilter

SHARDS = [[f"{shard}/{number}" for number in range(9 + shard)] for shard in range(6)]
NAMES = [name for shard in SHARDS for name in shard]
PRUNED = orderdp.OrderDP(prune_ratio=0.4)
EPOCHS = 4


def loss_of(name: str, epoch: int) -> float:
    shard, number = map(int, name.split("/"))
    return (shard * 7 + number * 13 + epoch * 5) % 23 + 0.25 * number


class Shards(IterableDataset):
    """Samples shard by shard, split between ranks and workers. In every epoch a rank gets other shards."""

    def __init__(self, rank: int = 0, world: int = 1, shards: list[list[str]] = SHARDS) -> None:
        self.rank, self.world, self.shards = rank, world, shards
        self.turn = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        mine = [s for place, s in enumerate(self.shards) if (place + self.turn) % self.world == self.rank]
        for shard in mine[worker::workers]:
            for name in shard:
                yield name, len(name)


def train(
    keys: KeyFilter,
    stream: Shards,
    epochs: int,
    *,
    workers: int = 0,
    after_step: Callable[[int], bool] = lambda step: False,
    fetching: Callable[[Iterator[Any]], Iterator[Any]] = iter,
    **options: Any,
) -> list[list[list[str]]]:
    """The batches of each epoch; `after_step` may stop the training by saying so."""
    loader = DataLoader(keys.only(stream), batch_size=4, num_workers=workers, **options)
    visited, step = [], 0
    for epoch in range(keys.epoch, epochs):
        stream.turn = epoch
        visited.append([])
        for names, _ in fetching(keys.one_epoch(loader)):
            keys.update(list(names), torch.tensor([loss_of(name, epoch) for name in names]))
            visited[-1].append(list(names))
            step += 1
            if after_step(step):
                return visited
    return visited


def one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Fetches a batch before it hands out the one before, as those do who copy to a device meanwhile."""
    held = next(batches)
    for batch in batches:
        yield held
        held = batch
    yield held


def flat(batches: list[list[str]]) -> list[str]:
    return [name for batch in batches for name in batch]


# -- what processes do -------------------------------------------------------------------------------------------


def epochs_of_a_rank(rank: int, world: int, folder: Path) -> dict[str, Any]:
    keys = KeyFilter(PRUNED, key=0, seed=5)
    visited = train(keys, Shards(rank, world), EPOCHS)
    keys.sync()
    return {
        "visited": [flat(epoch) for epoch in visited],
        "scores": keys.scores_of(NAMES),
        "report": keys.report(),
        "state": keys.state_dict(),
    }


def stopped_in_the_middle(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Stops after so many steps of the second epoch, and leaves a checkpoint."""
    keys = KeyFilter(PRUNED, key=0, seed=5)
    first = train(keys, Shards(rank, world), 1)
    second = train(keys, Shards(rank, world), 2, after_step=lambda step: step == 2)
    keys.sync()
    if rank == 0:
        orderdp.save_checkpoint(folder / "keys.pt", {"keys": keys.state_dict()})
    dist.barrier()
    return {"visited": [flat(epoch) for epoch in first + second]}


def each_on_its_own(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Every rank has its own shards in every epoch and exchanges nothing."""
    keys = KeyFilter(PRUNED, key=0, seed=5, exchange=False)
    stream = Shards(0, 1, SHARDS[rank::world])
    visited = [flat(epoch) for epoch in train(keys, stream, EPOCHS)]
    return {"visited": visited, "report": keys.report(), "state": keys.state_dict()}


def joined(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """DDP on ranks that keep unequal numbers of samples."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    keys = KeyFilter(PRUNED, key=0, seed=5)
    stream = Shards(0, 1, SHARDS[:1] if rank == 0 else SHARDS[1:])
    steps = 0
    for _ in range(3):
        with Join([ddp]):
            for names, lengths in keys.one_epoch(DataLoader(keys.only(stream), batch_size=4)):
                x = torch.stack([lengths.float(), torch.tensor([float(name[2:]) for name in names])], 1)
                loss = keys.update(list(names), ddp(x).squeeze(1).square())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
    keys.sync()
    return {"steps": steps, "weight": model.weight.detach(), "scores": keys.scores_of(NAMES), "report": keys.report()}


def differently_set_up(rank: int, world: int, folder: Path) -> str:
    keys = KeyFilter(PRUNED, key=0, seed=rank)
    try:
        train(keys, Shards(rank, world), 1)
    except OrderDPError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
