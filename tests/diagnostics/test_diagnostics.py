"""Diagnostics of gradients and kept sets, each on a case whose answer is known."""

from __future__ import annotations

import math
import random
from itertools import chain, combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from orderdp import OrderDP, Policy, Pruner, Selection
from orderdp.diagnostics import (
    Diagnostics,
    GradientNorms,
    KeptSets,
    coverage_over_time,
    expected_jaccard,
    gradient_norm,
    jaccard,
    monitor,
    rolling_spread,
    score_ages,
    usage_counts,
    usage_summary,
)
from orderdp.errors import ConfigError, FeedbackError, RecordError
from orderdp.policies import DynamicRandom, FullData, InfoBatch, Scheduled, Tail
from orderdp.testing import global_generators_untouched
from tests.support import Weighted, fake_losses, toy_dataset, train_epoch
from tests.test_no_sync import Spy

INDICES = st.lists(st.integers(0, 40), max_size=30)


# -- gradient norms -------------------------------------------------------------------------------------------------


def linear(*weights: float) -> nn.Linear:
    model = nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
    return model


def test_the_norm_of_a_gradient_that_was_written_out() -> None:
    model = linear(1.0, 2.0)  # at x = (3, 4) the prediction is 11, the gradient of its square 2 * 11 * (3, 4)
    model(torch.tensor([[3.0, 4.0]])).square().sum().backward()
    assert gradient_norm(model.parameters()).item() == pytest.approx(110.0)


def test_the_norm_is_that_of_all_parameters_together_whatever_their_precision() -> None:
    parameters = [
        nn.Parameter(torch.zeros(2)),
        nn.Parameter(torch.zeros(3, dtype=torch.float16)),
        nn.Parameter(torch.zeros(1)),
    ]
    parameters[0].grad = torch.tensor([2.0, 3.0])
    parameters[1].grad = torch.tensor([300.0, 400.0, 0.0], dtype=torch.float16)  # its square is too large for 16 bits
    assert gradient_norm(parameters).item() == pytest.approx(math.sqrt(4 + 9 + 500**2))


def test_sparse_gradients_count() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()  # twice the same row: (2, 2)
    assert gradient_norm(table.parameters()).item() == pytest.approx(math.sqrt(8))


def test_a_norm_without_gradients_is_refused() -> None:
    with pytest.raises(FeedbackError, match="after backward"):
        gradient_norm(linear(1.0).parameters())


def test_a_watched_step_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has no values at all: whatever looked at one would raise."""
    monkeypatch.setattr(monitor, "_CHUNK", 2)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to("meta")
    watch = Diagnostics(Pruner(OrderDP(0.4), 10), model)
    model(torch.rand(8, 3, device="meta")).sum().backward()
    scale = torch.ones((), device="meta")
    with Spy() as spy:
        for _ in range(5):
            watch.step(scale)
    assert not spy.waits
    assert "linalg_vector_norm" in spy.seen
    assert len(watch.norms) == 5


def test_norms_are_read_in_the_order_of_the_steps_and_divided_by_the_scale_of_the_loss() -> None:
    model = linear(0.0)
    watch = Diagnostics(Pruner(OrderDP(0.4), 10), model)
    for step in range(2100):
        model.weight.grad = torch.full((1, 1), float(step) * 8)
        watch.step(8.0)
    assert watch.norms.read().tolist() == list(range(2100))
    assert watch.norms.summary() == pytest.approx((2099 / 2, np.arange(2100).std(ddof=1)))


def test_steps_that_overflowed_are_left_out_of_the_mean() -> None:
    norms = GradientNorms()
    assert norms.summary() == (None, None)
    for value in (1.0, math.inf, 3.0, math.nan):
        norms.add(torch.tensor(value))
    assert norms.summary() == pytest.approx((2.0, math.sqrt(2)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-100, 100), max_size=20), st.integers(2, 6))
def test_the_rolling_spread_is_the_deviation_of_every_window(values: list[float], window: int) -> None:
    expected = [np.std(values[i : i + window], ddof=1) for i in range(len(values) - window + 1)]
    assert rolling_spread(values, window) == pytest.approx(np.array(expected), abs=1e-9)


def test_a_window_of_one_has_no_spread() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        rolling_spread([1.0, 2.0], window=1)


# -- cosine ---------------------------------------------------------------------------------------------------------

# The loss is the output, so that a sample's gradient is the sample.
OUTPUT = lambda model, batch: model(batch[0])[:, 0]  # noqa: E731


class Keeps(Policy):
    """The same selection every epoch."""

    def __init__(self, indices: list[int], weights: list[float] | None = None) -> None:
        self.selection = Selection(np.array(indices), None if weights is None else np.array(weights, dtype=np.float32))

    def size(self, n: int, context: object) -> int:
        return len(self.selection)

    def select(self, table: object, context: object) -> Selection:
        return self.selection


@pytest.mark.parametrize(
    ("kept", "weights", "pruned", "cosine"),
    [
        ([0, 1], None, (0.5, 0.5), 1.0),
        ([0], None, (1.0, 0.0), 1 / math.sqrt(2)),
        ([1, 0], [1.0, 3.0], (1.5, 0.5), 2 / math.sqrt(5)),
    ],
)
def test_the_cosine_of_gradients_that_were_written_out(kept, weights, pruned, cosine) -> None:
    samples = TensorDataset(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))  # all data pull towards (1/2, 1/2)
    pruner = Pruner(Keeps(kept, weights), 2)
    for batch_size in (1, 2):
        found = Diagnostics(pruner, linear(0.3, 0.4)).full_gradient_cosine(samples, OUTPUT, batch_size=batch_size)
        assert found.cosine == pytest.approx(cosine)
        assert found.full_norm == pytest.approx(math.sqrt(0.5))
        assert found.pruned_norm == pytest.approx(math.hypot(*pruned))
        assert found.samples == 2 + len(kept)
        assert found.seconds > 0


def test_opposite_gradients_and_none_at_all() -> None:
    def found(points: list[list[float]]) -> float | None:
        watch = Diagnostics(Pruner(Keeps([0]), len(points)), linear(1.0, 1.0))
        return watch.full_gradient_cosine(TensorDataset(torch.tensor(points)), OUTPUT).cosine

    assert found([[1.0, 0.0], [-3.0, 0.0]]) == pytest.approx(-1.0)
    assert found([[1.0, 0.0], [-1.0, 0.0]]) is None  # that of all data is zero


def test_a_model_of_which_nothing_is_trained_has_no_gradient_to_compare() -> None:
    model = linear(0.3, 0.4).requires_grad_(False)
    watch = Diagnostics(Pruner(Keeps([0]), 2), model)
    with pytest.raises(ConfigError, match="the model must have parameters with requires_grad=True, it has none"):
        watch.full_gradient_cosine(TensorDataset(torch.eye(2)), OUTPUT)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def cross_entropy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize("model", [network(), network().eval()], ids=["training", "testing"])
def test_the_cosine_of_all_data_is_1_with_batch_norm_and_without_dropout(model: nn.Module) -> None:
    model[3] = nn.Identity()
    found = Diagnostics(Pruner(FullData(), 100), model).full_gradient_cosine(
        toy_dataset(), cross_entropy, batch_size=30
    )
    assert found.cosine == pytest.approx(1.0, abs=1e-9)
    assert found.pruned_norm == found.full_norm


class Restless(Dataset):
    """Items that are different every time, by all global generators."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(4) + random.random() + np.random.random(), index % 3


@pytest.mark.parametrize("training", [True, False])
def test_looking_at_the_gradient_of_all_data_leaves_no_trace(training: bool) -> None:
    model = network().train(training)
    model[1].eval()  # a frozen layer stays frozen
    model[0].weight.grad = torch.ones(8, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    buffers = [id(buffer) for buffer in model.buffers()]
    pruner = Pruner(OrderDP(0.5), 60)
    with global_generators_untouched():
        found = Diagnostics(pruner, model).full_gradient_cosine(Restless(), cross_entropy, batch_size=16)
    assert found.samples == 90
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [id(buffer) for buffer in model.buffers()] == buffers
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model[0].weight.grad, torch.ones(8, 4))
    assert all(each.grad is None for name, each in model.named_parameters() if name != "0.weight")
    assert pruner.epoch == 0


def test_everything_is_put_back_when_the_look_fails() -> None:
    model = network().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def fails(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        assert model.training
        model(torch.randn(9, 4))
        assert not torch.equal(before["1.running_mean"], model[1].running_mean)
        raise KeyboardInterrupt

    watch = Diagnostics(Pruner(OrderDP(0.4), 100), model)
    with global_generators_untouched(), pytest.raises(KeyboardInterrupt):
        watch.full_gradient_cosine(toy_dataset(), fails)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model.training


def test_workers_can_fetch_the_data() -> None:
    watch = Diagnostics(Pruner(OrderDP(0.4), 100), network().eval())
    with global_generators_untouched():
        found = watch.full_gradient_cosine(toy_dataset(), cross_entropy, num_workers=1)
    assert 0 < found.cosine < 1


# -- kept sets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "similarity"),
    [
        ([1, 2, 3], [3, 2, 1], 1.0),
        ([1, 2], [3, 4], 0.0),
        ([0, 1, 2, 3], [2, 3, 4, 5], 2 / 6),
        ([], [1], 0.0),
        ([], [], 1.0),
    ],
)
def test_the_similarity_of_sets_that_were_written_out(first, second, similarity) -> None:
    assert jaccard(first, second) == jaccard(np.array(second, dtype=int), torch.tensor(first, dtype=int)) == similarity


@settings(max_examples=60, deadline=None)
@given(INDICES, INDICES)
def test_similarity_is_that_of_python_s_own_sets_and_bitmaps_agree(first: list[int], second: list[int]) -> None:
    one, two = set(first), set(second)
    expected = len(one & two) / len(one | two) if one | two else 1.0
    assert jaccard(first, second) == expected
    sets = KeptSets(41)
    sets.add(1, first)
    sets.add(2, second)
    assert sets.jaccard(1, 2) == expected
    assert sets.consecutive() == [expected]
    assert sets.at(1).tolist() == sorted(one)


def test_a_mask_is_no_set_of_indices() -> None:
    with pytest.raises(ConfigError, match="flatnonzero"):
        jaccard([True, False], [1])


def test_indices_may_be_keys_of_any_size() -> None:
    assert jaccard([2**62, 5, 5], [5, 2**62 - 1]) == 1 / 3


def test_random_draws_have_in_common_what_is_expected_of_them() -> None:
    n, policy = 2000, DynamicRandom(0.4)
    draws = [Pruner(policy, n, seed=seed).preview().indices for seed in range(40)]
    found = [jaccard(one, two) for one, two in pairwise(draws)]
    assert np.mean(found) == pytest.approx(expected_jaccard(n, 1200), abs=0.003)
    assert expected_jaccard(n, 1200) == pytest.approx(1200 / 2800)
    pairs = [(set(a), set(b)) for a in combinations(range(5), 3) for b in combinations(range(5), 3)]
    common, either = (sum(len(op(a, b)) for a, b in pairs) for op in (set.intersection, set.union))
    assert expected_jaccard(5, 3) == pytest.approx(common / either)


def test_kept_sets_come_back_out_of_their_file(tmp_path: Path) -> None:
    sets = KeptSets(20)
    for epoch in (3, 1, 2):
        sets.add(epoch, range(epoch, 10 + 2 * epoch))
    sets.save(tmp_path / "kept.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["kept.npz"]
    again = KeptSets.load(tmp_path / "kept.npz")
    assert again.n == 20
    assert again.epochs == [1, 2, 3]
    assert [found.tolist() for found in again] == [list(range(epoch, 10 + 2 * epoch)) for epoch in (1, 2, 3)]
    matrix = again.matrix()
    assert np.array_equal(matrix, matrix.T)
    assert matrix.diagonal().tolist() == [1.0] * 3
    assert matrix[0, 1] == jaccard(range(1, 12), range(2, 14))
    again.forget_after(1)
    assert again.epochs == [1]
    with pytest.raises(ConfigError, match=r"no kept set of epoch 2; there are those of \[1\]"):
        again.jaccard(1, 2)


def test_no_sets_yet_are_sets_too(tmp_path: Path) -> None:
    KeptSets(9).save(tmp_path / "kept.npz")
    assert KeptSets.load(tmp_path / "kept.npz").epochs == []
    assert KeptSets(9).matrix().shape == (0, 0)


def test_a_file_that_holds_no_kept_sets_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kept.npz"
    with pytest.raises(RecordError, match="there are no kept sets"):
        KeptSets.load(file)
    for spoil in (
        lambda: file.write_bytes(b"PK nonsense"),
        lambda: np.savez(file, n=3),
        lambda: np.savez(file, n=90, epochs=[1], bits=np.zeros((1, 3), dtype=np.uint8)),
        lambda: np.savez(file, n=8, epochs=[1], bits=np.array([[{}]])),
    ):
        spoil()
        with pytest.raises(RecordError, match="must hold kept sets"):
            KeptSets.load(file)
    with pytest.raises(ConfigError, match=r"indices must be in \[0, 5\)"):
        KeptSets(5).add(1, [5])
    with pytest.raises(ConfigError, match="0 or larger, got -1"):
        jaccard([1], [-1])


# -- usage, coverage, ages ------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(INDICES, max_size=6))
def test_usage_and_coverage_count_each_sample_of_each_set(sets: list[list[int]]) -> None:
    counts = [sum(sample in indices for indices in sets) for sample in range(41)]
    assert usage_counts(sets, 41).tolist() == counts
    so_far = [len(set().union(*sets[: place + 1])) / 41 for place in range(len(sets))]
    assert coverage_over_time(sets, 41).tolist() == pytest.approx(so_far)
    summary = usage_summary(counts)
    assert summary[1:] == (min(counts), pytest.approx(sum(counts) / 41), max(counts))
    assert summary.coverage == pytest.approx(so_far[-1] if sets else 0.0)


@pytest.mark.parametrize("count", [usage_counts, coverage_over_time])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([False, False, False, True], "flatnonzero"),
        ([0, -1], "0 or larger, got -1"),
        ([0, 4], r"in \[0, 4\), got 4"),
        ([0.5], "flat list of indices"),
    ],
)
def test_what_is_no_set_of_indices_is_not_counted_as_one(count, wrong: list, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        count([[0, 1], wrong], 4)


def test_ages_that_were_written_out() -> None:
    # After 21 epochs: one never seen, 19 seen in the last epoch, one in epoch 11 and one in epoch 1.
    assert score_ages([-1, *[20] * 18, 10, 0], epoch=21) == ((18 + 11 + 21) / 20, 1.0, 11.0, 1 / 21)
    assert score_ages([-1, -1], epoch=0) == (None, None, None, 1.0)


def test_the_mean_age_is_what_the_pruner_calls_staleness() -> None:
    data = toy_dataset()
    pruner = Pruner(OrderDP(0.6), data)
    for _ in range(4):
        train_epoch(pruner, pruner.loader(data, batch_size=7))
        ages = score_ages(pruner.last_seen_epoch, pruner.epoch)
        assert ages.mean == pytest.approx(pruner.report()["staleness"])
        assert ages.unseen == pytest.approx(1 - pruner.report()["coverage"])


# -- what comes next ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")
@pytest.mark.parametrize("policy", [OrderDP(0.4), InfoBatch(0.5), Weighted(), FullData()], ids=repr)
def test_a_preview_is_what_the_next_epoch_trains_on_and_looking_changes_nothing(policy) -> None:
    data = toy_dataset()
    looked, straight = (Pruner(policy, data, epochs=4) for _ in range(2))
    for step in range(3):
        previews = [looked.preview() for _ in range(2)]
        assert looked.epoch == step
        served = train_epoch(looked, looked.loader(data, batch_size=9), step)
        assert list(chain(*served)) == previews[0].indices.tolist() == previews[1].indices.tolist()
        assert served == train_epoch(straight, straight.loader(data, batch_size=9), step)


def test_in_an_open_epoch_the_preview_is_that_epoch_also_when_it_is_resumed() -> None:
    data = toy_dataset()
    pruner = Pruner(OrderDP(0.4), data)
    index, _ = next(iter(pruner.loader(data, batch_size=9)))
    drawn = pruner.preview().indices
    pruner.update(index, fake_losses(index))
    assert drawn[:9].tolist() == index.tolist()
    assert pruner.preview().indices.tolist() == drawn.tolist()
    again = Pruner(OrderDP(0.4), data)
    again.load_state_dict(pruner.state_dict())
    assert again.preview().indices.tolist() == drawn.tolist()


def test_after_the_last_epoch_the_preview_is_one_more_of_its_kind() -> None:
    data = toy_dataset()
    pruner = Pruner(Scheduled(OrderDP(0.4), Tail(0.4, share=0.5)), data, epochs=2)
    for size in (60, 100, 100):
        assert len(pruner.preview()) == size
        if pruner.epoch < 2:
            train_epoch(pruner, pruner.loader(data, batch_size=10))
    random_ones = Pruner(DynamicRandom(0.4), data, epochs=1)
    last = train_epoch(random_ones, random_ones.loader(data, batch_size=100))[0]
    assert 0 < jaccard(last, random_ones.preview().indices) < 1  # not the last draw again
