"""Methods that score each sample, against restatements written out sample by sample."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays

from orderdp.coresets import (
    CCS,
    EL2N,
    Arrays,
    Cal,
    Entropy,
    Forgetting,
    GraNd,
    LeastConfidence,
    Margin,
    Moderate,
    MoSo,
    PrecomputedScores,
    Prototypes,
)
from orderdp.coresets.base import softmax
from orderdp.coresets.geometry import distances_to_class_median, distances_to_prototypes, middle, stratified
from orderdp.coresets.scores import contrast, error_norms, forgetting_events
from orderdp.errors import ConfigError

LOGITS = np.random.default_rng(0).standard_normal((90, 5)).astype(np.float32) * 2
LABELS = np.random.default_rng(1).choice([0, 1, 2, 3, 4], 90, p=[0.5, 0.2, 0.1, 0.1, 0.1])


def probabilities(row: np.ndarray) -> list[float]:
    total = sum(exp(v) for v in row)
    return [exp(v) / total for v in row]


def confidence(row: np.ndarray) -> float:
    return max(probabilities(row))


def order(row: np.ndarray) -> float:
    """Less the entropy: larger for the more certain."""
    return sum(p * log(p) for p in probabilities(row))


def lead(row: np.ndarray) -> float:
    first, second = sorted(probabilities(row))[:-3:-1]
    return first - second


# -- uncertainty ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "certainty"), [(LeastConfidence, confidence), (Entropy, order), (Margin, lead)], ids=lambda m: m.__name__
)
def test_uncertainty_keeps_the_least_certain_balanced_or_not(method, certainty) -> None:
    certain = np.array([certainty(row.astype(np.float64)) for row in LOGITS])
    arrays = Arrays(logits=LOGITS, labels=LABELS)
    kept = method(balanced=False).select(arrays, 0.6, seed=0).indices
    assert kept.tolist() == sorted(np.argsort(certain)[:36].tolist())
    balanced = method().select(arrays, 0.6, seed=0).indices
    for label in range(5):
        own = np.flatnonzero(label == LABELS)
        ours = balanced[LABELS[balanced] == label]
        assert set(ours.tolist()) == set(own[np.argsort(certain[own])[: len(ours)]].tolist())


def test_confidence_is_a_probability_and_not_a_logit() -> None:
    """By the largest logit the first sample would be the less certain one."""
    logits = np.array([[5.0, 0.0], [100.0, 99.0]], dtype=np.float32)
    assert LeastConfidence(balanced=False).select(Arrays(logits=logits), 0.5, seed=0).indices.tolist() == [1]


def test_logits_of_any_size_give_finite_scores() -> None:
    logits = np.array([[1e4, -1e4], [0.0, 0.0]], dtype=np.float32)
    for method in (LeastConfidence(), Entropy(), Margin()):
        assert np.isfinite(method.scores(Arrays(logits=logits))).all()


def test_a_margin_needs_two_classes() -> None:
    with pytest.raises(ConfigError, match="Margin needs at least 2 classes, there is 1"):
        Margin(balanced=False).select(Arrays(logits=np.zeros((4, 1))), 0.5, seed=0)


# -- forgetting -----------------------------------------------------------------------------------------------------


def test_forgetting_counts_a_written_out_history() -> None:
    history = {"1111": 0, "0111": 0, "1011": 1, "1010": 2, "0101": 1, "0001": 0, "1000": 1, "0000": float("inf")}
    correct = np.array([[mark == "1" for mark in marks] for marks in history]).T
    assert forgetting_events(correct).tolist() == list(history.values())


@settings(max_examples=50, deadline=None)
@given(numpy_arrays(bool, (6, 5)))
def test_forgetting_counts_by_looking_at_one_sample_at_a_time(correct: np.ndarray) -> None:
    for sample, events in zip(correct.T.tolist(), forgetting_events(correct), strict=True):
        lost = sum(was and not now for was, now in pairwise(sample))
        assert events == (lost if any(sample) else float("inf"))


def test_samples_never_learned_are_kept_first() -> None:
    correct = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 1, 1]], dtype=bool)
    kept = Forgetting(balanced=False).select(Arrays(correct=correct), 0.75, seed=0).indices
    assert kept.tolist() == [1]


# -- EL2N and GraNd -------------------------------------------------------------------------------------------------


def test_el2n_is_the_norm_of_softmax_minus_label_averaged_over_models() -> None:
    several = np.stack((LOGITS, -LOGITS, 0.5 * LOGITS))
    wanted = [
        np.mean(
            [
                sqrt(sum((p - (c == label)) ** 2 for c, p in enumerate(probabilities(row.astype(float)))))
                for row in several[:, i]
            ]
        )
        for i, label in enumerate(LABELS)
    ]
    np.testing.assert_allclose(EL2N().scores(Arrays(logits=several, labels=LABELS)), wanted, rtol=1e-5)
    two = EL2N(repeats=2).scores(Arrays(logits=several, labels=LABELS))
    np.testing.assert_allclose(two, np.mean([error_norms(v, LABELS) for v in several[:2]], axis=0), rtol=1e-6)


def test_grand_of_the_last_layer_is_el2n_times_the_length_of_the_input() -> None:
    features = np.random.default_rng(2).standard_normal((90, 7)).astype(np.float32)
    lengths = np.sqrt(np.square(features).sum(1) + 1)
    scores = GraNd().scores(Arrays(features, LOGITS, LABELS))
    np.testing.assert_allclose(scores, error_norms(LOGITS, LABELS) * lengths, rtol=1e-5)


def test_grand_goes_with_the_features_of_each_model() -> None:
    rng = np.random.default_rng(2)
    features, logits = rng.standard_normal((3, 90, 7)) * [[[1]], [[10]], [[0.1]]], rng.standard_normal((3, 90, 5))
    each = [GraNd().scores(Arrays(f, z, LABELS)) for f, z in zip(features, logits, strict=True)]
    np.testing.assert_allclose(GraNd().scores(Arrays(features, logits, LABELS)), np.mean(each, axis=0), rtol=1e-6)
    one = Arrays(features[0], logits, LABELS)
    np.testing.assert_allclose(GraNd(repeats=1).scores(one), each[0], rtol=1e-6)
    assert EL2N().scores(one).shape == (90,)
    moso = [MoSo().scores(Arrays(f, z, LABELS)) for f, z in zip(features, logits, strict=True)]
    several = Arrays(features, logits, LABELS)
    np.testing.assert_allclose(MoSo(repeats=None).scores(several), np.mean(moso, axis=0), rtol=1e-5)


# -- CCS ------------------------------------------------------------------------------------------------------------


def test_ccs_drops_the_hardest_and_takes_the_same_number_from_each_range() -> None:
    scores = np.concatenate((np.linspace(0, 1, 800, endpoint=False), np.linspace(5, 9, 200)))
    kept = stratified(scores, 100, drop=0.2, strata=10, rng=np.random.default_rng(0))
    assert scores[kept].max() < 1
    assert np.histogram(scores[kept], bins=10, range=(0, scores[799]))[0].tolist() == [10] * 10


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-10, 10) | st.just(float("inf")), min_size=1, max_size=60),
    st.floats(0, 0.99),
    st.integers(1, 8),
    st.floats(0, 1),
)
def test_ccs_is_exact_whatever_the_scores(values: list[float], drop: float, strata: int, share: float) -> None:
    scores, count = np.array(values, dtype=np.float32), max(1, round(share * len(values)))
    kept = stratified(scores, count, drop, strata, np.random.default_rng(0))
    assert len(kept) == len(set(kept.tolist())) == count
    dropped = min(round(drop * len(values)), len(values) - count)
    if dropped:
        assert scores[kept].max() <= np.sort(scores)[len(values) - dropped]


def test_ccs_takes_a_score_by_name_or_as_a_method() -> None:
    arrays = Arrays(features=LOGITS, logits=LOGITS, labels=LABELS, scores=np.arange(90))
    assert CCS(score="el2n") == CCS()
    by_method = CCS(score=EL2N(epoch=2)).select(arrays, 0.5, seed=0).indices
    assert by_method.tolist() == CCS().select(arrays, 0.5, seed=0).indices.tolist()
    own = CCS(score="scores", balanced=False, drop=0.2).select(arrays, 0.5, seed=0).indices
    assert own.max() < 72
    with pytest.raises(ConfigError, match="Did you mean 'el2n'"):
        CCS(score="el2m")
    with pytest.raises(ConfigError, match="a name or a method with scores"):
        CCS(score=Moderate())


# -- Moderate, Cal, Prototypes --------------------------------------------------------------------------------------


def test_moderate_keeps_the_middle_of_the_distances_to_the_class_median() -> None:
    features = np.random.default_rng(3).standard_normal((90, 4)).astype(np.float32)
    kept = Moderate().select(Arrays(features, labels=LABELS), 0.6, seed=0).indices
    for label in range(5):
        own = np.flatnonzero(label == LABELS)
        center = np.array([np.median(features[own, c]) for c in range(4)])
        ranked = own[np.argsort(np.linalg.norm(features[own] - center, axis=1))].tolist()
        ours = sorted(ranked.index(i) for i in kept if LABELS[i] == label)
        assert ours == list(range(ours[0], ours[0] + len(ours)))
        assert ours[0] == (len(own) - len(ours)) // 2
    assert np.isfinite(distances_to_class_median(features, LABELS)).all()
    assert middle(np.arange(4.0), 4).tolist() == [0, 1, 2, 3]


def test_cal_is_the_mean_divergence_from_the_nearest_neighbors_and_keeps_the_largest() -> None:
    features = np.random.default_rng(4).standard_normal((90, 3)).astype(np.float32)
    p = softmax(LOGITS).astype(np.float64)
    wanted = []
    for i in range(90):
        others = [j for j in np.argsort(np.linalg.norm(features - features[i], axis=1)) if j != i][:10]
        wanted.append(np.mean([((p[i] - p[j]) * (np.log(p[i]) - np.log(p[j]))).sum() for j in others]))
    np.testing.assert_allclose(contrast(features, LOGITS, 10), wanted, rtol=1e-3, atol=1e-5)
    kept = Cal(balanced=False).select(Arrays(features, LOGITS), 0.5, seed=0).indices
    assert set(kept.tolist()) == set(np.argsort(wanted)[45:].tolist())


def test_prototypes_keep_the_farthest_or_the_nearest_of_their_cluster() -> None:
    rng = np.random.default_rng(5)
    centers = np.array([[0, 0], [100, 0], [0, 100]])
    own = np.repeat([0, 1, 2], 20)
    features = (centers[own] + rng.standard_normal((60, 2))).astype(np.float32)
    wanted = np.concatenate([np.linalg.norm(features[own == c] - features[own == c].mean(0), axis=1) for c in range(3)])
    found = distances_to_prototypes(features, 3, np.random.default_rng(0))
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    arrays = Arrays(features)
    hard = Prototypes(balanced=False, clusters=3).select(arrays, 0.5, seed=0).indices
    easy = Prototypes(balanced=False, clusters=3, keep="easy").select(arrays, 0.5, seed=0).indices
    assert set(hard.tolist()) == set(np.argsort(wanted)[30:].tolist())
    assert sorted((*hard.tolist(), *easy.tolist())) == list(range(60))


def test_own_scores_are_kept_from_the_end_that_was_asked_for() -> None:
    arrays = Arrays(scores=[3.0, 1.0, 2.0, 5.0])
    assert PrecomputedScores(balanced=False).select(arrays, 0.5, seed=0).indices.tolist() == [0, 3]
    assert PrecomputedScores(balanced=False, keep="smallest").select(arrays, 0.5, seed=0).indices.tolist() == [1, 2]


def test_scores_are_ranked_as_they_were_given() -> None:
    """In single precision neighbors among the first would be equal, and the others infinite."""
    rng = np.random.default_rng(0)
    for scores in (1e9 + np.arange(1000.0), 1e39 * (1 + np.arange(1000.0)), 10**9 + np.arange(1000)):
        order = rng.permutation(1000)
        kept = PrecomputedScores(balanced=False).select(Arrays(scores=scores[order]), 0.99, seed=0).indices
        assert kept.tolist() == np.flatnonzero(order >= 990).tolist()
        kept = (
            PrecomputedScores(balanced=False, keep="smallest")
            .select(Arrays(scores=scores[order]), 0.99, seed=0)
            .indices
        )
        assert kept.tolist() == np.flatnonzero(order < 10).tolist()


def test_the_precision_of_a_score_changes_no_choice_among_equal_ones() -> None:
    scores = np.random.default_rng(0).integers(0, 4, 500).astype(np.float32)
    for seed in range(5):
        single, double = (
            PrecomputedScores(balanced=False)
            .select(Arrays(scores=scores.astype(dtype)), 0.7, seed=seed)
            .indices.tolist()
            for dtype in (np.float32, np.float64)
        )
        assert single == double


def test_equal_scores_are_chosen_among_fairly_and_by_the_seed() -> None:
    arrays = Arrays(scores=np.zeros(40))
    counts = np.zeros(40)
    for seed in range(1000):
        counts[PrecomputedScores(balanced=False).select(arrays, 0.75, seed=seed).indices] += 1
    assert np.abs(counts / 1000 - 0.25).max() < 5 * sqrt(0.25 * 0.75 / 1000)
