"""A second thread that only asks changes nothing, and gets answers that fit together."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from orderdp import OrderDP, Pruner
from orderdp.streaming import GrowingPruner
from tests.support import fake_losses

N, BATCH_SIZE, EPOCHS = 40, 2, 40


@contextmanager
def asking(ask: Callable[[], Any]) -> Iterator[list[Any]]:
    """Another thread asks again and again; threads take turns as often as they can. Yields the answers."""
    answers: list[Any] = []
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            try:
                answers.append(ask())
            except Exception as error:
                answers.append(error)
                return

    thread = threading.Thread(target=loop, daemon=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join(60)
        sys.setswitchinterval(interval)
    assert not thread.is_alive(), "the thread hangs"


def train(pruner: Pruner, epochs: int = EPOCHS) -> None:
    for epoch in range(epochs):
        for batch in pruner.batch_sampler(BATCH_SIZE):
            index = torch.tensor(batch)
            pruner.update(index, fake_losses(index, epoch))


def columns(pruner: Pruner) -> list[torch.Tensor]:
    return [pruner.scores, pruner.usage, pruner.last_seen_epoch]


QUESTIONS: dict[str, Callable[[Pruner], Any]] = {
    "report": lambda pruner: pruner.report(),
    "usage": lambda pruner: pruner.usage,
    "last_seen_epoch": lambda pruner: pruner.last_seen_epoch,
    "state_dict": lambda pruner: pruner.state_dict(),
    "hardest": lambda pruner: pruner.hardest(3),
    "preview": lambda pruner: pruner.preview(),
    "progress": lambda pruner: (pruner.progress, pruner.epoch, pruner.done),
}


@pytest.mark.parametrize("kind", [Pruner, GrowingPruner])
@pytest.mark.parametrize("question", QUESTIONS)
def test_asking_in_another_thread_changes_nothing(question: str, kind: type[Pruner]) -> None:
    alone, asked = (kind(OrderDP(0.5), N, epochs=EPOCHS) for _ in range(2))
    train(alone)
    with asking(lambda: QUESTIONS[question](asked)) as answers:
        train(asked)
    assert answers
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert all(torch.equal(*pair) for pair in zip(columns(alone), columns(asked), strict=True))
    assert asked.report() == alone.report()


def test_the_answers_that_another_thread_gets_fit_together() -> None:
    pruner = Pruner(OrderDP(0.5), N, epochs=EPOCHS)

    def ask() -> tuple[float, float, dict[str, Any]]:
        report = pruner.report()
        return report["kept"] + report["pruned"], report["epoch"], pruner.state_dict()

    with asking(ask) as answers:
        train(pruner)
    for full, epoch, state in answers:
        assert full <= N * (epoch + 1)
        clock, usage = state["timeline"]["clock"], state["table"]["columns"]["usage"]
        assert int(usage.sum()) == clock["kept_before"] + clock["trained"]
        assert (state["timeline"]["epoch"] is not None) >= (clock["trained"] > 0)
        Pruner(OrderDP(0.5), N, epochs=EPOCHS).load_state_dict(state)


def test_a_saver_in_another_thread_writes_states_from_which_training_goes_on() -> None:
    straight, first = (Pruner(OrderDP(0.5), N, epochs=4) for _ in range(2))
    train(straight, 4)
    with asking(first.state_dict) as states:
        train(first, 4)
    for state in states[:: max(1, len(states) // 20)]:
        resumed = Pruner(OrderDP(0.5), N, epochs=4)
        resumed.load_state_dict(state)
        for epoch in range(resumed.epoch, 4):
            for batch in resumed.batch_sampler(BATCH_SIZE):
                index = torch.tensor(batch)
                resumed.update(index, fake_losses(index, epoch))
        assert all(torch.equal(*pair) for pair in zip(columns(straight), columns(resumed), strict=True))


def test_a_pruner_can_still_be_copied_and_pickled() -> None:
    pruner = Pruner(OrderDP(0.5), N, epochs=EPOCHS)
    train(pruner, 2)
    for twin in (copy.deepcopy(pruner), pickle.loads(pickle.dumps(pruner))):
        assert all(torch.equal(*pair) for pair in zip(columns(pruner), columns(twin), strict=True))
        train(twin, 1)
        assert (twin.epoch, pruner.epoch) == (3, 2)
