"""Trainings of one model by several processes, for test_ddp.py and test_elastic.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import orderdp
from orderdp.distributed import DCPState
from orderdp.policies import Mixed
from tests.support import toy_dataset

EPOCHS = 5
STEP = 12  # samples a step over all processes, of which there may be one, two or three
DATASET = toy_dataset(160, features=6, classes=4)  # 96 are kept: eight steps
POLICIES = {
    "once an epoch": orderdp.OrderDP(0.4),
    "every step": orderdp.OrderDP(0.4, every="batch"),
    "weighted": orderdp.OrderDP(0.4, select=Mixed(top=0.7, uniform=0.3), unbiased=True),
}


def make_model() -> torch.nn.Module:
    """In float64, and without statistics over the batch: the order of sums is all that differs between processes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (torch.nn.Linear(6, 16), torch.nn.GroupNorm(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        return torch.nn.Sequential(*layers).double()


class Training:
    """The lines of a training loop, the same for one process, DDP and FSDP2."""

    def __init__(self, policy: Any, world: int, wrap: Any = None) -> None:
        self.model = make_model()
        self.wrapped = self.model if wrap is None else wrap(self.model)
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), lr=0.2, momentum=0.9)
        self.criterion = torch.nn.CrossEntropyLoss(reduction="none")
        self.pruner = orderdp.Pruner(policy, DATASET, seed=1, epochs=EPOCHS)
        self.loader = self.pruner.loader(DATASET, batch_size=STEP // world)
        self.visited: list[tuple[int, list[int]]] = []

    def run(self, after_step: Any = None, stop_after: int | None = None) -> None:
        for _ in range(self.pruner.epoch, EPOCHS):
            for index, (x, y) in self.loader:
                self.visited.append((self.pruner.epoch, index.tolist()))
                loss = self.pruner.update(index, self.criterion(self.wrapped(x.double()), y))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if after_step is not None:
                    after_step()
                if len(self.visited) == stop_after:
                    return

    def result(self) -> dict[str, Any]:
        weights = {name: full(value).detach().clone() for name, value in self.model.named_parameters()}
        return {"weights": weights, "visited": self.visited, "report": self.pruner.report()}


def samples_of_steps(ranks: list[dict[str, Any]]) -> list[tuple[int, list[int]]]:
    """The samples of each step, of all ranks."""
    steps = zip(*(rank["visited"] for rank in ranks), strict=True)
    return [(step[0][0], sorted(i for _, batch in step for i in batch)) for step in steps]


def full(value: Any) -> torch.Tensor:
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole


def ddp(rank: int, world: int, folder: Path) -> dict[str, Any]:
    results = {}
    for name, policy in POLICIES.items():
        training = Training(policy, world, DistributedDataParallel)
        training.run()
        results[name] = training.result()
    return results


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def fsdp(rank: int, world: int, folder: Path) -> dict[str, Any]:
    training = Training(POLICIES["once an epoch"], world, sharded)
    training.run()
    return training.result()


def through_a_distributed_checkpoint(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Stops in mid-epoch and goes on, with what torch.distributed.checkpoint has stored."""
    from torch.distributed import checkpoint

    first = Training(POLICIES["once an epoch"], world, sharded)
    first.run(stop_after=9)
    first.pruner.sync()
    checkpoint.save(stored(first), checkpoint_id=folder / "checkpoint")
    second = Training(POLICIES["once an epoch"], world, sharded)
    second.optimizer.load_state_dict(first.optimizer.state_dict())  # the optimizer's own state is not what is tested
    checkpoint.load(stored(second), checkpoint_id=folder / "checkpoint")
    second.run()
    return {**second.result(), "visited": first.visited + second.visited}


def stored(training: Training) -> dict[str, Any]:
    return {"model": training.model.state_dict(), "pruner": DCPState(training.pruner)}


# -- a job that is restarted -----------------------------------------------------------------------------------------

SAVE_EVERY = 4
KILLED_AT = 14  # in mid-epoch, and two steps after the last checkpoint


def elastic(rank: int, world: int, folder: Path, kill: bool = False, stop_after: int | None = None) -> dict[str, Any]:
    """Trains with checkpoints, from the last one if there is one. Rank 1 can be killed once, without warning."""
    training, path = Training(POLICIES["once an epoch"], world, DistributedDataParallel), folder / "job.pt"
    steps = 0
    if path.exists():
        state = orderdp.load_checkpoint(path)
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        training.pruner.load_state_dict(state["pruner"])
        steps = state["steps"]

    def after_step() -> None:
        nonlocal steps
        steps += 1
        if kill and rank == 1 and steps == KILLED_AT:
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if steps % SAVE_EVERY == 0:
            training.pruner.sync()
            if rank == 0:
                save(training, steps, path)
            dist.barrier()

    training.run(after_step, stop_after)
    return training.result()


def save(training: Training, steps: int, path: Path) -> None:
    orderdp.save_checkpoint(
        path,
        {
            "model": training.model.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "pruner": training.pruner.state_dict(),
            "steps": steps,
        },
    )


def batches_of_two_epochs(workers: int) -> list[list[int]]:
    """Here, because workers need processes that torchrun has started: those of a test may have no children."""
    pruner, visited = orderdp.Pruner(POLICIES["every step"], DATASET), []
    loader = pruner.loader(DATASET, batch_size=5, num_workers=workers)
    for _ in range(2):
        for index, (x, _) in loader:
            pruner.update(index, x.square().sum(1))
            visited.append(index.tolist())
    return visited


def main(folder: Path) -> None:
    """What torchrun starts."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    result = elastic(rank, world, folder, kill=not (folder / "killed").exists())
    result["workers"] = [batches_of_two_epochs(workers) for workers in (0, 2)]
    torch.save(result, folder / f"result{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(os.environ["ORDERDP_TEST_FOLDER"]))
