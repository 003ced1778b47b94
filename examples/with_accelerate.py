"""Handwritten digits with Hugging Face Accelerate: any number of processes, checkpoints, gradient accumulation.

    accelerate launch --multi_gpu --num_processes 2 --main_process_port 0 examples/with_accelerate.py --checkpoint run

``--multi_gpu`` starts two processes on CPUs, too, where ``--cpu`` starts one; port 0 is any free one. Stop it and start
it again, with as many processes or another number: it goes on from the last checkpoint. It also runs as
``python examples/with_accelerate.py``, in one process. The lines that pruning adds are marked.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import TensorDataset

import orderdp
from orderdp.integrations.accelerate import register

BATCH_SIZE = 16  # over all processes, so that the learning rate suits any number of them
ACCUMULATE = 2  # batches of all processes a step


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16.0).astype(np.float32)
    split = train_test_split(pixels, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in split)
    return TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)


def make_model() -> torch.nn.Module:
    """The same in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def main(arguments: list[str] | None = None) -> None:
    """Trains, tests and prints, the latter in the first process only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="how many in all (default 20)")
    parser.add_argument("--checkpoint", type=Path, help="a folder to write checkpoints to, and to go on from")
    options = parser.parse_args(arguments)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    train_set, test_set = load()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    criterion = torch.nn.CrossEntropyLoss(reduction="none")
    pruner = orderdp.Pruner(orderdp.OrderDP(prune_ratio=0.4), train_set, seed=0, shard=False)  # pruning
    loader = pruner.loader(train_set, batch_size=BATCH_SIZE // accelerator.num_processes)  # pruning
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    register(accelerator, pruner)  # pruning

    if options.checkpoint is not None and options.checkpoint.exists():
        accelerator.load_state(str(options.checkpoint))
    accelerator.print(
        f"goes on at epoch {pruner.epoch} of {options.epochs} with {accelerator.num_processes} processes", flush=True
    )
    for _ in range(pruner.epoch, options.epochs):
        for index, (x, y) in loader:
            with accelerator.accumulate(model):
                loss = pruner.update(index, criterion(model(x), y))  # pruning
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        if options.checkpoint is not None:
            accelerator.save_state(str(options.checkpoint))

    if accelerator.is_main_process:
        x, y = test_set.tensors
        with torch.no_grad():
            accuracy = (accelerator.unwrap_model(model).eval()(x).argmax(1) == y).float().mean().item()
        accelerator.print(f"test accuracy {accuracy:.2%}, with {pruner.report()['saved']:.1%} fewer samples")
    accelerator.end_training()


if __name__ == "__main__":
    main()
