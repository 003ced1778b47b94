"""The score table: what is written, where, and how little it takes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderdp import Column, OrderDP, Pruner
from orderdp.errors import ConfigError, IndexRangeError, NonFiniteLossWarning, StateError
from orderdp.score_table import ScoreTable
from tests.support import fake_losses


def write(table: ScoreTable, index: list[int], losses: list[float], epoch: int = 0, **options) -> None:
    table.write(torch.tensor(index), torch.tensor(losses), epoch=epoch, **options)


def test_it_starts_unseen_unused_and_infinite() -> None:
    table = ScoreTable(5)
    assert np.isinf(table["score"]).all()
    assert table["usage"].tolist() == [0] * 5
    assert table["seen"].tolist() == [-1] * 5


def test_it_takes_eight_bytes_a_sample() -> None:
    table = ScoreTable(1000)
    assert sum(table.column(name).element_size() for name in table.declared) == 8


def test_a_write_reaches_its_samples_and_no_others() -> None:
    table = ScoreTable(6)
    write(table, [4, 1], [2.5, 0.5], epoch=3)
    assert table["score"].tolist() == [np.inf, 0.5, np.inf, np.inf, 2.5, np.inf]
    assert table["usage"].tolist() == [0, 1, 0, 0, 1, 0]
    assert table["seen"].tolist() == [-1, 3, -1, -1, 3, -1]


def test_an_index_that_occurs_twice_keeps_one_of_its_losses_and_counts_twice() -> None:
    table = ScoreTable(3)
    write(table, [1, 1], [2.0, 3.0])
    assert table["score"][1] in (2.0, 3.0)
    assert table["usage"][1] == 2


@pytest.mark.parametrize("losses", [[2.0, float("nan")], [float("nan"), 2.0]])
def test_a_nan_does_not_undo_what_the_same_sample_says_elsewhere_in_the_batch(losses: list[float]) -> None:
    table = ScoreTable(3)
    write(table, [1, 2], [9.0, 7.0])
    write(table, [1, 1], losses)
    assert table["score"].tolist() == [float("inf"), 2.0, 7.0]


def test_observing_does_not_count_as_training() -> None:
    table = ScoreTable(3)
    write(table, [0], [1.0], trained=False)
    assert table["usage"].tolist() == [0, 0, 0]
    assert table["score"][0] == 1.0


def reference_write(scores: list[float], seen: list[bool], index: list[int], losses: list[float]) -> list[float]:
    """What a write does, sample by sample: the obviously right version."""
    scores = list(scores)
    finite = [float(np.float32(x)) for x in losses if np.isfinite(x)]
    for i, loss in zip(index, losses, strict=True):
        if np.isfinite(loss):
            scores[i] = float(np.float32(loss))
        elif not seen[i] and finite:
            scores[i] = float(np.float32(sum(finite) / len(finite)))
    return scores


loss_values = st.one_of(st.floats(0, 50, width=32), st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e30]))


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([torch.float32, torch.float64]))
def test_both_ways_of_writing_do_what_the_slow_version_does(data: st.DataObject, dtype: torch.dtype) -> None:
    n = data.draw(st.integers(1, 12))
    fast, careful = ScoreTable(n), ScoreTable(n)
    careful._on_host = False  # takes the way of a device, on the CPU
    scores, seen, bad = [float("inf")] * n, [False] * n, 0
    for epoch in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.lists(st.integers(0, n - 1), unique=True, min_size=1))
        losses = [data.draw(loss_values) for _ in index]
        scores = reference_write(scores, seen, index, losses)
        if np.isfinite(losses).any():
            for i in index:
                seen[i] = True
        bad += sum(not np.isfinite(x) for x in losses)
        for table in (fast, careful):
            table.write(torch.tensor(index), torch.tensor(losses, dtype=dtype), epoch=epoch)
    for table in (fast, careful):
        np.testing.assert_allclose(table["score"], scores, rtol=1e-5)
        assert table.invalid_counts() == (bad, 0)
        assert not np.isnan(table["score"]).any()
    assert np.array_equal(fast["seen"], careful["seen"])
    assert np.array_equal(fast["usage"], careful["usage"])


def test_a_nan_leaves_a_seen_sample_alone_and_gives_an_unseen_one_the_mean_of_the_others() -> None:
    table = ScoreTable(4)
    write(table, [0], [7.0])
    write(table, [0, 1, 2, 3], [float("nan"), float("inf"), 1.0, 3.0])
    assert table["score"].tolist() == [7.0, 2.0, 1.0, 3.0]
    assert table.invalid_counts() == (2, 0)


def test_counts_are_settled_before_anybody_reads_them() -> None:
    table = ScoreTable(10)
    index = torch.zeros(2, dtype=torch.int64)
    for step in range(200):
        index[0], index[1] = step % 10, 5  # the same memory again, as a captured graph would use it
        table.write(index, torch.ones(2), epoch=step // 100)
    assert table["usage"].tolist() == [20, 20, 20, 20, 20, 220, 20, 20, 20, 20]
    assert table["seen"].tolist() == [1] * 10
    table.write(index, torch.ones(2), epoch=7)
    assert table.state_dict()["columns"]["seen"][5] == 7
    table.write(index, torch.ones(2), epoch=8, trained=False)
    assert table["seen"][5] == 8


def test_of_a_batch_of_nothing_but_nan_nothing_is_known() -> None:
    table = ScoreTable(3)
    write(table, [2], [5.0])
    write(table, [0, 1, 2], [float("nan")] * 3)
    assert table["score"].tolist() == [float("inf"), float("inf"), 5.0]
    write(table, [0, 1], [float("nan"), 3.0])
    assert table["score"].tolist() == [3.0, 3.0, 5.0]


@pytest.mark.parametrize("reduced", [False, True])
def test_the_samples_of_a_batch_of_nan_are_not_left_out_for_ever(reduced: bool) -> None:
    pruner = Pruner(OrderDP(0.4), 1000)
    unlucky: list[int] = []
    for epoch in range(10):
        for batch in pruner.batch_sampler(100):
            losses = torch.rand(len(batch)) + 0.5
            if epoch == 0 and not unlucky:
                unlucky, losses = batch, torch.full((100,), torch.nan)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NonFiniteLossWarning)
                pruner.update(batch, losses.mean() if reduced else losses, reduced=reduced)
    assert pruner.usage[unlucky].float().mean() > 3


@pytest.mark.parametrize("write", ["update", "observe"])
def test_a_double_too_large_for_the_table_is_its_largest_number_and_not_unseen(write: str) -> None:
    pruner, largest = Pruner(OrderDP(0.0), 4), torch.finfo(torch.float32).max
    losses = torch.tensor([1e300, 2.0, -1e300], dtype=torch.float64)
    getattr(pruner, write)([0, 1, 2], losses)
    assert pruner.scores.tolist() == [largest, 2.0, -largest, float("inf")]
    assert pruner.last_seen_epoch.tolist() == [0, 0, 0, -1]
    assert pruner.report()["nonfinite"] == 0
    assert pruner.hardest(1).tolist() == [0]


def test_an_infinite_double_is_not_finite_in_the_table() -> None:
    pruner = Pruner(OrderDP(0.0), 3)
    pruner.update([0, 1], torch.tensor([float("inf"), 2.0], dtype=torch.float64))
    assert pruner.scores.tolist() == [2.0, 2.0, float("inf")]
    assert pruner.report()["nonfinite"] == 1


@pytest.mark.parametrize("on_host", [True, False])
def test_observing_the_scores_of_another_table_leaves_its_unseen_samples_unseen(on_host: bool) -> None:
    inf, nan = float("inf"), float("nan")
    table = ScoreTable(6)
    table._on_host = on_host  # otherwise it takes the way of a device, on the CPU
    write(table, [0], [7.0])
    losses = torch.tensor([inf, inf, 2.0, 4.0, nan, -inf])
    table.write(torch.arange(6), losses, epoch=3, trained=False)
    assert table["score"].tolist() == [7.0, inf, 2.0, 4.0, 3.0, 3.0]
    assert table["seen"].tolist() == [0, -1, 3, 3, 3, 3]
    assert table.invalid_counts() == (2, 0)


def test_a_pruner_that_observes_the_scores_of_another_selects_what_the_other_would() -> None:
    old = Pruner(OrderDP(0.4), 40, seed=5)
    for batch in old.batch_sampler(8):
        old.update(batch, fake_losses(torch.tensor(batch)))
    new = Pruner(OrderDP(0.4), 40, seed=5)
    new.observe(torch.arange(40), old.scores)
    assert torch.equal(new.scores, old.scores)
    assert new.report()["nonfinite"] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_of_any_precision_are_stored_as_float32(dtype: torch.dtype) -> None:
    table = ScoreTable(2)
    table.write(torch.tensor([1]), torch.tensor([0.5], dtype=dtype), epoch=0)
    assert table.column("score").dtype == torch.float32
    assert table["score"][1] == 0.5


@pytest.mark.parametrize("index", [[-1], [5], [0, 7, 1], [2**40]])
def test_an_index_on_the_cpu_is_checked_at_once_and_nothing_is_written(index: list[int]) -> None:
    table = ScoreTable(5)
    with pytest.raises(IndexRangeError, match=r"indices must be in \[0, 5\)"):
        write(table, index, [1.0] * len(index))
    assert np.isinf(table["score"]).all()


def test_an_impossible_index_on_a_device_is_counted_and_harms_no_sample() -> None:
    class Elsewhere(torch.Tensor):
        """An index that says it is on a device, so that it may not be read."""

        is_cpu = False

    table = ScoreTable(3)
    index = torch.tensor([1, 9, -2]).as_subclass(Elsewhere)
    checked = table._checked(index).as_subclass(torch.Tensor)
    assert checked.tolist() == [1, 3, 3]
    assert table.invalid_counts() == (0, 2)


def test_policies_can_declare_columns_and_how_feedback_becomes_them() -> None:
    columns = (Column("mean", initial=0.0), Column("hits", initial=0, dtype="int32", merge="sum"))
    table = ScoreTable(4, columns)

    def compute_columns(rows, losses, *, correct):
        return {"score": losses, "mean": rows["mean"] * 0.5 + losses * 0.5, "hits": correct}

    write(table, [2, 0], [4.0, 2.0], compute_columns=compute_columns, extra={"correct": torch.tensor([1, 0])})
    write(table, [2], [8.0], compute_columns=compute_columns, extra={"correct": torch.tensor([1])})
    assert table["mean"].tolist() == [1.0, 0.0, 5.0, 0.0]
    assert table["hits"].tolist() == [0, 0, 2, 0]
    assert table["score"][2] == 8.0


def test_a_nan_loss_leaves_declared_columns_of_a_seen_sample_alone() -> None:
    table = ScoreTable(2, (Column("mean", 0.0), Column("count", 0, "int32", "sum")))

    def compute_columns(rows, losses):
        return {"score": losses, "mean": rows["mean"] + losses, "count": torch.ones_like(losses)}

    write(table, [0], [2.0], compute_columns=compute_columns)
    write(table, [0, 1], [float("nan"), 4.0], compute_columns=compute_columns)
    assert table["mean"].tolist() == [2.0, 4.0]
    assert table["count"].tolist() == [1, 1]


def test_what_a_policy_reads_it_cannot_write() -> None:
    scores = ScoreTable(3)["score"]
    with pytest.raises(ValueError, match="read-only"):
        scores[0] = 1.0


def test_counts_widen_before_they_overflow() -> None:
    table = ScoreTable(2)
    table._columns["usage"][0] = 1 << 14
    table._writes = 1 << 14
    table.begin_epoch(epoch=1 << 14)
    for _ in range(40_000):
        table._columns["usage"][0] += 1
    write(table, [0], [1.0], epoch=40_000)
    assert table["usage"][0] == (1 << 14) + 40_001
    assert table["seen"][0] == 40_000
    restored = ScoreTable(2)
    restored.load_state_dict(table.state_dict())
    assert restored["usage"][0] == (1 << 14) + 40_001


def test_counts_of_batches_that_repeat_samples_widen_too() -> None:
    table = ScoreTable(2)
    for epoch in range(4):  # few writes, and many uses
        write(table, [1] * 10_000, [1.0] * 10_000, epoch=epoch)
        table.begin_epoch(epoch)
    assert table["usage"].tolist() == [0, 40_000]


@pytest.mark.parametrize("before", [0, 1 << 14, 32_000])
@pytest.mark.parametrize("how", ["written", "loaded", "put"])
def test_counts_widen_within_an_epoch_too(before: int, how: str) -> None:
    old = ScoreTable(3)
    old._columns["usage"][1] = before
    table = ScoreTable(3)
    if how == "loaded":
        table.load_state_dict(old.state_dict())
    elif how == "put":
        table.put(np.array([1]), {"usage": np.array([before], dtype=np.int16)})
    else:
        table = old
        table.begin_epoch(epoch=0)
    for _ in range(5):
        write(table, [1] * 9_000, [1.0] * 9_000, epoch=0)
        table.flush()
    assert table["usage"].tolist() == [0, before + 45_000, 0]


def test_counts_stay_small_while_they_are_small() -> None:
    table = ScoreTable(2)
    table._writes = 1 << 20
    table.begin_epoch(epoch=5)
    assert table.column("usage").dtype == table.column("seen").dtype == torch.int16


def test_unknown_and_twice_declared_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="no column 'nothing'"):
        ScoreTable(2)["nothing"]
    with pytest.raises(ConfigError, match="declared twice"):
        ScoreTable(2, (Column("score", initial=3.0),))
    with pytest.raises(ConfigError, match="dtype"):
        ScoreTable(2, (Column("x", initial=0, dtype="float33"),))


def test_its_state_is_a_copy_and_checked_on_the_way_back() -> None:
    table = ScoreTable(3)
    write(table, [1], [2.0])
    state = table.state_dict()
    write(table, [1], [9.0])
    assert state["columns"]["score"][1] == 2.0
    table.load_state_dict(state)
    assert table["score"][1] == 2.0
    with pytest.raises(StateError, match="must hold 4 values"):
        ScoreTable(4).load_state_dict(state)
    with pytest.raises(StateError, match="must have the columns"):
        ScoreTable(3, (Column("more", 0.0),)).load_state_dict(state)
    state["columns"]["score"][0] = float("nan")
    with pytest.raises(StateError, match="NaN"):
        table.load_state_dict(state)


@pytest.mark.parametrize("precision", [torch.float16, torch.float64])
def test_scores_that_were_stored_in_another_precision_can_be_written_to(precision: torch.dtype) -> None:
    table, restored = ScoreTable(3), ScoreTable(3)
    write(table, [0, 1], [1.5, 2.5])
    state = table.state_dict()
    state["columns"]["score"] = state["columns"]["score"].to(precision)
    restored.load_state_dict(state)
    write(restored, [1], [0.1])
    assert restored["score"].dtype == np.float32
    assert restored["score"].tolist() == [1.5, np.float32(0.1), float("inf")]


def test_a_column_starts_with_a_number() -> None:
    with pytest.raises(ConfigError, match=r"initial value of column 'mean' must be a number, got NaN"):
        Column("mean", initial=float("nan"))
