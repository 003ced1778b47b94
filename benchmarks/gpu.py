"""What pruning costs and saves on a GPU, as ratios of two things measured in the same run.

    python -m benchmarks.gpu --out build/gpu        # half an hour; writes gpu.jsonl and gpu.md
    python -m benchmarks.gpu --device cpu --tiny    # a trial without a GPU: whether it runs, not how fast

- **Steps**: forward, backward and optimizer of a ResNet-18 on images that lie on the device, in mixed precision, with
  ``pruner.update`` against a plain loop; the epoch's draw is part of it. And `update` alone, against ``losses.mean()``.
- **Draw**: what comes before the first batch of an epoch over as many samples as ImageNet has, the copy of the order to
  the device included, against ``torch.randperm`` there and against the published recipe.
- **Index batches**: an epoch by indices alone, against ``torch.randperm`` and ``split``.
- **Runs**: CIFAR-10 with a ResNet-18, full data, OrderDP, and full data for fewer epochs; time and accuracy.

Clocks are read after the device has finished.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks import published
from benchmarks.conditions import conditions
from benchmarks.draw import IMAGENET
from benchmarks.loader import index_batches, wait
from benchmarks.timing import overhead, speedup, take_turns
from orderdp import OrderDP, Pruner
from orderdp.datasets import load
from orderdp.experiments.config import Settings
from orderdp.experiments.models import build_model
from orderdp.experiments.tasks import ImageTask
from orderdp.experiments.trainer import Training

_PRUNE_RATIOS = (0.3, 0.5, 0.7)


_CIFAR = Settings(
    data="cifar10", model="resnet18", epochs=15, batch_size=512, lr=0.4, amp=True, channels_last=True, policy="full"
)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    draw: int = IMAGENET
    images: int = 20_480
    batch: int = 512
    rounds: int = 11
    width: int = 64
    seeds: int = 3
    run: Settings = _CIFAR


TINY = Sizes(
    draw=2_000,
    images=64,
    batch=16,
    rounds=2,
    width=8,
    seeds=1,
    run=Settings(data="digits?train=200&test=100", model="mlp", width=4, epochs=2, batch_size=32, policy="full"),
)


def measure(device: torch.device, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield one line per measurement, the conditions first."""
    yield {**conditions(), **_device(device)}
    yield from steps(device, sizes)
    yield from update(device, sizes)
    yield from draw(device, sizes)
    yield from index_batches(device, sizes.images, sizes.rounds)
    yield from runs(device, sizes)


def steps(device: torch.device, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the time of a training step with a pruner, against one without."""
    images = torch.rand(sizes.images, 3, 32, 32, device=device)
    classes = torch.randint(10, (sizes.images,), device=device)
    pruner = Pruner(OrderDP(prune_ratio=0.4), sizes.images)
    ours, theirs = _step(device, sizes), _step(device, sizes)

    def pruned() -> None:
        for index in pruner.index_batches(sizes.batch, device=device, drop_last=True):
            ours(images[index], classes[index], lambda losses, index=index: pruner.update(index, losses))
        wait(device)

    def plain() -> None:
        whole = sizes.images // sizes.batch * sizes.batch
        for index in torch.randperm(sizes.images, device=device)[:whole].split(sizes.batch):
            theirs(images[index], classes[index], torch.mean)
        wait(device)

    seconds = take_turns({"ours": pruned, "theirs": plain}, sizes.rounds)
    of_ours = pruner.steps(1, sizes.batch, drop_last=True)
    of_theirs = sizes.images // sizes.batch
    yield {
        "benchmark": "gpu-step",
        "what": f"A step of ResNet-18, batch {sizes.batch}, images on {device.type}, against one without a pruner.",
        **overhead([s / of_ours for s in seconds["ours"]], [s / of_theirs for s in seconds["theirs"]]),
    }


def _step(device: torch.device, sizes: Sizes) -> Callable[..., None]:
    model = build_model("resnet18", shape=(3, 32, 32), classes=10, seed=0, width=sizes.width)
    on_gpu = device.type == "cuda"
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    model = model.to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor, reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            output = model(x.contiguous(memory_format=layout))
        loss = reduce(F.cross_entropy(output.float(), y, reduction="none"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def update(device: torch.device, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the time of `Pruner.update` alone, with losses and indices on the device."""
    pruner = Pruner(OrderDP(prune_ratio=0.4), sizes.images)
    losses = torch.rand(sizes.batch, device=device)

    def ours() -> None:
        for index in pruner.index_batches(sizes.batch, device=device, drop_last=True):
            pruner.update(index, losses)
        wait(device)

    count = pruner.steps(1, sizes.batch, drop_last=True)

    def theirs() -> None:
        torch.randperm(sizes.images, device=device)
        for _ in range(count):
            losses.mean()
        wait(device)

    seconds = take_turns({"ours": ours, "theirs": theirs}, sizes.rounds)
    yield {
        "benchmark": "gpu-update",
        "what": f"update and the draw, per step of {sizes.batch} on {device.type}, against randperm and losses.mean().",
        **overhead(*([s / count for s in seconds[name]] for name in ("ours", "theirs"))),
    }


def draw(device: torch.device, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield how long an epoch's first batch takes to come, on the device, against two other ways to an order."""
    n = sizes.draw
    pruner = Pruner(OrderDP(exploration=0.8, exploitation=0.75), n)
    pruner.observe(torch.arange(n), torch.rand(n, generator=torch.Generator().manual_seed(0)))
    scores, counts = pruner.scores.numpy().copy(), np.zeros(n, dtype=np.int64)
    s, q = OrderDP(exploration=0.8, exploitation=0.75).sizes(n)

    def ours() -> None:
        index = next(iter(pruner.index_batches(sizes.batch, device=device)))
        pruner.update(index, torch.rand(len(index), device=device))  # or the epoch would be served again
        pruner.end_epoch()
        wait(device)

    def recipe() -> None:
        published.draw(scores, s, q, counts)

    def randperm() -> None:
        torch.randperm(n, device=device)
        wait(device)

    with published.global_numpy_state_kept():
        seconds = take_turns({"ours": ours, "recipe": recipe, "randperm": randperm}, sizes.rounds)
    what = f"The first batch of an epoch, n = {n:,}, on {device.type},"
    yield {
        "benchmark": "gpu-draw-recipe",
        "what": f"{what} against the published recipe.",
        **speedup(seconds["ours"], seconds["recipe"], None),
    }
    yield {
        "benchmark": "gpu-draw-randperm",
        "what": f"{what} against torch.randperm.",
        **overhead(seconds["ours"], seconds["randperm"]),
    }


def runs(device: torch.device, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield time and accuracy of pruned runs and of fewer epochs, against full data with the same seeds."""
    data = load(sizes.run.data)
    ways = {"full data": sizes.run}
    for ratio in _PRUNE_RATIOS:
        ways[f"orderdp {ratio:.0%}"] = replace(sizes.run, policy="orderdp", prune_ratio=ratio)
        ways[f"fewer epochs {ratio:.0%}"] = replace(sizes.run, policy="reduced", prune_ratio=ratio)
    _train(replace(sizes.run, epochs=1), data, device)  # so that no run that counts loads libraries
    found = {
        name: [_train(replace(way, seed=seed), data, device) for seed in range(sizes.seeds)]
        for name, way in ways.items()
    }
    full = [_cost(run) for run in found["full data"]]
    for name, way in ways.items():
        seconds = [_cost(run) for run in found[name]]
        metrics = [run["metric"] - base["metric"] for run, base in zip(found[name], found["full data"], strict=True)]
        yield {
            "benchmark": f"gpu-run-{name.replace(' ', '-')}",
            "what": f"{sizes.run.data}, {sizes.run.model}, {way.epochs} epochs, {name}; evaluation apart.",
            "seeds": sizes.seeds,
            "metric": [round(run["metric"], 3) for run in found[name]],
            "points_to_full": [round(difference, 3) for difference in metrics],
            **(overhead(seconds, full) if len(seconds) > 1 else {"ratio": round(seconds[0] / full[0], 3)}),
        }


def _train(settings: Settings, data: Any, device: torch.device) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return Training(settings, ImageTask(data, settings, device), Path(folder), device=device).run()


def _cost(run: dict[str, Any]) -> float:
    return float(sum(run[f"{part}_seconds"] for part in ("training", "selection", "overhead")))


def _device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"device": device.type}
    about = torch.cuda.get_device_properties(device)
    return {"device": about.name, "device_gb": round(about.total_memory / 2**30, 1), "cuda": torch.version.cuda}


def page(lines: Iterable[dict[str, Any]]) -> str:
    """Return the lines as a page: the conditions, then a table."""
    first, *rest = lines
    text = ["# Measured on a GPU" if "cuda" in first else f"# Measured on {first['device']}, a trial", ""]
    text += [", ".join(f"{name} {value}" for name, value in first.items() if name != "conditions") + ".", ""]
    text += [f"{first['conditions'].capitalize()}. Ratios of two things timed in turns; quartiles of the rounds.", ""]
    text += ["| what | ours, ms | other, ms | ratio (quartiles) | points to full data |", "|---|---:|---:|---:|---:|"]
    for line in rest:
        quartiles = line.get("ratio_quartiles")
        spread = f" ({quartiles[0]} to {quartiles[1]})" if quartiles else ""
        points = line.get("points_to_full")
        mean = f"{sum(points) / len(points):+.2f}" if points else ""
        ratio = f"{line['ratio']}{spread}" + (" times faster" if line.get("ratio_of", "").startswith("theirs") else "")
        text.append(f"| {line['what']} | {line.get('ours_ms', '')} | {line.get('theirs_ms', '')} | {ratio} | {mean} |")
    return "\n".join(text) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the lines, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", help="default cuda")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of gpu.jsonl and gpu.md")
    parser.add_argument("--tiny", action="store_true", help="sizes for a trial, whose numbers say nothing")
    parser.add_argument("--data", help="data of the runs (default cifar10)")
    parser.add_argument("--epochs", type=int, help="epochs of the runs (default 15)")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no GPU that torch can use. A trial runs with --device cpu --tiny.", file=sys.stderr)
        return 2
    sizes = TINY if options.tiny else Sizes()
    given = {name: value for name in ("data", "epochs") if (value := getattr(options, name)) is not None}
    sizes = replace(sizes, run=replace(sizes.run, **given))
    options.out.mkdir(parents=True, exist_ok=True)
    lines = []
    with open(options.out / "gpu.jsonl", "w") as file:
        for line in measure(device, sizes):
            lines.append(line)
            print(json.dumps(line), flush=True)
            file.write(json.dumps(line) + "\n")
            file.flush()
    (options.out / "gpu.md").write_text(page(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
