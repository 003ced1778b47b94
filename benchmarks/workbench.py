"""The workbench: what its loop costs beside the training itself, what a pruned run takes, how long imports take.

Synthetic images of Fashion-MNIST's shape, the compact CNN, one torch thread.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Goal, judged, overhead
from orderdp.datasets import Augment, ImageData, Split
from orderdp.experiments.config import Settings
from orderdp.experiments.tasks import ImageTask
from orderdp.experiments.trainer import Training

_SAMPLES = 6_400
_ROUNDS = 5
_SETTINGS = Settings(
    data="made up", model="cnn", width=8, epochs=2, channels_last=True, policy="full", evaluate_every=2
)


def workbench() -> Iterator[dict[str, Any]]:
    """Run times and overhead."""
    generator = torch.Generator().manual_seed(0)
    train = Split(
        torch.randint(0, 256, (_SAMPLES, 1, 28, 28), dtype=torch.uint8, generator=generator),
        torch.randint(0, 10, (_SAMPLES,), generator=generator),
    )
    data = ImageData("made up", train, train.at(torch.arange(1000)), 10, None, (0.5,), (0.25,), Augment(2, flip=True))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs = [
            (_run(_SETTINGS, data), _run(replace(_SETTINGS, policy="orderdp", prune_ratio=0.5), data))
            for _ in range(_ROUNDS)
        ]
    finally:
        torch.set_num_threads(threads)
    full, pruned = ([_cost(pair[place]) for pair in runs] for place in (0, 1))
    yield {
        "benchmark": "workbench-pruned",
        "what": "A run with OrderDP at 50 % against the run on full data; evaluation apart, everything else counted.",
        "torch_threads": 1,
        **overhead(pruned, full, Goal("<=", 0.53)),
    }
    shares = [
        sum(run[f"{part}_seconds"] for part in ("overhead", "selection")) / _cost(run) for pair in runs for run in pair
    ]
    share = statistics.median(shares)
    yield {
        "benchmark": "workbench-overhead",
        "what": "Share of a run that is neither forward, backward, optimizer nor augmentation; compact CNN, 1x28x28.",
        "torch_threads": 1,
        "share": round(share, 4),
        **judged(share, Goal("<=", 0.05)),
    }


def imports() -> Iterator[dict[str, Any]]:
    """How long the package takes to import, beside torch."""
    codes = {"torch": "import torch", "orderdp": "import torch, orderdp; orderdp.Pruner, orderdp.OrderDP"}
    seconds: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(9):
        for name, code in codes.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            seconds[name].append(time.perf_counter() - start)
    yield {
        "benchmark": "import",
        "what": "A process that imports torch and the names of the three lines, against one that imports torch alone.",
        **overhead(seconds["orderdp"], seconds["torch"], Goal("<=", 1.05)),
    }


def _run(settings: Settings, data: ImageData) -> dict[str, Any]:
    device = torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        return Training(settings, ImageTask(data, settings, device), Path(folder), device=device).run()


def _cost(run: dict[str, Any]) -> float:
    return float(sum(run[f"{part}_seconds"] for part in ("training", "selection", "overhead")))
