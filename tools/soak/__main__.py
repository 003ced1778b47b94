"""Disturbs trainings for a while and says what was tried and what held.

python -m tools.soak --minutes 10
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from rich.console import Console

import orderdp
from tools.soak.checks import Life, faults_of, history
from tools.soak.trial import CHECKPOINT, GROUP_SECONDS, Trial, live

__all__ = ["main", "soak"]

_MIXED = {"name": "mixed", "top": 0.7, "uniform": 0.3}
POLICIES: list[dict[str, Any]] = [
    {"name": "orderdp", "prune_ratio": 0.4},
    {"name": "orderdp", "prune_ratio": 0.5, "every": "batch"},
    {"name": "orderdp", "prune_ratio": 0.5, "select": _MIXED, "unbiased": True},
    {"name": "epsilon-greedy", "prune_ratio": 0.5},
    {"name": "rs2", "prune_ratio": 0.5},
]
STEP = 12  # can be dealt out to one, two, three and four
MOST_LIVES = 8
STEPS_TO_A_KILL = 25
HANGS_AFTER = 8 * GROUP_SECONDS  # gloo waits five times as long for a process that dies while the group is made


def any_trial(number: int, rng: random.Random) -> tuple[Trial, str]:
    """A training, and what may be expected of it: "equal" to an undisturbed one, or "invariants" only."""
    kind = rng.choice(["equal", "sharded", "ragged", "nan"])
    rounds = rng.randint(4, 12)
    policy = POLICIES[0] if kind == "sharded" else rng.choice(POLICIES)
    kept = STEP * rounds
    n = round(kept / (1 - policy["prune_ratio"]))
    if kind == "ragged":
        n += rng.randint(1, 37)
    return (
        Trial(
            number=number,
            policy=policy,
            n=n,
            step=STEP,
            epochs=rng.randint(3, 6),
            save_every=rng.randint(2, 9),
            pad=kind == "ragged" and rng.random() < 0.5,
            nan_share=0.05 if kind == "nan" else 0.0,
            slow_seconds=rng.choice([0.0, 0.01, 0.03]),
            sharded=kind == "sharded",
        ),
        kind,
    )


class Soak:
    """Trials one after the other, and what became of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tools.soak.trial"])

    def run(self, number: int) -> str:
        """One trial; what is said of it."""
        trial, kind = any_trial(number, self.rng)
        # What a NaN leaves for an unseen sample is the mean of its batch, and so depends on the number of processes.
        worlds = [self.rng.randint(1, 4)] if kind == "nan" else [1, 2, 3, 4]
        folder = self.folder / f"trial-{number}"
        folder.mkdir()
        lives = self._lives(trial, folder, worlds)
        faults = ["it did not come to its end"] if lives is None else []
        if lives is not None:
            faults = faults_of(trial, folder, lives, self._reference(trial, kind, lives))
            self.counts["trials"] += 1
            self.counts[f"trials: {kind}"] += 1
            self.counts["lives"] += len(lives)
            self.counts["steps"] += len(history(folder, lives))
            self.counts["changes of world size"] += sum(a.world != b.world for a, b in pairwise(lives))
        self.faults += [f"trial {number} ({kind}, {trial}): {fault}" for fault in faults]
        if not faults:
            shutil.rmtree(folder)
        shown = "-" if lives is None else "→".join(str(life.world) for life in lives)
        return (
            f"{number:3d}  {kind:7s} {trial.policy['name']:15s} n={trial.n:<4d} processes {shown}  {faults or 'held'}"
        )

    def _lives(self, trial: Trial, folder: Path, worlds: list[int]) -> list[Life] | None:
        lives: list[Life] = []
        for life in range(MOST_LIVES + 1):
            world = self.rng.choice(worlds)
            lives.append(Life(world, _steps_in(folder / CHECKPOINT)))
            most = lives[-1].first_step + self.rng.randint(0, STEPS_TO_A_KILL)
            kill_at = most if life < MOST_LIVES and self.rng.random() < 0.85 else None
            if self._one_life(trial, folder, world, life, kill_at):
                return lives
        return None

    def _one_life(self, trial: Trial, folder: Path, world: int, life: int, kill_at: int | None) -> bool:
        processes = [
            self._context.Process(target=live, args=(rank, world, folder, trial, life), daemon=True)
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + HANGS_AFTER
        if kill_at is not None:
            self._kill(self.rng.choice(processes), folder / f"steps-{life}-0.jsonl", kill_at, deadline)
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                self.faults.append(f"trial {trial.number}, life {life}: a process hangs")
                process.kill()
                process.join(10)
        return all(process.exitcode == 0 for process in processes)

    def _kill(self, victim: Any, log: Path, kill_at: int, deadline: float) -> None:
        """Without warning, once the first process has begun that step; before any step where it is the first."""
        while victim.is_alive() and time.monotonic() < deadline:
            begun = log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []
            if kill_at == 0 or (begun and json.loads(begun[-1])[0] >= kill_at):
                time.sleep(self.rng.uniform(0.0, 0.02))  # anywhere in a step, a checkpoint or an exchange
                victim.kill()
                self.counts["kills"] += 1
                return
            time.sleep(0.002)

    def _reference(self, trial: Trial, kind: str, lives: list[Life]) -> Any:
        """The same without a disturbance: in one process with the whole table, or for NaN in as many as there were."""
        if kind == "ragged":
            return [], {}
        world = lives[-1].world if kind == "nan" else 1
        folder = self.folder / f"reference-{trial.number}"
        folder.mkdir()
        if not self._one_life(replace(trial, sharded=False), folder, world, 0, None):
            self.faults.append(f"trial {trial.number}: the undisturbed training failed")
            return [], {}
        table = orderdp.load_checkpoint(folder / "result-0.pt")["table"]
        steps = history(folder, [Life(world, 0)])
        shutil.rmtree(folder)
        return steps, table


def _steps_in(checkpoint: Path) -> int:
    return int(orderdp.load_checkpoint(checkpoint)["steps"]) if checkpoint.exists() else 0


def soak(minutes: float, seed: int, most: int, console: Console) -> tuple[Counter[str], list[str]]:
    """Trials until the time is over; what was counted, and what did not hold."""
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        work = Soak(Path(folder), seed)
        end = time.monotonic() + 60 * minutes
        for number in range(most):
            if time.monotonic() > end:
                break
            console.print(work.run(number), highlight=False)
        return work.counts, work.faults


def main(arguments: list[str] | None = None) -> None:
    """Soaks, and ends with an error if anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=10_000, help="at most so many")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console()
    counts, faults = soak(options.minutes, options.seed, options.trials, console)
    console.print_json(json.dumps({**dict(sorted(counts.items())), "faults": faults}))
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
