"""Trainings with Lightning, on one device and on two, for test_lightning.py."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from torch.utils.data import DataLoader

import orderdp
from orderdp.errors import OrderDPError
from orderdp.integrations.lightning import DataPruning
from tests.support import toy_dataset

EPOCHS, BATCH_SIZE = 3, 5
N = 75  # 45 are kept: nine batches, or four for each of two devices and two samples more
DATASET = toy_dataset(N, features=6, classes=4)
POLICIES = {"epoch": orderdp.OrderDP(0.4), "batch": orderdp.OrderDP(0.4, every="batch")}

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(LightningModule):
    """A training as people write it, which also notes what it was given."""

    def __init__(self, pruner: orderdp.Pruner) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = torch.nn.Linear(6, 4)
        self.pruner = pruner
        self.visited: list[tuple[int, int, list[int]]] = []
        self.heard: dict[int, float] = {}
        self.steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        index, (x, y) = batch
        losses = torch.nn.functional.cross_entropy(self.model(x), y, reduction="none")
        self.visited.append((self.current_epoch, batch_idx, index.tolist()))
        self.heard.update(zip(index.tolist(), losses.tolist(), strict=True))
        return self.pruner.update(index, losses)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.steps += 1

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("loss", torch.nn.functional.cross_entropy(self.model(x), y), batch_size=len(y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


class StoppedError(Exception):
    """A run was stopped on purpose."""


class SaveAt(Callback):
    """Saves a checkpoint when a hook is called for the n-th time."""

    def __init__(self, path: Path, hook: str, call: int, stop: bool) -> None:
        self.path, self.calls, self.call, self.stop = path, 0, call, stop
        setattr(self, hook, self._save)

    def _save(self, trainer: Trainer, *_: Any) -> None:
        if trainer.sanity_checking:
            return
        self.calls += 1
        if self.calls == self.call:
            trainer.save_checkpoint(self.path)
            if self.stop:
                raise StoppedError


def make(policy: Any = "epoch", callbacks: list[Any] | None = None, **options: Any) -> tuple[Module, Trainer, Any]:
    """A module, its trainer and its loader."""
    pruner = orderdp.Pruner(POLICIES.get(policy, policy), DATASET, seed=4, epochs=EPOCHS)
    loader = pruner.loader(DATASET, batch_size=BATCH_SIZE, num_workers=options.pop("num_workers", 0))
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": EPOCHS,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **options,
    }
    return Module(pruner), Trainer(callbacks=[DataPruning(pruner), *(callbacks or [])], **settings), loader


def fit(module: Module, trainer: Trainer, loader: Any, **options: Any) -> None:
    if options.pop("validate", False):
        options["val_dataloaders"] = DataLoader(DATASET, batch_size=25)
    with warnings.catch_warnings():
        # Lightning knows loaders with a position of their own; ours is the pruner's.
        warnings.filterwarnings("ignore", ".*your dataloader is not resumable.*", PossibleUserWarning)
        # Most of these trainings are not validated.
        warnings.filterwarnings("ignore", ".*have no `val_dataloader`.*", PossibleUserWarning)
        # What suits two cores does not matter here.
        warnings.filterwarnings("ignore", ".*does not have many workers.*", PossibleUserWarning)
        warnings.filterwarnings("ignore", ".*persistent_workers.*")
        trainer.fit(module, loader, **options)


def result(module: Module, trainer: Trainer) -> dict[str, Any]:
    return {
        "weights": [weight.detach().clone() for weight in module.model.parameters()],
        "visited": module.visited,
        "scores": module.pruner.scores,
        "report": module.pruner.report(),
        "heard": module.heard,
        "steps": module.steps,
        "logged": {name: value.item() for name, value in trainer.callback_metrics.items()},
    }


def straight(policy: Any = "epoch", validate: bool = False, **options: Any) -> dict[str, Any]:
    module, trainer, loader = make(policy, **options)
    fit(module, trainer, loader, validate=validate)
    return result(module, trainer)


def resumed(
    path: Path, hook: str, call: int, policy: Any = "epoch", validate: bool = False, **options: Any
) -> dict[str, Any]:
    """Saves in a hook, is stopped there, and goes on with Trainer.fit(ckpt_path=...)."""
    first, trainer, loader = make(policy, [SaveAt(path, hook, call, stop=True)], **options)
    with suppress(StoppedError):
        fit(first, trainer, loader, validate=validate)
    assert path.exists(), "nothing was saved"
    seen = list(first.visited)
    second, trainer, loader = make(policy, **options)
    fit(second, trainer, loader, validate=validate, ckpt_path=path, weights_only=True)
    return {**result(second, trainer), "visited": seen + second.visited}


def refused(case: Callable[[], Any]) -> str:
    """What an error says, where one is raised."""
    try:
        case()
    except OrderDPError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


# -- two devices -------------------------------------------------------------------------------------------------------

TWO = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
SHARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "every step": {"policy": "batch"},
    "limited": {"limit_train_batches": 2},
    "accumulated": {"accumulate_grad_batches": 3},
    "validated": {"validate": True},
}
RESUMED: dict[str, tuple[str, str, int]] = {
    "mid-epoch": ("plain", "on_train_batch_end", 6),
    "after an epoch": ("plain", "on_train_epoch_end", 1),
    "every step, mid-epoch": ("every step", "on_train_batch_end", 7),
    "limited, last batch": ("limited", "on_train_batch_end", 2),
    "validated": ("validated", "on_validation_end", 1),
}


def two(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """All that needs two processes, in one go: starting them takes longer than what they do."""
    # As a launcher sets them. The processes have met already, through a file, so no port is opened.
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    results: dict[str, Any] = {}
    for name, options in SHARED.items():
        results[name] = straight(**options, **TWO)
    for name, (twin, hook, call) in RESUMED.items():
        results[f"{name}, resumed"] = resumed(folder / f"{name}.ckpt", hook, call, **SHARED[twin], **TWO)
    results["errors"] = {name: refused(case) for name, case in REFUSED.items()}
    return results


def sampler_of_lightning() -> None:
    straight(devices=2, strategy="ddp")


def nothing_is_sharded() -> None:
    pruner = orderdp.Pruner(orderdp.OrderDP(0.4), DATASET, shard=False)
    _, trainer, _ = make(**TWO)
    trainer.callbacks[0] = DataPruning(pruner)
    fit(Module(pruner), trainer, pruner.loader(DATASET, batch_size=BATCH_SIZE))


def sharded_again() -> None:
    """No check of the settings, and Lightning wraps the sampler, once in each process."""
    _, trainer, _ = make(devices=2, strategy="ddp")
    pruner = orderdp.Pruner(orderdp.OrderDP(0.4), 4 * N)
    trainer.callbacks[:] = []
    dataset = orderdp.Indexed(toy_dataset(4 * N, features=6, classes=4))
    loader = DataLoader(dataset, sampler=pruner.sampler, batch_size=BATCH_SIZE)
    fit(Module(pruner), trainer, loader)


REFUSED: dict[str, Callable[[], None]] = {
    "Lightning's sampler": sampler_of_lightning,
    "nothing is sharded": nothing_is_sharded,
    "sharded again": sharded_again,
}
