"""Dropout draws from torch's global generators, of the host and of the device: both belong to a run."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch
from torch import nn

from orderdp import load_checkpoint
from orderdp._training import GlobalGenerators
from orderdp.experiments.models import build_model
from tests.experiments.test_training_runs import BASE, training

CPU, CARD = torch.device("cpu"), torch.device("cuda:1")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """A stand-in for the generator of a card, which is not there: its states are those of another host generator."""
    own = torch.Generator().manual_seed(123)

    def module(device: torch.device) -> types.SimpleNamespace:
        assert device == CARD
        return types.SimpleNamespace(
            get_rng_state=lambda which: own.get_state() if which == CARD else None,
            set_rng_state=lambda state, which: own.set_state(state) if which == CARD else None,
        )

    made = torch.Generator
    monkeypatch.setattr(torch, "get_device_module", module)
    monkeypatch.setattr(torch, "Generator", lambda device=None: made())
    return own


def drawn(card: torch.Generator | None = None) -> list[float]:
    return torch.rand(3, generator=card).tolist()


def test_draws_of_a_seed_are_those_after_manual_seed_and_leave_nothing_changed() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = drawn()
    before = torch.get_rng_state()
    with GlobalGenerators.seeded(7, CPU).used(CPU):
        assert drawn() == expected
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyError), GlobalGenerators.seeded(7, CPU).used(CPU):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_on_a_card_go_on_where_they_were(card: torch.Generator) -> None:
    before = card.get_state()
    with GlobalGenerators.seeded(7, CARD).used(CARD):
        first = drawn(card), drawn()
        saved = GlobalGenerators.now(CARD)
        then = drawn(card), drawn()
    assert torch.equal(card.get_state(), before)
    with saved.used(CARD):
        assert (drawn(card), drawn()) == then
    with GlobalGenerators.seeded(7, CARD).used(CARD):
        assert (drawn(card), drawn()) == first
    with GlobalGenerators.seeded(8, CARD).used(CARD):
        assert drawn(card) != first[0]


def test_a_checkpoint_without_a_state_for_the_card_goes_on_from_the_seed(card: torch.Generator) -> None:
    fresh, host = GlobalGenerators.seeded(7, CARD), torch.Generator().manual_seed(9).get_state()
    older = fresh.from_checkpoint(host, None)
    assert torch.equal(older.host, host)
    assert torch.equal(older.device, fresh.device)
    own = torch.Generator().manual_seed(10).get_state()
    assert torch.equal(fresh.from_checkpoint(host, own).device, own)


def test_a_model_is_made_without_reseeding_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int) -> None:
        raise AssertionError("torch.manual_seed seeds every device, and nothing puts those back")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    before = torch.get_rng_state()
    first, second = (build_model("mlp", shape=(1, 8, 8), classes=10, seed=3, width=8) for _ in range(2))
    assert isinstance(first, nn.Module)
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


def test_checkpoints_hold_the_generators(tmp_path: Path) -> None:
    def stop(done: float, epochs: int, metric: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training(BASE, tmp_path, watch=stop).run()
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    assert state["rng"].dtype == torch.uint8
    assert state["device_rng"] is None
