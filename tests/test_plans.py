"""Plans: compared with a slow restatement; what is replayed is what was marked, however a training is cut."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import orderdp
from orderdp import Pruner
from orderdp.errors import ConfigError, FeedbackError, NonFiniteLossError, StateError
from orderdp.plans import Plan, PlanCost, PlanRecorder, recorded_order
from orderdp.policies import Replay
from orderdp.testing import check_policy, global_generators_untouched
from tests.ranks import all_fine, in_threads
from tests.support import fake_losses, toy_dataset
from tests.test_no_sync import Spy

SHAPES = st.tuples(
    st.integers(1, 60), st.integers(1, 4), st.integers(1, 20), st.sampled_from([0.1, 0.3, 0.5, 0.51, 0.75, 1.0])
).filter(lambda shape: shape[2] <= shape[0] and round(shape[2] * shape[3]) >= 1)


def few_losses(index: torch.Tensor, step: int) -> torch.Tensor:
    """Losses of few values, so that many are equal."""
    return (fake_losses(index, step) * 3).round()


def recorded(n: int, epochs: int, batch_size: int, keep: float, seed: int = 0, losses=few_losses) -> Plan:
    recorder = PlanRecorder(n, epochs=epochs, batch_size=batch_size, keep=keep, seed=seed)
    for epoch in range(epochs):
        for batch in recorder.batch_sampler:
            recorder.record(batch, losses(torch.tensor(batch), epoch))
    return recorder.plan


def slowly(n: int, epochs: int, batch_size: int, keep: float, seed: int) -> list[list[list[int]]]:
    """What each batch of each epoch trains on, as the documentation says."""
    told = []
    for epoch in range(epochs):
        order, batches = recorded_order(n, seed, epoch).tolist(), []
        while len(order) >= batch_size:
            batch, order = order[:batch_size], order[batch_size:]
            losses = few_losses(torch.tensor(batch), epoch).tolist()
            places = sorted(range(batch_size), key=lambda place: (-losses[place], place))
            marked = set(places[: round(keep * batch_size)])
            batches.append([sample for place, sample in enumerate(batch) if place in marked])
        told.append(batches)
    return told


def replayed(pruner: Pruner, batch_size: int, epochs: int) -> list[list[list[int]]]:
    told = []
    for _ in range(epochs):
        batches = []
        for batch in pruner.batch_sampler(batch_size):
            pruner.update(batch, torch.rand(len(batch)))
            batches.append(batch)
        told.append(batches)
    return told


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 3))
def test_what_is_replayed_is_what_a_loop_over_the_batches_marks(shape, seed) -> None:
    plan = recorded(*shape, seed=seed)
    pruner = Pruner(Replay(plan), plan.n, seed=17, epochs=plan.epochs)
    assert replayed(pruner, plan.kept, plan.epochs) == slowly(*shape, seed)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 3))
def test_every_batch_has_as_many_marks_none_twice_and_no_smaller_loss_is_preferred(shape, seed) -> None:
    n, epochs, batch_size, keep = shape
    plan = recorded(*shape, seed=seed)
    for epoch in range(epochs):
        kept = plan.selection(epoch).indices
        assert len(kept) == len(set(kept.tolist())) == plan.size == (n // batch_size) * round(keep * batch_size)
        order = recorded_order(n, seed, epoch)
        assert sorted(order.tolist()) == list(range(n))
        for number in range(n // batch_size):
            batch = order[number * batch_size : (number + 1) * batch_size]
            own = kept[number * plan.kept : (number + 1) * plan.kept]
            assert set(own) <= set(batch)
            left_out = torch.tensor(sorted(set(batch.tolist()) - set(own.tolist())), dtype=torch.int64)
            if len(left_out):
                assert few_losses(torch.from_numpy(own), epoch).min() >= few_losses(left_out, epoch).max()


def test_equal_losses_are_chosen_among_fairly() -> None:
    plan = recorded(40, 2000, 40, 0.25, losses=lambda index, step: torch.ones(len(index)))
    counts = sum(np.bincount(plan.selection(epoch).indices, minlength=40) for epoch in range(2000))
    assert counts.sum() == 2000 * 10
    assert abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)


def test_record_says_which_samples_are_marked_and_counts_what_the_proxy_did() -> None:
    recorder = PlanRecorder(20, epochs=1, batch_size=4, keep=0.5)
    told = []
    for step, batch in enumerate(recorder.batch_sampler):
        losses = torch.arange(4.0).requires_grad_(step % 2 == 0)
        backward = 1 if step == 4 else None
        marked = recorder.record(batch, losses, backward=backward)
        assert marked.tolist() == [False, False, True, True]
        marked.zero_()  # what is done to it does not reach the plan
        told += [batch[2], batch[3]]
    assert recorder.plan.selection(0).indices.tolist() == told
    cost = recorder.plan.cost
    assert (cost.forwarded, cost.backpropagated) == (20, 4 + 4 + 1)
    assert cost.seconds > 0
    assert cost.equivalents == pytest.approx((20 + 2 * 9) / 3)


def test_the_loader_serves_all_data_with_their_indices_and_leaves_global_generators_alone() -> None:
    data = toy_dataset(50)
    recorder = PlanRecorder(data, epochs=2, batch_size=8, keep=0.5, seed=3)
    loader = recorder.loader(data, num_workers=0)
    assert len(loader) == 6
    with global_generators_untouched():
        for epoch in range(2):
            served = []
            for index, (x, y) in loader:
                assert torch.equal(x, data.tensors[0][index])
                assert torch.equal(y, data.tensors[1][index])
                recorder.record(index, fake_losses(index))
                served += index.tolist()
            assert served == recorded_order(50, 3, epoch)[:48].tolist()
    assert recorder.plan.fingerprint == recorded(50, 2, 8, 0.5, 3, lambda i, _: fake_losses(i)).fingerprint


def test_only_record_moves_time_and_an_epoch_left_early_goes_on_where_it_was() -> None:
    recorder = PlanRecorder(30, epochs=2, batch_size=5, keep=0.4)
    first = next(iter(recorder.batch_sampler))
    batches = []
    for _ in range(3):  # looked at, left after two batches, continued
        for number, batch in enumerate(recorder.batch_sampler):
            if number == 2:
                break
            recorder.record(batch, few_losses(torch.tensor(batch), 0))
            batches.append(batch)
    assert batches[0] == first
    assert [*chain(*batches)] == recorded_order(30, 0, 0).tolist()
    assert recorder.epoch == 1
    for batch in recorder.batch_sampler:
        recorder.record(batch, few_losses(torch.tensor(batch), 1))
    assert recorder.plan.fingerprint == recorded(30, 2, 5, 0.4).fingerprint


def test_workers_that_fetch_ahead_change_nothing() -> None:
    data = toy_dataset(24)
    recorder = PlanRecorder(data, epochs=2, batch_size=6)
    loader = DataLoader(orderdp.Indexed(data), batch_sampler=recorder.batch_sampler, num_workers=1)
    for epoch in range(2):
        for index, _ in loader:
            recorder.record(index, few_losses(index, epoch))
    assert recorder.plan.fingerprint == recorded(24, 2, 6, 0.5).fingerprint


def test_a_plan_that_is_not_complete_says_what_is_missing() -> None:
    recorder = PlanRecorder(20, epochs=3, batch_size=5)
    batches = iter(recorder.batch_sampler)
    for _ in range(2):
        recorder.record(next(batches), torch.rand(5))
    with pytest.raises(StateError, match="0 of 3 epochs and 2 of the 4 batches of the next are recorded"):
        _ = recorder.plan
    recorder = PlanRecorder(20, epochs=1, batch_size=20)
    recorder.record(next(iter(recorder.batch_sampler)), torch.rand(20))
    assert recorder.plan.epochs == 1
    with pytest.raises(StateError, match="all 1 epochs are recorded"):
        recorder.record(torch.arange(20), torch.rand(20))
    with pytest.raises(StateError, match="there is none left to serve"):
        iter(recorder.batch_sampler)


def test_a_batch_out_of_turn_is_named_and_changes_nothing() -> None:
    recorder = PlanRecorder(20, epochs=1, batch_size=5)
    first, second, *_ = recorder.batch_sampler
    with pytest.raises(FeedbackError, match=r"batch 0 of epoch 0 must be recorded next, 5 samples from \d+ on; got 5"):
        recorder.record(second, torch.rand(5))
    with pytest.raises(FeedbackError, match="got 3 from"):
        recorder.record(first[:3], torch.rand(3))
    with pytest.raises(FeedbackError, match='reduction="none"'):
        recorder.record(first, torch.tensor(1.0))
    with pytest.raises(FeedbackError, match="backward must be a number of samples"):
        recorder.record(first, torch.rand(5), backward=-1)
    for batch in recorder.batch_sampler:
        recorder.record(batch, few_losses(torch.tensor(batch), 0))
    assert recorder.plan.fingerprint == recorded(20, 1, 5, 0.5).fingerprint


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_losses_that_are_no_numbers_are_an_error_at_the_end_of_the_epoch_which_can_be_recorded_again(wrong) -> None:
    recorder = PlanRecorder(20, epochs=1, batch_size=5)
    *batches, last = recorder.batch_sampler
    for number, batch in enumerate(batches):
        recorder.record(batch, torch.tensor([1.0, wrong if number < 2 else 0.0, 2.0, 3.0, 4.0]))
    with pytest.raises(NonFiniteLossError, match="2 of 20 losses of epoch 0 were NaN or infinite: the proxy has div"):
        recorder.record(last, torch.rand(5))
    assert recorder.epoch == 0
    for batch in recorder.batch_sampler:
        recorder.record(batch, few_losses(torch.tensor(batch), 0))
    assert recorder.plan.fingerprint == recorded(20, 1, 5, 0.5).fingerprint


@pytest.mark.parametrize("index_device", ["cpu", "meta"])
def test_recording_does_not_wait_for_the_device(index_device: str) -> None:
    recorder = PlanRecorder(100, epochs=1, batch_size=10)
    batches = [torch.tensor(batch) for batch in recorder.batch_sampler]
    with Spy() as spy:
        for batch in batches[:-1]:  # after the last one it reads the marks, once
            recorder.record(batch.to(index_device), torch.rand(10, device="meta"))
    # Where both are on the host, comparing two indices waits for nothing.
    assert not [name for name in spy.waits if (name, index_device) != ("equal", "cpu")]
    assert "sort" in spy.seen


# -- replaying ----------------------------------------------------------------------------------------------------


def test_replay_keeps_the_contract_of_policies() -> None:
    check_policy(Replay(recorded(60, 10, 7, 0.5)), epochs=10)


def test_one_plan_serves_trainings_of_any_seed_with_the_same_batches() -> None:
    plan = recorded(50, 3, 10, 0.3)
    first, second = (replayed(Pruner(Replay(plan), 50, seed=seed), 3, 3) for seed in (0, 9))
    assert first == second
    assert [len(epoch) for epoch in first] == [5, 5, 5]  # as many steps as all data in batches of 10
    assert Pruner(Replay(plan), 50).steps(3, plan.kept) == 15


def test_other_losses_make_another_plan_and_the_cost_does_not() -> None:
    plan = recorded(50, 2, 10, 0.3)
    assert recorded(50, 2, 10, 0.3).fingerprint == plan.fingerprint
    assert replace(plan, cost=PlanCost(1, 2, 3.0)).fingerprint == plan.fingerprint
    others = [recorded(50, 2, 10, 0.3, losses=lambda index, step: -few_losses(index, step))]
    others += [recorded(50, 2, 10, 0.3, seed=1), recorded(50, 3, 10, 0.3), recorded(51, 2, 10, 0.3)]
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == 5


@pytest.mark.parametrize("stop", [1, 4, 5, 7])
def test_a_resumed_training_visits_what_the_straight_one_does(stop: int) -> None:
    plan = recorded(50, 3, 10, 0.4)
    straight = replayed(Pruner(Replay(plan), 50, seed=5), plan.kept, 3)
    pruner, visited = Pruner(Replay(plan), 50, seed=5), []
    while len(visited) < stop:
        for batch in pruner.batch_sampler(plan.kept):
            pruner.update(batch, torch.rand(len(batch)))
            visited.append(batch)
            if len(visited) == stop:
                break
    resumed = Pruner(pickle.loads(pickle.dumps(Replay(plan))), 50)
    resumed.load_state_dict(pruner.state_dict())
    while resumed.epoch < 3:
        for batch in resumed.batch_sampler(plan.kept):
            resumed.update(batch, torch.rand(len(batch)))
            visited.append(batch)
    assert visited == [*chain(*straight)]


def test_a_checkpoint_of_another_plan_is_refused() -> None:
    plan, other = recorded(50, 3, 10, 0.4), recorded(50, 3, 10, 0.4, seed=1)
    with pytest.raises(StateError, match=f"was written with Replay.*{plan.fingerprint}.*{other.fingerprint}"):
        Pruner(Replay(other), 50).load_state_dict(Pruner(Replay(plan), 50).state_dict())


def test_epochs_beyond_the_plan_and_other_data_are_errors() -> None:
    plan = recorded(50, 3, 10, 0.4)
    with pytest.raises(ConfigError, match="the plan has 3 epochs, but training is planned for 5"):
        Pruner(Replay(plan), 50, epochs=5)
    with pytest.raises(ConfigError, match="the plan has 3 epochs, but training is planned for 5"):
        Pruner(Replay(plan), 50).steps(5, 4)
    with pytest.raises(ConfigError, match="the plan was recorded for a data set of 50 samples, this one has 51"):
        Pruner(Replay(plan), 51)
    pruner = Pruner(Replay(plan), 50)
    replayed(pruner, 4, 3)
    assert pruner.report()["kept"] == 3 * plan.size  # asking is allowed when all is done
    with pytest.raises(ConfigError, match="the plan has 3 epochs, counted from 0, got epoch 3"):
        iter(pruner.batch_sampler(4))
    with pytest.raises(ConfigError, match=r"plan must be an orderdp.plans.Plan, got str"):
        Replay("plan.npz")


@pytest.mark.parametrize("world", [2, 3])
def test_the_steps_of_several_ranks_are_the_marked_parts_of_the_recorded_batches(world: int) -> None:
    plan = recorded(50, 2, 12, 0.5)

    def work(rank):
        return replayed(Pruner(Replay(plan), 50, process_group=rank), plan.kept // world, 2)

    told = all_fine(in_threads(world, work))
    for epoch, batches in enumerate(slowly(50, 2, 12, 0.5, 0)):
        for number, batch in enumerate(batches):
            assert sorted(chain(*(rank[epoch][number] for rank in told))) == sorted(batch)


# -- files --------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.sampled_from([0, 2**70]))
def test_a_plan_is_the_same_after_it_was_saved(tmp_path_factory, shape, seed) -> None:
    plan = recorded(*shape, seed=seed)
    path = tmp_path_factory.mktemp("plan") / "plan.npz"
    plan.save(path)
    found = Plan.load(path)
    assert found.fingerprint == plan.fingerprint
    assert (found.keep, found.seed, found.cost, repr(found)) == (plan.keep, plan.seed, plan.cost, repr(plan))
    assert np.array_equal(found.marks, plan.marks)
    assert list(path.parent.iterdir()) == [path]


def rewritten(path: Path, **changes) -> None:
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    np.savez(path, **{**arrays, **changes})


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    plan, path = recorded(50, 3, 10, 0.4), tmp_path / "plan.npz"
    with pytest.raises(StateError, match="there is no plan at"):
        Plan.load(path)
    plan.save(path)
    whole = path.read_bytes()
    for damaged in (b"", b"PK\x03\x04 and no more", whole[: len(whole) // 2], b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match="is not a readable plan"):
            Plan.load(path)
    np.savez(path, indices=np.arange(3))
    with pytest.raises(StateError, match="is not a readable plan"):
        Plan.load(path)
    path.write_bytes(whole)
    marks = plan.marks.copy()
    marks[1, 2] ^= 4
    rewritten(path, marks=marks)
    with pytest.raises(StateError, match="its digest does not match"):
        Plan.load(path)
    path.write_bytes(whole)
    with np.load(path) as found:
        header = json.loads(str(found["header"]))
    rewritten(path, header=json.dumps({**header, "version": 2}))
    with pytest.raises(StateError, match="must be a plan of version 1, got 2"):
        Plan.load(path)
    with pytest.raises(ConfigError, match=r"ends in \.npz"):
        plan.save(tmp_path / "plan.pt")


def test_a_plan_has_the_marks_that_its_shape_says() -> None:
    plan = recorded(50, 3, 10, 0.4)
    marks = plan.marks.copy()
    marks[1, 0] ^= 128
    with pytest.raises(ConfigError, match=r"must have 4 marks, batch 0 of epoch 1 has [35]"):
        replace(plan, marks=marks)
    with pytest.raises(ConfigError, match=r"must be uint8 of shape \(4, 7\), got uint8 of shape \(3, 7\)"):
        replace(plan, epochs=4)
    marks = plan.marks.copy()
    marks[2, -1] |= 1  # of a sample that is not there
    with pytest.raises(ConfigError, match="no marks beyond its last full batch, epoch 2 has some"):
        replace(plan, marks=marks)
    with pytest.raises(ValueError, match="read-only"):
        plan.marks[0, 0] = 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep": 0.0}, r"keep must be in \(0, 1\], got 0.0"),
        ({"keep": 50}, "It is a fraction, not a percentage"),
        ({"keep": 0.01}, "keep=0.01 marks none of 10 samples"),
        ({"batch_size": 51}, "50 samples make none of 51"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
    ids=str,
)
def test_what_no_plan_can_be_made_of_is_said(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlanRecorder(50, **{"epochs": 2, "batch_size": 10, **wrong})


@pytest.mark.parametrize("name", ["batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order"])
def test_the_loader_takes_no_other_order(name: str) -> None:
    data = toy_dataset(20)
    with pytest.raises(ConfigError, match=name):
        PlanRecorder(data, epochs=1, batch_size=5).loader(data, **{name: False})
    with pytest.raises(ValueError, match="must have the 21 samples"):
        PlanRecorder(21, epochs=1, batch_size=5).loader(data)
