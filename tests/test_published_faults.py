"""Faults of the published implementations, one test each. None of them may exist here."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data import dataloader as torch_dataloader

from orderdp import Indexed, OrderDP, Pruner
from orderdp.score_table import ScoreTable
from tests.support import draw, fake_losses, toy_dataset, train_epoch


def test_1_an_epoch_ends_with_the_stock_batch_sampler_of_this_pytorch() -> None:
    dataset = toy_dataset(100)
    pruner = Pruner(OrderDP(0.4), dataset)
    loader = DataLoader(Indexed(dataset), batch_sampler=BatchSampler(pruner.sampler, 6, drop_last=False))
    batches = [index.tolist() for index, _ in zip_first(loader, 500)]
    assert len(batches) == 10
    assert len({i for batch in batches for i in batch}) == 60


def zip_first(loader, most: int):
    for step, batch in enumerate(loader):
        if step >= most:
            return
        yield batch


def test_2_nothing_in_torch_is_patched() -> None:
    parts = (torch_dataloader._BaseDataLoaderIter, DataLoader, torch.optim.lr_scheduler.LRScheduler)
    before = [dict(vars(part)) for part in parts]
    dataset = toy_dataset(20)
    pruner = Pruner(OrderDP(0.4), dataset)
    train_epoch(pruner, pruner.loader(dataset, batch_size=5))
    assert [dict(vars(part)) for part in parts] == before
    plain = next(iter(DataLoader(dataset, batch_size=5)))
    assert len(plain) == 2


_UNTOUCHED = """
import os
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

def now():
    return [dict(vars(part)) for part in (_BaseDataLoaderIter, DataLoader, LRScheduler)], dict(os.environ)

before = now()
import orderdp, orderdp.policies, orderdp.pruner, orderdp.streaming, orderdp.distributed, orderdp.experiments
pruner = orderdp.Pruner(orderdp.OrderDP(0.4), 20)
for index, _ in pruner.loader(list(range(20)), batch_size=5):
    pruner.update(index, index.float())
assert now() == before
"""


def test_2_and_13_neither_torch_nor_the_environment_is_changed_by_an_import() -> None:
    done = subprocess.run([sys.executable, "-c", _UNTOUCHED], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_3_scores_reach_their_samples_though_batches_are_fetched_ahead() -> None:
    dataset = toy_dataset(60)
    pruner = Pruner(OrderDP(0.4), dataset)
    held = None
    for batch in pruner.loader(dataset, batch_size=6, num_workers=2, prefetch_factor=3):
        if held is not None:  # one batch late, as Accelerate does it
            index, _ = held
            pruner.update(index, index.float() + 1)
        held = batch
    pruner.update(held[0], held[0].float() + 1)
    scores = pruner.scores
    seen = torch.isfinite(scores)
    assert int(seen.sum()) == 36
    assert torch.equal(scores[seen], (torch.arange(60).float() + 1)[seen])


def test_4_a_wrapped_data_set_pickles_and_leaks_no_method_of_the_inner_one() -> None:
    class Fancy:
        def __len__(self):
            return 10

        def __getitem__(self, i):
            return i

    inner = toy_dataset(10)
    assert pickle.loads(pickle.dumps(Indexed(inner)))[4][0] == 4
    assert Indexed(Fancy()).__getitems__([3, 1]) == [(3, 3), (1, 1)]
    with pytest.raises(AttributeError):
        _ = Indexed(inner).tensors


def test_5_the_seed_decides_the_pools_and_nobody_elses_generator_is_reset() -> None:
    scores = np.random.default_rng(0).random(100).astype(np.float32)
    assert not np.array_equal(draw(OrderDP(0.4), scores, seed=0), draw(OrderDP(0.4), scores, seed=1))
    np.random.seed(3)
    torch.manual_seed(3)
    random.seed(3)
    expected = np.random.random(), torch.rand(1).item(), random.random()
    np.random.seed(3)
    torch.manual_seed(3)
    random.seed(3)
    pruner = Pruner(OrderDP(0.4), range(100), seed=0)
    train_epoch(pruner, pruner.loader(range(100), batch_size=10))
    assert (np.random.random(), torch.rand(1).item(), random.random()) == expected


def never_trained_on(initial: float, epochs: int = 40) -> float:
    """Share of samples left out for ever when losses never fall below 1.0148 and unseen samples score `initial`."""
    n = 2000
    pruner = Pruner(OrderDP(exploration=0.5, exploitation=0.6), n)
    rng = np.random.default_rng(0)
    floor = torch.from_numpy(1.0148 + rng.random(n) * 3).float()
    if np.isfinite(initial):
        pruner.observe(torch.arange(n), torch.full((n,), initial))
    for _ in range(epochs):
        index = torch.tensor(list(pruner.sampler))
        pruner.update(index, floor[index])
    return float((pruner.usage == 0).float().mean())


def test_6_no_sample_is_starved_by_a_finite_start_value() -> None:
    assert never_trained_on(initial=1.0) > 0.2, "the fault this test is about does not show"
    assert never_trained_on(initial=float("inf")) == 0.0


def test_7_the_first_epoch_counts_once_and_its_length_is_known_before_it() -> None:
    dataset = toy_dataset(50)
    pruner = Pruner(OrderDP(0.4), dataset)
    loader = pruner.loader(dataset, batch_size=7)
    assert len(loader) == 5
    assert len(pruner.sampler) == 30
    assert pruner.epoch == 0
    assert int(pruner.usage.sum()) == 0
    train_epoch(pruner, loader)
    assert pruner.epoch == 1
    assert int(pruner.usage.sum()) == pruner.report()["kept"] == 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_8_indices_are_never_floats(dtype: torch.dtype) -> None:
    n = 2**24 + 10
    table = ScoreTable(n)
    index = torch.tensor([2**24 + 1, 2**24 + 3, 2049, 2051])
    table.write(index, torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype), epoch=0)
    assert table["score"][index.numpy()].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert int(np.isfinite(table["score"]).sum()) == 4


def test_9_a_ragged_last_batch_is_an_ordinary_batch_and_a_step_exchanges_nothing(monkeypatch) -> None:
    """With several processes: test_distributed_rules.py counts what they exchange."""
    monkeypatch.setattr(torch.distributed, "all_gather", None)
    dataset = toy_dataset(50)
    pruner = Pruner(OrderDP(0.4), dataset)
    sizes = [len(batch) for batch in train_epoch(pruner, pruner.loader(dataset, batch_size=8))]
    assert sizes == [8, 8, 8, 6]


@pytest.mark.filterwarnings("ignore::orderdp.errors.NonFiniteLossWarning")
def test_10_losses_are_not_changed_in_place_and_a_nan_pins_nothing() -> None:
    n = 100
    pruner = Pruner(OrderDP(0.5), n)
    losses_of = torch.linspace(1, 2, n)
    for _ in range(12):
        index = torch.tensor(list(pruner.sampler))
        losses = losses_of[index].clone()
        losses[index == 7] = float("nan")
        before = losses.clone()
        pruner.update(index, losses)
        assert torch.equal(losses.nan_to_num(-1), before.nan_to_num(-1))
    assert not torch.isnan(pruner.scores).any()
    assert int(pruner.usage[7]) < 12
    assert int(pruner.usage[99]) > int(pruner.usage[7]), "the pruner must still prefer hard samples"


@pytest.mark.parametrize("epochs", [1, 3, 8, 90, 100, 200])
def test_11_progress_ends_at_exactly_1_for_any_number_of_epochs(epochs: int) -> None:
    """Published annealing starts at ``epoch == stop + 1`` in floats, and so at 90 or 100 epochs never."""
    pruner = Pruner(OrderDP(0.4), 10, epochs=epochs)
    for epoch in range(epochs):
        assert pruner.epoch == epoch
        assert pruner.progress == pytest.approx(epoch / epochs)
        index = torch.tensor(list(pruner.sampler))
        pruner.update(index, fake_losses(index))
    assert pruner.progress == 1.0


def test_12_resuming_restores_scores_and_position() -> None:
    dataset = toy_dataset(50)
    pruner = Pruner(OrderDP(0.4), dataset)
    loader = iter(pruner.loader(dataset, batch_size=8))
    for _ in range(2):
        index, _ = next(loader)
        pruner.update(index, fake_losses(index))
    resumed = Pruner(OrderDP(0.4), dataset)
    resumed.load_state_dict(pruner.state_dict())
    assert torch.equal(resumed.scores, pruner.scores)
    rest = [index.tolist() for index, _ in loader]
    assert [index.tolist() for index, _ in resumed.loader(dataset, batch_size=8)] == rest


@pytest.mark.parametrize(("ratio", "n", "kept"), [(0.71, 100, 29), (0.3, 10, 7), (0.9, 1000, 100), (0.1, 30, 27)])
def test_13_ratios_are_not_truncated(ratio: float, n: int, kept: int) -> None:
    pruner = Pruner(OrderDP(ratio), n)
    assert len(list(pruner.sampler)) == kept
