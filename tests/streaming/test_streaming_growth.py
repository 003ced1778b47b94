"""A data set that grows and loses samples while it is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orderdp
from orderdp.errors import ConfigError, DatasetError, RealRatioWarning, StateError
from orderdp.policies import UCB, Adaptive, Fixed, InfoBatch
from orderdp.policy import Context
from orderdp.score_table import ScoreTable
from orderdp.streaming import GrowingPruner
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import Weighted, table_with

PRUNED = orderdp.OrderDP(prune_ratio=0.4)


def losses_of(index: torch.Tensor, step: int) -> torch.Tensor:
    """Losses that depend on the sample and on time, some of them equal."""
    return (index * 37 + step * 11) % 101 / 10


def epoch_of(pruner: orderdp.Pruner, step: int = 0, batch_size: int = 4) -> list[int]:
    visited: list[int] = []
    for batch in pruner.batch_sampler(batch_size):
        index = torch.tensor(batch)
        pruner.update(index, losses_of(index, step))
        visited += batch
    return visited


def test_samples_that_came_after_the_draw_weigh_1_until_the_next() -> None:
    pruner = GrowingPruner(Weighted(), 4)
    next(iter(pruner.batch_sampler(2)))
    pruner.grow(6)
    assert pruner.update(torch.tensor([3, 4, 5]), torch.ones(3)).item() == (4 + 1 + 1) / 3


# -- the rule ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_a_policy_draws_from_the_samples_that_are_there(data: Any, seed: int) -> None:
    """Restated: after each change, a plain draw from a table of the samples that are left, mapped to their indices."""
    n, gone, scores = 20, set(), {}
    pruner = GrowingPruner(PRUNED, n, seed=seed)
    for epoch in range(5):
        more = data.draw(st.integers(0, 15))
        n += more
        pruner.grow(n)
        leave = data.draw(st.lists(st.integers(0, n - 1), max_size=4))
        pruner.remove(leave)
        gone |= set(leave)
        there = [i for i in range(n) if i not in gone]
        table = table_with(np.array([scores.get(i, np.inf) for i in there], dtype=np.float32))
        drawn = PRUNED.select(table, Context(n=len(there), epoch=epoch, seed=seed)).indices
        wanted = [there[i] for i in drawn]
        assert epoch_of(pruner, epoch) == wanted
        scores |= {i: losses_of(torch.tensor(i), epoch).item() for i in wanted}
    assert pruner.removed.tolist() == sorted(gone)
    assert pruner.report()["samples"] == n - len(gone)
    known = pruner.scores
    assert all(known[i].item() == scores[i] for i in scores)
    assert all(known[i] == torch.inf for i in range(n) if i not in scores)


@pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")
@pytest.mark.parametrize(
    "policy", [PRUNED, orderdp.OrderDP(0.4, every="batch"), UCB(0.3), InfoBatch(0.5, annealing=None)], ids=repr
)
def test_without_changes_it_is_a_pruner_sample_for_sample(policy: orderdp.Policy) -> None:
    plain, growing = orderdp.Pruner(policy, 50, seed=2), GrowingPruner(policy, 50, seed=2)
    assert repr(growing) == repr(plain)
    assert [growing.size_bounds(epoch) for epoch in range(3)] == [plain.size_bounds(epoch) for epoch in range(3)]
    for step in range(4):
        assert epoch_of(plain, step) == epoch_of(growing, step)
    assert plain.report() == growing.report()


def test_new_samples_are_unseen_and_come_first() -> None:
    pruner = GrowingPruner(orderdp.OrderDP(exploration=1.0, exploitation=0.5), 40)
    for step in range(4):
        epoch_of(pruner, step)
    pruner.grow(50)
    assert (pruner.scores[40:] == torch.inf).all()
    assert set(range(40, 50)) <= set(epoch_of(pruner))


def test_an_epoch_that_has_begun_goes_on_as_it_was_drawn() -> None:
    plain, growing = orderdp.Pruner(PRUNED, 50, seed=1), GrowingPruner(PRUNED, 50, seed=1)
    wanted, got = epoch_of(plain), []
    for step, batch in enumerate(growing.batch_sampler(4)):
        index = torch.tensor(batch)
        growing.update(index, losses_of(index, 0))
        got += batch
        if step == 2:
            growing.grow(80)
            growing.remove(got[:3])
    assert got == wanted
    second = epoch_of(growing)
    assert len(second) == round(0.6 * 77)
    assert not set(second) & set(got[:3])


def test_removed_samples_are_never_drawn_again() -> None:
    for policy in (PRUNED, orderdp.OrderDP(0.4, every="batch")):
        pruner, gone = GrowingPruner(policy, 60), [0, 5, 59, 5]
        epoch_of(pruner)
        pruner.remove(gone)
        pruner.remove([5])
        for step in range(10):
            visited = epoch_of(pruner, step)
            assert not set(visited) & set(gone)
            assert len(visited) == round(0.6 * 57)


def test_a_loader_follows_a_list_that_grows() -> None:
    samples = [torch.tensor(float(i)) for i in range(20)]
    pruner = GrowingPruner(PRUNED, samples)
    loader = pruner.loader(samples, batch_size=4)

    def epoch() -> Iterator[int]:
        for index, x in loader:
            assert index.tolist() == x.int().tolist()
            pruner.update(index, x + 1)
            yield from index.tolist()

    assert len(list(epoch())) == 12
    samples += [torch.tensor(float(i)) for i in range(20, 40)]
    with pytest.raises(DatasetError, match="it has 40"):
        list(epoch())
    pruner.grow(samples)
    assert len(list(epoch())) == 24
    assert len(loader) == 6


def test_what_is_saved_counts_the_samples_there_were() -> None:
    pruner = GrowingPruner(orderdp.OrderDP(0.5), 20)
    kept = len(epoch_of(pruner))
    pruner.grow(60)
    kept += len(epoch_of(pruner)) + len(epoch_of(pruner))
    pruner.remove(range(20))
    kept += len(epoch_of(pruner))
    report = pruner.report()
    assert report["kept"] == kept == 10 + 30 + 30 + 20
    assert report["saved"] == pytest.approx(1 - kept / (20 + 60 + 60 + 40))
    assert report["pruned"] == 180 - kept


# -- copying -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_sample_is_moved_a_bounded_number_of_times_on_average(step: int) -> None:
    table = ScoreTable(1)
    moved, n = 0, 1
    moves = []
    while n < 3000:
        n += step
        moves.append(table.grow(n))
        moved += moves[-1]
        assert moved <= 3 * 4 * n  # three columns; in the long run each row is moved at most three times
    assert moved > 0
    assert sum(move > 0 for move in moves) <= 40  # most of the time nothing moves
    assert table["score"].shape == (n,)


def test_a_table_that_grew_is_a_table_that_was_that_long() -> None:
    grown, long = ScoreTable(5), ScoreTable(17)
    for n in (6, 7, 12, 17):
        grown.write(torch.tensor([0, 3]), torch.tensor([1.0, float(n)]), epoch=n)
        long.write(torch.tensor([0, 3]), torch.tensor([1.0, float(n)]), epoch=n)
        grown.grow(n)
    for table in (grown, long):
        table.write(torch.tensor([16]), torch.tensor([9.0]), epoch=2)
    for name in ("score", "usage", "seen"):
        assert grown[name].tolist() == long[name].tolist()


# -- bad input, checkpoints, ranks -------------------------------------------------------------------------------


def test_samples_may_be_removed_by_a_mask() -> None:
    for kind in (np.asarray, torch.as_tensor, list):
        pruner = GrowingPruner(PRUNED, 10)
        pruner.remove(kind([i in (3, 7) for i in range(10)]))
        assert pruner.removed.tolist() == [3, 7]
    for wrong in ([True, False], [3.7], np.zeros(9, bool), ["a"]):
        with pytest.raises(DatasetError, match="whole numbers, or a True or False for each of the 10 samples"):
            pruner.remove(wrong)
    assert pruner.removed.tolist() == [3, 7]


def test_the_hardest_are_looked_for_among_those_that_are_there() -> None:
    pruner = GrowingPruner(PRUNED, 10)
    pruner.observe(torch.arange(10), torch.arange(10.0))
    assert pruner.hardest(3).tolist() == [9, 8, 7]
    pruner.remove(pruner.hardest(2))
    assert pruner.hardest(3).tolist() == [7, 6, 5]
    assert len(pruner.hardest(20)) == 8


def test_the_age_of_scores_is_that_of_the_samples_that_are_there() -> None:
    pruner = GrowingPruner(orderdp.OrderDP(0.0), 10)
    for step in range(2):
        epoch_of(pruner, step)
    assert pruner.report()["staleness"] == 1.0
    pruner.observe([3], torch.tensor([1.0]))
    assert pruner.report()["staleness"] == pytest.approx(0.9)
    pruner.remove([3])
    assert pruner.report()["staleness"] == 1.0


def test_asking_for_a_length_leaves_the_next_epoch_open_to_changes() -> None:
    """Its size depends on the losses, so it can only be looked up by drawing."""
    pruner = GrowingPruner(InfoBatch(0.5, annealing=None), 100)
    epoch_of(pruner)
    batches = pruner.batch_sampler(4)
    assert len(batches) > 0
    pruner.remove(range(50))
    with pytest.warns(RealRatioWarning, match=r"leaves out 24.0% of the samples in epoch 1, not the nominal 50.0%"):
        assert min(epoch_of(pruner, 1)) >= 50


def test_an_open_epoch_is_as_long_as_it_was_drawn() -> None:
    pruner = GrowingPruner(PRUNED, 40)
    batches = pruner.batch_sampler(4)
    lengths = []
    for number, batch in enumerate(batches):
        index = torch.tensor(batch)
        pruner.update(index, losses_of(index, 0))
        if number == 1:
            pruner.grow(80)
        lengths.append(len(batches))
    assert lengths == [6, 6, 6, 6, 6, 12]  # the last losses end the epoch


def test_a_look_at_one_more_epoch_does_not_change_what_was_offered() -> None:
    pruner = GrowingPruner(PRUNED, 10, epochs=2)
    for step in range(2):
        epoch_of(pruner, step)
    before = pruner.report()["pruned"]
    pruner.grow(20)
    pruner.preview()
    assert pruner.report()["pruned"] == before == 8


def test_what_should_be_saved_is_a_share_of_the_samples_that_are_there() -> None:
    for policy in (PRUNED, InfoBatch(0.4), Adaptive(0.1, low=0.3, high=0.5)):
        pruner = GrowingPruner(policy, 100, epochs=5)
        assert pruner.report()["nominal_saved"] == pytest.approx(0.4)
        pruner.remove(range(50))
        assert pruner.report()["nominal_saved"] == pytest.approx(0.4)


def test_impossible_changes_are_refused_and_change_nothing() -> None:
    pruner = GrowingPruner(orderdp.OrderDP(0.9), 20)
    with pytest.raises(DatasetError, match="at least the 20 samples"):
        pruner.grow(19)
    with pytest.raises(DatasetError, match="in \\[0, 20\\)"):
        pruner.remove([20])
    with pytest.raises(DatasetError, match="must remain, got all of them"):
        pruner.remove(range(20))
    with pytest.raises(ConfigError, match="keeps 0 of 3 samples"):
        pruner.remove(range(17))
    pruner.remove([])
    assert pruner.removed.tolist() == []
    assert len(epoch_of(pruner)) == 2
    with pytest.raises(ConfigError, match="must be an instance"):
        GrowingPruner(orderdp.OrderDP, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no labels"):
        GrowingPruner(PRUNED, 3, labels=[0, 1, 0])


@pytest.mark.parametrize("stop", [0, 2, 5])
def test_a_resumed_training_is_the_straight_one_though_the_data_grew(stop: int, tmp_path: Path) -> None:
    def changed(pruner: GrowingPruner, epoch: int) -> None:
        if epoch == 1:
            pruner.grow(45)
            pruner.remove([1, 2, 3])

    def run(pruner: GrowingPruner, epochs: int, stop: int | None = None) -> list[list[int]]:
        visited: list[list[int]] = []
        for epoch in range(pruner.epoch, epochs):
            changed(pruner, epoch)
            for batch in pruner.batch_sampler(4):
                if stop is not None and epoch == 2 and len(visited) >= 5 + 6 + stop:
                    return visited
                index = torch.tensor(batch)
                pruner.update(index, losses_of(index, epoch))
                visited.append(batch)
        return visited

    straight = run(GrowingPruner(PRUNED, 30, seed=4), 4)
    first = GrowingPruner(PRUNED, 30, seed=4)
    before = run(first, 4, stop)
    orderdp.save_checkpoint(tmp_path / "pruner.pt", first.state_dict())
    # The data set has grown again while nothing ran; what came is unseen and drawn from the next epoch on.
    second = GrowingPruner(PRUNED, 45)
    second.load_state_dict(orderdp.load_checkpoint(tmp_path / "pruner.pt"))
    assert second.removed.tolist() == [1, 2, 3]
    assert before + run(second, 4) == straight
    third = GrowingPruner(PRUNED, 70)
    third.load_state_dict(orderdp.load_checkpoint(tmp_path / "pruner.pt"))
    rest = run(third, 3)
    assert (before + rest)[: len(before + rest)] == straight[: len(before + rest)]
    assert len(epoch_of(third)) == round(0.6 * 67)


def test_checkpoints_that_do_not_fit_are_refused() -> None:
    pruner = GrowingPruner(PRUNED, 30)
    pruner.remove([4])
    epoch_of(pruner)
    state = pruner.state_dict()
    short = GrowingPruner(PRUNED, 20)
    with pytest.raises(StateError, match="Samples keep their indices"):
        short.load_state_dict(state)
    with pytest.raises(StateError, match="GrowingPruner"):
        GrowingPruner(PRUNED, 30).load_state_dict(orderdp.Pruner(PRUNED, 30).state_dict())
    with pytest.raises(StateError, match="several ranks"):
        GrowingPruner(PRUNED, 30).load_state_dict([state, state])
    other = GrowingPruner(orderdp.OrderDP(0.5), 30)
    with pytest.raises(StateError, match="was written with"):
        other.load_state_dict(state)
    assert other.removed.tolist() == []


def test_nothing_is_removed_from_under_a_policy_that_names_its_samples() -> None:
    pruner = GrowingPruner(Fixed([3, 4, 5]), 10)
    pruner.grow(12)
    with pytest.raises(ConfigError, match="refers to samples by index"):
        pruner.remove([0])
    assert sorted(epoch_of(pruner)) == [3, 4, 5]


def test_a_pruner_that_would_draw_what_was_removed_refuses_the_state() -> None:
    pruner = GrowingPruner(PRUNED, 30)
    plain = orderdp.Pruner(PRUNED, 30)
    epoch_of(pruner)
    plain.load_state_dict(pruner.state_dict())
    assert plain.epoch == 1
    pruner.remove([4, 7])
    with pytest.raises(StateError, match=r"2 samples were removed.*Load it into a GrowingPruner"):
        plain.load_state_dict(pruner.state_dict())


@pytest.mark.parametrize("stop", [None, 2])
def test_ranks_that_grow_together_follow_one_process(stop: int | None) -> None:
    """In mid-epoch too: what the ranks had agreed on is as long as the table afterwards."""

    def run(pruner: GrowingPruner, batch_size: int) -> list[list[list[int]]]:
        visited: list[list[list[int]]] = []
        for epoch in range(4):
            if epoch == 2 and stop is None:
                pruner.grow(52)
                pruner.remove([0, 1])
            visited.append([])
            for step, batch in enumerate(pruner.batch_sampler(batch_size)):
                index = torch.tensor(batch)
                pruner.update(index, losses_of(index, epoch))
                visited[-1].append(batch)
                if epoch == 1 and step == stop:
                    pruner.grow(52)
                    pruner.remove([0, 1])
        return visited

    single = run(GrowingPruner(PRUNED, 40, seed=3), 4)
    ranks = all_fine(in_threads(2, lambda group: _of_rank(group, run)))
    for epoch, batches in enumerate(single):
        for step, batch in enumerate(batches):
            assert sorted(batch) == sorted(i for rank in ranks for i in rank[epoch][step])


def _of_rank(group: MemoryRank, run: Any) -> Any:
    return run(GrowingPruner(PRUNED, 40, seed=3, process_group=group), 2)
