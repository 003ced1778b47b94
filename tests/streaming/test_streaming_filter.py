"""A filter with workers, over epochs, stopped and resumed, and on several ranks."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import datasets
import orderdp
from orderdp.errors import (
    DatasetError,
    FeedbackError,
    GroupError,
    NoFeedbackWarning,
    NonFiniteLossError,
    NonFiniteLossWarning,
    OrderDPWarning,
    StateError,
    UnsyncedStateWarning,
)
from orderdp.streaming import KeyFilter
from tests import streaming_work as work
from tests.ranks import MemoryRank, all_fine, in_processes, in_threads
from tests.streaming_work import EPOCHS, NAMES, PRUNED, Shards, flat, one_ahead, train

KEPT = 41  # of the 69 samples, at 40 % pruned


def made(**options: Any) -> KeyFilter:
    return KeyFilter(PRUNED, key=0, seed=5, **options)


@pytest.fixture(scope="module")
def straight() -> tuple[list[list[list[str]]], torch.Tensor]:
    keys = made()
    visited = train(keys, Shards(), EPOCHS)
    return visited, keys.scores_of(NAMES)


# -- workers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (2, {}),
        (2, {"persistent_workers": True}),
        (1, {"persistent_workers": True, "multiprocessing_context": "spawn"}),
    ],
)
def test_workers_keep_what_one_process_keeps(straight: Any, workers: int, options: dict[str, Any]) -> None:
    keys = made()
    visited = train(keys, Shards(), EPOCHS, workers=workers, **options)
    wanted, scores = straight
    assert [sorted(flat(epoch)) for epoch in visited] == [sorted(flat(epoch)) for epoch in wanted]
    assert torch.equal(keys.scores_of(NAMES), scores)
    assert [len(flat(epoch)) for epoch in visited[1:]] == [KEPT] * (EPOCHS - 1)


def test_what_is_left_out_is_not_decoded(straight: Any) -> None:
    decoded: list[str] = []

    class Decoding(torch.utils.data.IterableDataset):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __iter__(self) -> Iterator[Any]:
            for sample in self.inner:
                decoded.append(sample[0])
                yield sample

    keys = made()
    for _ in range(2):
        decoded.clear()
        for names, _ in keys.one_epoch(DataLoader(Decoding(keys.only(Shards())), batch_size=4)):
            keys.update(names, torch.tensor([work.loss_of(name, 0) for name in names]))
    assert sorted(decoded) == sorted(flat(straight[0][1]))
    assert len(decoded) == KEPT


def test_looking_at_the_stream_changes_nothing(straight: Any) -> None:
    keys = made()
    stream = Shards()
    loader = DataLoader(keys.only(stream), batch_size=4)
    next(iter(loader))
    list(loader)
    assert keys.report()["keys"] == 0
    visited = train(keys, stream, 2)
    list(loader)
    stream.turn = 0
    visited += train(keys, stream, EPOCHS)
    assert visited == straight[0]


def test_folders_are_removed_with_the_filter(tmp_path: Path) -> None:
    keys = made(folder=tmp_path)
    train(keys, Shards(), 3, workers=2)
    inside = list(tmp_path.iterdir())
    assert len(inside) == 1
    assert len(list(inside[0].iterdir())) <= 8  # old epochs leave nothing behind
    del keys
    assert list(tmp_path.iterdir()) == []


def test_hugging_face_streams_are_filtered(straight: Any) -> None:
    def samples(shards: list[int]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            for name in work.SHARDS[shard]:
                yield {"id": name, "length": len(name)}

    stream = datasets.IterableDataset.from_generator(samples, gen_kwargs={"shards": list(range(6))})
    keys = KeyFilter(PRUNED, key="id", seed=5)
    loader = DataLoader(keys.only(stream), batch_size=4, num_workers=2)
    for epoch in range(3):
        kept = []
        for batch in keys.one_epoch(loader):
            keys.update(batch["id"], torch.tensor([work.loss_of(name, epoch) for name in batch["id"]]))
            kept += batch["id"]
        assert sorted(kept) == sorted(flat(straight[0][epoch]))


# -- time --------------------------------------------------------------------------------------------------------


def test_an_epoch_left_early_is_over_and_retires_nobody() -> None:
    keys = made()
    train(keys, Shards(), 1)
    train(keys, Shards(), 2, after_step=lambda step: step == 3)
    assert (keys.epoch, keys.report()["samples"]) == (1, len(NAMES))
    third = train(keys, Shards(), 2)  # the second has been left, so this is the one after it
    assert keys.epoch == 3
    assert len(flat(third[0])) == KEPT
    assert keys.report()["samples"] == len(NAMES)
    keys.end_epoch()
    assert keys.epoch == 3  # nothing of the next one had been trained on


def test_without_losses_the_same_samples_are_kept_again() -> None:
    keys = made()
    loader = DataLoader(keys.only(Shards()), batch_size=None)
    first = [name for name, _ in keys.one_epoch(loader)]  # the losses of a loop that fetches ahead may still come
    for _ in range(2):
        with pytest.warns(NoFeedbackWarning):
            assert [name for name, _ in keys.one_epoch(loader)] == first
    free = KeyFilter(orderdp.OrderDP(exploration=0.5, exploitation=1.0), key=0)
    loader = DataLoader(free.only(Shards()), batch_size=None)
    drawn = [[name for name, _ in free.one_epoch(loader)] for _ in range(3)]
    assert free.epoch == 3
    assert drawn[0] != drawn[1] != drawn[2]


def test_who_fetches_a_batch_ahead_trains_on_the_same_and_counts_the_same(straight: Any) -> None:
    keys, plain = made(), made()
    train(plain, Shards(), EPOCHS)
    assert train(keys, Shards(), EPOCHS, fetching=one_ahead) == straight[0]
    assert torch.equal(keys.scores_of(NAMES), straight[1])
    assert keys.report() == plain.report()
    assert keys.epoch == EPOCHS


@pytest.mark.parametrize("size", [100, 23, 11])
@pytest.mark.parametrize("ahead", [1, 2, 50])
def test_epochs_of_few_batches_count_the_same_for_who_fetches_ahead(size: int, ahead: int) -> None:
    def batches_ahead(batches: Iterator[Any]) -> Iterator[Any]:
        held = list(islice(batches, ahead))
        for batch in batches:
            held.append(batch)
            yield held.pop(0)
        yield from held

    def trained(fetching: Any) -> tuple[list[list[str]], dict[str, float], int]:
        keys = made()
        loader = DataLoader(keys.only(Shards()), batch_size=size)
        visited = []
        for epoch in range(5):
            visited.append([])
            for names, _ in fetching(keys.one_epoch(loader)):
                visited[-1] += names
                keys.update(list(names), torch.tensor([work.loss_of(name, epoch) for name in names]))
            assert keys.epoch == epoch + 1
        return visited, keys.report(), keys.epoch

    wanted = trained(iter)
    assert trained(batches_ahead) == wanted
    assert [len(epoch) for epoch in wanted[0][1:]] == [KEPT] * 4
    assert wanted[1]["saved"] > 0.3


def test_a_state_taken_before_the_only_losses_are_back_serves_the_epoch_again() -> None:
    keys, second = made(), made()
    stream = Shards()
    (batch,) = keys.one_epoch(DataLoader(keys.only(stream), batch_size=100))
    second.load_state_dict(keys.state_dict())
    keys.update(list(batch[0]), torch.ones(len(batch[0])))
    assert (keys.epoch, second.epoch) == (1, 0)
    ((names, _),) = second.one_epoch(DataLoader(second.only(stream), batch_size=100))
    assert names == batch[0]
    second.update(list(names), torch.ones(len(names)))
    assert second.report() == keys.report()


def test_a_key_of_the_last_batch_that_comes_again_is_noticed_by_who_fetches_ahead() -> None:
    keys = made()
    batches = one_ahead(keys.one_epoch(DataLoader(keys.only(Shards()), batch_size=4)))
    for names, _ in batches:
        keys.update(names, torch.rand(len(names)))
    with pytest.raises(DatasetError, match="in epoch 0"):
        keys.update(names, torch.rand(len(names)))


def test_what_is_saved_is_reported() -> None:
    keys = made()
    visited = train(keys, Shards(), 3)
    kept = sum(len(flat(epoch)) for epoch in visited)
    report = keys.report()
    assert (report["kept"], report["offered"], report["epoch"]) == (kept, 3 * len(NAMES), 3)
    assert report["saved"] == pytest.approx(1 - kept / (3 * len(NAMES)))
    assert 0 < report["collision_bound"] < 1e-15


# -- bad input ---------------------------------------------------------------------------------------------------


def _epoch(keys: KeyFilter, loader: DataLoader, losses: torch.Tensor | None = None) -> None:
    for names, _ in keys.one_epoch(loader):
        keys.update(names, torch.rand(len(names)) if losses is None else losses)


def test_a_key_that_comes_twice_is_named_and_nothing_is_lost() -> None:
    keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.0), key=0)
    loader = DataLoader(keys.only([("a", 0), ("b", 0), ("a", 0), ("c", 0)]), batch_size=2)
    with pytest.raises(DatasetError, match="'a'"):
        _epoch(keys, loader, torch.tensor([1.0, 2.0]))
    assert keys.scores_of(["a", "b", "c"]).tolist() == [1.0, 2.0, float("inf")]
    with pytest.raises(DatasetError, match="'d'"):
        keys.update(["d", "d"], torch.ones(2))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_is_not_split_between_workers_is_noticed(workers: int) -> None:
    keys = KeyFilter(PRUNED, key=0)
    stream = [(name, 0) for name in NAMES]
    loader = DataLoader(keys.only(stream), batch_size=8, num_workers=workers)

    if workers:
        with pytest.raises(DatasetError, match="split the stream between workers"):
            _epoch(keys, loader)
    else:
        _epoch(keys, loader)


def test_repeated_keys_that_are_left_out_are_noticed_at_the_end() -> None:
    keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.9), key=0)
    left_out = next(name for name in NAMES if not keys._channel.read().keep_all_of(_marks([name]))[0])
    loader = DataLoader(keys.only([(name, 0) for name in [*NAMES, left_out]]), batch_size=8)
    with pytest.raises(DatasetError, match="1 came more than once"):
        _epoch(keys, loader)


def _marks(names: list[str]) -> Any:
    from orderdp.streaming.worker_channel import fingerprints

    return fingerprints(names)


def test_repeats_can_be_allowed() -> None:
    keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.0), key=0, duplicates="allow")
    loader = DataLoader(keys.only([(name, 0) for name in NAMES * 2]), batch_size=8)
    for _ in range(2):
        _epoch(keys, loader)
    assert keys.report()["samples"] == len(NAMES)


class Repeating(torch.utils.data.IterableDataset):
    """Every name once, and the first third of them twice more, split between workers so that repeats are spread."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        info = torch.utils.data.get_worker_info()
        names = NAMES + NAMES[: len(NAMES) // 3] * 2
        for name in names[info.id :: info.num_workers] if info else names:
            yield name, 0


@pytest.mark.parametrize("stop", [3, 9, 20, 24, 26, 31])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_resumed_where_keys_repeat_trains_on_each_occurrence_once(
    stop: int, workers: int, tmp_path: Path
) -> None:
    def allowing() -> KeyFilter:
        return made(duplicates="allow")

    wanted = [sorted(flat(epoch)) for epoch in train(allowing(), Repeating(), 3, workers=workers)]
    first, second = allowing(), allowing()
    before = train(first, Repeating(), 3, workers=workers, after_step=lambda step: step == stop)
    second.load_state_dict(stored(first, tmp_path / "keys.pt"))
    after = train(second, Repeating(), 3, workers=workers)
    resumed: dict[int, list[str]] = {}
    for start, epochs in ((0, before), (3 - len(after), after)):
        for number, epoch in enumerate(epochs, start):
            resumed[number] = sorted(resumed.get(number, []) + flat(epoch))
    assert [resumed[epoch] for epoch in range(3)] == wanted


def test_a_state_without_counts_of_occurrences_still_loads_where_keys_repeat(tmp_path: Path) -> None:
    first, second = made(duplicates="allow"), made(duplicates="allow")
    train(first, Repeating(), 1, after_step=lambda step: step == 4)
    state = stored(first, tmp_path / "keys.pt")
    del state["memory"]["columns"]["visits"]
    second.load_state_dict(state)
    after = train(second, Repeating(), 1)
    assert len(flat(after)) > 0
    strict = made()
    strict.load_state_dict(stored(first, tmp_path / "keys.pt"))
    trained = {name for name in NAMES if torch.isfinite(first.scores_of([name]))}
    assert not trained & set(flat(train(strict, Shards(), 1)[0]))


def test_ranks_that_resume_where_keys_repeat_are_warned_that_some_may_be_left_out() -> None:
    def rank(group: MemoryRank) -> KeyFilter:
        keys = made(duplicates="allow", process_group=group)
        train(keys, Shards(group.rank, 2), 1, after_step=lambda step: step == 2)
        keys.sync()
        again = made(duplicates="allow", process_group=group)
        again.load_state_dict(keys.state_dict())
        train(again, Shards(group.rank, 2), 1)
        return again

    with pytest.warns(OrderDPWarning, match="repeats on other ranks"):
        all_fine(in_threads(2, rank))


@pytest.mark.parametrize("workers", [0, 1])
def test_keys_of_a_wrong_kind_or_place_are_refused_where_the_stream_is_read(workers: int) -> None:
    for sample, options, match in (
        ((1.5, 0), {"key": 0}, "bytes, a str or an int"),
        ({"id": "a"}, {}, "__key__"),
        (7, {"key": 0}, "under 0"),
    ):
        keys = KeyFilter(PRUNED, **options)
        loader = DataLoader(keys.only([sample] * 3), batch_size=None, num_workers=workers)
        with pytest.raises(DatasetError, match=match):
            list(keys.one_epoch(loader))


def test_an_empty_stream_and_one_that_ends_for_good_are_refused() -> None:
    keys = made()
    with pytest.raises(DatasetError, match="must have samples"):
        list(keys.one_epoch(DataLoader(keys.only([]), batch_size=None)))
    with pytest.raises(DatasetError, match="which can be iterated once"):
        keys.only(iter(NAMES))


def test_losses_must_fit_the_keys() -> None:
    keys = made()
    with pytest.raises(FeedbackError, match="one number for each of the 2"):
        keys.update(["a", "b"], torch.ones(3))
    with pytest.raises(DatasetError, match="bytes, a str or an int"):
        keys.update([None], torch.ones(1))
    assert keys.report()["keys"] == 0


def test_losses_that_are_not_finite_are_no_scores() -> None:
    def after_one_epoch(**options: Any) -> KeyFilter:
        keys = KeyFilter(orderdp.OrderDP(prune_ratio=0.0), key=0, **options)
        for names, _ in keys.one_epoch(DataLoader(keys.only([(n, 0) for n in "abc"]), batch_size=3)):
            keys.observe(["a"], torch.tensor([5.0]))
            keys.update(names, torch.tensor([float("nan"), float("inf"), 2.0]))
        return keys

    with pytest.warns(NonFiniteLossWarning, match="2 losses"):
        keys = after_one_epoch()  # there need not be another
    assert keys.scores_of(["a", "b", "c"]).tolist() == [5.0, 2.0, 2.0]
    next(keys.one_epoch([0]))  # it was said
    with pytest.raises(NonFiniteLossError):
        after_one_epoch(on_nan="raise")


@pytest.mark.parametrize("says_so", [True, False])
def test_losses_of_an_epoch_that_was_left_early_are_spoken_of_when_that_is_known(says_so: bool) -> None:
    keys = made()
    for names, *_ in keys.one_epoch(DataLoader(keys.only(Shards()), batch_size=4)):
        keys.update(names, torch.full((len(names),), float("nan")))
        break
    with pytest.warns(NonFiniteLossWarning, match="4 losses"):
        keys.end_epoch() if says_so else next(keys.one_epoch([0]))
    assert keys.epoch == 1


def test_a_batch_of_nothing_but_nan_leaves_its_unseen_samples_first_in_line() -> None:
    keys = made()
    keys.observe(["a"], torch.tensor([5.0]))
    keys.update(["a", "b"], torch.tensor([float("nan"), float("inf")]))
    assert keys.scores_of(["a", "b"]).tolist() == [5.0, float("inf")]


def test_epochs_that_are_left_early_leave_nothing_behind() -> None:
    keys, held = made(), []
    loader = DataLoader(keys.only(Shards()), batch_size=4)
    for _ in range(4):
        for names, *_ in keys.one_epoch(loader):
            keys.update(names, torch.ones(len(names)))
            break
        held.append(sum(len(marks) for marks in keys._memory._trained))
    assert held == [4, 4, 4, 4]


def test_scores_may_differ_from_losses_and_gradients_flow() -> None:
    keys = made()
    losses = torch.tensor([1.0, 3.0], requires_grad=True)
    mean = keys.update([b"x", b"y"], losses * 2, scores=torch.tensor([7.0, 8.0]))
    mean.backward()
    assert mean.item() == 4.0
    assert losses.grad.tolist() == [1.0, 1.0]
    assert keys.scores_of([b"x", b"y", b"z"]).tolist() == [7.0, 8.0, float("inf")]


# -- checkpoints -------------------------------------------------------------------------------------------------


def stored(keys: KeyFilter, path: Path) -> dict[str, Any]:
    orderdp.save_checkpoint(path, {"keys": keys.state_dict()})
    return orderdp.load_checkpoint(path)["keys"]


@pytest.mark.parametrize("stop", range(1, 42, 4))
def test_a_resumed_training_is_the_straight_one(straight: Any, stop: int, tmp_path: Path) -> None:
    wanted = [batch for epoch in straight[0] for batch in epoch]
    first, second = made(), KeyFilter(PRUNED, key=0, seed=99)
    before = train(first, Shards(), EPOCHS, after_step=lambda step: step == stop)
    second.load_state_dict(stored(first, tmp_path / "keys.pt"))
    after = train(second, Shards(), EPOCHS)
    assert [batch for epoch in before + after for batch in epoch] == wanted
    assert torch.equal(second.scores_of(NAMES), straight[1])
    assert second.report()["offered"] == EPOCHS * len(NAMES)


def test_a_training_resumed_with_workers_keeps_the_same_samples(straight: Any, tmp_path: Path) -> None:
    first, second = made(), made()
    before = train(first, Shards(), EPOCHS, workers=2, after_step=lambda step: step == 14)
    second.load_state_dict(stored(first, tmp_path / "keys.pt"))
    after = train(second, Shards(), EPOCHS, workers=2)
    epochs = [*before[:-1], before[-1] + after[0], *after[1:]]
    assert [sorted(flat(epoch)) for epoch in epochs] == [sorted(flat(epoch)) for epoch in straight[0]]
    assert torch.equal(second.scores_of(NAMES), straight[1])


def test_a_stream_that_goes_on_by_itself_retires_nobody(tmp_path: Path) -> None:
    first, second = made(), made()
    train(first, Shards(), 1)
    train(first, Shards(), 2, after_step=lambda step: step == 6)
    second.load_state_dict(stored(first, tmp_path / "keys.pt"))
    train(second, Shards(shards=work.SHARDS[3:]), 2)  # what lies before is not looked at again
    assert second.report()["samples"] == len(NAMES)


def test_states_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    keys = made()
    train(keys, Shards(), 2)
    state = keys.state_dict()
    before = copy.deepcopy(state)

    def broken(**changes: Any) -> dict[str, Any]:
        return {**copy.deepcopy(state), **changes}

    memory = state["memory"]
    columns = memory["columns"]
    for wrong in (
        {},
        None,
        broken(format="orderdp.Pruner"),
        broken(version=7),
        broken(policy="OrderDP(prune_ratio=0.5)"),
        broken(unsynced=True),
        broken(memory=None),
        broken(memory={**memory, "columns": {}}),
        broken(memory={**memory, "columns": {**columns, "score": columns["score"][:-1]}}),
        broken(memory={**memory, "columns": {**columns, "score": columns["score"] * torch.nan}}),
        broken(memory={**memory, "columns": {**columns, "key": torch.zeros_like(columns["key"])}}),
    ):
        with pytest.raises(StateError):
            keys.load_state_dict(wrong)  # type: ignore[arg-type]
    after = keys.state_dict()
    assert all(torch.equal(after["memory"]["columns"][name], columns[name]) for name in columns)
    assert {k: v for k, v in after.items() if k != "memory"} == {k: v for k, v in before.items() if k != "memory"}


@pytest.mark.parametrize("stop", [None, 16])
def test_the_state_of_another_data_set_is_noticed_at_the_end_of_a_pass(stop: int | None) -> None:
    other = [[f"9{shard}/{number}" for number in range(9 + shard)] for shard in range(6)]
    first, second = made(), made()
    train(first, Shards(shards=other), 2, after_step=lambda step: step == stop)
    second.load_state_dict(first.state_dict())
    scores = second.scores_of(flat(other))
    with pytest.raises(DatasetError, match=r"known keys was among the 69 .* another data set"):
        train(second, Shards(), second.epoch + 1)
    assert torch.equal(second.scores_of(flat(other)), scores)


# -- several ranks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_swap_shards_keep_what_one_process_keeps(straight: Any, world: int) -> None:
    def rank(group: MemoryRank) -> Any:
        keys = made(process_group=group)
        visited = train(keys, Shards(group.rank, world), EPOCHS)
        keys.sync()
        return visited, keys.scores_of(NAMES), keys.report(), keys.state_dict()

    results = all_fine(in_threads(world, rank))
    for epoch in range(EPOCHS):
        together = sorted(name for visited, *_ in results for name in flat(visited[epoch]))
        assert together == sorted(flat(straight[0][epoch]))
    for _, scores, report, state in results:
        assert torch.equal(scores, straight[1])
        assert report == results[0][2]
        assert report["kept"] == sum(len(flat(epoch)) for epoch in straight[0])
        assert report["offered"] == EPOCHS * len(NAMES)
        for name, column in state["memory"]["columns"].items():
            assert torch.equal(column, results[0][3]["memory"]["columns"][name]), name


def test_ranks_that_fetch_a_batch_ahead_keep_what_one_process_keeps(straight: Any) -> None:
    def rank(group: MemoryRank) -> Any:
        keys = made(process_group=group)
        visited = train(keys, Shards(group.rank, 2), EPOCHS, fetching=one_ahead)
        keys.sync()
        return visited, keys.scores_of(NAMES), keys.report()

    plain = made()
    train(plain, Shards(), EPOCHS)
    for visited, scores, report in (results := all_fine(in_threads(2, rank))):
        assert len(visited) == EPOCHS
        assert torch.equal(scores, straight[1])
        assert report["saved"] == plain.report()["saved"]
        assert report["epoch"] == EPOCHS
    for epoch in range(EPOCHS):
        together = sorted(name for visited, *_ in results for name in flat(visited[epoch]))
        assert together == sorted(flat(straight[0][epoch]))


def test_what_ranks_exchange_does_not_grow_with_what_they_know() -> None:
    """Twenty bytes for a sample trained on, an eighth of one for a sample known: at most what is counted here."""

    def rank(group: MemoryRank) -> Any:
        keys = made(process_group=group)
        train(keys, Shards(group.rank, 2), 2)
        group.sizes.clear()
        keys.sync()
        return list(group.sizes)

    for sizes in all_fine(in_threads(2, rank)):
        head, rest = sizes
        assert head <= 100
        assert rest <= 20 * KEPT + len(NAMES) // 8 + 2


def test_a_key_that_two_ranks_train_on_is_refused_by_both() -> None:
    def rank(group: MemoryRank) -> Any:
        keys = KeyFilter(orderdp.OrderDP(0.0), key=0, process_group=group)
        train(keys, Shards(0, 1, [["0/1", "0/2", "0/3"], [f"{group.rank + 1}/{i}" for i in range(3)]]), 1)
        keys.sync()

    assert all(isinstance(error, DatasetError) for error in in_threads(2, rank))


def test_a_state_without_sync_is_marked_and_refused() -> None:
    turn = threading.Lock()  # warnings are caught for all threads at once

    def in_turn(group: MemoryRank) -> Any:
        keys = made(process_group=group)
        train(keys, Shards(group.rank, 2), 1)
        with turn, pytest.warns(UnsyncedStateWarning):
            state = keys.state_dict()
        with pytest.raises(StateError, match="sync"):
            made().load_state_dict(state)
        keys.sync()
        made().load_state_dict(keys.state_dict())
        return True

    assert all_fine(in_threads(2, in_turn)) == [True, True]


def test_ranks_that_are_set_up_differently_are_told() -> None:
    def rank(group: MemoryRank) -> Any:
        keys = KeyFilter(PRUNED, key=0, seed=group.rank, process_group=group)
        train(keys, Shards(group.rank, 2), 1)

    for error in in_threads(2, rank):
        assert isinstance(error, GroupError)
        assert "seed: 0 on rank 0, 1 on rank 1" in str(error)


def test_two_processes_keep_what_one_keeps(straight: Any, tmp_path: Path) -> None:
    ranks = in_processes(2, tmp_path, work.epochs_of_a_rank)
    for epoch in range(EPOCHS):
        together = sorted(name for rank in ranks for name in rank["visited"][epoch])
        assert together == sorted(flat(straight[0][epoch]))
        assert all(rank["visited"][epoch] for rank in ranks)
    assert all(torch.equal(rank["scores"], straight[1]) for rank in ranks)
    assert ranks[0]["report"] == ranks[1]["report"]


@pytest.mark.parametrize("world", [1, 3])
def test_a_checkpoint_of_two_processes_goes_on_in_another_number(straight: Any, world: int, tmp_path: Path) -> None:
    ranks = in_processes(2, tmp_path, work.stopped_in_the_middle)
    state = orderdp.load_checkpoint(tmp_path / "keys.pt")["keys"]
    before = [name for rank in ranks for name in rank["visited"][1]]

    def rank(group: MemoryRank) -> Any:
        keys = made(process_group=group)
        keys.load_state_dict(copy.deepcopy(state))
        return train(keys, Shards(group.rank, world), EPOCHS)

    results = all_fine(in_threads(world, rank))
    together = [sorted(name for visited in results for name in flat(visited[e])) for e in range(EPOCHS - 1)]
    together[0] = sorted(together[0] + before)
    assert together == [sorted(flat(epoch)) for epoch in straight[0][1:]]


def test_processes_on_their_own_keep_an_exact_share_each(tmp_path: Path) -> None:
    ranks = in_processes(2, tmp_path, work.each_on_its_own)
    for rank, result in enumerate(ranks):
        size = sum(len(shard) for shard in work.SHARDS[rank::2])
        assert [len(epoch) for epoch in result["visited"][1:]] == [round(0.6 * size)] * (EPOCHS - 1)
        assert result["report"]["exchanged_bytes"] == 0


def test_two_processes_that_are_set_up_differently_are_told_and_do_not_hang(tmp_path: Path) -> None:
    for message in in_processes(2, tmp_path, work.differently_set_up):
        assert message.startswith("GroupError: all processes must have the same settings")


def test_ddp_trains_on_ranks_that_keep_unequal_numbers(tmp_path: Path) -> None:
    first, second = in_processes(2, tmp_path, work.joined)
    assert first["steps"] < second["steps"]
    assert torch.equal(first["weight"], second["weight"])
    assert torch.equal(first["scores"], second["scores"])
    assert first["report"]["offered"] == 3 * len(NAMES)


def test_workers_import_little() -> None:
    code = "import sys, orderdp.streaming.worker_channel; print({'orderdp.pruner', 'torch._dynamo'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "set()"
