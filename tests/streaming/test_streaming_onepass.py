"""Data that are seen once: the top of every window, and a heap for candidates that come one at a time."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import orderdp
from orderdp.errors import ConfigError, DatasetError, FeedbackError, StateError
from orderdp.streaming import OnePass, TopK


class Counted(float):
    """A number that counts how often it is compared."""

    comparisons = 0

    def _compared(name: str) -> Any:  # noqa: N805
        def compare(self: float, other: float) -> bool:
            Counted.comparisons += 1
            return getattr(float, name)(self, other)

        return compare

    __lt__, __gt__, __le__, __ge__, __eq__ = map(_compared, ("__lt__", "__gt__", "__le__", "__ge__", "__eq__"))
    __hash__ = float.__hash__


def costs(q: int, scores: list[float]) -> list[int]:
    """Comparisons of each push."""
    heap: TopK[int] = TopK(q)
    counts = []
    for item, score in enumerate(scores):
        Counted.comparisons = 0
        heap.push(item, Counted(score))
        counts.append(Counted.comparisons)
    return counts


# -- the heap ----------------------------------------------------------------------------------------------------


@given(scores=st.lists(st.floats(allow_nan=False, width=32), unique=True, max_size=60), q=st.integers(1, 20))
def test_a_heap_keeps_the_largest_and_gives_them_hardest_first(scores: list[float], q: int) -> None:
    heap: TopK[int] = TopK(q)
    for item, score in enumerate(scores):
        heap.push(item, score)
        assert len(heap) == min(q, item + 1)
    wanted = sorted(range(len(scores)), key=lambda item: -scores[item])[:q]
    assert heap.drain() == wanted
    assert len(heap) == 0


@pytest.mark.parametrize("kind", ["rising", "falling", "random", "equal"])
@pytest.mark.parametrize("q", [2, 3, 16, 100, 1024])
def test_a_push_costs_a_logarithm_of_what_is_kept_however_many_come(q: int, kind: str) -> None:
    n = 3000
    scores = {
        "rising": np.arange(n),
        "falling": -np.arange(n),
        "random": np.random.default_rng(0).random(n),
        "equal": np.zeros(n),
    }[kind].tolist()
    # A heap goes down a level with one comparison of entries and comes up again with one; comparing entries looks at
    # two scores twice, once for equality. Before that, two to find out whether it is worth it.
    assert max(costs(q, scores)) <= 2 * (2 * math.ceil(math.log2(q)) + 2) + 4


@pytest.mark.parametrize("kind", ["rising", "falling", "random"])
def test_with_one_kept_a_push_costs_a_constant(kind: str) -> None:
    scores = {"rising": np.arange(2000), "falling": -np.arange(2000), "random": np.random.default_rng(1).random(2000)}
    assert max(costs(1, scores[kind].tolist())) <= 3
    if kind == "falling":
        assert set(costs(1, scores[kind].tolist())[1:]) == {1}


def test_too_easy_candidates_cost_one_comparison() -> None:
    assert set(costs(64, [*range(100, 200), *range(50)])[100:]) == {1}


def test_the_count_grows_with_the_logarithm_and_would_show_a_sort() -> None:
    """The bound can fail: a list that is kept sorted by insertion compares more."""
    worst = [max(costs(q, list(range(4000)))[q:]) for q in (4, 64, 1024)]
    assert worst[0] < worst[1] < worst[2] < 64


def test_equal_scores_are_chosen_among_fairly() -> None:
    counts: Counter[int] = Counter()
    for seed in range(3000):
        heap: TopK[int] = TopK(2, seed)
        for item in range(5):
            heap.push(item, 1.0)
        counts.update(heap.drain())
    error = math.sqrt(3000 * 0.4 * 0.6)
    assert all(abs(counts[item] - 1200) < 5 * error for item in range(5))


def test_nan_is_never_among_the_largest() -> None:
    heap: TopK[str] = TopK(2)
    for item, score in (("a", math.nan), ("b", -5.0), ("c", math.nan), ("d", -9.0)):
        heap.push(item, score)
    assert heap.drain() == ["b", "d"]


@pytest.mark.parametrize("q", [0, -1, 1.5, True, "2"])
def test_a_heap_of_no_size_is_refused(q: Any) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        TopK(q)


# -- windows -----------------------------------------------------------------------------------------------------


def scores_of(values: list[float], window: int, keep: int, **options: Any) -> OnePass:
    return OnePass(values, lambda batch: batch, window=window, keep=keep, collate=torch.tensor, **options)


@given(
    values=st.lists(st.floats(-100, 100, width=32), unique=True, min_size=5, max_size=60),
    window=st.integers(1, 5),
    data=st.data(),
)
def test_windows_give_their_largest_in_the_order_they_came(values: list[float], window: int, data: Any) -> None:
    keep = data.draw(st.integers(1, window))
    drop_last = data.draw(st.booleans())
    batches = scores_of(values, window, keep, drop_last=drop_last)
    got = [batch.tolist() for batch in batches]
    wanted = []
    for start in range(0, len(values), window):
        part = values[start : start + window]
        count = keep if len(part) == window else (0 if drop_last else round(Fraction(keep * len(part), window)))
        largest = set(sorted(part)[len(part) - count :])
        if count:
            wanted.append([value for value in part if value in largest])
    assert got == wanted
    assert (batches.offered, batches.kept) == (len(values), sum(map(len, wanted)))


def test_a_window_trains_on_what_the_loss_function_trains_on() -> None:
    """The wrapper and `top_mean` are two forms of the same step."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(96, 6, generator=generator), torch.randn(96, generator=generator)

    def losses(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]).squeeze(1) - batch[1]).square()

    def trained(wrapped: bool) -> torch.Tensor:
        model = torch.nn.Linear(6, 1)
        torch.nn.init.constant_(model.weight, 0.1)
        torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if wrapped:
            stream = DataLoader(TensorDataset(x, y), batch_size=None)
            source = OnePass(stream, lambda batch: losses(model, batch), window=16, keep=4)
        else:
            source = DataLoader(TensorDataset(x, y), batch_size=16)
        for batch in source:
            loss = losses(model, batch)
            optimizer.zero_grad()
            (loss.mean() if wrapped else orderdp.top_mean(loss, q=4)).backward()
            optimizer.step()
        return model.weight.detach()

    torch.testing.assert_close(trained(True), trained(False))


def test_candidates_are_scored_without_gradients_by_the_model_of_that_moment() -> None:
    modes, weight = [], torch.ones(1, requires_grad=True)

    def score(batch: torch.Tensor) -> torch.Tensor:
        modes.append(torch.is_grad_enabled())
        return weight * batch

    batches = OnePass([1.0, 2.0, 3.0, 4.0], score, window=2, keep=1, collate=torch.tensor)
    got = []
    for batch in batches:
        got += batch.tolist()
        with torch.no_grad():
            weight.neg_()
    assert got == [2.0, 3.0]  # the second window is scored with the weight as it has become
    assert modes == [False, False]


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_with_workers_are_streams_too(workers: int) -> None:
    dataset = TensorDataset(torch.arange(20.0))
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    got = [batch[0].tolist() for batch in OnePass(loader, lambda batch: batch[0], window=5, keep=2)]
    assert got == [[3.0, 4.0], [8.0, 9.0], [13.0, 14.0], [18.0, 19.0]]


def test_ties_in_a_window_are_broken_fairly_and_not_alike_in_every_window() -> None:
    counts: Counter[int] = Counter()
    batches = OnePass(list(range(8000)), lambda b: torch.zeros(len(b)), window=4, keep=1, collate=torch.tensor)
    for batch in batches:
        counts[int(batch) % 4] += 1
    assert all(abs(counts[place] - 500) < 5 * math.sqrt(2000 * 0.25 * 0.75) for place in range(4))


def test_a_nan_is_kept_only_where_there_is_nothing_else() -> None:
    values = [math.nan, 1.0, math.nan, 0.5]
    assert [batch.tolist() for batch in scores_of(values, 4, 2)] == [[1.0, 0.5]]


def test_a_resumed_pass_goes_on_after_the_windows_that_were_trained_on() -> None:
    values = [float(v) for v in np.random.default_rng(0).permutation(37)]
    straight = [batch.tolist() for batch in scores_of(values, 5, 2)]
    for stop in range(len(straight) + 1):
        first, before = scores_of(values, 5, 2), []
        if stop:
            for batch in first:
                before.append(batch.tolist())
                if len(before) == stop:  # the checkpoint is saved where the step was made
                    break
        for skip in (True, False):
            second = scores_of(values if skip else values[first.offered :], 5, 2)
            second.load_state_dict(first.state_dict(), skip=skip)
            after = [batch.tolist() for batch in second]
            assert before + after == straight
            assert (second.offered, second.kept) == (37, sum(map(len, straight)))


def test_after_a_whole_pass_a_resumed_one_begins_the_next() -> None:
    values = [float(v) for v in np.random.default_rng(0).permutation(37)]
    first = scores_of(values, 5, 2)
    straight = [batch.tolist() for batch in first]
    assert first.offered == 37
    for skip in (True, False):
        second = scores_of(values, 5, 2)
        second.load_state_dict(first.state_dict(), skip=skip)
        assert second.offered == 37
        assert [batch.tolist() for batch in second] == straight
        assert second.offered == 37


def test_bad_input_is_refused() -> None:
    with pytest.raises(DatasetError, match="at least a window of 8 samples, it ended after 3"):
        list(scores_of([1.0, 2.0, 3.0], 8, 2))
    assert list(scores_of([], 8, 2)) == []
    for window, keep in ((2, 3), (0, 0), (4, 0), (4, 1.5)):
        with pytest.raises(ConfigError, match="1 <= keep <= window"):
            scores_of([1.0], window, keep)  # type: ignore[arg-type]
    with pytest.raises(FeedbackError, match="one number for each of the 2"):
        list(OnePass([1.0, 2.0], lambda b: b.mean(), window=2, keep=1, collate=torch.tensor))
    with pytest.raises(FeedbackError, match="it returned float"):
        list(OnePass([1.0, 2.0], lambda b: 1.0, window=2, keep=1, collate=torch.tensor))  # type: ignore[arg-type]
    state = scores_of([1.0], 4, 2).state_dict()
    with pytest.raises(StateError, match="window=4 and keep=1"):
        scores_of([1.0], 4, 1).load_state_dict(state)
    late = scores_of([1.0, 2.0], 1, 1)
    late.load_state_dict({**scores_of([1.0], 1, 1).state_dict(), "offered": 5})
    with pytest.raises(StateError, match="after 5 samples"):
        list(late)
