"""One training that is to be disturbed, and what each of its processes does."""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import orderdp
from orderdp.distributed import load_parts, save_parts
from orderdp.errors import OrderDPWarning
from orderdp.policies import build

__all__ = ["CHECKPOINT", "GROUP_SECONDS", "Trial", "live", "losses_of", "steps_logged"]

CHECKPOINT = "job.pt"
GROUP_SECONDS = 20.0  # how long a process waits for the others


@dataclass(frozen=True)
class Trial:
    """What is trained.

    Attributes:
        number: Also the seed.
        policy: Name and parameters.
        n: Samples.
        step: Samples a step, over all processes.
        epochs: How many.
        save_every: Steps between checkpoints.
        pad: Whether shares are filled up.
        nan_share: Share of losses that are NaN.
        slow_seconds: How long the slowest process sleeps in each step.
        sharded: Whether each process holds its own part of the table.
    """

    number: int
    policy: dict[str, Any]
    n: int
    step: int
    epochs: int
    save_every: int
    pad: bool = False
    nan_share: float = 0.0
    slow_seconds: float = 0.0
    sharded: bool = False

    def pruner(self) -> orderdp.Pruner:
        """A fresh one."""
        return orderdp.Pruner(
            build(**self.policy),
            self.n,
            seed=self.number,
            epochs=self.epochs,
            pad=self.pad,
            table="sharded" if self.sharded else "replicated",
        )


def losses_of(index: torch.Tensor, epoch: int, nan_share: float) -> torch.Tensor:
    """A function of sample and epoch alone, so that every way to the same step gives the same scores."""
    wave = (torch.sin(index.double() * 12.9898 + 78.233 * epoch) * 43758.5453).frac().abs()
    losses = wave.float() + 0.01
    return torch.where(wave < nan_share, torch.nan, losses)


def live(rank: int, world: int, folder: Path, trial: Trial, life: int) -> None:
    """What a process does until it is killed or done. Errors are written down, since others must see a reason."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", OrderDPWarning)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store-{life}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=GROUP_SECONDS),
        )
        _train(rank, world, folder, trial, life)
    except Exception:
        (folder / f"error-{life}-{rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
        raise SystemExit(1) from None


def _train(rank: int, world: int, folder: Path, trial: Trial, life: int) -> None:
    pruner, steps = trial.pruner(), 0
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        steps = _load(pruner, checkpoint)
    with (folder / f"steps-{life}-{rank}.jsonl").open("w", encoding="utf-8", buffering=1) as log:
        for epoch in range(pruner.epoch, trial.epochs):
            for batch in pruner.batch_sampler(trial.step // world):
                index = torch.tensor(batch)
                log.write(json.dumps([steps, epoch, batch]) + "\n")
                pruner.update(index, losses_of(index, epoch, trial.nan_share))
                steps += 1
                if rank == 0 and trial.slow_seconds:
                    time.sleep(trial.slow_seconds)
                if steps % trial.save_every == 0:
                    _save(rank, pruner, steps, checkpoint, life)
    pruner.sync()
    table = {"score": pruner.scores, "usage": pruner.usage}
    report = {name: pruner.report()[name] for name in ("epoch", "kept", "coverage", "repeated")}
    orderdp.save_checkpoint(folder / f"result-{rank}.pt", {"table": table, "report": report, "steps": steps})


def _save(rank: int, pruner: orderdp.Pruner, steps: int, path: Path, life: int) -> None:
    state: dict[str, Any] = {"steps": steps}
    if pruner.table == "sharded":
        state["parts"] = f"parts-{life}-{steps}"  # a life before may have died while it wrote the same step
        save_parts(pruner, path.parent / state["parts"])
        dist.barrier()  # all parts are there before the job knows of them
    else:
        pruner.sync()
        state["pruner"] = pruner.state_dict() if rank == 0 else None
    if rank == 0:
        orderdp.save_checkpoint(path, state)
    dist.barrier()


def _load(pruner: orderdp.Pruner, path: Path) -> int:
    """Puts the pruner back; says after how many steps that is."""
    state = orderdp.load_checkpoint(path)
    if pruner.table == "sharded":
        load_parts(pruner, path.parent / state["parts"])
    else:
        pruner.load_state_dict(state["pruner"])
    return int(state["steps"])


def steps_logged(folder: Path, life: int, rank: int) -> Iterator[tuple[int, int, list[int]]]:
    """Number, epoch and samples of each step that a process has begun; half a line is what a kill leaves."""
    path = folder / f"steps-{life}-{rank}.jsonl"
    *lines, _torn = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    for line in lines:
        number, epoch, batch = json.loads(line)
        yield number, epoch, batch
