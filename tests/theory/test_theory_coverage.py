"""Coverage against exhaustive reasoning, simulation and the running method; the plan's arithmetic."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
import torch
from scipy import stats

from orderdp import OrderDP, Pruner
from orderdp.errors import ConfigError
from orderdp.theory import coverage, plan, weights
from orderdp.theory.plan import _Mean
from orderdp.theory.rank_rules import hypergeometric

coverage_module = importlib.import_module("orderdp.theory.plan")  # the package has a function of that name


def simulate(n: int, policy: OrderDP, epochs: int, start: float, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Share seen after each epoch, and usage, of the real policy with random losses above `start`."""
    shares, usages = np.zeros((runs, epochs + 1)), np.zeros(epochs + 1)
    for run in range(runs):
        rng = np.random.default_rng(run)
        pruner = Pruner(policy, n, seed=run)
        if np.isfinite(start):
            pruner.observe(torch.arange(n), torch.full((n,), start))
        for epoch in range(epochs):
            index = torch.tensor(list(pruner.sampler))
            pruner.observe(torch.arange(n)[pruner.usage > 0], torch.from_numpy(start_of(rng, pruner)).float())
            pruner.update(index, torch.from_numpy(rng.random(len(index)) + 2).float())
            shares[run, epoch + 1] = float((pruner.usage > 0).double().mean())
        usages += np.bincount(pruner.usage.numpy(), minlength=epochs + 1) / n / runs
    return shares.mean(0), usages


def start_of(rng: np.random.Generator, pruner: Pruner) -> np.ndarray:
    """Ranks drawn anew among those seen."""
    return rng.random(int((pruner.usage > 0).sum())) + 2


@pytest.mark.parametrize(("n", "exploration", "exploitation"), [(60, 0.5, 0.6), (60, 0.9, 0.5), (900, 0.5, 0.6)])
def test_unseen_first_coverage_and_usage_are_those_of_the_running_method(n, exploration, exploitation) -> None:
    policy = OrderDP(exploration=exploration, exploitation=exploitation)
    s, q = policy.sizes(n)
    runs = 150 if n < 100 else 12
    shares, usage = simulate(n, policy, 6, np.inf, runs)
    expected = coverage(n, s, q, 6)
    assert np.abs(expected.share - shares).max() < 5 * 0.5 / np.sqrt(n * runs) + 1e-3
    assert np.abs(expected.usage - usage).max() < 0.02
    assert expected.usage.sum() == pytest.approx(1)
    assert expected.usage @ np.arange(7) == pytest.approx(6 * q / n)


@pytest.mark.parametrize(("exploration", "exploitation"), [(0.5, 0.6), (0.75, 0.8)])
def test_a_finite_start_value_starves_samples_as_it_does_in_the_running_method(
    exploration: float, exploitation: float
) -> None:
    n, policy = 2000, OrderDP(exploration=exploration, exploitation=exploitation)
    s, q = policy.sizes(n)
    shares, _ = simulate(n, policy, 30, 1.0, 2)
    starved = coverage(n, s, q, 30, ranks="seen-first")
    np.testing.assert_allclose(starved.share, shares, atol=0.02)
    assert 1 - starved.share[-1] > 0.8 * (1 - exploitation)
    assert starved.all_seen_epoch is None
    assert coverage(n, s, q, 30).share[-1] == pytest.approx(1)


def test_uniform_ranks_are_a_binomial() -> None:
    for n in (50, 5000):
        result = coverage(n, n // 2, n // 5, 10, ranks="uniform")
        np.testing.assert_allclose(result.share, 1 - 0.8 ** np.arange(11), rtol=1e-9)
        np.testing.assert_allclose(result.usage, stats.binom(10, 0.2).pmf(np.arange(11)), rtol=1e-8)


def test_the_exact_chain_and_its_mean_path_agree_where_both_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    module = __import__("orderdp.theory.plan", fromlist=["_EXACT_UP_TO"])
    for s, q in ((200, 120), (380, 150), (300, 299), (400, 100)):
        exact = coverage(400, s, q, 12)
        monkeypatch.setattr(module, "_EXACT_UP_TO", 0)
        path = coverage(400, s, q, 12)
        monkeypatch.undo()
        assert np.abs(exact.share - path.share).max() < 2e-3
        assert exact.all_seen_epoch is not None
        assert path.all_seen_epoch is not None
        assert abs(exact.all_seen_epoch - path.all_seen_epoch) <= 1


@pytest.mark.parametrize(("n", "s", "q"), [(400, 126, 4), (400, 166, 12), (300, 100, 40)])
def test_where_few_are_kept_the_mean_path_comes_to_its_end_too(
    n: int, s: int, q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = coverage(n, s, q, 200)
    monkeypatch.setattr(__import__("orderdp.theory.plan", fromlist=["_EXACT_UP_TO"]), "_EXACT_UP_TO", 0)
    path = coverage(n, s, q, 200)
    assert np.abs(exact.share - path.share).max() < 5e-3
    assert exact.all_seen_epoch is not None
    assert path.all_seen_epoch is not None
    assert abs(exact.all_seen_epoch - path.all_seen_epoch) <= 0.06 * exact.all_seen_epoch


def test_the_epoch_by_which_all_are_seen_is_that_of_the_running_method() -> None:
    n, policy = 50, OrderDP(exploration=0.6, exploitation=0.5)
    epochs = coverage(n, *policy.sizes(n), 1, probability=0.9).all_seen_epoch
    assert epochs is not None
    finished = []
    for seed in range(300):
        pruner = Pruner(policy, n, seed=seed)
        done = 0
        while not bool((pruner.usage > 0).all()):
            index = torch.tensor(list(pruner.sampler))
            pruner.update(index, torch.rand(len(index)) + 1)
            done += 1
        finished.append(done)
    assert np.mean(np.array(finished) <= epochs) >= 0.9 - 5 * np.sqrt(0.09 / 300)
    assert np.mean(np.array(finished) <= epochs - 1) < 0.9 + 5 * np.sqrt(0.09 / 300)


def test_with_the_whole_data_set_as_pool_all_are_seen_in_turn() -> None:
    for n in (100, 1000):
        result = coverage(n, n, n // 4, 5)
        assert result.share.tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
        assert result.all_seen_epoch == 4


def test_one_sample_and_no_epochs_are_ordinary_cases() -> None:
    assert coverage(1, 1, 1, 0).share.tolist() == [0.0]
    assert coverage(1, 1, 1, 2).usage.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "arguments",
    [{"epochs": -1}, {"epochs": 1.5}, {"probability": 1.0}, {"probability": 0}, {"ranks": "best"}, {"q": 9}],
)
def test_bad_input_is_refused(arguments: dict) -> None:
    with pytest.raises(ConfigError):
        coverage(**{"n": 10, "s": 5, "q": 2, "epochs": 3, **arguments})


# -- the plan -------------------------------------------------------------------------------------------------------


def test_a_plan_agrees_with_the_pruner_and_the_weights() -> None:
    result = plan(50_000, prune_ratio=0.4, epochs=200, batch_size=128, hours=10, price=3)
    pruner = Pruner(OrderDP(0.4), 50_000)
    assert (result.s, result.q) == pruner.policy.sizes(50_000)
    assert result.steps == pruner.steps(200, 128)
    assert result.steps + result.steps_saved == Pruner(OrderDP(0), 50_000).steps(200, 128)
    assert result.samples == 200 * 30_000
    assert result.samples_saved == 200 * 20_000
    gamma = weights(50_000, result.s, result.q)
    assert (result.largest_inclusion, result.smallest_inclusion) == (gamma.max(), gamma.min())
    assert result.effective_sample_size == pytest.approx(gamma.sum() ** 2 / (gamma**2).sum())
    assert result.hours == pytest.approx(6)
    assert result.money_saved == pytest.approx(12)
    assert json.loads(json.dumps(result.as_dict()))["exploration"] == pytest.approx(0.88012)


def test_a_plan_of_plain_random_or_full_data_has_no_bias() -> None:
    for result in (plan(1000, 0.0, 3, 10), plan(1000, exploration=0.5, exploitation=1.0, epochs=3, batch_size=10)):
        assert result.deviation == result.sampling == 0
        assert result.effective_sample_size == pytest.approx(1000)
        assert result.hours is None


def test_a_plan_rounds_as_the_policy_does() -> None:
    for n in (15, 35, 1000, 1015):
        made = plan(n, 0.7, exploration=0.3)
        assert (made.s, made.q) == OrderDP(0.7, exploration=0.3).sizes(n)


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": 0},
        {"n": 2.5},
        {"prune_ratio": 40},
        {"prune_ratio": None},
        {"prune_ratio": 0.99999},
        {"epochs": 0},
        {"batch_size": 0},
        {"hours": -1.0},
        {"price": 3.0},
        {"hours": 1.0, "price": -3.0},
        {"exploration": 0.3},
        {"world_size": 0},
    ],
)
def test_a_plan_refuses_nonsense(arguments: dict) -> None:
    with pytest.raises(ConfigError):
        plan(**{"n": 1000, "prune_ratio": 0.4, "epochs": 3, "batch_size": 10, **arguments})


@pytest.mark.parametrize("ranks", ["unseen-first", "seen-first"])
def test_the_mean_path_is_that_of_the_whole_distribution_where_it_takes_a_short_way(ranks) -> None:
    """The limit q is far below the pools' counts, in their reach, or far above."""
    ways = set()
    for n, s, q in [(20_000, 10_000, 300), (20_000, 8000, 2400), (6000, 4000, 3800), (500, 100, 3)]:
        for unseen in np.linspace(1, n, 7).round():
            chain = _Mean(n, s, q, ranks)
            chain.unseen = float(unseen)
            drawn = (unseen if ranks == "unseen-first" else n - unseen) * s / n
            reach = 40 * np.sqrt(drawn + 1)
            ways.add(int(drawn - reach > q) - int(drawn + reach < q))
            expected = min(unseen, chain._gain_of(int(unseen)))
            assert chain._gain() == pytest.approx(expected, rel=1e-9, abs=1e-9 * q)
    assert ways == {-1, 0, 1}


def test_a_plan_for_ten_billion_samples_looks_at_few_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(coverage_module, "hypergeometric", lambda *sizes: asked.append(sizes) or hypergeometric(*sizes))
    found = plan(10**10, 0.999)
    assert (found.q, found.all_seen_epoch) == (10**7, 1121)
    assert len(asked) < 100
