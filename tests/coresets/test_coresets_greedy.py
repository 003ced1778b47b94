"""Greedy methods against plain restatements that hold everything in memory and look at everything."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp.coresets import Arrays, ContextualDiversity, FacilityLocation, Herding, KCenter, geometry
from orderdp.coresets.base import CosineKernel, dense_kernel, lazy_greedy, squared_euclidean, symmetric_kl
from orderdp.coresets.geometry import cluster_sizes, cut, farthest_first, herd, maximize_coverage


def points(seed: int, n: int = 80, width: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


def cosines(x: np.ndarray) -> np.ndarray:
    unit = x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True)
    return 0.5 + 0.5 * unit @ unit.T


def distances(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x[:, None].astype(np.float64) - x[None], axis=2)


def naive_farthest_first(d: np.ndarray, count: int, start: int) -> list[int]:
    picks = [start]
    while len(picks) < count:
        nearest = d[:, picks].min(1)
        nearest[picks] = -1
        picks.append(int(nearest.argmax()))
    return picks


# -- farthest first -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pending", [1, 3, 64])
@pytest.mark.parametrize("seed", range(4))
def test_farthest_first_is_the_naive_algorithm(seed: int, pending: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "_PENDING", pending)
    x = points(seed, n=150)
    ours = farthest_first(squared_euclidean(x), 100, start=7)
    assert ours.tolist() == naive_farthest_first(distances(x), 100, 7)


def test_k_center_is_within_twice_the_best_radius() -> None:
    x = points(0, n=14, width=2)
    d = distances(x)
    best = min(d[:, list(chosen)].min(1).max() for chosen in combinations(range(14), 4))
    for seed in range(10):
        kept = KCenter(balanced=False).select(Arrays(x), 10 / 14, seed=seed).indices
        assert len(kept) == 4
        assert d[:, kept].min(1).max() <= 2 * best + 1e-6


def test_contextual_diversity_is_farthest_first_by_symmetric_kl() -> None:
    logits = points(3, n=60, width=4) * 2
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(1, keepdims=True)
    d = np.array([[((a - b) * (np.log(a) - np.log(b))).sum() for b in p] for a in p])
    kl = symmetric_kl(logits)
    np.testing.assert_allclose(kl.between(slice(None), slice(None)), d, atol=1e-4)
    kept = ContextualDiversity(balanced=False).select(Arrays(logits=logits), 0.5, seed=1).indices
    assert kept.tolist() == naive_farthest_first(d, 30, int(kept[0]))


def test_the_start_of_farthest_first_depends_on_the_seed() -> None:
    x = Arrays(points(0))
    starts = {int(KCenter(balanced=False).select(x, 0.5, seed=seed).indices[0]) for seed in range(20)}
    assert len(starts) > 10


# -- herding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_herding_is_the_argmin_of_its_definition(seed: int) -> None:
    x = points(seed) + 3
    mean, total, picks = x.astype(np.float64).mean(0), np.zeros(5), []
    for step in range(40):
        gaps = np.linalg.norm((step + 1) * mean - (total + x), axis=1)
        gaps[picks] = np.inf
        picks.append(int(gaps.argmin()))
        total += x[picks[-1]]
    assert herd(x, 40).tolist() == picks


def test_herdings_mean_error_falls_like_one_over_k_and_beats_random() -> None:
    x = points(0, n=2000)
    rng = np.random.default_rng(1)
    picks = herd(x, 400)
    errors = {k: np.linalg.norm(x[picks[:k]].mean(0) - x.mean(0)) for k in (10, 50, 400)}
    assert errors[10] > errors[50] > errors[400]
    assert errors[400] < 5 / 400  # of order 1/k, where chance has 1/sqrt(k)
    for k, error in errors.items():
        chance = np.mean([np.linalg.norm(x[rng.choice(2000, k)].mean(0) - x.mean(0)) for _ in range(50)])
        assert error < chance


def test_a_herd_that_looks_away_is_worse_than_chance() -> None:
    """The negative control: with argmax in place of argmin, as in public code, the mean is missed."""
    x = points(0, n=500)
    away = np.argsort(-np.linalg.norm(x - x.mean(0), axis=1))[:1]
    assert np.linalg.norm(x[away].mean(0) - x.mean(0)) > np.linalg.norm(x[herd(x, 1)].mean(0) - x.mean(0))


# -- facility location and graph cut --------------------------------------------------------------------------------


def plain_facility(s: np.ndarray, count: int) -> list[int]:
    picks: list[int] = []
    served = np.zeros(len(s), dtype=s.dtype)
    for _ in range(count):
        gains = np.maximum(s - served, 0).sum(1, dtype=np.float64)
        gains[picks] = -np.inf
        picks.append(int(gains.argmax()))
        served = np.maximum(served, s[picks[-1]])
    return picks


@pytest.mark.parametrize("seed", range(4))
def test_lazy_facility_location_picks_what_plain_greedy_picks(seed: int) -> None:
    x = points(seed)
    ours = maximize_coverage(CosineKernel(x), 60, np.random.default_rng(0))
    # Two samples that would serve each other add the same, so the picks are compared at the same rounding ...
    assert ours.tolist() == plain_facility(dense_kernel(CosineKernel(x)), 60)
    # ... and the objective, which does not depend on such ties for long, without any.
    s = cosines(x)
    for k in (1, 10, 60):
        assert s[ours[:k]].max(0).sum() == pytest.approx(s[plain_facility(s, 60)[:k]].max(0).sum(), rel=1e-3)


def test_greedy_facility_location_is_within_its_guarantee_of_the_best() -> None:
    x = points(1, n=14)
    s = cosines(x)
    best = max(s[list(chosen)].max(0).sum() for chosen in combinations(range(14), 4))
    assert s[maximize_coverage(CosineKernel(x), 4, np.random.default_rng(0))].max(0).sum() >= (1 - 1 / np.e) * best


def test_stochastic_facility_location_comes_near_plain_greedy() -> None:
    x, rng = points(2, n=300), np.random.default_rng(0)
    s = cosines(x)
    plain = s[plain_facility(s, 60)].max(0).sum()
    random = np.mean([s[rng.choice(300, 60, replace=False)].max(0).sum() for _ in range(20)])
    values = [s[maximize_coverage(CosineKernel(x), 60, rng, fits=0)].max(0).sum() for _ in range(5)]
    assert min(values) > 0.99 * plain
    assert min(values) > random
    assert len(np.unique(maximize_coverage(CosineKernel(x), 300, rng, fits=0))) == 300


@pytest.mark.parametrize("fits", [0, 1 << 30])
def test_no_more_rows_are_asked_for_at_once_than_make_a_block(fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 80 kept: stochastic greedy has all samples as candidates, and their rows together are the whole kernel."""

    class Watched(CosineKernel):
        most = 0

        def rows(self, places: np.ndarray) -> np.ndarray:
            Watched.most = max(Watched.most, len(places))
            return super().rows(places)

    x = points(2)
    free = maximize_coverage(CosineKernel(x), 2, np.random.default_rng(0), fits=fits)
    monkeypatch.setattr("orderdp.coresets.base._BLOCK", 400)
    assert maximize_coverage(Watched(x), 2, np.random.default_rng(0), fits=fits).tolist() == free.tolist()
    assert Watched.most == 5


def test_clusters_are_those_of_the_most_similar_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    x = points(4)
    kernel, picks = CosineKernel(x), np.array([5, 17, 60])
    wanted = np.bincount(cosines(x)[picks].argmax(0), minlength=3)
    assert cluster_sizes(kernel, picks).tolist() == wanted.tolist()
    monkeypatch.setattr("orderdp.coresets.base._BLOCK", 160)  # two rows at a time
    assert cluster_sizes(kernel, picks).tolist() == wanted.tolist()
    np.testing.assert_allclose(dense_kernel(kernel), cosines(x), atol=1e-5)


def test_every_pick_serves_at_least_itself_even_among_duplicates() -> None:
    x = np.ones((6, 3), dtype=np.float32)
    assert cluster_sizes(CosineKernel(x), np.array([4, 2])).tolist() == [5, 1]


@pytest.mark.parametrize("trade_off", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_graph_cut_picks_what_greedy_on_the_whole_kernel_picks(seed: int, trade_off: float) -> None:
    x = points(seed)
    s, picks = cosines(x), []
    for _ in range(40):
        gains = trade_off * s.sum(1) - 2 * s[:, picks].sum(1)
        gains[picks] = -np.inf
        picks.append(int(gains.argmax()))
    ours = cut(x, 40, trade_off)
    assert ours.tolist() == picks


def test_the_gain_of_graph_cut_is_the_change_of_its_objective() -> None:
    s = cosines(points(0))

    def objective(chosen: list[int]) -> float:
        return float(1.0 * s[chosen].sum() - s[np.ix_(chosen, chosen)].sum())

    gain = s[7].sum() - 2 * s[7, [3, 9]].sum()
    assert objective([3, 9, 7]) - objective([3, 9]) == pytest.approx(gain - s[7, 7])


class Modular:
    """The simplest objective: each sample adds its own value."""

    def __init__(self, values: np.ndarray) -> None:
        self.bounds, self._values, self.asked = np.full(len(values), np.inf), values, 0

    def gains(self, places: np.ndarray) -> np.ndarray:
        self.asked += len(places)
        return self._values[places]

    def take(self, place: int) -> None:
        pass


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 60))
def test_lazy_greedy_breaks_ties_by_the_lowest_place(values: list[int], count: int) -> None:
    count = min(count, len(values))
    wanted = np.argsort(-np.array(values), kind="stable")[:count]
    assert lazy_greedy(Modular(np.array(values, dtype=float)), count).tolist() == wanted.tolist()


# -- known structure ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [KCenter(), FacilityLocation(), ContextualDiversity()], ids=repr)
def test_duplicates_are_not_both_picked_while_there_are_others(method) -> None:
    x = points(0, n=60)
    doubled = np.concatenate((x, x))
    arrays = Arrays(features=doubled, logits=doubled, labels=np.zeros(120, dtype=int))
    kept = method.select(arrays, 0.75, seed=0).indices
    assert len(kept) == 30
    assert len(np.unique(kept % 60)) == 30


def test_the_order_of_picks_is_that_of_the_classes_each_greedy() -> None:
    x, labels = points(0, n=90), np.repeat([0, 1, 2], 30)
    kept = Herding().select(Arrays(x, labels=labels), 0.5, seed=0).indices
    for label in range(3):
        own = np.flatnonzero(labels == label)
        assert kept[15 * label : 15 * label + 15].tolist() == own[herd(x[own], 15)].tolist()


def test_groups_that_do_not_fit_go_the_stochastic_way(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def watched(*arguments, **options):
        called.append(1)
        return facility_stochastic(*arguments, **options)

    facility_stochastic = geometry.stochastic_greedy
    monkeypatch.setattr(geometry, "stochastic_greedy", watched)
    monkeypatch.setattr(geometry, "FITS", 1)
    maximize_coverage(CosineKernel(points(0)), 5, np.random.default_rng(0), fits=geometry.FITS)
    assert called
