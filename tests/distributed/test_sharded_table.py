"""The rows of one rank and of its remote samples, on the host and on a device; and how many bytes all of it takes."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
import torch

from orderdp import OrderDP, Pruner
from orderdp.distributed.sharded_table import RemoteSamples, Shard, ShardedTable
from orderdp.errors import IndexRangeError
from tests.test_no_sync import Spy


def table_with_remote_samples(remote: list[int] | None = None, rank: int = 1) -> ShardedTable:
    table = ShardedTable(Shard(90, rank, 2))
    index = np.array([3, 5, 40] if remote is None else remote)
    table.set_remote_rows(RemoteSamples(index, np.arange(len(index), dtype=np.float32)))
    return table


def test_a_part_has_rows_for_its_own_samples_and_unseen_ones_are_infinite() -> None:
    table = ShardedTable(Shard(90, 1, 2))
    assert (table.n, table.first, table.size) == (90, 45, 45)
    assert np.isposinf(table["score"]).all()
    assert table["score"].shape == table["usage"].shape == (45,)
    table.write(torch.tensor([45, 89]), torch.tensor([1.0, 2.0]), epoch=0)
    assert table["score"][[0, 44]].tolist() == [1.0, 2.0]
    assert table.scores_between(88, 90).tolist() == [np.inf, 2.0]
    assert table.scores_of(np.array([89, 45])).tolist() == [2.0, 1.0]
    assert table.summary(3) == {"coverage": 2 / 45}


@pytest.mark.parametrize("on_host", [True, False])
def test_feedback_about_remote_samples_is_kept_apart_until_it_is_synced(on_host: bool) -> None:
    table = table_with_remote_samples()
    table._on_host = on_host  # what a device does, on memory that can be looked at
    table.write(torch.tensor([50, 5, 40]), torch.tensor([7.0, 8.0, 2.0]), epoch=0)
    assert int(np.isfinite(table["score"]).sum()) == 1
    index, scores, uses = table.changed_remote_rows()
    assert (index.tolist(), scores.tolist(), uses.tolist()) == ([5, 40], [8.0, 2.0], [1, 1])
    table.mark_synced()
    assert len(table.changed_remote_rows()[0]) == 0
    table.write(torch.tensor([40]), torch.tensor([2.0]), epoch=0)
    assert table.changed_remote_rows()[0].tolist() == [40], "trained on again with the same loss"
    table.set_remote_rows(RemoteSamples(np.array([3, 7, 8]), np.ones(3, dtype=np.float32)))
    assert len(table.changed_remote_rows()[0]) == 0, (
        "nothing is known of new remote samples, whatever was of those before"
    )


def test_on_a_device_a_sample_without_a_row_is_counted_and_written_nowhere() -> None:
    table = table_with_remote_samples()
    table._on_host = False
    before = table["score"].copy()
    table.write(torch.tensor([4, -1, 90, 44]), torch.tensor([1.0, 2.0, 3.0, 4.0]), epoch=0)
    assert table.invalid_counts() == (0, 4)
    assert np.array_equal(table["score"], before)
    assert len(table.changed_remote_rows()[0]) == 0


@pytest.mark.parametrize("wrong", [4, -1, 90, 44])
def test_on_the_host_a_sample_without_a_row_is_an_error_and_nothing_is_written(wrong: int) -> None:
    table = table_with_remote_samples()
    before = table["score"].copy()
    with pytest.raises(IndexRangeError):
        table.write(torch.tensor([50, wrong]), torch.rand(2), epoch=0)
    assert np.array_equal(table["score"], before)


def test_the_table_holds_any_number_of_remote_samples() -> None:
    table = table_with_remote_samples(list(range(40)))
    table.write(torch.arange(45, 90), torch.arange(45.0), epoch=0)
    own = table["score"].copy()
    big = ShardedTable(Shard(100_000, 1, 2))
    big.write(torch.arange(50_000, 100_000), torch.arange(50_000.0), epoch=0)
    big.set_remote_rows(RemoteSamples(np.arange(40_000), np.zeros(40_000, dtype=np.float32)))
    assert np.array_equal(big["score"], np.arange(50_000.0))
    big.write(torch.tensor([39_999]), torch.tensor([5.0]), epoch=0)
    assert big.changed_remote_rows()[0].tolist() == [39_999]
    table.set_remote_rows(RemoteSamples(np.array([7]), np.array([1.0], dtype=np.float32)))
    assert np.array_equal(table["score"], own)
    with pytest.raises(IndexRangeError):
        table.write(torch.tensor([8]), torch.rand(1), epoch=1)


@pytest.mark.parametrize("index_device", ["cpu", "meta"])
def test_a_step_with_remote_samples_does_not_wait_for_a_device(index_device: str) -> None:
    pruner = Pruner(OrderDP(0.4), 90, table="sharded")
    next(iter(pruner.batch_sampler(8)))
    table = table_with_remote_samples()
    pruner._table = table
    losses = torch.rand(4, device="meta", requires_grad=True)
    index = torch.tensor([50, 51, 3, 40]).to(index_device)
    with Spy() as spy:
        for _ in range(3):
            pruner.update(index, losses).backward()
    assert not spy.waits
    assert "index_copy_" in spy.seen
    assert table.device.type == "meta"


def test_a_draw_takes_less_than_six_bytes_a_sample_with_all_there_is() -> None:
    n, fixed = 3_000_000, 12_000_000  # pieces and windows take some megabytes whatever the number of samples
    pruner = Pruner(OrderDP(0.4), n, table="sharded")
    table = sum(column.nbytes for column in pruner._table._columns.values())
    assert table <= 5 * n + 10
    gc.collect()
    tracemalloc.start()
    sampler = iter(pruner.sampler)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert next(sampler) < n
    assert held <= 0.2 * n + fixed / 10
    assert peak <= 0.6 * n + fixed
