"""Rivals that go by rank, by flat losses or by what is learned: each rule restated slowly, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from orderdp import policies
from orderdp.errors import ConfigError
from orderdp.policies import Balanced, Calibrated
from orderdp.policy import Context
from tests.support import table_with

# -- calibrated with tempered weights -------------------------------------------------------------------------------


def goss(losses: np.ndarray, a: float, b: float, kept: set[int], power: float) -> dict[int, float]:
    """LightGBM's weights: 1 for the a * n largest, (n - a * n) / (b * n) for the others; tempered, with mean 1."""
    n = len(losses)
    largest = sorted(range(n), key=lambda i: -losses[i])[: round(a * n)]
    plain = {i: 1.0 if i in largest else (n - round(a * n)) / round(b * n) for i in kept}
    tempered = {i: weight**power for i, weight in plain.items()}
    mean = sum(tempered.values()) / len(tempered)
    return {i: weight / mean for i, weight in tempered.items()}


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.1), (0.3, 0.3), (0.0, 0.5)])
@pytest.mark.parametrize("power", [1.0, 0.5, 0.0])
def test_calibrated_weights_are_those_of_goss_to_a_power(a: float, b: float, power: float) -> None:
    losses = np.random.default_rng(0).random(50).astype(np.float32)
    policy = Calibrated(1 - a - b, share=a / (a + b), power=power)
    for seed in range(5):
        chosen = policy.select(table_with(losses), Context(n=50, epoch=1, seed=seed))
        assert chosen.weights is not None
        assert set(np.argsort(-losses)[: round(a * 50)]) <= set(chosen.indices.tolist())
        wanted = goss(losses, a, b, set(chosen.indices.tolist()), power)
        np.testing.assert_allclose(chosen.weights, [wanted[i] for i in chosen.indices.tolist()], rtol=1e-5)
        assert chosen.weights.mean() == pytest.approx(1)
        if power == 0:
            assert (chosen.weights == 1).all()


def test_calibrated_at_power_1_is_what_it_was_bit_for_bit() -> None:
    scores = np.where(np.arange(80) % 9 == 0, np.inf, np.random.default_rng(1).random(80)).astype(np.float32)
    table = table_with(scores)
    for power in ({}, {"power": 1.0}, {"power": 1}):
        policy = Calibrated(0.4, share=0.3, **power)
        for epoch in range(3):
            context = Context(n=80, epoch=epoch, seed=2)
            ours, family = policy.select(table, context), policy.member.select(table, context)
            assert np.array_equal(ours.indices, family.indices)
            assert ours.weights.tobytes() == family.weights.tobytes()
        # What checkpoints and records of earlier versions say.
        assert repr(policy) == "Calibrated(prune_ratio=0.4, share=0.3)"
        assert policies.config_of(policy) == {"name": "calibrated", "prune_ratio": 0.4, "share": 0.3}
    assert repr(Calibrated(0.4, power=0.5)) == "Calibrated(prune_ratio=0.4, share=0.5, power=0.5)"


def test_the_power_changes_weights_and_not_who_is_kept() -> None:
    table = table_with(np.random.default_rng(1).random(80).astype(np.float32))
    context = Context(n=80, epoch=1, seed=0, labels=np.arange(80) % 3)
    kept = [Calibrated(0.4, power=power).select(table, context).indices for power in (0.0, 0.5, 1.0)]
    assert np.array_equal(kept[0], kept[1])
    assert np.array_equal(kept[1], kept[2])
    balanced = Balanced(Calibrated(0.4, power=0.5)).select(table, context)
    assert balanced.weights.mean() == pytest.approx(1)
    assert Calibrated(0.0, power=0.5).select(table, context).weights is None


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        (Calibrated, {"prune_ratio": 0.3, "power": 1.5}, r"power must be in \[0, 1\], got 1\.5"),
        (Calibrated, {"prune_ratio": 0.3, "power": -0.5}, r"power must be in \[0, 1\], got -0\.5"),
        (Calibrated, {"prune_ratio": 0.3, "power": None}, r"power must be in \[0, 1\], got None"),
    ],
)
def test_parameters_out_of_range_are_named(kind, parameters: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**parameters)
