"""A step only issues operations: nothing in it waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from orderdp import Column, OrderDP, Pruner, per_sample, top_mean
from tests.support import Weighted

# Operations whose result the host has to see before it can go on.
WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "is_nonzero",
    "unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
)


class Spy(TorchDispatchMode):
    """Notes every operation, and those that would make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        self.seen.append(name)
        from_device = any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in args)
        to_host = str((kwargs or {}).get("device")) == "cpu" and from_device
        by_mask = name in ("index", "index_put_", "index_put") and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in (args[1] or ())
        )
        if name in WAITS or to_host or by_mask:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "waiting",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: bool((x > 0).any()),
        lambda x: x.tolist(),
        lambda x: torch.nonzero(x),
        lambda x: torch.unique(x),
        lambda x: x.masked_fill_(x > 0, 1.0)[x > 1],
    ],
)
def test_the_spy_sees_what_waits(waiting) -> None:
    with Spy() as spy:
        waiting(torch.arange(4.0))
    if not spy.waits:  # tolist reads CPU memory without an operation; on a device it cannot
        with pytest.raises((NotImplementedError, RuntimeError)):
            waiting(torch.empty(4, device="meta"))


def test_the_spy_sees_a_copy_to_the_host() -> None:
    with Spy() as spy, pytest.raises(NotImplementedError):
        torch.empty(3, device="meta").cpu()
    assert spy.waits


class EverythingRemembered(Weighted):
    """Uses all a step can use: weights, a column of its own, an extra argument."""

    columns = (Column("mean", 0.0), Column("hits", 0, "int32", "sum"))

    def compute_columns(self, rows, losses, *, correct):
        return {"score": losses, "mean": rows["mean"] * 0.9 + losses * 0.1, "hits": correct}


def open_epoch(pruner: Pruner) -> None:
    next(iter(pruner.batch_sampler(8)))


@pytest.mark.parametrize("index_device", ["cpu", "meta"])
def test_a_step_with_losses_on_a_device_does_not_wait(index_device: str) -> None:
    """The meta device has no values at all: whatever looked at one would raise."""
    pruner = Pruner(OrderDP(0.4), 1000)
    open_epoch(pruner)
    losses = torch.rand(8, device="meta", requires_grad=True)
    index = torch.arange(8).to(index_device)
    with Spy() as spy:
        for _ in range(3):
            pruner.update(index, losses).backward()
            pruner.reduce(index, losses)
    assert not spy.waits
    assert "index_copy_" in spy.seen
    assert pruner._table.device.type == "meta"
    assert pruner._manager.progress.trained == 24


@pytest.mark.parametrize("index_device", ["cpu", "meta"])
def test_a_step_of_a_policy_that_remembers_more_and_weights_does_not_wait(index_device: str) -> None:
    pruner = Pruner(EverythingRemembered(), 100)
    open_epoch(pruner)
    index = torch.arange(8).to(index_device)
    losses = torch.rand(8, device="meta", requires_grad=True)
    with Spy() as spy:
        pruner.update(index, losses, correct=torch.ones(8, device="meta")).backward()
        pruner.update(index, losses, scores=torch.rand(8, device="meta"), correct=torch.ones(8, device="meta"))
        pruner.update(index, losses.mean(), reduced=True, correct=torch.ones(8, device="meta"))
    assert not spy.waits


def test_reducing_losses_does_not_wait() -> None:
    losses = torch.rand(4, 6, device="meta", requires_grad=True)
    with Spy() as spy:
        per_sample(losses, mask=torch.ones(4, 6, device="meta"))
        per_sample(losses, segments=torch.zeros(4, 6, dtype=torch.int64, device="meta"), count=5)
        top_mean(losses[:, 0], q=2).backward()
    assert not spy.waits


def test_the_table_goes_to_the_device_of_the_losses_at_the_first_update() -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    pruner.observe(torch.arange(10), torch.rand(10))
    assert pruner._table.device.type == "cpu"
    pruner.update(torch.arange(4), torch.rand(4, device="meta"))
    assert pruner._table.device.type == "meta"


def test_scores_on_the_cpu_reach_a_table_on_a_device() -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    pruner.update(torch.arange(4), torch.rand(4, device="meta"), scores=torch.rand(4))
    assert pruner._table.device.type == "meta"
