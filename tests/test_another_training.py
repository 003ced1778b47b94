"""One pruner, another training: another fold, another policy, another data set of the same length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orderdp import OrderDP, Pruner
from orderdp.errors import ConfigError, StateError
from orderdp.policies import UCB, DynamicRandom, InfoBatch
from orderdp.streaming import GrowingPruner
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import fake_losses, toy_dataset, train_epoch

N = 40


def trained(pruner: Pruner, epochs: int = 2, leave_after: int | None = None) -> list[list[int]]:
    """Trains whole epochs, and a part of one more; returns all batches."""
    batches = []
    for epoch in range(epochs + (leave_after is not None)):
        for step, batch in enumerate(pruner.batch_sampler(6), 1):
            pruner.update(torch.tensor(batch), fake_losses(torch.tensor(batch), step))
            batches.append(batch)
            if epoch == epochs and step == leave_after:
                break
    return batches


# -- reset ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [OrderDP(0.4), OrderDP(0.4, every="batch"), UCB(0.4), InfoBatch(0.5)], ids=repr)
@pytest.mark.parametrize("leave_after", [None, 2])
@pytest.mark.filterwarnings("ignore::orderdp.errors.RealRatioWarning")
def test_after_a_reset_a_pruner_does_what_a_new_one_does(policy: Any, leave_after: int | None) -> None:
    pruner, new = (Pruner(policy, N, seed=2, epochs=4) for _ in range(2))
    trained(pruner, 2, leave_after)
    pruner.reset()
    assert torch.isinf(pruner.scores).all()
    assert pruner.report() == new.report()
    assert trained(pruner, 3) == trained(new, 3)
    assert str(pruner.state_dict()) == str(new.state_dict())


def test_a_loader_made_before_a_reset_works_after_it() -> None:
    dataset = toy_dataset(N)
    pruner, new = Pruner(OrderDP(0.4), dataset, seed=0), Pruner(OrderDP(0.4), dataset, seed=7)
    loader = pruner.loader(dataset, batch_size=6)
    train_epoch(pruner, loader)
    pruner.reset(seed=7)
    assert pruner.seed == 7
    assert train_epoch(pruner, loader) == train_epoch(new, new.loader(dataset, batch_size=6))


def test_ranks_that_reset_together_train_together() -> None:
    def work(group: MemoryRank) -> list[list[int]]:
        pruner = Pruner(OrderDP(0.4), N, process_group=group)
        first = trained(pruner, 2)
        pruner.reset()
        assert trained(pruner, 2) == first
        return first

    all_fine(in_threads(2, work))


def test_a_reset_of_a_sharded_table_is_refused_and_a_wrong_seed_too() -> None:
    with pytest.raises(ConfigError, match="Create a new Pruner"):
        Pruner(OrderDP(0.4), N, table="sharded").reset()
    with pytest.raises(ConfigError, match="seed must be"):
        Pruner(OrderDP(0.4), N).reset(seed=-1)


def test_a_growing_pruner_that_is_reset_has_its_removed_samples_again() -> None:
    pruner = GrowingPruner(OrderDP(0.4), N)
    pruner.remove([3, 4])
    trained(pruner)
    pruner.reset()
    assert pruner.removed.tolist() == []
    assert pruner.report()["samples"] == N


# -- a fingerprint of the data set ---------------------------------------------------------------------------------


def test_a_checkpoint_of_a_data_set_with_another_fingerprint_is_refused() -> None:
    fold = Pruner(OrderDP(0.4), N, fingerprint="fold 0")
    trained(fold)
    state = fold.state_dict()
    other = Pruner(OrderDP(0.4), N, fingerprint="fold 1")
    with pytest.raises(StateError, match="written for the data set 'fold 0', this pruner has 'fold 1'"):
        other.load_state_dict(state)
    assert torch.isinf(other.scores).all()
    for fits in (Pruner(OrderDP(0.4), N, fingerprint="fold 0"), Pruner(OrderDP(0.4), N)):
        fits.load_state_dict(state)
        assert torch.equal(fits.scores, fold.scores)


def test_a_checkpoint_without_a_fingerprint_loads_and_a_state_without_one_is_as_before() -> None:
    plain = Pruner(OrderDP(0.4), N)
    assert "fingerprint" not in plain.state_dict()
    Pruner(OrderDP(0.4), N, fingerprint="v2").load_state_dict(plain.state_dict())


def test_a_fingerprint_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="fingerprint must be a text"):
        Pruner(OrderDP(0.4), N, fingerprint=17)  # type: ignore[arg-type]


# -- another policy ------------------------------------------------------------------------------------------------


def test_another_ratio_is_refused_with_the_way_to_change_it() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    state = Pruner(OrderDP(0.2), N).state_dict()
    with pytest.raises(StateError, match=r'load_state_dict\(state, policy="replace"\)'):
        pruner.load_state_dict(state)
    with pytest.raises(ConfigError, match="there is no policy 'other'"):
        pruner.load_state_dict(state, policy="other")  # type: ignore[arg-type]


@pytest.mark.parametrize("leave_after", [None, 2])
def test_a_training_goes_on_with_another_ratio(leave_after: int | None) -> None:
    old, straight = (Pruner(OrderDP(0.4), N, seed=3, epochs=6) for _ in range(2))
    before = trained(old, 2, leave_after)
    new = Pruner(OrderDP(0.7), N, seed=0, epochs=6)
    new.load_state_dict(old.state_dict(), policy="replace")
    assert (new.epoch, new.seed) == (2, 3)
    assert torch.equal(new.scores, old.scores)
    if leave_after is not None:  # the open epoch ends as it was drawn
        rest = list(new.batch_sampler(6))
        assert before + rest == trained(straight, 3)[: len(before) + len(rest)]
        for batch in rest:
            new.update(torch.tensor(batch), torch.rand(len(batch)))
    assert sum(map(len, new.batch_sampler(6))) == 12
    again = Pruner(OrderDP(0.7), N)
    again.load_state_dict(new.state_dict())


def test_a_policy_with_other_columns_starts_them_as_unseen() -> None:
    old = Pruner(OrderDP(0.4), N)
    trained(old)
    new = Pruner(UCB(0.4), N)
    new.load_state_dict(old.state_dict(), policy="replace")
    trained(new, 2)
    back = Pruner(DynamicRandom(0.5), N)
    back.load_state_dict(new.state_dict(), policy="replace")
    assert torch.equal(back.scores, new.scores)
    assert torch.equal(back.usage, new.usage)


def test_an_epoch_that_selects_at_every_step_cannot_be_continued_by_a_policy_that_does_not() -> None:
    old = Pruner(OrderDP(0.4, every="batch"), N)
    trained(old, 1, 2)
    new = Pruner(OrderDP(0.4), N)
    with pytest.raises(StateError, match="from between two epochs"):
        new.load_state_dict(old.state_dict(), policy="replace")
    old.end_epoch()
    new.load_state_dict(old.state_dict(), policy="replace")
    trained(new, 1)


def test_the_policy_of_the_part_of_one_rank_is_not_replaced() -> None:
    def work(group: MemoryRank) -> None:
        pruner = Pruner(OrderDP(0.4), N, process_group=group)
        trained(pruner, 1)
        pruner.sync()
        state = pruner.state_dict()
        Pruner(OrderDP(0.2), N).load_state_dict({**state, "group": None}, policy="replace")
        with pytest.raises(StateError, match=r"sync\(\) on all ranks"):
            Pruner(OrderDP(0.2), N).load_state_dict({**state, "group": {"rank": 0}}, policy="replace")

    all_fine(in_threads(2, work))
