"""How many of our modules, objects and calls one epoch of the README's loop passes through. Counts, not times.

Values are listed apart from objects: a value is an instance of a frozen dataclass, which nothing changes after it is
made (a policy, a context, a selection, an order).

python -m benchmarks.hops
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.utils.data import TensorDataset

import orderdp

N, BATCH_SIZE = 640, 64


class Hops:
    """What was called of our own code."""

    def __init__(self) -> None:
        self.calls = 0
        self.modules: set[str] = set()
        self.objects: dict[int, Any] = {}

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts what is called inside."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith("orderdp"):
            return
        self.calls += 1
        self.modules.add(module)
        owner = frame.f_locals.get("self")
        if owner is not None and type(owner).__module__.startswith("orderdp"):
            self.objects[id(owner)] = owner  # kept, so that no other object gets its id


def _is_value(owner: Any) -> bool:
    parameters = getattr(type(owner), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def measure() -> dict[str, Any]:
    """Counts in the second epoch: of its ``iter(loader)``, of each step, and of all."""
    train_set = TensorDataset(torch.randn(N, 8), torch.randint(0, 5, (N,)))
    model = torch.nn.Linear(8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss(reduction="none")
    pruner = orderdp.Pruner(orderdp.OrderDP(prune_ratio=0.4), len(train_set), seed=0)
    loader = pruner.loader(train_set, batch_size=BATCH_SIZE)
    whole = Hops()
    for epoch in range(2):
        opening, steps = Hops(), []
        with opening.counted():
            batches = iter(loader)
        while True:
            step = Hops()
            with step.counted():
                index, batch = next(batches, (None, None))
            if index is None:
                break
            x, y = batch
            losses = criterion(model(x), y)
            with step.counted():
                loss = pruner.update(index, losses)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(step)
        if epoch == 1:
            for part in (opening, *steps):
                whole.calls += part.calls
                whole.modules |= part.modules
                whole.objects |= part.objects
            gc.collect()
            names: dict[bool, list[str]] = {True: [], False: []}
            for owner in whole.objects.values():
                names[_is_value(owner)].append(type(owner).__name__)
            return {
                "benchmark": "hops",
                "modules": len(whole.modules),
                "objects": len(names[False]),
                "values": len(names[True]),
                "calls_of_an_epoch": whole.calls,
                "calls_of_iter": opening.calls,
                "calls_of_a_step": max(step.calls for step in steps[:-1]),
                "which_modules": sorted(whole.modules),
                "which_objects": sorted(names[False]),
                "which_values": sorted(names[True]),
            }
    raise AssertionError


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
