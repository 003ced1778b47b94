"""`Pruner.update` on the CPU, batches of 128 of 50,000 samples, against the published recipe.

Each round draws a real epoch of the pruner (not timed) and times one loop over all its full batches, each side with
the same index tensors and the same losses, which require gradients. So the epoch is open in every step, and the last
step ends it, as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import published
from benchmarks.timing import Goal, overhead, take_turns
from orderdp import OrderDP, Pruner

_SAMPLES = 50_000
_BATCH = 128
_ROUNDS = 61


def update() -> Iterator[dict[str, Any]]:
    """A step's bookkeeping, in a tight loop."""
    pruner = Pruner(OrderDP(exploration=0.8, exploitation=0.75), _SAMPLES)
    weights, scores = torch.ones(_SAMPLES), torch.full((_SAMPLES,), 3.0)
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for round_number in range(_ROUNDS + 1):
        steps = _next_epoch(pruner)
        contestants = {
            "ours": _loop(pruner.update, steps),
            "theirs": _loop(lambda index, losses: published.update(weights, scores, index, losses), steps),
        }
        measured = take_turns(contestants, rounds=1, warm_up=False)
        if round_number:  # the first epoch is for warming up
            for name, times in measured.items():
                seconds[name] += [time / len(steps) for time in times]
    yield {
        "benchmark": "update",
        "what": f"Pruner.update, a step of {_BATCH} on the CPU, n = {_SAMPLES:,}, against the published recipe.",
        "steps_a_round": len(steps),
        **overhead(seconds["ours"], seconds["theirs"], Goal("<=", 1.3)),
    }


def _next_epoch(pruner: Pruner) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The index and the losses of every full batch of the pruner's next epoch, which is now open."""
    batches = pruner.batch_sampler(_BATCH, drop_last=True)
    return [(torch.tensor(batch), torch.rand(_BATCH, requires_grad=True)) for batch in batches]


def _loop(
    update_step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], steps: list[tuple[torch.Tensor, torch.Tensor]]
) -> Callable[[], None]:
    def run() -> None:
        for index, losses in steps:
            update_step(index, losses)

    return run
