"""Handwritten digits: all data against OrderDP, several seeds, accuracy and cost.

The data come with scikit-learn: 1,797 images of 8 x 8 pixels, of which a quarter is held out. A small network is
trained for the same number of epochs, once on all samples and once with 40 % of them left out each epoch.

    python examples/digits.py [--prune-ratio 0.4] [--seeds 0,1,2]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import orderdp

EPOCHS = 30
BATCH_SIZE = 32


class Result(NamedTuple):
    """What one training cost and reached."""

    accuracy: float
    samples: int
    seconds: float


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set. The split is the same for every seed."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16.0).astype(np.float32)
    split = train_test_split(pixels, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in split)
    return TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)


def train(policy: orderdp.Policy | None, seed: int) -> Result:
    """Trains on all data, or on what `policy` leaves of it, and tests."""
    torch.manual_seed(seed)
    train_set, test_set = load()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    criterion = torch.nn.CrossEntropyLoss(reduction="none")

    if policy is None:
        loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
        total_steps = EPOCHS * len(loader)
    else:
        pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=EPOCHS)
        loader = pruner.loader(train_set, batch_size=BATCH_SIZE)
        try:
            total_steps = pruner.steps(EPOCHS, BATCH_SIZE)
        except orderdp.errors.UnknownSizeError as unknown:
            total_steps = unknown.upper  # some policies decide by the losses: then the schedule ends a little early
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)

    samples, start = 0, time.perf_counter()
    for _ in range(EPOCHS):
        for batch in loader:
            if policy is None:
                x, y = batch
                loss = criterion(model(x), y).mean()
            else:
                index, (x, y) = batch
                loss = pruner.update(index, criterion(model(x), y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            samples += len(y)
    seconds = time.perf_counter() - start

    x, y = test_set.tensors
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return Result(accuracy, samples, seconds)


def describe(name: str, results: list[Result]) -> str:
    """One line of the table."""
    accuracies = [100 * result.accuracy for result in results]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    samples = statistics.mean(result.samples for result in results)
    seconds = statistics.mean(result.seconds for result in results)
    return f"{name:<24} {statistics.mean(accuracies):8.2f} ± {spread:.2f} {samples:>12,.0f} {seconds:>9.2f}"


def main() -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prune-ratio", type=float, default=0.4, help="share left out each epoch (default 0.4)")
    parser.add_argument("--seeds", default="0,1,2", help="which seeds to run (default 0,1,2)")
    arguments = parser.parse_args()
    try:
        policy = orderdp.OrderDP(prune_ratio=arguments.prune_ratio)
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
    except ValueError as error:
        parser.error(str(error))

    print(f"digits, {EPOCHS} epochs, batches of {BATCH_SIZE}, seeds {arguments.seeds}")
    train(policy, seed=0)  # warm up, so that the first run timed is not the one that loads libraries
    full = [train(None, seed) for seed in seeds]
    pruned = [train(policy, seed) for seed in seeds]
    print(f"{'':<24} {'accuracy %':>15} {'samples used':>12} {'seconds':>9}")
    print(describe("all data", full))
    print(describe(str(policy), pruned))

    saved = 1 - sum(r.samples for r in pruned) / sum(r.samples for r in full)
    faster = 1 - sum(r.seconds for r in pruned) / sum(r.seconds for r in full)
    change = 100 * (statistics.mean(r.accuracy for r in pruned) - statistics.mean(r.accuracy for r in full))
    print(
        f"OrderDP used {saved:.1%} fewer samples and {faster:.1%} less time; accuracy changed by {change:+.2f} points."
    )


if __name__ == "__main__":
    main()
