"""Checkpoint files that are cut, flipped, written by two at once, or left by a writer that was killed."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

import orderdp
from orderdp.errors import OrderDPError
from tools.attack.states import same
from tools.attack.trainings import quietly

__all__ = ["files"]


def _state(number: int) -> dict[str, Any]:
    pruner = orderdp.Pruner(orderdp.OrderDP(0.5), 200, seed=number)
    for batch in pruner.batch_sampler(20):
        pruner.update(torch.tensor(batch), torch.rand(len(batch), generator=torch.Generator().manual_seed(number)))
    return {"number": number, "weights": torch.full((500,), float(number)), "pruner": pruner.state_dict()}


@quietly
def files(rng: random.Random) -> str | None:
    """One kind of damage to a checkpoint: it is refused, or what is loaded was saved whole."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        path = Path(folder) / "checkpoint.pt"
        return rng.choice([_cut, _flip, _flip, _two_writers, _killed])(path, rng)


def _cut(path: Path, rng: random.Random) -> str | None:
    state = _state(1)
    orderdp.save_checkpoint(path, state)
    whole = path.read_bytes()
    path.write_bytes(whole[: rng.randrange(len(whole))])
    return _refused_or(path, [state], "cut")


def _flip(path: Path, rng: random.Random) -> str | None:
    state = _state(1)
    orderdp.save_checkpoint(path, state)
    data = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(data)), rng.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(bytes(data))
    return _refused_or(path, [state], f"bit {bit} of byte {place} of {len(data)} flipped")


def _refused_or(path: Path, states: list[dict[str, Any]], what: str) -> str | None:
    try:
        loaded = orderdp.load_checkpoint(path)
    except OrderDPError:
        return None
    return None if any(same(loaded, state) for state in states) else f"{what}: loaded, with other contents"


def _two_writers(path: Path, rng: random.Random) -> str | None:
    states = [_state(1), _state(2)]
    orderdp.save_checkpoint(path, states[0])
    errors: list[str] = []

    def write(state: dict[str, Any]) -> None:
        try:
            for _ in range(5):
                orderdp.save_checkpoint(path, state)
        except Exception as error:
            errors.append(f"a writer: {error!r}")

    threads = [threading.Thread(target=write, args=(state,), daemon=True) for state in states]
    for thread in threads:
        thread.start()
    for _ in range(10):
        loaded = orderdp.load_checkpoint(path)
        if not any(same(loaded, state) for state in states):
            errors.append("a reader met a file of both writers")
    for thread in threads:
        thread.join(60)
    left = [file.name for file in path.parent.iterdir() if file != path]
    return errors[0] if errors else f"left behind: {left}" if left else None


def _killed(path: Path, rng: random.Random) -> str | None:
    states = [_state(1), _state(2)]
    orderdp.save_checkpoint(path, states[0])
    child = os.fork()
    if child == 0:
        try:
            while True:
                orderdp.save_checkpoint(path, states[1])
                orderdp.save_checkpoint(path, states[0])
        finally:
            os._exit(1)
    time.sleep(rng.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    loaded = orderdp.load_checkpoint(path)
    return None if any(same(loaded, state) for state in states) else "a killed writer left half a file"
