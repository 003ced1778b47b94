"""What must hold after any disturbance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch

import orderdp
from tools.soak.trial import Trial, steps_logged

__all__ = ["Life", "faults_of", "history"]


class Life(NamedTuple):
    """One start of the job: with how many processes, and at which step it began."""

    world: int
    first_step: int


def history(folder: Path, lives: list[Life]) -> list[tuple[int, list[int]]]:
    """Epoch and samples of every step that counts: what was done after the last checkpoint of a life was done again."""
    steps: list[tuple[int, list[int]]] = []
    for number, life in enumerate(lives):
        end = lives[number + 1].first_step if number + 1 < len(lives) else None
        logs = [list(steps_logged(folder, number, rank)) for rank in range(life.world)]
        shares: dict[int, tuple[int, list[int]]] = {}
        for log in logs:
            for step, epoch, batch in log:
                if end is None or step < end:
                    shares.setdefault(step, (epoch, []))[1].extend(batch)
        steps += [(epoch, sorted(samples)) for _, (epoch, samples) in sorted(shares.items())]
    return steps


def faults_of(
    trial: Trial,
    folder: Path,
    lives: list[Life],
    reference: tuple[list[tuple[int, list[int]]], dict[str, torch.Tensor]],
) -> list[str]:
    """Which invariants do not hold, in words; none is what one hopes for.

    Args:
        trial: What was trained.
        folder: Where its processes wrote.
        lives: Its starts.
        reference: Steps and table of the same training without a disturbance, or ([], {}) where world sizes change
            what is left over of an epoch.
    """
    results = [orderdp.load_checkpoint(folder / f"result-{rank}.pt") for rank in range(lives[-1].world)]
    tables, steps = [result["table"] for result in results], history(folder, lives)
    faults = []
    if trial.sharded:
        table = {name: torch.cat([part[name] for part in tables]) for name in tables[0]}
    else:
        table = tables[0]
        differ = [rank for rank, other in enumerate(tables) if not _same(other, table)]
        faults += [f"the table of rank {rank} differs from that of rank 0" for rank in differ]
    faults += _counts(trial, steps, lives)
    faults += _bookkeeping(trial, steps, table)
    expected_steps, expected_table = reference
    if trial.sharded:  # parts of a table are visited in an order of their own
        steps, expected_steps = _by_epoch(steps), _by_epoch(expected_steps)
    if expected_steps and steps != expected_steps:
        faults.append("the samples of some step or epoch are not those of the undisturbed training")
    if expected_table and not _same(table, expected_table):
        faults.append("the table is not that of the undisturbed training")
    return faults


def _counts(trial: Trial, steps: list[tuple[int, list[int]]], lives: list[Life]) -> list[str]:
    """Every epoch has its exact count; no more than one round of leftovers is missing, or repeated where padded."""
    faults = []
    slack = sum(life.world - 1 for life in lives)
    for epoch in range(trial.epochs):
        low, high = trial.pruner().size_bounds(epoch)
        samples = [sample for at, batch in steps if at == epoch for sample in batch]
        repeats = len(samples) - len(set(samples))
        if repeats > (slack if trial.pad else 0):
            faults.append(f"epoch {epoch} has {repeats} samples twice")
        if not low - (0 if trial.pad else slack) <= len(set(samples)) <= high:
            faults.append(f"epoch {epoch} has {len(set(samples))} samples, expected {low} to {high}")
    return faults


def _bookkeeping(trial: Trial, steps: list[tuple[int, list[int]]], table: dict[str, torch.Tensor]) -> list[str]:
    """Counts are those of what was trained on, and what was never trained on is still first in line."""
    faults = []
    times = Counter(sample for _, batch in steps for sample in batch)
    usage = [times[sample] for sample in range(trial.n)]
    if table["usage"].tolist() != usage:
        faults.append("the usage counts are not those of the steps")
    never = torch.tensor([count == 0 for count in usage])
    if not torch.isposinf(table["score"][never]).all() or torch.isposinf(table["score"][~never]).any():
        faults.append("a sample is unseen in the table and not in the steps, or the other way round")
    return faults


def _by_epoch(steps: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    epochs: dict[int, list[int]] = {}
    for epoch, samples in steps:
        epochs.setdefault(epoch, []).extend(samples)
    return [(epoch, sorted(samples)) for epoch, samples in sorted(epochs.items())]


def _same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)
