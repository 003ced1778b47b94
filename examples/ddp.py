"""Handwritten digits in several processes: DistributedDataParallel, checkpoints, and resuming with another number.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py --checkpoint run.pt

Stop it (Ctrl-C, kill -9) and start it again, with as many processes or another number: it goes on from the last
checkpoint. It also runs without torchrun, in one process. The lines that pruning adds are marked.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import orderdp

BATCH_SIZE = 32  # over all processes, so that the learning rate suits any number of them
SAVE_EVERY = 20  # steps


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16.0).astype(np.float32)
    split = train_test_split(pixels, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in split)
    return TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)


def make_model() -> torch.nn.Module:
    """The same in every process. Layers that normalize over the batch would see a share of it only."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.GroupNorm(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )


class Run:
    """Everything that a checkpoint has to hold."""

    def __init__(self, train_set: TensorDataset, rank: int, world: int) -> None:
        self.rank = rank
        self.model = make_model()
        self.wrapped = DistributedDataParallel(self.model) if world > 1 else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.pruner = orderdp.Pruner(orderdp.OrderDP(prune_ratio=0.4), train_set, seed=0)  # pruning
        self.loader = self.pruner.loader(train_set, batch_size=BATCH_SIZE // world)  # pruning
        self.steps = 0

    def save(self, path: Path) -> None:
        """All processes come here; one writes."""
        self.pruner.sync()  # pruning: before it, each process knows its own losses only
        if self.rank == 0:
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "pruner": self.pruner.state_dict(),  # pruning
                "steps": self.steps,
            }
            orderdp.save_checkpoint(path, state)

    def load(self, path: Path) -> None:
        """All processes read the same file."""
        state = orderdp.load_checkpoint(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.pruner.load_state_dict(state["pruner"])  # pruning
        self.steps = state["steps"]

    def train(self, epochs: int, path: Path | None) -> None:
        """Trains what is left of so many epochs."""
        criterion = torch.nn.CrossEntropyLoss(reduction="none")
        for _ in range(self.pruner.epoch, epochs):
            for index, (x, y) in self.loader:
                loss = self.pruner.update(index, criterion(self.wrapped(x), y))  # pruning
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.steps += 1
                if path is not None and self.steps % SAVE_EVERY == 0:
                    self.save(path)
        if path is not None:
            self.save(path)


def main(arguments: list[str] | None = None) -> None:
    """Trains, tests and prints, the latter in the first process only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="how many in all (default 20)")
    parser.add_argument("--checkpoint", type=Path, help="where to write checkpoints, and to go on from")
    options = parser.parse_args(arguments)

    several = "RANK" in os.environ  # torchrun sets it
    if several:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)

    train_set, test_set = load()
    run = Run(train_set, rank, world)
    if options.checkpoint is not None and options.checkpoint.exists():
        run.load(options.checkpoint)
    if rank == 0:
        print(f"goes on at epoch {run.pruner.epoch} of {options.epochs} with {world} processes", flush=True)
    run.train(options.epochs, options.checkpoint)

    if rank == 0:
        x, y = test_set.tensors
        with torch.no_grad():
            accuracy = (run.model.eval()(x).argmax(1) == y).float().mean().item()
        print(f"test accuracy {accuracy:.2%}, with {run.pruner.report()['saved']:.1%} fewer samples")
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
