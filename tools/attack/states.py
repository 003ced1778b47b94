"""Damaged states: one value of a valid state is changed. It is refused and changes nothing, or a bounded epoch runs."""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

import orderdp
from orderdp.distributed import DCPState
from orderdp.errors import OrderDPError, OrderDPWarning
from orderdp.policies import InfoBatch, Mixed
from orderdp.streaming import GrowingPruner, KeyFilter, OnePass

__all__ = ["KINDS", "Kind", "damaged", "fault_of", "leaves"]

N = 12
NUMBERS = [-1, 0, 1, 7, N, N + 1, 10**6, 2**31, 2**62, 2**70, -(2**63), 1.5, math.nan, math.inf]
OTHERS = [*NUMBERS, None, "x", True, [], {}]


class Kind(NamedTuple):
    """Something with a state.

    Attributes:
        make: A fresh one.
        train: Trains it for a while, from a given number on; leaves it with a state worth changing.
        epoch: One epoch; what it serves, at most `MOST` samples of it.
    """

    make: Callable[[], Any]
    train: Callable[[Any, int], None]
    epoch: Callable[[Any], list[Any]]


MOST = 10 * N


def _losses(index: Any) -> torch.Tensor:
    return (torch.as_tensor(index).double() * 12.9898).sin().abs().float()


def _pruner(policy: Callable[[], orderdp.Policy], **options: Any) -> Kind:
    def make() -> orderdp.Pruner:
        return orderdp.Pruner(policy(), N, seed=3, **options)

    return _with_epochs(make)


def _with_epochs(make: Callable[[], Any], pruner: Callable[[Any], orderdp.Pruner] = lambda it: it) -> Kind:
    def train(it: Any, steps: int) -> None:
        while steps > 0:
            for batch in pruner(it).batch_sampler(2):
                pruner(it).update(torch.tensor(batch), _losses(batch))
                steps -= 1
                if steps <= 0:
                    return

    def epoch(it: Any) -> list[int]:
        served: list[int] = []
        for batch in pruner(it).batch_sampler(2):
            served += batch
            if len(served) > MOST:
                break
            pruner(it).update(torch.tensor(batch), _losses(batch))
        pruner(it).report()
        return served

    return Kind(make, train, epoch)


def _growing() -> Any:
    pruner = GrowingPruner(orderdp.OrderDP(0.5), N - 2, seed=3)
    pruner.grow(N)
    pruner.remove([4])
    return pruner


class _Packed(DCPState):
    """What is packed, unpacked: the bytes themselves have checksums of their own."""

    def __init__(self) -> None:
        self.pruner = orderdp.Pruner(orderdp.OrderDP(0.5), N, seed=3)
        super().__init__(self.pruner)


NAMES = [f"sample {number}" for number in range(N)]


def _stream(duplicates: Any) -> Kind:
    def serve(keys: KeyFilter) -> Iterator[str]:
        return keys.one_epoch(keys.only([(name,) for name in NAMES]))

    def train(keys: KeyFilter, steps: int) -> None:
        while steps > 0:
            for (name,) in serve(keys):
                keys.update([name], torch.tensor([float(len(name))]))
                steps -= 1
                if steps <= 0:
                    return

    def epoch(keys: KeyFilter) -> list[str]:
        served = []
        for (name,) in serve(keys):
            served.append(name)
            keys.update([name], torch.ones(1))
        keys.report()
        return served

    return Kind(lambda: KeyFilter(orderdp.OrderDP(0.5), key=0, seed=3, duplicates=duplicates), train, epoch)


def _one_pass() -> Kind:
    def make() -> OnePass:
        return OnePass([torch.tensor(float(number)) for number in range(N)], lambda batch: batch, window=4, keep=2)

    def train(it: OnePass, steps: int) -> None:
        for _, _batch in zip(range(steps % 3 + 1), it, strict=False):
            pass

    def epoch(it: OnePass) -> list[float]:
        return [number for batch in it for number in batch.tolist()]

    return Kind(make, train, epoch)


MIXED = Mixed(top=0.5, uniform=0.5)
KINDS: dict[str, Kind] = {
    "pruner": _pruner(lambda: orderdp.OrderDP(0.5)),
    "weights": _pruner(lambda: orderdp.OrderDP(0.5, select=MIXED, unbiased=True)),
    "per batch": _pruner(lambda: orderdp.OrderDP(0.5, every="batch")),
    "columns": _pruner(lambda: InfoBatch(0.5), epochs=9),
    "budget": _pruner(lambda: orderdp.Budget(0.5), epochs=9),
    "sharded": _pruner(lambda: orderdp.OrderDP(0.5), table="sharded"),
    "growing": _with_epochs(_growing),
    "packed": _with_epochs(_Packed, lambda it: it.pruner),
    "keys": _stream("raise"),
    "keys that repeat": _stream("allow"),
    "one pass": _one_pass(),
}


def leaves(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values in a state, containers included."""
    if path:
        yield path
    if isinstance(state, dict | list):
        for name in state if isinstance(state, dict) else range(len(state)):
            yield from leaves(state[name], (*path, name))


def _at(state: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        state = state[name]
    return state


def damaged(state: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy of the state with one value changed or missing, and what was changed."""
    state = copy.deepcopy(state)
    path = rng.choice(list(leaves(state)))
    owner, name = _at(state, path[:-1]), path[-1]
    old = owner[name]
    where = ".".join(map(str, path))
    if isinstance(owner, dict) and rng.random() < 0.1:
        del owner[name]
        return state, f"{where} is missing"
    if isinstance(old, torch.Tensor) and rng.random() < 0.85:
        owner[name], what = _other_tensor(old, rng)
        return state, f"{where} {what}"
    owner[name] = new = copy.copy(rng.choice(OTHERS))
    return state, f"{where} = {new!r}"


def _other_tensor(old: torch.Tensor, rng: random.Random) -> tuple[torch.Tensor, str]:
    kind = rng.choice(["element", "element", "element", "shorter", "longer", "dtype", "shape"])
    if kind == "shorter":
        return old[:-1].clone(), "is shorter"
    if kind == "longer":
        return torch.cat([old.reshape(-1), old.reshape(-1)[:1]]), "is longer"
    if kind == "dtype":
        dtype = rng.choice([torch.float32, torch.int8, torch.int64, torch.bool, torch.float64, torch.complex64])
        return old.to(dtype), f"is {dtype}"
    if kind == "shape" or not old.numel():
        return old.reshape(1, -1), "has another shape"
    new = old.clone()
    place = rng.randrange(new.numel())
    if new.is_floating_point():
        value: Any = rng.choice([math.nan, math.inf, -math.inf, 3e38, -1.0, 0.0])
    else:
        value = (
            rng.choice([-1, 0, 1, N, torch.iinfo(new.dtype).max, torch.iinfo(new.dtype).min])
            if new.dtype is not (torch.bool)
            else True
        )
    new.view(-1)[place] = value
    return new, f"[{place}] = {value}"


def same(first: Any, second: Any) -> bool:
    """Whether two states are equal."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return isinstance(second, dict) and set(first) == set(second) and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


def _says_so(what: str) -> bool:
    """Whether an error in the epoch is what the changed value means: a valid state of another training has it, too."""
    return what.startswith(("timeline.epoch.batch_size", "table.invalid_counts [1]", "offered = "))


def fault_of(kind: str, rng: random.Random) -> str | None:
    """Damage one state of this kind and load it; what went wrong, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderDPWarning)
        return _fault_of(KINDS[kind], rng)


def _fault_of(kind: Kind, rng: random.Random) -> str | None:
    source, target = kind.make(), kind.make()
    kind.train(source, rng.randint(1, 9))
    kind.train(target, rng.randint(0, 4))
    state = source.state_dict()
    if isinstance(source, _Packed):
        state = source.pruner.state_dict()
    broken, what = damaged(state, rng)
    before = copy.deepcopy(target.state_dict())
    try:
        if isinstance(target, _Packed):
            target.pruner.load_state_dict(broken)
        else:
            target.load_state_dict(broken)
    except OrderDPError:
        return None if same(before, target.state_dict()) else f"{what}: refused, but the object has changed"
    except Exception as error:
        return f"{what}: {type(error).__name__} while loading: {str(error)[:120]}"
    try:
        served = kind.epoch(target)
        numbers = target.report() if hasattr(target, "report") else {}
    except OrderDPError as error:
        return None if _says_so(what) else f"{what}: loaded, then {type(error).__name__}: {str(error)[:120]}"
    except Exception as error:
        return f"{what}: loaded, then {type(error).__name__}: {str(error)[:120]}"
    if len(served) > N:
        return f"{what}: loaded, then an epoch of more than {N} samples"
    if len(set(served)) < len(served) and "timeline.epoch.order" not in what:  # a sampler of the user may repeat
        return f"{what}: loaded, then a sample twice"
    wrong = [name for name, value in numbers.items() if isinstance(value, int | float) and not 0 <= value < np.inf]
    wrong = [name for name in wrong if name not in ("saved",)]
    return f"{what}: loaded, then the report has {wrong[0]} {numbers[wrong[0]]}" if wrong else None
