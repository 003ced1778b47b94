"""Random uses of pruners, policies, ranks and streams, against simple models of what must hold."""

from __future__ import annotations

import copy
import math
import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import torch

import orderdp
from orderdp.errors import ConfigError, OrderDPWarning, UnknownSizeError
from orderdp.losses import feedback_arguments
from orderdp.policies import Adaptive, EpsilonGreedy, Mixed
from orderdp.policies.registry import NAMES, build_at
from orderdp.policy import size_bounds
from orderdp.streaming import KeyFilter, OnePass

__all__ = ["extremes", "machine", "ranks", "streams"]

LARGEST = float(np.finfo(np.float32).max)
LOSSES = [0.0, 1.0, 0.5, 2.0, 1e-45, -1.0, 1e20, -1e20, LARGEST, -LARGEST]


def quietly(attack: Callable[[random.Random], str | None]) -> Callable[[random.Random], str | None]:
    """The attack without the library's warnings; what it raises is a fault, too."""

    def run(rng: random.Random) -> str | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderDPWarning)
            try:
                return attack(rng)
            except Exception as error:
                return f"{type(error).__name__}: {str(error)[:200]}"

    return run


# -- the state machine of a pruner ---------------------------------------------------------------------------------

POLICIES: list[Callable[[], orderdp.Policy]] = [
    lambda: orderdp.OrderDP(0.5),
    lambda: orderdp.OrderDP(0.4, select=Mixed(top=0.5, uniform=0.5), unbiased=True),
    lambda: orderdp.OrderDP(0.5, every="batch"),
    lambda: orderdp.policies.DynamicRandom(0.5),
    lambda: orderdp.policies.FullData(),
    lambda: orderdp.policies.InfoBatch(0.5),
    lambda: EpsilonGreedy(0.3),
]


class Model:
    """What a pruner must do, in words of one syllable: it follows the table of transitions and knows no draw."""

    def __init__(self, n: int, batch: int, needs_feedback: bool) -> None:
        self.n, self.batch, self.needs_feedback = n, batch, needs_feedback
        self.epoch, self.state, self.trained = 0, "CLOSED", 0
        self.order: dict[int, int] = {}  # samples of the epoch by position, as far as any iterator has served them
        self.size: int | None = None
        self.usage: Counter[int] = Counter()

    def open(self) -> int:
        """An iterator is opened; the position from which it is served."""
        # The rest of a loaded epoch waits for losses, whatever the policy needs.
        if self.state == "TRAINING" or (self.state == "EXHAUSTED" and not self.needs_feedback and not self.trained):
            self.next_epoch()
        if self.state == "CLOSED":
            self.state, self.order, self.size = "OPEN", {}, None
        return self.trained

    def next_epoch(self) -> None:
        self.epoch, self.state, self.trained, self.order = self.epoch + 1, "CLOSED", 0, {}

    def update(self, batch: list[int]) -> None:
        self.usage.update(batch)
        if self.state != "CLOSED":
            self.state, self.trained = "TRAINING", self.trained + len(batch)
            if self.size is not None and self.trained >= self.size:
                self.next_epoch()


class Run:
    """A pruner and its model, step by step."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.n, self.batch = rng, rng.randint(1, 30), rng.randint(1, 6)
        self.make = rng.choice(POLICIES)
        self.pruner = self._fresh()
        self.filters = self.pruner.policy.every == "epoch" and rng.random() < 0.2
        self.batch = 1 if self.filters else self.batch
        self.inner = rng.sample(range(self.n), self.n)
        self.workers = int(rng.random() < 0.01)
        self.model = Model(self.n, self.batch, self.pruner.policy.needs_feedback)
        self.iterators: list[dict[str, Any]] = []
        self.held: list[list[int]] = []  # batches whose losses have not come back
        self.scores: dict[int, float] = {}
        self.log: list[str] = []

    def _fresh(self) -> orderdp.Pruner:
        return orderdp.Pruner(self.make(), self.n, seed=self.rng.randint(0, 9), epochs=60)

    def fault(self) -> str | None:
        for _ in range(self.rng.randint(5, 60)):
            if self.model.epoch > 40:
                break
            step = self.rng.choice(
                [
                    self.open,
                    *[self.fetch] * 6,
                    *[self.train] * 6,
                    self.observe,
                    self.ask,
                    self.save,
                    self.end,
                    self.whole,
                ]
            )
            self.log.append(step.__name__)
            said = step() or self.compare()
            if said:
                return f"{self.pruner.policy}, n={self.n}, batches of {self.batch}: {' '.join(self.log)}: {said}"
        return None

    def open(self) -> None:
        position = self.model.open()
        iterator = self._iterator()
        if self.model.size is None:
            order = self.pruner._manager.order  # the size of an open epoch is not public
            assert order is not None
            self.model.size = len(order)
        self.iterators.append({"it": iterator, "at": position, "order": self.model.order, "size": self.model.size})

    def _iterator(self) -> Iterator[list[int]]:
        if self.filters:
            served = iter(self.pruner.filter(self.inner))
            return ([int(index)] for index in served)
        return iter(self.pruner.batch_sampler(self.batch))

    def fetch(self) -> str | None:
        if not self.iterators:
            return None
        one = self.rng.choice(self.iterators)
        batch = next(one["it"], None)
        if batch is None:
            self.iterators.remove(one)
            if one["at"] < one["size"]:
                return f"an iterator ended at {one['at']} of {one['size']}"
            if one["order"] is self.model.order and self.model.state == "OPEN":
                self.model.state = "EXHAUSTED"
            return None
        if len(batch) != min(self.batch, one["size"] - one["at"]):
            return f"a batch of {len(batch)} at {one['at']} of {one['size']}"
        known = [one["order"].setdefault(place, sample) for place, sample in enumerate(batch, one["at"])]
        if known != batch:
            return f"two iterators of one epoch differ at {one['at']}: {known} and {batch}"
        one["at"] += len(batch)
        served = list(one["order"].values())
        if len(set(served)) < len(served):
            return f"a sample twice in one epoch: {sorted(served)}"
        self.held.append(batch)
        return None

    def train(self) -> None:
        if not self.held:
            return
        batch = self.held.pop(0 if self.rng.random() < 0.7 else -1)
        if self.rng.random() < 0.15:
            return  # a look: its losses never come
        losses = [self.rng.choice(LOSSES) for _ in batch]
        self.pruner.update(torch.tensor(batch), torch.tensor(losses))
        self._note(batch, losses)
        self.model.update(batch)

    def _note(self, batch: list[int], losses: list[float]) -> None:
        for sample, loss in zip(batch, losses, strict=True):
            self.scores[sample] = float(np.float32(loss))

    def observe(self) -> None:
        batch = self.rng.sample(range(self.n), self.rng.randint(1, self.n))
        losses = [self.rng.choice(LOSSES) for _ in batch]
        self.pruner.observe(torch.tensor(batch), torch.tensor(losses))
        self._note(batch, losses)

    def ask(self) -> None:
        self.pruner.report()
        if self.rng.random() < 0.5:
            with suppress(UnknownSizeError):
                len(self.pruner.batch_sampler(self.batch))

    def save(self) -> None:
        state = copy.deepcopy(self.pruner.state_dict())
        self.pruner = self._fresh()
        self.pruner.load_state_dict(state)
        self.iterators, self.held = [], []  # those of a process that is gone
        if self.model.state != "CLOSED":
            self.model.state = "OPEN"

    def end(self) -> None:
        if self.rng.random() < 0.3:
            self.pruner.end_epoch()
            if self.model.state != "CLOSED" and self.model.trained:
                self.model.next_epoch()

    def whole(self) -> str | None:
        """An ordinary epoch to its end."""
        if self.rng.random() < 0.5:
            return None
        if self.workers and not self.filters:
            return self._with_a_worker()
        self.open()
        one = self.iterators[-1]
        self.iterators, self.held = [one], []
        for _ in range(self.n + 2):
            said = self.fetch()
            if said or not self.iterators:
                return said
            batch = self.held.pop()
            self.pruner.update(torch.tensor(batch), torch.ones(len(batch)))
            self._note(batch, [1.0] * len(batch))
            self.model.update(batch)
        return "an epoch without an end"

    def _with_a_worker(self) -> str | None:
        """The same through a loader with a worker, which fetches ahead in another process."""
        self.iterators, self.held = [], []
        position, served = self.model.open(), 0
        for index, _ in self.pruner.loader(range(self.n), batch_size=self.batch, num_workers=1):
            batch = index.tolist()
            if self.model.size is None:
                order = self.pruner._manager.order
                assert order is not None
                self.model.size = len(order)
            known = [self.model.order.setdefault(place, one) for place, one in enumerate(batch, position + served)]
            if known != batch:
                return f"a worker serves {batch} at {position + served}, expected {known}"
            served += len(batch)
            self.pruner.update(index, torch.ones(len(batch)))
            self._note(batch, [1.0] * len(batch))
            self.model.update(batch)
        return None

    def compare(self) -> str | None:
        if self.pruner.epoch != self.model.epoch:
            return f"epoch {self.pruner.epoch}, expected {self.model.epoch} ({self.model.state})"
        usage = self.pruner.usage.tolist()
        if usage != [self.model.usage[sample] for sample in range(self.n)]:
            return f"uses {usage}, expected {dict(self.model.usage)}"
        if isinstance(self.pruner.policy, EpsilonGreedy):
            return None  # its scores are averages
        scores = self.pruner.scores.tolist()
        if scores != [self.scores.get(sample, math.inf) for sample in range(self.n)]:
            return f"scores {scores}, expected {self.scores}"
        return None


@quietly
def machine(rng: random.Random) -> str | None:
    """Iterators, looks, losses in and out of order, observations, checkpoints, questions and ends in any order."""
    try:
        run = Run(rng)
    except ConfigError:
        return None  # too few samples for the ratio
    return run.fault()


# -- extremes ------------------------------------------------------------------------------------------------------


@quietly
def extremes(rng: random.Random) -> str | None:
    """Any policy at any ratio, of one to three samples or some more, with losses of any size."""
    name, n = rng.choice(list(NAMES)), rng.choice([1, 2, 3, rng.randint(4, 20)])
    ratio = rng.choice([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9, rng.random()])
    where = f"{name} at {ratio}, n={n}"
    try:
        policy = Adaptive(0.1) if name == "adaptive" else build_at(name, ratio)
        pruner = orderdp.Pruner(policy, n, seed=rng.randint(0, 99), epochs=12)
        low, high = pruner.size_bounds(0)
    except ConfigError:
        return None  # too few samples for this ratio
    required = feedback_arguments(policy.compute_columns).required
    for epoch in range(rng.randint(1, 5)):
        if pruner.done:
            break
        low, high = size_bounds(policy, n, pruner._manager.context(epoch))
        served: list[int] = []
        for batch in islice(pruner.batch_sampler(rng.randint(1, n)), 2 * n):
            served += batch
            extra = {name: torch.tensor([rng.random() for _ in batch]) for name in required}
            losses = torch.tensor([rng.choice([*LOSSES, math.nan, math.inf]) for _ in batch])
            pruner.update(torch.tensor(batch), losses, **extra)
        if len(set(served)) < len(served) or not low <= len(served) <= high:
            return f"{where}: epoch {epoch} has {served}, expected {low} to {high} different samples"
        numbers = pruner.report()
        wrong = [name for name, value in numbers.items() if isinstance(value, float) and math.isnan(value)]
        if wrong or torch.isnan(pruner.scores).any() or torch.isneginf(pruner.scores).any():
            return f"{where}: {wrong} {pruner.scores.tolist()}"
    return None


# -- ranks ---------------------------------------------------------------------------------------------------------


class ThreadRank:
    """One rank of a group of threads, for Pruner(process_group=...)."""

    def __init__(self, rank: int, world: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world = rank, world
        self._slots, self._barrier = slots, barrier

    def gather_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        """What all ranks have."""
        self._slots[self.rank] = values.clone()
        self._barrier.wait()
        gathered = list(self._slots)
        self._barrier.wait()
        return gathered


WAIT = 60.0


def on_ranks(world: int, work: Callable[[ThreadRank], Any]) -> list[Any]:
    """What `work` returns on each rank; an error of any rank is raised."""
    slots, barrier, results = [None] * world, threading.Barrier(world, timeout=WAIT), [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRank(rank, world, slots, barrier))
        except Exception as error:
            results[rank] = error  # type: ignore[call-overload]
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError("a rank hangs")
    errors = [result for result in results if isinstance(result, Exception)]
    errors.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))  # the cause first
    if errors:
        raise errors[0]
    return results


@quietly
def ranks(rng: random.Random) -> str | None:
    """Threads as ranks train, stop, and go on in another number; all of them agree."""
    n, step, pad = rng.randint(8, 40), rng.choice([2, 4, 12]), rng.random() < 0.3
    worlds = [rng.choice([1, 2]), rng.choice([1, 2])] if step < 12 else [rng.choice([1, 2, 3]), rng.choice([1, 2, 3])]
    policy = rng.choice([orderdp.OrderDP(0.5), orderdp.policies.DynamicRandom(0.4), EpsilonGreedy(0.5)])
    stop, epochs, state = rng.randint(1, 6), 3, None
    seen: dict[int, list[int]] = {}
    for life, world in enumerate(worlds):

        def work(rank: ThreadRank, world: int = world, life: int = life, state: Any = state) -> Any:
            pruner = orderdp.Pruner(policy, n, seed=1, epochs=epochs, pad=pad, process_group=rank)
            if state is not None:
                pruner.load_state_dict(copy.deepcopy(state))
            steps: list[tuple[int, list[int]]] = []
            for epoch in range(pruner.epoch, epochs):
                for batch in pruner.batch_sampler(step // world):
                    steps.append((epoch, batch))
                    pruner.update(torch.tensor(batch), torch.tensor([float((7 * i + epoch) % 11) for i in batch]))
                    if life == 0 and len(steps) == stop:
                        break
                if life == 0 and len(steps) == stop:
                    break
            pruner.sync()
            return steps, pruner.state_dict(), pruner.scores, pruner.usage

        results = on_ranks(world, work)
        if len({len(steps) for steps, *_ in results}) > 1:
            return f"{policy}, {worlds}: ranks made {[len(steps) for steps, *_ in results]} steps"
        if any(not torch.equal(results[0][k], other[k]) for other in results for k in (2, 3)):
            return f"{policy}, {worlds}: the tables of the ranks differ"
        for steps, *_ in results:
            for epoch, batch in steps:
                seen.setdefault(epoch, []).extend(batch)
        state = results[0][1]
    slack = sum(world - 1 for world in worlds)
    for epoch, samples in seen.items():
        repeats, size = len(samples) - len(set(samples)), policy.size(n, orderdp.policy.Context(n=n, epoch=epoch))
        if repeats > (slack if pad else 0) or not (size or 0) - slack <= len(set(samples)) <= (size or n):
            return f"{policy}, n={n}, {worlds}, pad={pad}: epoch {epoch} has {sorted(samples)}, expected {size}"
    return None if len(seen) == epochs else f"{policy}, n={n}, {worlds}: epochs {sorted(seen)} of {epochs}"


# -- streams -------------------------------------------------------------------------------------------------------


def _ahead(batches: Iterator[Any], depth: int) -> Iterator[Any]:
    held = list(islice(batches, depth))
    for batch in batches:
        held.append(batch)
        yield held.pop(0)
    yield from held


@quietly
def streams(rng: random.Random) -> str | None:
    """A stream is filtered straight, and stopped and resumed, by loops that fetch ahead; both train on the same."""
    if rng.random() < 0.2:
        return _one_pass(rng)
    n, size, epochs = rng.randint(2, 40), rng.randint(1, 12), 3
    names = [f"{number}" for number in range(n)]
    repeats = rng.random() < 0.4
    if repeats:
        names += rng.choices(names, k=rng.randint(1, n))
    ratio = rng.choice([0.0, 0.3, 0.5, 0.8])

    def make() -> KeyFilter:
        return KeyFilter(orderdp.OrderDP(ratio), key=0, seed=4, duplicates="allow" if repeats else "raise")

    def train(keys: KeyFilter, depth: int, stop: int | None) -> dict[int, list[str]]:
        visited: dict[int, list[str]] = {}
        loader = torch.utils.data.DataLoader(keys.only([(name,) for name in names]), batch_size=size)
        for epoch in range(keys.epoch, epochs):
            for (batch,) in _ahead(keys.one_epoch(loader), depth):
                visited.setdefault(epoch, []).extend(batch)
                keys.update(list(batch), torch.tensor([float((13 * int(name) + epoch) % 7) for name in batch]))
                stop = None if stop is None else stop - 1
                if stop == 0:
                    return visited
        return visited

    where = f"ratio {ratio}, {len(names)} samples, batches of {size}, repeats {repeats}"
    straight = make()
    try:
        wanted = train(straight, 0, None)
    except ConfigError:
        return None  # too few samples for the ratio
    ahead = make()
    if train(ahead, rng.choice([1, 2, 50]), None) != wanted or ahead.report() != straight.report():
        return f"{where}: a loop that fetches ahead trains on other samples, or counts them otherwise"
    first, second = make(), make()
    before = train(first, 0, rng.randint(1, 12))
    second.load_state_dict(first.state_dict())
    after = train(second, 0, None)
    resumed = {epoch: before.get(epoch, []) + after.get(epoch, []) for epoch in wanted}
    if resumed != wanted:
        return f"{where}: resumed {resumed}, straight {wanted}"
    return None


def _one_pass(rng: random.Random) -> str | None:
    n, window = rng.randint(1, 40), rng.randint(1, 8)
    keep = rng.randint(1, window)
    values = [torch.tensor(float(rng.randint(0, 9))) for _ in range(max(n, window))]

    def make() -> OnePass:
        return OnePass(values, lambda batch: batch, window=window, keep=keep)

    wanted = [batch.tolist() for batch in make()]
    first, second = make(), make()
    stop = rng.randint(1, max(1, len(wanted)))
    before = [batch.tolist() for batch in islice(first, stop)]
    second.load_state_dict(first.state_dict())
    after = [batch.tolist() for batch in second]
    return None if before + after == wanted else f"one pass of {n}, {window}, {keep}: {before} {after}, not {wanted}"
