"""Small things several tests need. Nothing here knows how the library works inside."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from examples import digits
from torch.utils.data import TensorDataset

import orderdp
from orderdp._draw import generator
from orderdp.losses import predictions
from orderdp.policy import Context, Selection
from orderdp.score_table import ScoreTable

ROOT = Path(__file__).parent.parent


def as_written(example: ModuleType, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the first command of an example's docstring, as it stands there, in a folder of its own."""
    line = next(line for line in (example.__doc__ or "").splitlines() if line.startswith("    "))
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.run(
        shlex.split(line), cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def streams(seed: int, *tags: int | str) -> Callable[..., np.random.Generator]:
    return partial(generator, seed, *tags)


def table_with(scores: np.ndarray) -> ScoreTable:
    """A table in which every finite score has been seen."""
    table = ScoreTable(len(scores))
    seen = np.flatnonzero(np.isfinite(scores))
    table.write(torch.from_numpy(seen), torch.tensor(scores[seen], dtype=torch.float32), epoch=0)
    return table


def draw(policy: orderdp.Policy, scores: np.ndarray | ScoreTable, *, seed: int = 0, epoch: int = 0) -> np.ndarray:
    """What one epoch of `policy` trains on, given the scores."""
    table = scores if isinstance(scores, ScoreTable) else table_with(scores)
    return policy.select(table, Context(n=table.n, epoch=epoch, seed=seed)).indices


def toy_dataset(n: int = 100, features: int = 4, classes: int = 3, seed: int = 0) -> TensorDataset:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((n, features)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, classes, n))
    return TensorDataset(x, y)


def fake_losses(index: torch.Tensor, step: int = 0) -> torch.Tensor:
    """Losses that depend on the sample and on time, so that a score on the wrong sample shows."""
    return (torch.sin(index.double() * 12.9898 + step) * 43758.5453).frac().abs().float() + 0.01


def train_epoch(pruner: orderdp.Pruner, loader: torch.utils.data.DataLoader, step: int = 0) -> list[list[int]]:
    """Goes through an epoch as a training loop does; returns its batches."""
    batches = []
    for index, _ in loader:
        pruner.update(index, fake_losses(index, step))
        batches.append(index.tolist())
        step += 1
    return batches


@dataclass(frozen=True)
class KeepAll(orderdp.Policy):
    """The smallest policy that uses feedback: all samples, in the order of their scores."""

    def size(self, n: int, context: Context) -> int:
        return n

    def select(self, table: ScoreTable, context: Context) -> Selection:
        return Selection(np.argsort(-table["score"], kind="stable").astype(np.int64))


@dataclass(frozen=True)
class Weighted(KeepAll):
    """Gives sample i the weight i + 1."""

    def select(self, table: ScoreTable, context: Context) -> Selection:
        indices = np.arange(table.n, dtype=np.int64)
        return Selection(indices, (indices + 1).astype(np.float32))


@dataclass(frozen=True)
class Undecided(KeepAll):
    """Does not say how much it keeps: those whose score is above the mean of the seen ones, or all."""

    def size(self, n: int, context: Context) -> None:
        return None

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        return n // 4, n

    def select(self, table: ScoreTable, context: Context) -> Selection:
        scores = table["score"]
        seen = scores[np.isfinite(scores)]
        return Selection(np.flatnonzero(scores >= (seen.mean() if len(seen) else 0)))


def train_on_digits(policy: orderdp.Policy, seed: int = 0) -> float:
    """Test accuracy after the example's training, with whatever else the policy wants to be told and asks for."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        train_set, test_set = digits.load()
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        criterion = torch.nn.CrossEntropyLoss(reduction="none")
        pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=digits.EPOCHS, labels=train_set.tensors[1])
        for _ in range(digits.EPOCHS):
            for index, (x, y) in pruner.loader(train_set, batch_size=digits.BATCH_SIZE):
                logits = model(x)
                told = predictions(logits, y)
                extra = {name: told[name] for name in pruner.update_arguments}
                loss = pruner.update(index, criterion(logits, y), **extra)
                optimizer.zero_grad()
                loss.backward()
                for group in optimizer.param_groups:
                    group["lr"] = 0.1 * min(1.0, 2 * (1.001 - pruner.progress)) * pruner.lr_scale
                optimizer.step()
        x, y = test_set.tensors
        with torch.no_grad():
            return (model(x).argmax(1) == y).float().mean().item()


class _OnCard(torch.Tensor):
    """A stand-in for a tensor in the memory of a card: numpy cannot have it before it is copied."""

    def numpy(self, *arguments: Any, **options: Any) -> np.ndarray:
        raise TypeError("can't convert a tensor on a card to numpy")

    __array__ = numpy

    def cpu(self, *arguments: Any, **options: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def as_on_a_card(state: Any) -> Any:
    """The state as ``torch.load(path, map_location="cuda")`` would give it."""
    if isinstance(state, torch.Tensor):
        return state.as_subclass(_OnCard)
    if isinstance(state, dict):
        return {name: as_on_a_card(value) for name, value in state.items()}
    return type(state)(map(as_on_a_card, state)) if isinstance(state, list | tuple) else state
