"""Handwritten digits by the plan of a proxy: a narrow network marks half of every batch, a wide one trains on it.

Both see the same samples in the same order and shifted alike: how an image is shifted is a function of (seed, epoch,
index), so the wide network trains on the images that the narrow one has scored. The proxy goes forward on all of them
backward, too. Beside it: all data, and a random half each epoch, with as many steps.

A proxy that learns too slowly marks what the wide network has long learnt. With ``--every 4``, as the published script
has it for trainings of 2,000 steps, the plan is worse than a random half here, where there are 600. And networks as
small as these take no time to speak of: the proxy costs more than it saves.

    python -m examples.proxy_plan [--epochs 30] [--seeds 0,1,2] [--every 1]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from examples import digits
from torch.nn import functional as F

import orderdp
from orderdp.plans import Plan, PlanRecorder
from orderdp.policies import DynamicRandom, FullData, Replay

BATCH_SIZE = 64
KEEP = 0.5
WIDTH, PROXY_WIDTH = 256, 64
LR = 0.3


class Result(NamedTuple):
    """What one training reached and cost, that of its proxy included."""

    accuracy: float
    samples: int
    seconds: float
    batches: list[list[int]]


def network(width: int, seed: int) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))


def shifted(x: torch.Tensor, index: torch.Tensor, epoch: int, seed: int, n: int) -> torch.Tensor:
    """The images moved by up to a pixel: a function of (seed, epoch, index), whatever else is in the batch."""
    luck = torch.Generator().manual_seed(1000 * seed + epoch)
    places = torch.randint(0, 3, (n, 2), generator=luck)[index, :, None] + torch.arange(8)
    rows = torch.arange(len(x))[:, None, None]
    return F.pad(x.view(-1, 8, 8), (1, 1, 1, 1))[rows, places[:, 0, :, None], places[:, 1, None, :]].flatten(1)


def make_optimizer(
    model: torch.nn.Module, kept: int, steps: int
) -> tuple[torch.optim.SGD, torch.optim.lr_scheduler.OneCycleLR]:
    """SGD with the learning rate of full data times the share of a batch that is kept: losses are averaged."""
    lr = LR * kept / BATCH_SIZE
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps)


def record(epochs: int, seed: int, every: int) -> Plan:
    """What the narrow network marks."""
    train_set, _ = digits.load()
    recorder = PlanRecorder(train_set, epochs=epochs, batch_size=BATCH_SIZE, keep=KEEP, seed=seed)
    loader = recorder.loader(train_set)
    proxy = network(PROXY_WIDTH, seed)
    optimizer, schedule = make_optimizer(proxy, recorder.kept, -(-epochs * len(loader) // every))
    step = 0
    for epoch in range(epochs):
        for index, (x, y) in loader:
            learns = step % every == 0
            with torch.set_grad_enabled(learns):
                logits = proxy(shifted(x, index, epoch, seed, len(train_set)))
                losses = F.cross_entropy(logits, y, reduction="none")
            marked = recorder.record(index, losses)
            if learns:
                optimizer.zero_grad()
                ((losses * marked).sum() / recorder.kept).backward()
                optimizer.step()
                schedule.step()
            step += 1
    return recorder.plan


def train(policy: orderdp.Policy, epochs: int, batch_size: int, seed: int) -> Result:
    """Trains the wide network on what `policy` leaves, in batches of `batch_size`, and tests it."""
    train_set, test_set = digits.load()
    pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=epochs)
    loader = pruner.loader(train_set, batch_size=batch_size, drop_last=True)
    model = network(WIDTH, seed)
    optimizer, schedule = make_optimizer(model, batch_size, pruner.steps(epochs, batch_size, drop_last=True))
    batches, start = [], time.perf_counter()
    for epoch in range(epochs):
        for index, (x, y) in loader:
            logits = model(shifted(x, index, epoch, seed, len(train_set)))
            loss = pruner.update(index, F.cross_entropy(logits, y, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            batches.append(index.tolist())
    seconds = time.perf_counter() - start
    x, y = test_set.tensors
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return Result(accuracy, sum(map(len, batches)), seconds, batches)


def by_plan(epochs: int, seed: int, every: int, folder: Path) -> tuple[Result, Plan]:
    """Records a plan, writes it down, and trains by what is written."""
    file = folder / f"plan-{seed}.npz"
    record(epochs, seed, every).save(file)
    plan = Plan.load(file)
    result = train(Replay(plan), epochs, plan.kept, seed)
    return result._replace(seconds=result.seconds + plan.cost.seconds), plan


def told(name: str, results: list[Result]) -> str:
    """One line of the table."""
    accuracies = [100 * result.accuracy for result in results]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    samples = statistics.mean(result.samples for result in results)
    seconds = statistics.mean(result.seconds for result in results)
    return f"{name:<16} {statistics.mean(accuracies):8.2f} ± {spread:.2f} {samples:>12,.0f} {seconds:>9.2f}"


def main(arguments: list[str] | None = None) -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30, help="epochs of each training (default 30)")
    parser.add_argument("--seeds", default="0,1,2", help="which seeds to run (default 0,1,2)")
    parser.add_argument("--every", type=int, default=1, help="of so many batches the proxy learns from one (default 1)")
    given = parser.parse_args(arguments)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    torch.set_num_threads(1)  # small models: a second thread costs more than it does

    full = [train(FullData(), given.epochs, BATCH_SIZE, seed) for seed in seeds]
    random = [train(DynamicRandom(1 - KEEP), given.epochs, round(KEEP * BATCH_SIZE), seed) for seed in seeds]
    with tempfile.TemporaryDirectory() as folder:
        planned = [by_plan(given.epochs, seed, given.every, Path(folder)) for seed in seeds]
    print(f"digits, {given.epochs} epochs, seeds {given.seeds}")
    print(f"{'':<16} {'accuracy %':>15} {'samples used':>12} {'seconds':>9}")
    print(told("all data", full))
    print(told("a random half", random))
    print(told("a proxy's plan", [result for result, _ in planned]))
    cost = planned[0][1].cost
    print(
        f"The proxy saw {cost.forwarded:,} samples and went backward on {cost.backpropagated:,}; its "
        f"{cost.seconds:.2f} seconds are in those of the plan."
    )


if __name__ == "__main__":
    main()
