"""What a new user tries: a DataLoader or a text in place of the data set, inference mode, completion of arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from orderdp import OrderDP, Pruner
from orderdp.errors import DatasetError
from orderdp.policies import UCB
from tests.support import Weighted, fake_losses, toy_dataset

N = 40


def test_a_dataloader_in_place_of_a_data_set_is_refused_by_name() -> None:
    with pytest.raises(
        DatasetError, match=r"got a DataLoader, whose length is its number of batches. Pass loader\.dataset"
    ):
        Pruner(OrderDP(0.4), DataLoader(toy_dataset(N), batch_size=4))
    with pytest.raises(DatasetError, match="got a DataLoader"):
        Pruner(OrderDP(0.4), N).loader(DataLoader(toy_dataset(N)), batch_size=4)


@pytest.mark.parametrize("text", ["100", "cifar10", b"100"])
def test_a_text_in_place_of_a_data_set_is_refused_by_name(text: Any) -> None:
    with pytest.raises(DatasetError, match=r"got the text b?'"):
        Pruner(OrderDP(0.4), text)


@pytest.mark.parametrize("inside", ["create", "train", "load", "all"])
@pytest.mark.parametrize("policy", [OrderDP(0.4), UCB(0.4), Weighted()], ids=repr)
def test_a_table_that_was_touched_in_inference_mode_is_written_outside(policy: Any, inside: str) -> None:
    def epoch(pruner: Pruner) -> list[list[int]]:
        batches = []
        for batch in pruner.batch_sampler(6):
            index = torch.tensor(batch)
            pruner.update(index, fake_losses(index))
            batches.append(batch)
        return batches

    straight = Pruner(policy, N)
    wanted = [epoch(straight) for _ in range(3)]
    with torch.inference_mode(inside in ("create", "all")):
        pruner = Pruner(policy, N)
    with torch.inference_mode(inside in ("train", "all")):
        found = [epoch(pruner)]
    with torch.inference_mode(inside in ("load", "all")):
        pruner.load_state_dict(pruner.state_dict())
        pruner.observe(torch.arange(0), torch.empty(0))
    found += [epoch(pruner) for _ in range(2)]
    assert found == wanted
    assert torch.equal(pruner.scores, straight.scores)
    assert not pruner._table.column("score").is_inference()


def test_a_preview_gives_tensors_like_its_neighbors() -> None:
    plain, weighted = Pruner(OrderDP(0.4), N).preview(), Pruner(Weighted(), N).preview()
    assert isinstance(plain.indices, torch.Tensor)
    assert plain.indices.dtype == torch.int64
    assert plain.weights is plain.dense_weights(N) is None
    assert isinstance(weighted.weights, torch.Tensor)
    assert torch.equal(weighted.dense_weights(N), torch.arange(1.0, N + 1))


def test_the_loader_names_the_arguments_of_a_dataloader_with_its_defaults() -> None:
    ours, theirs = (inspect.signature(method).parameters for method in (Pruner.loader, DataLoader.__init__))
    named = {name for name, one in ours.items() if one.kind is one.KEYWORD_ONLY}
    order = {"self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "in_order", "pin_memory_device"}
    named.remove("group_by")  # ours alone
    assert named == set(theirs) - order
    assert all(ours[name].default == theirs[name].default for name in named)


def test_a_preview_is_a_copy() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    iter(pruner.sampler)
    pruner.preview().indices.fill_(0)
    assert len(set(pruner.sampler)) == 24
