"""Records made up by hand, for tests of what is done with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orderdp.experiments.records import Run, RunLog

EPOCH: dict[str, Any] = {
    "samples": 600,
    "loss": 0.5,
    "metric": 90.0,
    "lr": 0.1,
    "training_seconds": 1.0,
    "selection_seconds": 0.01,
    "evaluation_seconds": 0.2,
    "overhead_seconds": 0.03,
    "saved": 0.4,
    "nominal_saved": 0.4,
    "coverage": 0.9,
    "staleness": 1.5,
}
SUMMARY: dict[str, Any] = {
    "metric": 90.0,
    "samples": 6000,
    "full_samples": 10000,
    "saved": 0.4,
    "training_seconds": 10.0,
    "selection_seconds": 0.1,
    "evaluation_seconds": 2.0,
    "overhead_seconds": 0.3,
    "node_hours": 0.003,
    "usage": [0, 100, 500, 400],
    "test_samples": 10000,
}
CONFIG: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "policy": "orderdp",
    "policy_parameters": {},
    "prune_ratio": 0.4,
    "label": "OrderDP 40 %",
    "epochs": 10,
    "batch_size": 32,
    "seed": 0,
    "optimizer": "sgd",
    "lr": 0.1,
    "schedule": "one-cycle",
    "preset": "quick",
}
HOST = {"cpu": "any", "cores": 2, "threads": 1, "device": "cpu", "os": "Linux"}


def start(log: RunLog, command: str | None = None, **config: Any) -> None:
    log.start({**CONFIG, **config}, versions={"orderdp": "0"}, host=HOST, command=command)


def run(metric: float | None, seed: int = 0, *, seconds: float = 10.0, saved: float = 0.4, **config: Any) -> Run:
    """A run that is done, straight into memory."""
    full = 10000
    summary = {
        **SUMMARY,
        "status": "done",
        "metric": metric,
        "samples": round(full * (1 - saved)),
        "training_seconds": seconds,
        "selection_seconds": 0.0,
        "overhead_seconds": 0.0,
    }
    config = {**CONFIG, "seed": seed, **config}
    return Run(id=f"{config['label']}-{seed}", config=config, summary=summary, started=f"2026-01-01T00:00:{seed:02}")


def full(metric: float, seed: int = 0, **options: Any) -> Run:
    options = {"saved": 0.0, "policy": "full", "prune_ratio": None, "label": "Full data", **options}
    return run(metric, seed, **options)


def reduced(metric: float, seed: int = 0, **options: Any) -> Run:
    return run(metric, seed, **{"policy": "reduced", "label": "Fewer epochs", "epochs": 6, **options})


def random(metric: float, seed: int = 0, **options: Any) -> Run:
    return run(metric, seed, **{"policy": "random", "label": "Dynamic random 40 %", **options})


def write(folder: Path, runs: list[Run], epochs: int = 3, **epoch: Any) -> Path:
    """The records of these runs as files."""
    for each in runs:
        log = RunLog(folder / "runs" / each.id.replace("/", "_"))
        log.start(each.config, versions={"orderdp": "0.1.0"}, host=HOST, started=each.started)
        for number in range(1, epochs + 1):
            log.epoch(epoch=number, **{**EPOCH, **epoch})
        if each.summary is not None:
            log.summary(**{name: value for name, value in each.summary.items() if name not in ("schema", "kind")})
    return folder
