"""Which samples a seed draws, and in which order: pinned by digests, through public names alone.

A change of structure must leave every digest as it is. A deliberate change of what is drawn has a commit and a line
under *Numerics* in the changelog of its own, and then ``python -m tests.test_pinned_draws`` writes the digests anew.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

import orderdp
from orderdp import policies
from orderdp.errors import OrderDPWarning
from orderdp.policies.registry import NAMES
from orderdp.streaming import GrowingPruner, KeyFilter
from tests.ranks import FullRank, MemoryRank, all_fine, in_threads

FILE = Path(__file__).with_name("pinned_draws.json")
EPOCHS = 4

CONFIGS: dict[str, dict[str, Any]] = {
    "orderdp": {"name": "orderdp", "prune_ratio": 0.4},
    "orderdp, two dials": {"name": "orderdp", "exploration": 0.5, "exploitation": 0.6},
    "orderdp, every batch": {"name": "orderdp", "prune_ratio": 0.4, "every": "batch"},
    "orderdp, bottom": {"name": "orderdp", "prune_ratio": 0.4, "select": "bottom"},
    "orderdp, trimmed": {"name": "orderdp", "prune_ratio": 0.4, "select": {"name": "trimmed", "share": 0.1}},
    "orderdp, mixed": {"name": "orderdp", "prune_ratio": 0.4, "select": {"name": "mixed", "top": 0.7, "uniform": 0.3}},
    "orderdp, unbiased": {
        "name": "orderdp",
        "prune_ratio": 0.4,
        "select": {"name": "mixed", "top": 0.7, "uniform": 0.3},
        "unbiased": True,
    },
    "orderdp, moving": {"name": "orderdp", "prune_ratio": 0.4, "select": {"name": "moving", "start": 1.0, "end": 0.2}},
    "orderdp, all": {"name": "orderdp", "prune_ratio": 0},
    "orderdp, balanced": {"name": "orderdp", "prune_ratio": 0.4, "balanced": True},
    "orderdp, schedule": {
        "name": "orderdp",
        "prune_ratio": 0.4,
        "schedule": {"name": "linear", "start": 0.1, "end": 0.6},
    },
    "orderdp, tail": {"name": "orderdp", "prune_ratio": 0.4, "tail": 0.5},
    "budget": {"name": "budget", "share": 0.6},
    "budget, full data": {"name": "budget", "share": 0.6, "policy": {"name": "full"}},
    "unlearned": {"name": "unlearned", "prune_ratio": 0.4, "refresh": 0.0, "in_turn": False, "until_pass": None},
    "unlearned, refresh": {
        "name": "unlearned",
        "prune_ratio": 0.4,
        "refresh": 0.2,
        "in_turn": False,
        "until_pass": None,
        "unbiased": True,
    },
    "unlearned, in turn": {"name": "unlearned", "prune_ratio": 0.4},
    "spaced-repetition": {"name": "spaced-repetition", "prune_ratio": 0.4},
    "skip-learned": {"name": "skip-learned"},
    "skip-learned, relative": {"name": "skip-learned", "learned": {"name": "relative-loss", "share": 0.3}},
    "skip-learned, share": {"name": "skip-learned", "learned": {"name": "loss-share", "share": 0.1}},
    "adaptive": {"name": "adaptive", "tolerance": 0.3},
    "full": {"name": "full"},
    "random": {"name": "random", "prune_ratio": 0.4},
    "rs2": {"name": "rs2", "prune_ratio": 0.4},
    "epsilon-greedy": {"name": "epsilon-greedy", "prune_ratio": 0.4},
    "ucb": {"name": "ucb", "prune_ratio": 0.4},
    "infobatch": {"name": "infobatch", "prune_ratio": 0.5},
    "infobatch, target": {"name": "infobatch", "target_ratio": 0.2, "annealing": None},
    "infobatch-quantile": {"name": "infobatch-quantile"},
    "seta": {"name": "seta", "r": 0.2},
    "repb": {"name": "repb", "rho": 0.5},
    "kakurenbo": {"name": "kakurenbo", "fraction": 0.4},
    "selective-backprop": {"name": "selective-backprop", "beta": 1.0},
    "selective-by-rank": {"name": "selective-by-rank", "prune_ratio": 0.5, "start": 0.2, "end": 1.0},
    "online-batch-selection": {"name": "online-batch-selection", "prune_ratio": 0.4},
    "instance-early-stopping": {"name": "instance-early-stopping", "delta": 0.3},
    "progressive-dropout": {"name": "progressive-dropout", "threshold": 0.7},
    "active-bias": {"name": "active-bias", "prune_ratio": 0.4, "by": "sampling"},
    "dynamic-uncertainty": {"name": "dynamic-uncertainty", "prune_ratio": 0.4, "window": 2, "warm_up": 1},
    "calibrated": {"name": "calibrated", "prune_ratio": 0.4},
    "calibrated, tempered": {"name": "calibrated", "prune_ratio": 0.4, "power": 0.5},
}

TOGETHER = ["orderdp", "orderdp, every batch", "orderdp, unbiased", "budget", "unlearned", "infobatch", "ucb", "rs2"]
TOGETHER += ["spaced-repetition", "unlearned, in turn"]
SHARDED = ["orderdp", "orderdp, trimmed", "orderdp, mixed", "budget", "unlearned", "orderdp, tail"]


def losses(index: torch.Tensor, epoch: int) -> torch.Tensor:
    """Losses made of whole numbers, so that they are the same on every machine."""
    mixed = (index.long() * 2654435761 + epoch * 40503) % 65536
    return mixed.float() / 32768 / 2**epoch


def told(pruner: Any, index: torch.Tensor, epoch: int) -> dict[str, torch.Tensor]:
    values = losses(index * 7 + 3, epoch) / 2
    known = {"correct": values > 0.3, "confidence": values, "probability": values}
    return {name: known[name] for name in pruner.update_arguments}


class Digest:
    """What was visited, and with what weights; nothing whose last digit depends on the machine."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, values: Any) -> None:
        self._hash.update(np.asarray(values, dtype="<i8").tobytes() + b";")

    def weights(self, pruner: Any) -> None:
        report = pruner.report()
        self.add([round(1e5 * report[f"weight_{name}"]) for name in ("min", "mean", "max")])

    def __str__(self) -> str:
        return self._hash.hexdigest()


def labels(n: int) -> np.ndarray:
    return np.arange(n) % 5 % 3


def train(pruner: Any, batch_size: int, digest: Digest, *, make: Any = None, stop: int | None = None) -> Any:
    """Trains to the end, or for so many steps; then returns the state."""
    steps = 0
    for epoch in range(pruner.epoch, EPOCHS):
        for batch in (make or pruner.batch_sampler)(batch_size):
            index = torch.tensor(batch)
            pruner.update(index, losses(index, epoch), **told(pruner, index, epoch))
            digest.add(batch)
            steps += 1
            if steps == stop:
                return pruner.state_dict()
        digest.weights(pruner)
    return None


def made(name: str, n: int, seed: int, **options: Any) -> orderdp.Pruner:
    return orderdp.Pruner(policies.build(**CONFIGS[name]), n, seed=seed, epochs=EPOCHS, labels=labels(n), **options)


def alone() -> Iterator[tuple[str, Digest]]:
    for name in CONFIGS:
        for n, seed in ((37, 0), (1000, 7)):
            digest = Digest()
            train(made(name, n, seed), 16, digest)
            yield f"{name}, n={n}, seed={seed}", digest
    digest = Digest()
    train(made("orderdp", 150_000, 3), 30_000, digest)
    yield "orderdp, n=150000, seed=3", digest


def resumed() -> Iterator[tuple[str, Digest]]:
    for name in CONFIGS:
        digest = Digest()
        state = train(made(name, 203, 5), 16, digest, stop=9)
        again = made(name, 203, 0)
        if state is not None:
            again.load_state_dict(state)
            train(again, 16, digest)
        yield f"{name}, resumed", digest


def on_rank(group: MemoryRank, name: str, options: dict[str, Any]) -> str:
    n = 331
    given = {} if group.world == 1 else {"process_group": group}
    known = {} if options.get("table") == "sharded" else {"labels": labels(n)}
    policy = policies.build(**CONFIGS[name])
    pruner = orderdp.Pruner(policy, n, seed=2, epochs=EPOCHS, **known, **given, **options)
    digest = Digest()
    train(pruner, 8, digest)
    return str(digest)


def together() -> Iterator[tuple[str, Digest]]:
    for world in (1, 2, 3):
        cases = [(name, {}) for name in TOGETHER]
        cases += [(name, {"table": "sharded", "sharding": how}) for name in SHARDED for how in ("exact", "stratified")]
        cases += [("orderdp", {"pad": True}), ("orderdp", {"shard": False})]
        for name, options in cases:
            work = partial(on_rank, name=name, options=options)
            digest = Digest()
            for part in all_fine(in_threads(world, work, kind=FullRank)):
                digest.add(np.frombuffer(bytes.fromhex(part), dtype=np.int64))
            yield f"{name}, {options}, {world} ranks", digest


def otherwise() -> Iterator[tuple[str, Digest]]:
    """A sampler of one's own, a key filter, a data set that grows."""
    for name in ("orderdp", "unlearned", "infobatch"):
        pruner, digest = made(name, 211, 4), Digest()
        order = RandomSampler(range(211), generator=torch.Generator().manual_seed(1))
        batches = BatchSampler(order, 10, drop_last=False)
        train(pruner, 10, digest, make=lambda size, pruner=pruner, batches=batches: pruner.filter(batches, repack=True))
        yield f"{name}, filter", digest

        keys, digest = KeyFilter(policies.build(**CONFIGS[name]), seed=6, epochs=EPOCHS, key=str), Digest()
        for epoch in range(EPOCHS):
            kept = []
            for sample in keys.one_epoch(keys.only(range(300))):
                keys.update([str(sample)], losses(torch.tensor([sample]), epoch))
                kept.append(sample)
            digest.add(kept)
        yield f"{name}, keys", digest

        growing, digest = GrowingPruner(policies.build(**CONFIGS[name]), 60, seed=8, epochs=EPOCHS), Digest()
        for epoch in range(EPOCHS):
            for batch in growing.batch_sampler(9):
                index = torch.tensor(batch)
                growing.update(index, losses(index, epoch))
                digest.add(batch)
            growing.grow(60 + 20 * (epoch + 1))
            growing.remove([epoch, 30 + epoch])
        yield f"{name}, growing", digest


PARTS = {"alone": alone, "resumed": resumed, "together": together, "otherwise": otherwise}


def digests(part: str) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderDPWarning)
        return {name: str(digest) for name, digest in PARTS[part]()}


@pytest.mark.parametrize("part", PARTS)
def test_a_seed_draws_what_it_drew(part: str) -> None:
    pinned = json.loads(FILE.read_text(encoding="utf-8"))[part]
    found = digests(part)
    assert {name for name in found if found[name] != pinned.get(name)} == set()
    assert set(found) == set(pinned)


def test_every_policy_with_a_name_is_pinned() -> None:
    assert {config["name"] for config in CONFIGS.values()} == set(NAMES)


def test_the_digest_sees_an_order_and_a_weight() -> None:
    def of(*batches: list[int]) -> str:
        digest = Digest()
        for batch in batches:
            digest.add(batch)
        return str(digest)

    assert len({of([1, 2]), of([2, 1]), of([1], [2]), of([1, 2], [])}) == 4

    def with_weights(name: str) -> str:
        digest = Digest()
        pruner = made(name, 20, 0)
        pruner.observe(torch.arange(20), losses(torch.arange(20), 0))
        next(iter(pruner.batch_sampler(4)))
        digest.weights(pruner)
        return str(digest)

    assert with_weights("unlearned") != with_weights("orderdp, unbiased")


if __name__ == "__main__":
    FILE.write_text(json.dumps({part: digests(part) for part in PARTS}, indent=1) + "\n", encoding="utf-8")
