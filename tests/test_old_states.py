"""States written before the files and keys were renamed load, and training continues with the same draws, bit for bit.

`old_states.json` holds states that an earlier version of the library wrote, and the draws that it made after them. It
was written by ``python -m tests.test_old_states`` with that version on the path, and stays as it is.
"""

from __future__ import annotations

import base64
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

import orderdp
from orderdp import distributed, policies
from orderdp.errors import OrderDPWarning
from orderdp.streaming import GrowingPruner, KeyFilter, OnePass
from tests.ranks import FullRank, MemoryRank, all_fine, in_threads
from tests.test_pinned_draws import CONFIGS, labels, losses, told

FILE = Path(__file__).with_name("old_states.json")
N, BATCH_SIZE, EPOCHS = 37, 4, 6

Draws = list[list[int]]


def as_json(value: Any) -> Any:
    """Tensors as their dtype and values, bytes in base 64; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    return [as_json(part) for part in value] if isinstance(value, list | tuple) else value


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"dtype", "values"}:
            return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))
        if set(value) == {"bytes"}:
            return base64.b64decode(value["bytes"])
        return {name: from_json(part) for name, part in value.items()}
    return [from_json(part) for part in value] if isinstance(value, list) else value


def steps(pruner: Any, batches: Any, epochs: int, stop: int | None = None) -> Draws:
    """Train for so many epochs, or for so many steps; return the batches."""
    drawn: Draws = []
    first = pruner.epoch
    while pruner.epoch < min(first + epochs, EPOCHS):
        epoch = pruner.epoch
        for batch in batches:
            index = torch.tensor(batch)
            pruner.update(index, losses(index, epoch), **told(pruner, index, epoch))
            drawn.append(index.tolist())
            if len(drawn) == stop:
                return drawn
        pruner.end_epoch()
        if pruner.epoch == epoch:  # the budget is spent
            break
    return drawn


class Alone:
    """One process with a policy of `CONFIGS`, stopped in the middle of an epoch or at its end."""

    def __init__(self, name: str, stop: int | None, view: str = "batches") -> None:
        self.name, self.stop, self.view = name, stop, view

    def pruner(self, seed: int = 3) -> Any:
        return orderdp.Pruner(policies.build(**CONFIGS[self.name]), N, seed=seed, epochs=EPOCHS, labels=labels(N))

    def batches(self, pruner: Any) -> Any:
        order = RandomSampler(range(N), generator=torch.Generator().manual_seed(1))
        if self.view == "samples":
            return BatchSampler(pruner.sampler, BATCH_SIZE, drop_last=False)
        if self.view == "filtered samples":
            return BatchSampler(pruner.filter(order), BATCH_SIZE, drop_last=False)
        if self.view == "filtered batches":
            return pruner.filter(BatchSampler(order, BATCH_SIZE, drop_last=False))
        if self.view == "repacked":
            return pruner.filter(BatchSampler(order, BATCH_SIZE, drop_last=False), repack=True)
        return pruner.batch_sampler(BATCH_SIZE, drop_last=self.view == "full batches")

    def state(self) -> Any:
        pruner = self.pruner()
        pruner.observe(torch.tensor([5, 6]), torch.tensor([0.25, 9.0]))
        steps(pruner, self.batches(pruner), 2, self.stop)
        return pruner.state_dict()

    def load(self, pruner: Any, state: Any) -> None:
        pruner.load_state_dict(state)

    def after(self, state: Any) -> Draws:
        pruner = self.pruner(seed=0)
        self.load(pruner, state)
        return steps(pruner, self.batches(pruner), 3)


class InFile(Alone):
    """The same, in a file of `save_checkpoint`."""

    def state(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.pt"
            orderdp.save_checkpoint(path, {"pruner": super().state(), "step": 5})
            return path.read_bytes()

    def load(self, pruner: Any, state: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.pt"
            path.write_bytes(state)
            pruner.load_state_dict(orderdp.load_checkpoint(path)["pruner"])


class Packed(Alone):
    """The same, as torch.distributed.checkpoint stores it."""

    def wrapped(self, pruner: Any) -> Any:
        names = vars(distributed)
        return names["DCPState" if "DCPState" in names else "Packed"](pruner)  # what it is called now, and was then

    def state(self) -> Any:
        pruner = self.pruner()
        steps(pruner, self.batches(pruner), 2, self.stop)
        return self.wrapped(pruner).state_dict()

    def load(self, pruner: Any, state: Any) -> None:
        self.wrapped(pruner).load_state_dict(state)


class Ranks:
    """Several ranks. Each writes its state: after a sync, or with what the others do not know yet."""

    def __init__(self, name: str, stop: int | None, *, sync: bool = False, world: int = 2, **options: Any) -> None:
        self.name, self.stop, self.sync, self.world, self.options = name, stop, sync, world, options

    def pruner(self, group: Any, seed: int = 3) -> Any:
        policy = policies.build(**CONFIGS[self.name])
        return orderdp.Pruner(policy, N, seed=seed, epochs=EPOCHS, process_group=group, **self.options)

    def state(self) -> Any:
        def work(group: MemoryRank) -> Any:
            pruner = self.pruner(group)
            steps(pruner, pruner.batch_sampler(BATCH_SIZE), 2, self.stop)
            if self.sync:
                pruner.sync()
            return pruner.state_dict()

        return all_fine(in_threads(2, work, kind=FullRank))

    def after(self, states: Any) -> Draws:
        def work(group: MemoryRank) -> Draws:
            pruner = self.pruner(group if self.world > 1 else None, seed=0)
            pruner.load_state_dict(states[group.rank] if self.sync and "table" not in self.options else states)
            return steps(pruner, pruner.batch_sampler(BATCH_SIZE), 3)

        return [batch for draws in all_fine(in_threads(self.world, work, kind=FullRank)) for batch in draws]


class Growing:
    """A data set that has grown and lost samples, and grows again after the state was written."""

    def __init__(self, name: str, stop: int | None) -> None:
        self.name, self.stop = name, stop

    def state(self) -> Any:
        pruner = GrowingPruner(policies.build(**CONFIGS[self.name]), N, seed=3, epochs=EPOCHS)
        steps(pruner, pruner.batch_sampler(BATCH_SIZE), 1)
        pruner.grow(N + 10)
        pruner.remove([3, 7])
        steps(pruner, pruner.batch_sampler(BATCH_SIZE), 1, self.stop)
        return pruner.state_dict()

    def after(self, state: Any) -> Draws:
        pruner = GrowingPruner(policies.build(**CONFIGS[self.name]), N + 12, seed=0, epochs=EPOCHS)
        pruner.load_state_dict(state)
        return steps(pruner, pruner.batch_sampler(BATCH_SIZE), 3)


class Keys:
    """A stream of keys, left in the middle of an epoch or at its end."""

    def __init__(self, name: str, stop: int | None) -> None:
        self.name, self.stop = name, stop

    def keys(self) -> Any:
        return KeyFilter(policies.build(**CONFIGS[self.name]), seed=6, epochs=EPOCHS, key=str)

    def train(self, keys: Any, epochs: int, stop: int | None = None) -> Draws:
        drawn: Draws = []
        for _ in range(epochs):
            epoch, batch = keys.epoch, []
            drawn.append(batch)
            for sample in keys.one_epoch(keys.only(range(N))):
                keys.update([str(sample)], losses(torch.tensor([sample]), epoch))
                batch.append(sample)
                if epoch == 1 and len(batch) == stop:
                    return drawn
        return drawn

    def state(self) -> Any:
        keys = self.keys()
        self.train(keys, 2, self.stop)
        return keys.state_dict()

    def after(self, state: Any) -> Draws:
        keys = self.keys()
        keys.load_state_dict(state)
        return self.train(keys, 3)


class Once:
    """Data that are seen once."""

    def passes(self) -> Any:
        return OnePass(range(N), lambda batch: losses(batch, 0), window=8, keep=3)

    def state(self) -> Any:
        passes = self.passes()
        for _ in zip(range(2), passes, strict=False):
            pass
        return passes.state_dict()

    def after(self, state: Any) -> Draws:
        passes = self.passes()
        passes.load_state_dict(state)
        return [batch.tolist() for _ in range(2) for batch in passes]


NEWER = {"spaced-repetition", "unlearned, in turn"}  # policies that the earlier version did not have

CASES: dict[str, Any] = {
    **{f"{name}, in an epoch": Alone(name, 3) for name in CONFIGS if name not in NEWER},
    **{f"{name}, later in an epoch": Alone(name, 9) for name in ("orderdp", "orderdp, every batch", "budget", "ucb")},
    **{f"{name}, between epochs": Alone(name, None) for name in ("orderdp", "orderdp, every batch")},
    "orderdp, unbiased, between epochs": Alone("orderdp, unbiased", None),
    **{f"budget of {name}": Alone(name, None) for name in ("budget", "unlearned", "unlearned, refresh")},
    **{f"orderdp, {view}": Alone("orderdp", 3, view) for view in ("samples", "full batches")},
    **{f"orderdp, {view}": Alone("orderdp", 3, view) for view in ("filtered samples", "filtered batches", "repacked")},
    "infobatch, repacked": Alone("infobatch", 7, "repacked"),
    "a file": InFile("orderdp, unbiased", 3),
    "packed": Packed("orderdp", 3),
    "ranks, synced": Ranks("orderdp", 3, sync=True),
    "ranks, synced between epochs": Ranks("unlearned", None, sync=True),
    "ranks, not synced": Ranks("orderdp", 3),
    "ranks, not synced, more columns": Ranks("dynamic-uncertainty", 7),
    "ranks, every batch": Ranks("orderdp, every batch", 3),
    "ranks, not synced, one goes on": Ranks("orderdp", 3, world=1),
    "sharded": Ranks("orderdp", 3, table="sharded"),
    "sharded, between epochs": Ranks("orderdp", None, table="sharded"),
    "sharded, padded, stratified": Ranks("orderdp", 3, table="sharded", sharding="stratified", pad=True),
    "sharded, three go on": Ranks("orderdp", 3, world=3, table="sharded"),
    "sharded, one goes on": Ranks("orderdp", 3, world=1, table="sharded"),
    "growing": Growing("orderdp", 2),
    "growing, between epochs": Growing("orderdp", None),
    "growing, every batch": Growing("orderdp, every batch", 2),
    "keys": Keys("orderdp", 5),
    "keys, between epochs": Keys("orderdp", None),
    "keys, weights": Keys("infobatch", 5),
    "one pass": Once(),
}


def quietly(work: Callable[..., Any], *arguments: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderDPWarning)
        return work(*arguments)


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    states: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return states


@pytest.mark.parametrize("name", CASES)
def test_a_state_of_an_earlier_version_continues_as_it_did_there(name: str, written: dict[str, Any]) -> None:
    old = written[name]
    draws = quietly(CASES[name].after, from_json(old["state"]))
    assert draws == old["draws"]
    assert sum(map(len, draws)) > 20


def test_every_stored_state_is_read(written: dict[str, Any]) -> None:
    assert set(written) == set(CASES)


if __name__ == "__main__":
    lines = []
    for title, case in CASES.items():
        state = quietly(case.state)
        draws = quietly(case.after, state)
        lines.append(f"{json.dumps(title)}: {json.dumps({'state': as_json(state), 'draws': draws})}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
