"""Handwritten digits with Ray Train: two workers, checkpoints through Ray, and a worker that is killed on purpose.

    pip install '.[demo,ray]'
    python examples/ray_train.py [--epochs 8] [--kill-in-epoch 4] [--storage FOLDER]

Each worker trains a small convolutional network on its share of an epoch, with 40 % of the samples left out. With
--kill-in-epoch, one worker kills itself, once, in the middle of that epoch; Ray starts both anew, and they go on from
the last checkpoint. The lines that pruning adds are marked.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import orderdp
import ray
from orderdp.experiments.models import build_model

WORKERS = 2
BATCH_SIZE = 32  # over all workers


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set, as images of one channel."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    split = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in split)
    return TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)


class Run:
    """Everything that a checkpoint has to hold."""

    def __init__(self, train_set: TensorDataset, world: int) -> None:
        self.model = build_model("cnn", shape=(1, 8, 8), classes=10, seed=0, width=8)
        self.wrapped = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        self.pruner = orderdp.Pruner(orderdp.OrderDP(prune_ratio=0.4), train_set, seed=0)  # pruning
        self.loader = self.pruner.loader(train_set, batch_size=BATCH_SIZE // world)  # pruning

    def parts(self) -> dict[str, Any]:
        """What has a state."""
        return {"model": self.model, "optimizer": self.optimizer, "pruner": self.pruner}  # pruning: the third

    def load(self, checkpoint: Checkpoint | None) -> None:
        """All workers read the same file, if there is one."""
        if checkpoint is None:
            return
        with checkpoint.as_directory() as folder:
            state = orderdp.load_checkpoint(Path(folder) / "run.pt")
        for name, part in self.parts().items():
            part.load_state_dict(state[name])

    def report(self, rank: int, metrics: dict[str, float]) -> None:
        """All workers come here; one hands in a checkpoint."""
        self.pruner.sync()  # pruning: before it, each worker knows its own losses only
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                state = {name: part.state_dict() for name, part in self.parts().items()}
                orderdp.save_checkpoint(Path(folder) / "run.pt", state)
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


def train_loop(config: dict[str, Any]) -> None:
    """What each worker does."""
    torch.set_num_threads(1)
    train_set, test_set = load()
    run = Run(train_set, dist.get_world_size())
    run.load(ray.train.get_checkpoint())
    rank = dist.get_rank()
    train_epochs(run, test_set, rank, config, lambda metrics: run.report(rank, metrics))


def train_epochs(
    run: Run, test_set: TensorDataset, rank: int, config: dict[str, Any], report: Callable[[dict[str, float]], None]
) -> None:
    """Trains what is left; nothing here knows of Ray."""
    criterion = torch.nn.CrossEntropyLoss(reduction="none")
    began_at = run.pruner.epoch
    for epoch in range(began_at, config["epochs"]):
        run.model.train()
        for step, (index, (x, y)) in enumerate(run.loader):
            loss = run.pruner.update(index, criterion(run.wrapped(x), y))  # pruning
            run.optimizer.zero_grad()
            loss.backward()
            run.optimizer.step()
            if rank == 1 and (epoch, step) == (config["kill_in_epoch"], 5):
                die_once(Path(config["storage"]) / "killed")
        numbers = run.pruner.report()
        found = accuracy(run.model, test_set)
        report(
            {
                "epoch": epoch,
                "began_at": began_at,
                "accuracy": found,
                "kept": numbers["kept"],
                "saved": numbers["saved"],
            }
        )


def die_once(marker: Path) -> None:
    """Kills this process without warning, unless one has been killed before."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def accuracy(model: torch.nn.Module, test_set: TensorDataset) -> float:
    """Share of the test set that is right."""
    x, y = test_set.tensors
    with torch.no_grad():
        return (model.eval()(x).argmax(1) == y).float().mean().item()


def train(epochs: int, storage: Path, kill_in_epoch: int | None = None) -> ray.train.Result:
    """Runs the job and returns Ray's result."""
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"epochs": epochs, "kill_in_epoch": kill_in_epoch, "storage": str(storage)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(
            name="digits",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=2),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    return trainer.fit()


@contextmanager
def local_ray() -> Iterator[None]:
    """Ray on this machine."""
    # Eight, whatever the machine has: Ray sets processors aside for itself. Without its dashboard the job would hang.
    ray.init(num_cpus=8, include_dashboard=True, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def main(arguments: list[str] | None = None) -> None:
    """Trains and prints what came of it, as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="how many (default 8)")
    parser.add_argument("--kill-in-epoch", type=int, help="let one worker die in this epoch, counted from 0")
    parser.add_argument("--storage", type=Path, help="where Ray keeps checkpoints (default: a temporary folder)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary, local_ray():
        storage = (options.storage or Path(temporary)).resolve()
        storage.mkdir(parents=True, exist_ok=True)
        result = train(options.epochs, storage, options.kill_in_epoch)
        metrics = {name: result.metrics[name] for name in ("epoch", "accuracy", "kept", "saved", "began_at")}
        print(json.dumps({**metrics, "killed": (storage / "killed").exists(), "checkpoint": result.checkpoint.path}))


if __name__ == "__main__":
    main()
