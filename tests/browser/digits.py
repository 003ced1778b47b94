"""Real records, made by training a small network on handwritten digits for a few epochs."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from examples.digits import BATCH_SIZE, load
from torch.utils.data import TensorDataset

import orderdp
from orderdp.experiments.records import RunLog, notable_samples

EPOCHS = 8
HOST = {"cpu": "any", "cores": 2, "threads": 1, "device": "cpu", "os": "Linux"}
COMMAND = "orderdp compare --data digits --policies orderdp,random --prune-ratios 0.3,0.5 --seeds 0,1,2 --out DIR"


def settings() -> list[tuple[str, str, float | None, Any, int]]:
    """Name, label, ratio, policy and epochs: full data, a method and both controls."""
    found: list[tuple[str, str, float | None, Any, int]] = []
    found.append(("full", "Full data", None, orderdp.policies.FullData(), EPOCHS))
    for ratio in (0.25, 0.5):
        percent = f"{ratio:.0%}".replace("%", " %")
        policies = orderdp.OrderDP(prune_ratio=ratio), orderdp.policies.DynamicRandom(prune_ratio=ratio)
        found.append(("orderdp", f"OrderDP {percent}", ratio, policies[0], EPOCHS))
        found.append(("random", f"Dynamic random {percent}", ratio, policies[1], EPOCHS))
        epochs = round(EPOCHS * (1 - ratio))
        found.append(("reduced", f"Fewer epochs {percent}", ratio, orderdp.policies.FullData(), epochs))
    return found


def write_records(folder: Path, seeds: tuple[int, ...] = (0, 1, 2)) -> Path:
    """Trains every setting with every seed; one more run fails and one is left unfinished."""
    train_set, test_set = load()
    for name, label, ratio, policy, epochs in settings():
        for seed in seeds:
            log = _log(folder, f"{label}-{seed}", policy=name, label=label, prune_ratio=ratio, epochs=epochs, seed=seed)
            _train(log, policy, epochs, seed, train_set, test_set)
    _unhappy(folder)
    return folder


def _log(folder: Path, name: str, **config: Any) -> RunLog:
    log = RunLog(folder / "runs" / name.lower().replace(" ", "-").replace("%", "percent"))
    shared = {"data": "digits", "model": "mlp-64", "batch_size": BATCH_SIZE, "optimizer": "sgd", "lr": 0.1}
    versions = {"orderdp": orderdp.__version__, "torch": torch.__version__}
    log.start({**shared, **config}, versions=versions, host=HOST, command=COMMAND)
    return log


def _train(log: RunLog, policy: Any, epochs: int, seed: int, train_set: TensorDataset, test_set: TensorDataset) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss(reduction="none")
    pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=epochs)
    loader = pruner.loader(train_set, batch_size=BATCH_SIZE)
    spent = dict.fromkeys(("training", "selection", "evaluation", "overhead"), 0.0)
    before: set[int] = set()
    metric = 0.0
    for epoch in range(1, epochs + 1):
        parts, losses, kept = dict.fromkeys(spent, 0.0), [], []
        clock = time.perf_counter()
        batches = iter(loader)
        parts["selection"] = time.perf_counter() - clock
        clock = time.perf_counter()
        for index, (x, y) in batches:
            loss = pruner.update(index, criterion(model(x), y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            kept += index.tolist()
        parts["training"] = time.perf_counter() - clock
        clock = time.perf_counter()
        x, y = test_set.tensors
        with torch.no_grad():
            metric = 100 * (model(x).argmax(1) == y).double().mean().item()
        parts["evaluation"] = time.perf_counter() - clock
        report = pruner.report()
        again = {"kept_again": len(before & set(kept)) / len(kept)} if before else {}
        before = set(kept)
        log.epoch(
            epoch=epoch,
            samples=len(kept),
            loss=sum(losses) / len(losses),
            metric=metric,
            lr=0.1,
            **{f"{part}_seconds": seconds for part, seconds in parts.items()},
            **{field: report[field] for field in ("saved", "nominal_saved", "coverage", "staleness")},
            diagnostics=again,
        )
        spent = {part: spent[part] + parts[part] for part in spent}
    samples, full = int(pruner.report()["kept"]), EPOCHS * len(train_set)
    log.summary(
        "done",
        metric=metric,
        samples=samples,
        full_samples=full,
        saved=1 - samples / full,
        **{f"{part}_seconds": seconds for part, seconds in spent.items()},
        node_hours=(sum(spent.values()) - spent["evaluation"]) / 3600,
        usage=torch.bincount(pruner.usage),
        notable=notable_samples(_pictures(train_set), pruner.usage, pruner.scores),
    )


def _pictures(train_set: TensorDataset) -> Any:
    """The digits as images of eight by eight pixels."""
    images, labels = train_set.tensors
    data = SimpleNamespace(train=SimpleNamespace(images=images.reshape(-1, 8, 8)))
    return SimpleNamespace(data=data, labels=labels, train_set=train_set)


def _unhappy(folder: Path) -> None:
    nothing = dict.fromkeys(("training_seconds", "selection_seconds", "evaluation_seconds", "overhead_seconds"), 0.0)
    config = {"policy": "orderdp", "label": "OrderDP 50 %", "prune_ratio": 0.5, "epochs": EPOCHS}
    failed = _log(folder, "failed", **config, seed=3)
    reason = "the loss became NaN in epoch 3"
    failed.summary("failed", reason=reason, samples=0, full_samples=1, saved=0.0, node_hours=0.0, **nothing)
    _log(folder, "unfinished", **config, seed=4)
