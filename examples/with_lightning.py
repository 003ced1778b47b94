"""Handwritten digits with PyTorch Lightning: a DataModule, one device or several, checkpoints.

    python examples/with_lightning.py --devices 2 --checkpoint run

The DataModule creates the pruner in its ``setup``, when the size of the data is known; ``DataPruning()`` finds it.
Stop the program and start it again: it goes on from the last checkpoint. The lines that pruning adds are marked.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import orderdp
from orderdp.integrations.lightning import DataPruning

BATCH_SIZE = 32  # over all devices, so that the learning rate suits any number of them


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16.0).astype(np.float32)
    split = train_test_split(pixels, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in split)
    return TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)


class DigitsData(LightningDataModule):
    """The digits, and the pruner that selects among them.

    Args:
        policy: Name and parameters of the policy, the words of `orderdp.build`.
        batch_size: Samples per batch and device.
        seed: Seed of the pruner.
    """

    def __init__(self, policy: dict[str, Any], batch_size: int = BATCH_SIZE, seed: int = 0) -> None:
        super().__init__()
        self.policy, self.batch_size, self.seed = policy, batch_size, seed
        self.pruner: orderdp.Pruner | None = None  # pruning

    def setup(self, stage: str) -> None:
        self.train_set, self.test_set = load()
        if stage == "fit" and self.pruner is None:
            self.pruner = orderdp.Pruner(orderdp.build(**self.policy), self.train_set, seed=self.seed)  # pruning

    def train_dataloader(self) -> Any:
        return self.pruner.loader(self.train_set, batch_size=self.batch_size)  # pruning

    def test_dataloader(self) -> Any:
        return DataLoader(self.test_set, batch_size=len(self.test_set))


class Digits(LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.criterion = torch.nn.CrossEntropyLoss(reduction="none")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """One step; the returned loss is the mean that Lightning calls backward on."""
        index, (x, y) = batch  # pruning: the index comes first
        return self.trainer.datamodule.pruner.update(index, self.criterion(self.model(x), y))  # pruning

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def main(arguments: list[str] | None = None) -> None:
    """Trains, tests and prints, the latter on the first device only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="how many in all (default 20)")
    parser.add_argument("--devices", type=int, default=1, help="how many processes (default 1)")
    parser.add_argument("--checkpoint", type=Path, help="a folder to write checkpoints to, and to go on from")
    options = parser.parse_args(arguments)

    data = DigitsData({"name": "orderdp", "prune_ratio": 0.4}, BATCH_SIZE // options.devices)
    callbacks: list[Any] = [DataPruning()]  # pruning
    last = None
    if options.checkpoint is not None:
        callbacks.append(ModelCheckpoint(options.checkpoint, filename="run", enable_version_counter=False))
        last = options.checkpoint / "run.ckpt"
    trainer = Trainer(
        accelerator="cpu",
        devices=options.devices,
        max_epochs=options.epochs,
        use_distributed_sampler=False,  # pruning: the pruner gives each device its share
        callbacks=callbacks,
        enable_checkpointing=last is not None,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the same weights in every process
        module = Digits()
    trainer.fit(module, datamodule=data, ckpt_path=last if last is not None and last.exists() else None)

    if trainer.is_global_zero:
        x, y = data.test_set.tensors
        with torch.no_grad():
            accuracy = (module.model.eval()(x).argmax(1) == y).float().mean().item()
        kept = int(trainer.callback_metrics["orderdp/kept"])
        print(f"test accuracy {accuracy:.2%}, with {data.pruner.report()['saved']:.1%} fewer samples, {kept} in all")


if __name__ == "__main__":
    main()
