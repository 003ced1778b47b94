"""End to end on real data: pruning 40 % of the digits costs no more than 1.5 points of accuracy."""

from __future__ import annotations

import statistics

import pytest
from examples import digits

from orderdp import OrderDP

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def full() -> list[digits.Result]:
    return [digits.train(None, seed) for seed in SEEDS]


def accuracy(results: list[digits.Result]) -> float:
    return 100 * statistics.mean(result.accuracy for result in results)


@pytest.mark.parametrize("every", ["epoch", "batch"])
def test_a_pruned_training_is_within_1_5_points_of_the_full_one(every: str, full: list[digits.Result]) -> None:
    pruned = [digits.train(OrderDP(0.4, every=every), seed) for seed in SEEDS]
    assert accuracy(full) > 95
    assert accuracy(pruned) >= accuracy(full) - 1.5
    for result, whole in zip(pruned, full, strict=True):
        assert result.samples == pytest.approx(0.6 * whole.samples, abs=digits.EPOCHS)
