"""Grain and DALI themselves read what the pruner selects. Both run on the CPU here."""

from __future__ import annotations

import grain
import numpy as np
import pytest
import torch
from nvidia.dali import fn, pipeline_def, types

from orderdp import Indexed, OrderDP, Pruner
from orderdp.integrations.orders import DaliBatches, GrainSampler

N = 40


class Shift(grain.transforms.RandomMap):
    """Adds a random number to an item; the index stays."""

    def random_map(self, element, rng):
        index, value = element
        return index, value + rng.random()


def losses(index: torch.Tensor) -> torch.Tensor:
    return (index % 7 + 1) / 7


def epoch_of(pruner: Pruner, drop_last: bool) -> list[list[int]]:
    """An epoch without another loader."""
    visited = []
    for batch in pruner.batch_sampler(8, drop_last):
        pruner.update(batch, losses(torch.tensor(batch)))
        visited.append(batch)
    return visited


def read(pruner: Pruner, workers: int, drop_last: bool) -> tuple[list[list[int]], list[float]]:
    loader = grain.DataLoader(
        data_source=Indexed(np.arange(N) * 10.0),
        sampler=GrainSampler(pruner, 8, drop_last),
        operations=[Shift(), grain.transforms.Batch(8, drop_remainder=drop_last)],
        shard_options=grain.sharding.NoSharding(),
        worker_count=workers,
    )
    visited, values = [], []
    for index, value in loader:
        assert (value // 10).astype(int).tolist() == index.tolist()
        visited.append(index.tolist())
        values += value.tolist()
        pruner.update(torch.as_tensor(index), losses(torch.as_tensor(index)))
    return visited, values


@pytest.mark.parametrize("drop_last", [False, True])
def test_grain_reads_every_epoch_of_a_pruner(drop_last: bool) -> None:
    pruner, other = Pruner(OrderDP(0.5), N, seed=1), Pruner(OrderDP(0.5), N, seed=1)
    for epoch in range(3):
        visited, _ = read(pruner, 0, drop_last)
        assert visited == epoch_of(other, drop_last)
        assert pruner.epoch == epoch + 1


def test_workers_read_and_augment_the_same() -> None:
    here, there = (read(Pruner(OrderDP(0.5), N, seed=1), workers, True) for workers in (0, 1))
    assert here == there


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_dali_reads_every_epoch_of_a_pruner(drop_last: bool, ahead: int) -> None:
    pruner, other = Pruner(OrderDP(0.5), N, seed=1), Pruner(OrderDP(0.5), N, seed=1)
    source = DaliBatches(pruner, lambda i: (np.full(i % 4 + 1, i, np.uint8), np.array(i % 3)), 8, drop_last)

    @pipeline_def(batch_size=8, num_threads=1, device_id=None, prefetch_queue_depth=ahead)
    def pipeline():
        index, values, labels = fn.external_source(source=source, num_outputs=3, batch=True, cycle="raise")
        return index, fn.cast(values, dtype=types.FLOAT) * 2, labels

    running = pipeline()
    running.build()
    for epoch in range(3):
        visited = []
        while True:
            try:
                numbers, values, labels = running.run()
            except StopIteration:
                running.reset()
                break
            index = torch.tensor([int(np.asarray(number)) for number in numbers])
            assert [np.asarray(value).tolist() for value in values] == [[2.0 * i] * (i % 4 + 1) for i in index.tolist()]
            assert [int(np.asarray(label)) for label in labels] == (index % 3).tolist()
            pruner.update(index, losses(index))
            visited.append(index.tolist())
        assert visited == epoch_of(other, drop_last)
        assert pruner.epoch == epoch + 1
