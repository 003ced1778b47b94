"""Checkpoints in parts: the same ranks go on as if nothing had happened, and any other number can go on too."""

from __future__ import annotations

import io
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orderdp import OrderDP, Pruner
from orderdp.distributed import load_parts, save_parts
from orderdp.errors import GroupError, StateError
from tests.distributed.test_sharded import N, pruner_on, skewed_losses
from tests.ranks import FullRank, MemoryRank, all_fine, in_threads
from tests.support import as_on_a_card

STEP = 12  # over all ranks; 54 are kept
WORLDS = [(2, 1), (2, 3), (3, 2), (1, 4), (4, 1), (3, 3), (2, 2), (1, 1)]


def train(pruner: Pruner, world: int, stop_after: int | None = None, epochs: int = 4) -> list[tuple[int, list[int]]]:
    """Trains to the end or for so many steps; returns epoch and samples of each step."""
    visited: list[tuple[int, list[int]]] = []
    sampler = pruner.batch_sampler(STEP // world)
    while pruner.epoch < epochs:
        for batch in sampler:
            if len(visited) == stop_after:
                return visited
            visited.append((pruner.epoch, batch))
            index = torch.tensor(batch)
            pruner.update(index, skewed_losses(index, pruner.epoch))
        if len(visited) == stop_after:
            return visited
    return visited


def saved(state: Any) -> Any:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def run(world: int, work: Any) -> list[Any]:
    return all_fine(in_threads(world, work, kind=FullRank))


def begun(world: int, steps: int, **options: Any) -> tuple[list[Any], list[Any]]:
    """What ranks visit in so many steps, and the parts they write without having met before."""

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank, **options)
        visited = train(pruner, world, steps)
        return visited, saved(pruner.state_dict())

    results = run(world, work)
    return [visited for visited, _ in results], [part for _, part in results]


def by_epoch(shares: list[list[tuple[int, list[int]]]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for epoch, batch in chain(*shares):
        found.setdefault(epoch, []).extend(batch)
    return {epoch: sorted(samples) for epoch, samples in found.items()}


@pytest.mark.parametrize("sharding", ["exact", "stratified"])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("steps", [0, 2, 5, 7, 13])
def test_as_many_ranks_go_on_as_if_nothing_had_happened(world: int, steps: int, sharding: Any) -> None:
    def straight(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank, sharding=sharding)
        visited = train(pruner, world)
        pruner.sync()
        return visited, pruner.scores, pruner.usage, pruner.report()["kept"]

    first, parts = begun(world, steps, sharding=sharding)

    def resumed(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank, sharding=sharding)
        pruner.load_state_dict(parts)
        visited = train(pruner, world)
        pruner.sync()
        return first[rank.rank] + visited, pruner.scores, pruner.usage, pruner.report()["kept"]

    for (a, *table), (b, *table_again) in zip(run(world, straight), run(world, resumed), strict=True):
        assert a == b
        for column, again in zip(table[:2], table_again[:2], strict=True):
            assert torch.equal(column, again)
        assert table[2] == table_again[2]


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3)])
def test_parts_may_have_been_loaded_to_a_card(before: int, after: int) -> None:
    _, parts = begun(before, 5)

    def resumed(given: Any) -> Any:
        def work(rank: MemoryRank) -> Any:
            pruner = pruner_on(rank)
            pruner.load_state_dict(given)
            visited = train(pruner, after)
            pruner.sync()
            return visited, pruner.scores.tolist()

        return run(after, work)

    assert resumed(as_on_a_card(parts)) == resumed(parts)


@pytest.mark.parametrize("sharding", ["exact", "stratified"])
@pytest.mark.parametrize(("before", "after"), WORLDS, ids=lambda world: str(world))
@pytest.mark.parametrize("steps", [2, 5, 6])
def test_another_number_of_ranks_trains_on_what_was_left(before: int, after: int, steps: int, sharding: Any) -> None:
    first, parts = begun(before, steps, sharding=sharding)

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank, sharding=sharding)
        pruner.load_state_dict(parts)
        loaded = pruner.scores, pruner.usage
        visited = train(pruner, after)
        pruner.sync()
        return visited, loaded, pruner.report(), pruner.usage

    results = run(after, work)
    together = by_epoch([*first, *(visited for visited, *_ in results)])
    most_left_out = max(before, after) - 1
    for epoch in range(4):
        assert len(set(together[epoch])) == len(together[epoch]), "nothing twice"
        assert 54 - most_left_out <= len(together[epoch]) <= 54
    usage = torch.cat([usage for *_, usage in results])
    counted = np.bincount(list(chain(*together.values())), minlength=N)
    assert usage.tolist() == counted.tolist()
    assert {report["kept"] for _, _, report, _ in results} == {int(counted.sum())}
    scores = torch.cat([loaded[0] for _, loaded, *_ in results])
    uses = torch.cat([loaded[1] for _, loaded, *_ in results])
    trained = by_epoch(first)
    expected = torch.full((N,), torch.inf)
    for epoch, samples in trained.items():
        index = torch.tensor(samples)
        expected[index] = skewed_losses(index, epoch)
    assert torch.equal(scores, expected)
    assert uses.sum() == sum(map(len, trained.values()))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (3, 2), (1, 4)])
def test_the_rest_of_an_epoch_and_the_next_are_those_of_one_process(before: int, after: int) -> None:
    whole, oracle = Pruner(OrderDP(0.5), 96, seed=3), []
    while whole.epoch < 3:
        batch = list(whole.sampler)
        oracle.append(sorted(batch))
        whole.update(torch.tensor(batch), skewed_losses(torch.tensor(batch), len(oracle) - 1))
    first, parts = begun(before, 5, policy=OrderDP(0.5), n=96)  # in the second of 48 each

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank, OrderDP(0.5), n=96)
        pruner.load_state_dict(parts)
        return train(pruner, after, epochs=3)

    together = by_epoch([*first, *run(after, work)])
    assert [together[epoch] for epoch in range(3)] == oracle


def test_a_checkpoint_between_loading_and_the_first_step_can_be_loaded_again() -> None:
    first, parts = begun(2, 2)

    def pass_on(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank)
        pruner.load_state_dict(parts)
        return saved(pruner.state_dict())

    for world in (3, 1, 4, 2):
        parts = run(world, pass_on)

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank)
        pruner.load_state_dict(parts)
        return train(pruner, 2, epochs=1)

    together = by_epoch([*first, *run(2, work)])
    assert len(set(together[0])) == len(together[0]) == 54


def test_loading_changes_nothing_of_what_was_loaded_and_rewinding_works_for_as_many_ranks() -> None:
    first, parts = begun(2, 2)

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank)
        pruner.load_state_dict(parts)
        pruner.rewind()
        batches = list(pruner.batch_sampler(6))
        return batches[:2] == [batch for _, batch in first[rank.rank]]

    assert run(2, work) == [True, True]
    assert run(2, work) == [True, True]


def test_another_number_of_ranks_cannot_rewind() -> None:
    _, parts = begun(2, 2)
    pruner = pruner_on(None)
    pruner.load_state_dict(parts)
    with pytest.raises(StateError, match="as many processes as wrote the checkpoint"):
        pruner.rewind()


# -- files ---------------------------------------------------------------------------------------------------------


def write(folder: Path, world: int = 2, steps: int = 2, dataset: str = "", **options: Any) -> None:
    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank, **options)
        train(pruner, world, steps)
        return save_parts(pruner, folder, dataset=dataset)

    run(world, work)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (3, 2), (1, 4)])
def test_parts_go_to_files_and_come_back_at_any_number_of_ranks(tmp_path: Path, before: int, after: int) -> None:
    write(tmp_path / "new", before, dataset="digits v1")
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == [f"pruner-{rank:05d}-of-{before:05d}.pt" for rank in range(before)], "nothing temporary is left"

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank)
        load_parts(pruner, tmp_path / "new", dataset="digits v1")
        return int(pruner.usage.sum()), pruner.report()["kept"]

    results = run(after, work)
    assert sum(used for used, _ in results) == 2 * STEP
    assert {kept for _, kept in results} == {2 * STEP}


def missing(folder: Path) -> None:
    (folder / "pruner-00001-of-00002.pt").unlink()


def torn(folder: Path) -> None:
    path = folder / "pruner-00001-of-00002.pt"
    path.write_bytes(path.read_bytes()[:-500])


def of_another_step(folder: Path) -> None:
    write(folder / "more", steps=3)
    (folder / "more" / "pruner-00001-of-00002.pt").replace(folder / "pruner-00001-of-00002.pt")


def of_another_seed(folder: Path) -> None:
    path = folder / "pruner-00001-of-00002.pt"
    part = torch.load(path, weights_only=True)
    part["pruner"]["timeline"]["seed"] = 8
    torch.save(part, path)


def of_another_length(folder: Path) -> None:
    write(folder / "more", n=N + 2)
    (folder / "more" / "pruner-00001-of-00002.pt").replace(folder / "pruner-00001-of-00002.pt")


def of_other_data(folder: Path) -> None:
    write(folder / "more", dataset="mnist")
    (folder / "more" / "pruner-00001-of-00002.pt").replace(folder / "pruner-00001-of-00002.pt")


def of_more_ranks(folder: Path) -> None:
    write(folder, 3)


def of_strata(folder: Path) -> None:
    write(folder, sharding="stratified")


def no_part(folder: Path) -> None:
    torch.save({"model": {}}, folder / "pruner-00001-of-00002.pt")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (missing, r"parts of all 2 processes; missing: pruner-00001-of-00002\.pt"),
        (torn, "is not a readable checkpoint"),
        (of_another_step, "differ in samples trained on in it: 24 on rank 0, 36 on rank 1"),
        (of_another_seed, "differ in seed: 3 on rank 0, 8 on rank 1"),
        (of_another_length, "for a data set of 92 samples, this one has 90"),
        (of_other_data, "belongs to the data set 'mnist', not ''"),
        (of_more_ranks, "parts of checkpoints of 2 and 3 processes"),
        (of_strata, "sharding='stratified', this pruner has 'exact'"),
        (no_part, "is not a part written by save_parts"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused_and_nothing_changes(
    tmp_path: Path, spoil: Any, message: str
) -> None:
    write(tmp_path)
    spoil(tmp_path)
    pruner = pruner_on(None)
    train(pruner, 1, 1)
    before = saved(pruner.state_dict())
    with pytest.raises(StateError, match=message):
        load_parts(pruner, tmp_path)
    after = saved(pruner.state_dict())
    assert torch.equal(before["table"]["columns"]["score"], after["table"]["columns"]["score"])
    assert before["timeline"]["clock"] == after["timeline"]["clock"]


def test_an_empty_folder_and_a_whole_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="there are no parts"):
        load_parts(pruner_on(None), tmp_path)
    for act in (save_parts, load_parts):
        with pytest.raises(StateError, match='pruners with table="sharded"'):
            act(Pruner(OrderDP(0.4), N), tmp_path)


def test_states_of_whole_tables_and_of_parts_are_not_taken_for_each_other() -> None:
    whole, part = Pruner(OrderDP(0.4), N), pruner_on(None)
    with pytest.raises(StateError, match="holds a replicated table"):
        part.load_state_dict(whole.state_dict())
    with pytest.raises(StateError, match=r'Pruner\(\.\.\., table="sharded"\)'):
        whole.load_state_dict(part.state_dict())
    _, parts = begun(2, 1)
    with pytest.raises(StateError, match=r"parts of all 2 processes are needed, got those of \[0\]; missing: \[1\]"):
        part.load_state_dict(parts[:1])
    with pytest.raises(StateError, match=r"got those of \[0, 0\]"):
        part.load_state_dict([parts[0], parts[0]])


def test_ranks_that_loaded_different_checkpoints_are_told_so() -> None:
    early, late = begun(2, 2)[1], begun(2, 3)[1]

    def work(rank: MemoryRank) -> Any:
        pruner = pruner_on(rank)
        pruner.load_state_dict([early, late][rank.rank])
        iter(pruner.sampler)

    for error in in_threads(2, work, kind=FullRank):
        assert isinstance(error, GroupError)
        assert "were different checkpoints loaded?" in str(error)


def test_more_ranks_than_samples_are_left_begin_the_next_epoch() -> None:
    """A rank that would get nothing has nothing to fill up with."""

    def begin(rank: MemoryRank) -> Any:
        pruner = Pruner(OrderDP(0.4), 23, process_group=rank, pad=True, table="sharded")
        for step, batch in enumerate(pruner.batch_sampler(2)):
            pruner.update(batch, torch.rand(len(batch)))
            if step == 2:
                break
        return pruner.state_dict()

    parts = run(2, begin)

    def go_on(rank: MemoryRank) -> Any:
        pruner = Pruner(OrderDP(0.4), 23, process_group=rank, pad=True, table="sharded")
        pruner.load_state_dict(parts)
        epoch, batches = pruner.epoch, list(pruner.batch_sampler(2))
        return epoch, [len(batch) for batch in batches]

    assert run(5, go_on) == [(1, [2, 1])] * 5


def test_an_epoch_that_was_shared_out_after_more_samples_than_were_trained_on_is_refused() -> None:
    pruner = Pruner(OrderDP(0.5), 20, table="sharded")
    batch = torch.tensor(next(iter(pruner.batch_sampler(3))))
    pruner.update(batch, torch.ones(3))
    state = pruner.state_dict()
    state["timeline"]["epoch"]["base"] = 4
    other = Pruner(OrderDP(0.5), 20, table="sharded")
    with pytest.raises(StateError, match="damaged"):
        other.load_state_dict(state)
    assert other.epoch == 0
    assert not other.usage.any()
