"""Every static method: the contract they share, known structure, names and cards."""

from __future__ import annotations

import pickle
import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from orderdp import Pruner, coresets
from orderdp.coresets import (
    CCS,
    EL2N,
    NAMES,
    Arrays,
    Cal,
    ContextualDiversity,
    DeepFool,
    Entropy,
    FacilityLocation,
    Forgetting,
    GeneralizationPruning,
    GraNd,
    GraphCut,
    Herding,
    KCenter,
    LeastConfidence,
    Margin,
    MoSo,
    PrecomputedScores,
    Proxy,
    StaticRandom,
)
from orderdp.coresets.base import budgets
from orderdp.errors import ConfigError, DatasetError
from orderdp.policies import Fixed
from orderdp.testing import global_generators_untouched

METHODS = [
    coresets.build(name, **({"moves": 500} if name == "generalization-pruning" else {}))
    for name in NAMES
    if name != "own-scores"
] + [GraNd(layer="all"), CCS(score="forgetting"), coresets.Prototypes(keep="easy")]


def digits(n: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:n] / 16, dtype=torch.float32), torch.tensor(y[:n])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def proxy() -> Proxy:
    """Digits in classes of unequal sizes: some classes have lost two of three samples."""
    x, y = digits(400)
    keep = (y > 3) | (torch.arange(400) % 3 == 0)
    return Proxy(net, (x[keep], y[keep]), epochs=5, inits=2, batch_size=32)


# -- the contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("balanced", [True, False, "equal"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_budgets_are_exact_and_the_same_seed_gives_the_same_answer(method, balanced, proxy: Proxy) -> None:
    config = coresets.config_of(method)
    method = coresets.build(**{**config, "balanced": balanced})
    assert coresets.build(**coresets.config_of(method)) == method
    assert pickle.loads(pickle.dumps(method)) == method
    for ratio in (0.37, 0.9):
        with global_generators_untouched(repr(method)):
            selection = method.select(proxy, ratio, seed=3)
        indices, weights = selection.indices, selection.weights
        assert len(indices) == len(set(indices.tolist())) == round((1 - ratio) * proxy.n)
        assert indices.min() >= 0
        assert indices.max() < proxy.n
        if balanced is not False:
            kept = dict(zip(*(v.tolist() for v in np.unique(proxy.labels[indices], return_counts=True)), strict=True))
            assert kept == {c: k for c, k in budgets(proxy.labels, len(indices), balanced).items() if k}
        if weights is not None:
            assert (weights > 0).all()
            assert weights.mean() == pytest.approx(1, abs=1e-4)
        if ratio == 0.9:
            assert np.array_equal(indices, method.select(proxy, ratio, seed=3).indices)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_pruning_nothing_keeps_everything(method, proxy: Proxy) -> None:
    small = Arrays(
        proxy.features()[:40], proxy.logits()[:40], proxy.labels[:40], np.array(proxy.correct()[:, :40]), np.arange(40)
    )
    source = proxy if method.needs.model else small
    assert sorted(method.select(source, 0.0, seed=0).indices.tolist()) == list(range(source.n))


@pytest.mark.parametrize("size", [1e8, 1e12, 1e20, 3e38])
@pytest.mark.parametrize("method", [method for method in METHODS if not method.needs.model], ids=repr)
@pytest.mark.filterwarnings("ignore:Number of distinct clusters")  # scikit-learn's own
def test_a_row_of_huge_numbers_is_refused_or_harmless_and_no_method_hangs(method, size: float) -> None:
    rng = np.random.default_rng(0)
    n = 36
    labels, correct = np.arange(n) % 3, rng.random((4, n)) < 0.5
    for hit in ("features", "logits"):
        arrays = {"features": rng.standard_normal((n, 5)), "logits": rng.standard_normal((n, 3))}
        arrays[hit][7] = size * np.sign(arrays[hit][7])
        found: list[object] = []

        def select(arrays: dict[str, np.ndarray] = arrays, found: list[object] = found) -> None:
            try:
                source = Arrays(labels=labels, correct=correct, scores=np.arange(n), **arrays)
                found.append(method.select(source, 0.5, seed=1))
            except DatasetError as error:
                found.append(error)

        thread = threading.Thread(target=select, daemon=True)
        thread.start()
        thread.join(60)
        assert found, "the method hangs, or failed with an error that is not ours"
        if size > 1e12:
            assert f"{hit} must be at most 1e+12 in size; 1 of 36 rows hold larger numbers: 7" in str(found[0])
        else:
            selection = found[0]
            assert len(set(selection.indices.tolist())) == len(selection) == n // 2
            assert selection.weights is None or np.isfinite(selection.weights).all()


@pytest.mark.parametrize("method", [StaticRandom(), KCenter(), CCS()], ids=repr)
def test_another_seed_gives_another_answer(method, proxy: Proxy) -> None:
    first, second = (method.select(proxy, 0.5, seed=seed).indices for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_static_random_is_uniform_within_each_class() -> None:
    arrays = Arrays(scores=np.zeros(30), labels=np.repeat([0, 1], [20, 10]))
    counts = np.zeros(30)
    for seed in range(2000):
        counts[StaticRandom().select(arrays, 0.7, seed=seed).indices] += 1 / 2000
    assert np.abs(counts - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 2000)


def test_a_selection_plugs_into_the_pruner_with_its_weights(proxy: Proxy) -> None:
    selection = coresets.Craig().select(proxy, 0.5, seed=0)
    pruner = Pruner(Fixed(selection), proxy.n)
    seen = []
    for index in pruner.batch_sampler(32):
        losses = torch.ones(len(index))
        weights = selection.weights[[selection.indices.tolist().index(i) for i in index]]
        assert pruner.update(torch.tensor(index), losses).item() == pytest.approx(weights.mean(), rel=1e-5)
        seen += index
    assert sorted(seen) == sorted(selection.indices.tolist())


# -- known structure ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mislabeled() -> tuple[Proxy, np.ndarray]:
    """Digits of which four carry a wrong label."""
    x, y = digits(800)
    wrong = np.array([100, 250, 399, 601])
    y = y.clone()
    y[wrong] = (y[wrong] + 5) % 10
    return Proxy(net, (x, y), epochs=8, batch_size=32, lr=0.05), wrong


@pytest.mark.parametrize("method", [EL2N(epoch=4), GraNd(epoch=4), GraNd(epoch=4, layer="all"), Forgetting()], ids=repr)
def test_mislabeled_samples_get_top_scores(method, mislabeled) -> None:
    proxy, wrong = mislabeled
    ranks = np.argsort(np.argsort(-method.scores(proxy)))
    assert ranks[wrong].max() < 0.05 * proxy.n


@pytest.mark.parametrize("score", [EL2N(epoch=4), Forgetting()], ids=repr)
def test_ccs_drops_them(score, mislabeled) -> None:
    proxy, wrong = mislabeled
    for balanced in (True, False):
        kept = CCS(score=score, drop=0.1, balanced=balanced).select(proxy, 0.5, seed=0).indices
        assert not np.isin(wrong, kept).any()
        top = type(score)(**{**score.__dict__, "balanced": balanced}).select(proxy, 0.5, seed=0).indices
        assert np.isin(wrong, top).all()


def planted(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of very different sizes, and to which each sample belongs."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(8), [200, 80, 40, 30, 20, 15, 10, 5])
    centers = rng.standard_normal((8, 6)) * 4
    return (centers[cluster] + rng.standard_normal((400, 6)) * 0.3).astype(np.float32), cluster


def radius(x: np.ndarray, kept: np.ndarray) -> float:
    return float(np.linalg.norm(x[:, None] - x[None, kept], axis=2).min(1).max())


def divergence(x: np.ndarray, kept: np.ndarray) -> float:
    p = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return float(max(min(((a - b) * np.log(a / b)).sum() for b in p[kept]) for a in p))


def mean_error(x: np.ndarray, kept: np.ndarray) -> float:
    return float(np.linalg.norm(x[kept].mean(0) - x.mean(0)))


def cosines(x: np.ndarray) -> np.ndarray:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return 0.5 + 0.5 * unit @ unit.T


def uncovered(x: np.ndarray, kept: np.ndarray) -> float:
    return float(-cosines(x)[kept].max(0).sum())


def uncut(x: np.ndarray, kept: np.ndarray) -> float:
    s = cosines(x)
    return float(-(s[kept].sum() - s[np.ix_(kept, kept)].sum()))


@pytest.mark.parametrize(
    ("method", "badness"),
    [
        (KCenter, radius),
        (ContextualDiversity, divergence),
        (Herding, mean_error),
        (FacilityLocation, uncovered),
        (GraphCut, uncut),
    ],
    ids=lambda item: item.__name__,
)
def test_on_planted_clusters_each_beats_random_at_what_it_is_for(method, badness) -> None:
    x, _ = planted()
    arrays = Arrays(features=x, logits=x)
    chance = [badness(x, StaticRandom(balanced=False).select(arrays, 0.95, seed=s).indices) for s in range(10)]
    assert badness(x, method(balanced=False).select(arrays, 0.95, seed=0).indices) <= min(chance)


@pytest.mark.parametrize("method", [KCenter(balanced=False), FacilityLocation(balanced=False)], ids=repr)
def test_diversity_reaches_every_planted_cluster_where_random_misses_some(method) -> None:
    x, cluster = planted()
    arrays = Arrays(features=x)
    assert len(np.unique(cluster[method.select(arrays, 0.96, seed=0).indices])) == 8
    random = [StaticRandom(balanced=False).select(arrays, 0.96, seed=s).indices for s in range(10)]
    assert np.mean([len(np.unique(cluster[kept])) for kept in random]) < 8


@pytest.mark.parametrize("method", [LeastConfidence(), Entropy(), Margin(), DeepFool(), Cal()], ids=repr)
def test_methods_that_look_for_the_border_find_it(method, proxy: Proxy) -> None:
    """Kept samples have the smaller lead of the first class over the second."""
    lead = np.diff(np.sort(proxy.logits(), axis=1)[:, -2:], axis=1)[:, 0]
    kept = method.select(proxy, 0.7, seed=0).indices
    random = StaticRandom().select(proxy, 0.7, seed=0).indices
    assert lead[kept].mean() < 0.8 * lead[random].mean()


# -- names, cards, cost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_a_card_that_names_its_parameters(name: str) -> None:
    text = coresets.card(name)
    for part in ("**Rule.**", "**Parameters.**", "**Cost.**", "**Limits.**", "**Tests.**", "- reference: "):
        assert part in text, part
    assert text.startswith(f"# {name}\n\n{coresets.summary(name)}\n")
    for parameter in coresets.config_of(coresets.build(name)):
        assert parameter == "name" or f"`{parameter}`" in text, parameter
    assert 20 < len(coresets.summary(name)) < 250
    assert f"coresets.{NAMES[name].__name__}(" in text


def test_a_wrong_name_or_parameter_suggests_the_right_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'el2n'"):
        coresets.build("el2m")
    with pytest.raises(ConfigError, match=r"'el2n' has no parameter 'epochs'. Did you mean 'epoch'"):
        coresets.build("el2n", epochs=3)
    with pytest.raises(ConfigError, match="is not a registered coreset method"):
        coresets.config_of(coresets.Method())


def test_an_outcome_has_scores_and_the_cost_of_proxy_and_choice(proxy: Proxy) -> None:
    outcome = coresets.run("el2n", proxy, 0.5, seed=0)
    assert np.array_equal(outcome.selection.indices, EL2N().select(proxy, 0.5, seed=0).indices)
    assert outcome.scores is not None
    assert outcome.scores.shape == (proxy.n,)
    assert outcome.seconds == outcome.proxy_seconds + outcome.selection_seconds > 0
    assert outcome.proxy_seconds < proxy.seconds
    assert coresets.run(StaticRandom(), proxy, 0.5, seed=0).proxy_seconds == 0
    with pytest.raises(ConfigError, match="must come with the name of a method"):
        coresets.run(StaticRandom(), proxy, 0.5, seed=0, balanced=False)


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [1, 1.5, -0.1, 40, "half", None, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio) -> None:
    with pytest.raises(ConfigError, match=r"prune_ratio must be in \[0, 1\)"):
        StaticRandom(balanced=False).select(Arrays(scores=[1.0, 2.0]), ratio, seed=0)


def test_a_ratio_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="keeps 0 of 2"):
        StaticRandom(balanced=False).select(Arrays(scores=[1.0, 2.0]), 0.99, seed=0)


def test_missing_labels_are_told_with_the_way_out() -> None:
    arrays = Arrays(features=np.ones((4, 2)), logits=np.ones((4, 2)))
    with pytest.raises(
        DatasetError, match=r"for class-balanced budgets. Give the proxy labels=..., or .* balanced=False"
    ):
        KCenter().select(arrays, 0.5, seed=0)
    with pytest.raises(DatasetError, match=r"EL2N needs the label of each sample. Give the proxy labels"):
        EL2N(balanced=False).select(arrays, 0.5, seed=0)


@pytest.mark.parametrize(
    ("method", "arrays", "message"),
    [
        (KCenter(), {"logits": np.ones((4, 2))}, "KCenter needs features"),
        (Cal(), {"scores": np.ones(4)}, "Cal needs features and logits"),
        (Forgetting(), {"features": np.ones((4, 2))}, "Forgetting needs correct"),
        (PrecomputedScores(), {"features": np.ones((4, 2))}, "PrecomputedScores needs scores"),
        (DeepFool(), {"features": np.ones((4, 2))}, "DeepFool needs the model itself"),
        (GraNd(layer="all"), {"features": np.ones((4, 2))}, "GraNd needs the model itself"),
        (EL2N(repeats=3), {"logits": np.ones((2, 4, 2))}, "needs logits of 3 models"),
        (Forgetting(), {"correct": np.ones((1, 4))}, "Forgetting needs at least 2 epochs, there is 1"),
        (
            GraNd(),
            {"features": np.ones((4, 2)), "logits": np.ones((3, 4, 2))},
            r"GraNd needs the features of each of 3 models, \(inits, n, width\); there are those of one",
        ),
        (
            MoSo(repeats=2),
            {"features": np.ones((4, 2)), "logits": np.ones((3, 4, 2))},
            "MoSo needs the features of each of 2 models",
        ),
    ],
)
def test_arrays_that_are_not_there_are_told_before_the_work(method, arrays, message: str) -> None:
    with pytest.raises((DatasetError, ConfigError), match=message):
        method.select(Arrays(**arrays, labels=[0, 0, 1, 1]), 0.5, seed=0)


def test_rows_that_are_not_finite_are_named() -> None:
    features = np.zeros((10_000, 2))
    features[[5, 17, 5000], 1] = np.nan
    with pytest.raises(
        DatasetError, match="features must be finite; 3 of 10000 rows hold NaN or infinity: 5, 17, 5000"
    ):
        Arrays(features=features)
    features[:, 0] = np.inf
    with pytest.raises(DatasetError, match=r"10000 of 10000 rows .*: 0, 1, 2, 3, 4, \.\.\."):
        Arrays(features=features)


HELD_OUT = {"features": np.ones((5, 2)), "logits": np.ones((5, 3)), "labels": np.zeros(5, dtype=int)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.full((5, 2), np.nan)}, "held_out.features must be finite; 5 of 5 rows"),
        ({"logits": np.full((5, 3), np.inf)}, "held_out.logits must be finite"),
        ({"features": np.ones((5, 6))}, "held_out.features must be 2 wide, as the features are; they are 6"),
        ({"logits": np.ones((5, 4))}, "held_out.logits must be 3 wide, as the logits are; they are 4"),
        ({"features": np.ones((2, 5, 2))}, "held_out.features must be numbers in 2 dimension"),
        ({"labels": np.full(5, 7)}, r"held_out.labels must be in \[0, 3\)"),
        ({"labels": np.full(5, -1)}, r"held_out.labels must be in \[0, 3\)"),
        ({"labels": np.zeros(4, dtype=int)}, "held_out.labels must be 5 whole numbers"),
        ({"labels": np.zeros(5)}, "held_out.labels must be 5 whole numbers"),
        ({"logits": np.ones((4, 3))}, "got 5 held_out.features, 4 held_out.logits"),
    ],
)
def test_a_held_out_set_is_checked_like_the_rest(change: dict, message: str) -> None:
    own = {"features": np.ones((9, 2)), "logits": np.ones((9, 3)), "labels": np.arange(9) % 3}
    assert Arrays(**own, held_out=coresets.Labeled(**HELD_OUT)).validation() is not None
    with pytest.raises(DatasetError, match=message):
        Arrays(**own, held_out=coresets.Labeled(**{**HELD_OUT, **change}))
    with pytest.raises(DatasetError, match=r"held_out must be coresets.Labeled\(features, logits, labels\), got tuple"):
        Arrays(**own, held_out=(1, 2, 3))


def test_a_held_out_set_may_be_made_of_lists() -> None:
    own = {"features": np.eye(9, 2), "logits": np.eye(9, 3), "labels": np.arange(9) % 3}
    lists = coresets.Labeled(*(np.asarray(HELD_OUT[name]).tolist() for name in ("features", "logits", "labels")))
    ours, theirs = (
        coresets.Glister().select(Arrays(**own, held_out=held_out), 0.5, seed=0).indices
        for held_out in (lists, coresets.Labeled(**HELD_OUT))
    )
    assert ours.tolist() == theirs.tolist()


@dataclass(frozen=True, kw_only=True)
class Mine(coresets.ScoreMethod):
    """A method of one's own, with what it is given as scores."""

    values: tuple[float, ...] = ()

    def rate(self, source: coresets.Source, seed: int) -> np.ndarray:
        return np.array(self.values)


@pytest.mark.parametrize("through_ccs", [False, True])
def test_scores_of_a_method_of_ones_own_may_be_infinite_but_not_nan(through_ccs: bool) -> None:
    nan, inf = float("nan"), float("inf")
    arrays = Arrays(scores=np.zeros(6))

    def select(*values: float) -> list[int]:
        own = Mine(values=values, balanced=False)
        method = CCS(score=own, balanced=False, drop=0.0, strata=2) if through_ccs else own
        return method.select(arrays, 0.5, seed=0).indices.tolist()

    with pytest.raises(DatasetError, match=r"scores of Mine must be numbers; 2 of 6 are NaN: 1, 4"):
        select(0.0, nan, 1.0, 2.0, nan, inf)
    with pytest.raises(DatasetError, match=r"scores of Mine must be 6 numbers.*got shape \(2,\)"):
        select(0.0, 1.0)
    assert len(select(-inf, inf, 1.0, 2.0, inf, -inf)) == 3
    if not through_ccs:
        assert select(-inf, inf, 1.0, 2.0, inf, -inf) == [1, 3, 4]


@pytest.mark.parametrize("name", ["features", "logits"])
def test_numbers_beyond_single_precision_are_named(name: str) -> None:
    values = np.ones((4, 2))
    values[2, 1] = 1e39
    with pytest.raises(DatasetError, match=f"{name} in single precision must be finite; 1 of 4 rows .*: 2"):
        Arrays(**{name: values})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "at least one array"),
        ({"features": np.ones((3, 4, 2)), "logits": np.ones((2, 4, 2))}, "features of 3 models and logits of 2"),
        ({"features": np.ones((3, 4, 2)), "logits": np.ones((4, 2))}, "features of 3 models and logits of 1"),
        ({"features": np.ones((0, 2))}, "none may be empty"),
        ({"features": np.ones((4, 2)), "labels": [0, 1]}, "got 4 features, 2 labels"),
        ({"features": np.ones(4)}, "features must be numbers in 2 or 3 dimension"),
        ({"features": np.array([["a"]])}, "features must be numbers"),
        ({"features": np.ones((4, 2), dtype=complex)}, "features must be numbers"),
        ({"correct": np.array([[0, 7, 2, 1]] * 3)}, r"correct must be True or False .* Give predictions == labels"),
        ({"correct": np.full((3, 4), np.nan)}, "correct must be True or False"),
        ({"correct": np.ones((2, 3, 4))}, r"correct must be .* got float64 of shape \(2, 3, 4\)\."),
        ({"logits": np.ones((4, 2)), "labels": [0, 1, 2, 0]}, r"labels must be in \[0, 2\)"),
        ({"scores": np.ones(4), "labels": [0.5, 1, 2, 0]}, "labels must be 4 whole numbers"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(arrays: dict, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        Arrays(**arrays)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("k-center", {"balanced": "yes"}, "balanced must be True"),
        ("el2n", {"epoch": -1}, "epoch must be"),
        ("el2n", {"repeats": 0}, "repeats must be"),
        ("grand", {"layer": "first"}, 'layer must be "last" or "all"'),
        ("grand", {"chunk": 0}, "chunk must be"),
        ("moso", {"repeats": 0}, "repeats must be"),
        ("deepfool", {"iterations": 0}, "iterations must be"),
        ("deepfool", {"classes": 1}, "classes must be"),
        ("craig", {"eps": 0}, "eps must be"),
        ("facility-location", {"eps": 1}, "eps must be"),
        ("graph-cut", {"trade_off": -1}, "trade_off must be"),
        ("grad-match", {"ridge": -1}, "ridge must be"),
        ("glister", {"eta": -1}, "eta must be"),
        ("glister", {"validation_size": 0}, "validation_size must be"),
        ("influence", {"damping": 0}, "damping must be"),
        ("generalization-pruning", {"moves": -1}, "moves must be"),
        ("generalization-pruning", {"probes": 0}, "probes must be"),
        ("prototypes", {"clusters": 0}, "clusters must be"),
        ("prototypes", {"keep": "all"}, "keep must be"),
        ("own-scores", {"keep": "all"}, "keep must be"),
        ("cal", {"neighbors": 0}, "neighbors must be"),
        ("moso", {"lr": 0}, "lr must be"),
        ("ccs", {"drop": 1}, "drop must be"),
        ("ccs", {"strata": 0}, "strata must be"),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, parameters: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        coresets.build(name, **parameters)


def test_too_few_samples_for_neighbors_or_clusters_are_told() -> None:
    arrays = Arrays(features=np.ones((4, 2)), logits=np.ones((4, 2)))
    with pytest.raises(ConfigError, match="neighbors must be fewer than the 4 samples, got 10"):
        Cal(balanced=False).select(arrays, 0.5, seed=0)
    with pytest.raises(ConfigError, match="clusters must be at most the 4 samples"):
        coresets.Prototypes(balanced=False).select(arrays, 0.5, seed=0)


def test_a_missing_library_is_told_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy(net, digits(40))
    for method, module in ((coresets.Prototypes(), "sklearn.cluster"), (Cal(), "sklearn.neighbors")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=r"pip install '\.\[coresets\]'"):
            method.select(proxy, 0.5, seed=0)
    assert proxy.seconds == 0  # told before anything was trained


def test_a_seed_must_be_one() -> None:
    with pytest.raises(ConfigError, match="seed must be"):
        GeneralizationPruning(balanced=False).select(
            Arrays(np.ones((4, 2)), np.ones((4, 2)), [0, 0, 1, 1]), 0.5, seed=-1
        )
