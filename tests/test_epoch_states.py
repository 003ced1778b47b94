"""The states of an epoch: a training makes the transitions of the table, and all of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler

from orderdp import Budget, OrderDP, Pruner, _epochs
from orderdp._epochs import TRANSITIONS, EpochManager, EpochState
from orderdp.errors import ConfigError, GroupError, StateError
from orderdp.policies import DynamicRandom, Unlearned
from orderdp.samplers import EpochRequest
from tests.ranks import MemoryRank, all_fine, in_threads

CLOSED, OPEN, EXHAUSTED, TRAINING, SPENT = EpochState
Transition = tuple[EpochState, str, EpochState]

N = 24
EVENTS = {
    "iterate": (EpochManager, "open"),
    "update": (EpochManager, "trained_on"),
    "exhaust": (EpochManager, "exhausted"),
    "end": (EpochManager, "end_epoch"),
    "leave": (EpochManager, "leave"),
    "sync": (EpochManager, "sync"),
    "load": (Pruner, "load_state_dict"),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> set[Transition]:
    """What every event has changed, while it is called as ever."""
    seen: set[Transition] = set()

    def recorded(event: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            manager = self._manager if isinstance(self, Pruner) else self
            before = manager.state
            try:
                return method(self, *args, **kwargs)
            finally:
                if event != "leave":
                    seen.add((before, event, manager.state))
                elif manager.state is not before:
                    seen.add((before, "end", manager.state))

        return call

    for event, (owner, name) in EVENTS.items():
        monkeypatch.setattr(owner, name, recorded(event, getattr(owner, name)))
    return seen


class Broken:
    """A sampler that fails in some epochs."""

    def __init__(self, chance: random.Random, share: float = 0.5) -> None:
        self.chance, self.share = chance, share

    def __iter__(self) -> Iterator[int]:
        if self.chance.random() < self.share:
            raise OSError("the disk is gone")
        return iter(range(N))


POLICIES: list[Callable[[], Any]] = [
    lambda: OrderDP(0.4),
    lambda: OrderDP(0.5, every="batch"),
    lambda: DynamicRandom(0.5),
    lambda: Budget(0.5, policy=OrderDP(0.5)),
    lambda: Budget(0.4, policy=DynamicRandom(0.3)),
    lambda: Unlearned(0.4),
]


def wander(seed: int, moves: int) -> None:
    """Iterators that are made, used and left at random, losses that come or do not, states that are loaded again."""
    chance = random.Random(seed)
    policy = POLICIES[seed % len(POLICIES)]
    pruner = Pruner(policy(), N, seed=seed, epochs=chance.choice([2, 4]))
    iterators: list[Any] = []
    states: list[Any] = []

    def samplers() -> list[Callable[[], Any]]:
        size, drop_last = chance.choice([1, 3, 5, 8]), chance.random() < 0.5
        return [
            lambda: pruner.batch_sampler(size, drop_last),
            lambda: pruner.batch_sampler(size, drop_last),
            lambda: BatchSampler(pruner.sampler, size, drop_last),
            lambda: pruner.filter(BatchSampler(range(N), size, drop_last), repack=True),
            lambda: pruner.filter(BatchSampler(range(N), size, drop_last=False)),
            lambda: pruner.filter(Broken(chance)),
        ]

    def iterate() -> None:
        iterators.append(iter(chance.choice(samplers())()))

    def step(train: bool = True) -> None:
        if not iterators:
            return
        batch = next(chance.choice(iterators[-3:]), None)
        if batch is not None and train:
            index = torch.tensor(batch).reshape(-1)
            pruner.update(index, (index % 7 + 1) / 7)

    def use_up() -> None:
        if iterators:
            for _ in range(1 + 2 * (chance.random() < 0.3)):
                for _ in iterators[-1]:
                    pass

    def update() -> None:
        index = torch.tensor(chance.sample(range(N), chance.choice([1, 3, 12])))
        pruner.update(index, (index % 7 + 1) / 7)

    def load() -> None:
        if states:
            pruner.load_state_dict(chance.choice(states))

    def leave() -> None:
        pruner._manager.leave(pruner.epoch)

    actions = [iterate, iterate, step, step, step, lambda: step(train=False), use_up, use_up, update]
    actions += [pruner.end_epoch, leave, pruner.sync, load, lambda: states.append(pruner.state_dict()), pruner.rewind]
    for _ in range(moves):
        with suppress(ConfigError, StateError, OSError):
            chance.choice(actions)()
        check(pruner._manager)


def check(manager: EpochManager) -> None:
    """What a state says about the rest of the manager."""
    assert (manager.order is None) == (manager.state in (CLOSED, SPENT))
    assert (manager.progress.passes > 0) <= (manager.state in (EXHAUSTED, TRAINING))
    assert manager.state is not EXHAUSTED or manager.progress.passes


def ranks_apart(group: MemoryRank) -> None:
    """A framework deals out the samples, and one rank gets nearly all of them: the other learns by sync()."""
    for early in ("nothing", "to the end", "a step"):
        pruner = Pruner(OrderDP(0.5), N, process_group=group, shard=False)
        batches = iter(pruner.batch_sampler(4))
        if group.rank == 0:
            pruner.update(torch.arange(6), torch.rand(6))
        elif early == "to the end":
            for _ in range(2):
                list(batches)
        elif early == "a step":
            pruner.update(torch.arange(1), torch.rand(1))
        pruner.sync()
        assert (pruner.epoch, pruner._manager.state) == (1, CLOSED)


def ranks_together(group: MemoryRank) -> None:
    pruner = Pruner(Budget(0.5, policy=OrderDP(0.5)), N, epochs=1, process_group=group)
    pruner.sync()
    batches = iter(pruner.batch_sampler(2))
    pruner.sync()
    for _ in range(2):
        list(batches)
    pruner.sync()
    for batch in pruner.batch_sampler(2):
        pruner.update(torch.tensor(batch), torch.rand(len(batch)))
        pruner.sync()
    assert not list(pruner.batch_sampler(2))
    assert pruner._manager.state is SPENT
    pruner.sync()


def rest_of_an_epoch(policy: Any) -> Pruner:
    """A loaded pruner; four of twelve samples are left of its epoch, too few for a batch of five."""
    pruner = Pruner(policy, N, epochs=2)
    while pruner._manager.progress.kept < 20:
        for batch in pruner.batch_sampler(4):
            pruner.update(torch.tensor(batch), torch.rand(len(batch)))
            if pruner._manager.progress.kept == 20:
                break
    loaded = Pruner(policy, N, epochs=2)
    loaded.load_state_dict(pruner.state_dict())
    assert loaded._manager.state is OPEN
    return loaded


def rests() -> None:
    for exhaust in (False, True):
        pruner = rest_of_an_epoch(Budget(0.5, policy=OrderDP(0.5)))
        state = pruner.state_dict()
        batches = iter(pruner.batch_sampler(5, drop_last=True))  # once, empty: the batches have changed
        if exhaust:
            assert not list(batches)
        assert not list(pruner.batch_sampler(5, drop_last=True))
        assert pruner._manager.state is SPENT
        if exhaust:
            pruner.load_state_dict(state)
        assert sum(map(len, pruner.batch_sampler(2))) == 4  # the last samples of the budget
    pruner = rest_of_an_epoch(OrderDP(0.5))
    iter(pruner.batch_sampler(5, drop_last=True))
    with pytest.raises(OSError, match="the disk is gone"):
        iter(pruner.filter(BatchSampler(Broken(random.Random(0), 1.0), 5, drop_last=True), repack=True))
    assert pruner._manager.state is CLOSED


def named(transitions: set[Transition]) -> list[str]:
    return sorted(f"{before.name} {event} {after.name}" for before, event, after in transitions)


@pytest.mark.filterwarnings("ignore::orderdp.errors.OrderDPWarning")
def test_a_training_makes_the_transitions_of_the_table_and_all_of_them(made: set[Transition]) -> None:
    for seed in range(240):
        wander(seed, 60)
    rests()
    all_fine(in_threads(2, ranks_apart))
    all_fine(in_threads(2, ranks_together))
    in_table = {(before, event, after) for (before, event), states in TRANSITIONS.items() for after in states}
    assert named(made - in_table) == []
    assert named(in_table - made) == []


def test_a_transition_that_is_not_in_the_table_is_seen(made: set[Transition]) -> None:
    pruner = Pruner(OrderDP(0.4), N)
    iter(pruner.sampler)
    pruner._manager.state = SPENT
    pruner.end_epoch()
    pruner._manager.state = OPEN
    pruner._manager.order = None
    pruner.update(torch.arange(2), torch.rand(2))
    assert (OPEN, "update", OPEN) in made
    assert OPEN not in TRANSITIONS[OPEN, "update"]


def test_the_table_of_the_docstring_is_the_table_of_the_code() -> None:
    text = _epochs.__doc__ or ""
    rows: dict[tuple[str, str], set[str]] = {}
    last: tuple[str, str] | None = None
    for line in text.splitlines():
        found = re.match(r"([A-Z]+) +(iterate|update|exhaust|end|sync|load) +(.*)", line)
        if found:
            last = found[1], found[2]
            rows[last] = set()
        if last is not None and (found or line.startswith(" ")):
            rows[last] |= set(re.findall(r"\b(CLOSED|OPEN|EXHAUSTED|TRAINING|SPENT)\b", found[3] if found else line))
        elif not found:
            last = None
    in_code = {
        (before.name, event): {after.name for after in states} for (before, event), states in TRANSITIONS.items()
    }
    assert rows == in_code


def test_a_rank_that_stands_elsewhere_is_refused_and_its_state_stays(made: set[Transition]) -> None:
    def work(group: MemoryRank) -> EpochState:
        pruner = Pruner(OrderDP(0.5), N, process_group=group)
        batches = iter(pruner.batch_sampler(2))
        if group.rank == 0:
            pruner.update(torch.tensor(next(batches)), torch.rand(2))
        with pytest.raises(GroupError, match="must be at the same step"):
            pruner.sync()
        return pruner._manager.state

    assert all_fine(in_threads(2, work)) == [TRAINING, OPEN]


def test_is_it_over_is_answered_by_the_state() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    manager, request = pruner._manager, EpochRequest()
    assert not manager.is_over(request)
    samples = iter(pruner.sampler)
    assert not manager.is_over(request)
    pruner.update(torch.tensor([next(samples)]), torch.rand(1))
    assert manager.is_over(request)
    pruner.end_epoch()
    assert not manager.is_over(request)
    assert manager.epoch == 1
