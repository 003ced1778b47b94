"""Bad input gets a clear error before any work is lost."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orderdp
from orderdp import OrderDP, Pruner, Selection, errors
from orderdp.errors import (
    ConfigError,
    DatasetError,
    FeedbackError,
    IndexRangeError,
    NonFiniteLossError,
    NonFiniteLossWarning,
    StateError,
)
from orderdp.policies import ActiveBias, DynamicUncertainty, Kakurenbo
from tests.support import KeepAll, Weighted, fake_losses, toy_dataset, train_epoch


def state_of(pruner: Pruner) -> dict:
    return copy.deepcopy(pruner.state_dict())


def assert_same_state(a: object, b: object) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same_state(a[name], b[name])
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize(
    ("index", "losses", "message"),
    [
        ([0, 1, 2], torch.tensor(1.0), r'reduction="none".*reduced=True'),
        ([0, 1, 2], torch.rand(2), "one number for each of the 3 indices, got shape \\(2,\\)"),
        ([0, 1, 2], torch.rand(3, 1), "orderdp.per_sample"),
        ([0, 1, 2], torch.rand(4, 3), "one number for each of the 3 indices"),
        ([0.0, 1.0], torch.rand(2), "whole numbers, got torch.float32"),
        ([True, False], torch.rand(2), "whole numbers, got torch.bool"),
        ([[0, 1], [2, 3]], torch.rand(2, 2), "got shape \\(2, 2\\)"),
        ([0, 1], [1.0, 2.0], "losses must be a tensor, got list"),
        ([0, 1], 1.0, "losses must be a tensor, got float"),
        ([0, 1], torch.tensor([1, 0]), r"floating-point type, got torch.int64.*losses\.float\(\)"),
        (["a"], torch.rand(1), "whole numbers, got list"),
        (None, torch.rand(1), "whole numbers, got NoneType"),
    ],
)
def test_feedback_that_does_not_fit_is_refused_and_changes_nothing(index, losses, message: str) -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    next(iter(pruner.batch_sampler(3)))
    before = state_of(pruner)
    with pytest.raises(FeedbackError, match=message):
        pruner.update(index, losses)
    assert_same_state(before, state_of(pruner))


@pytest.mark.parametrize("index", [[10], [-1], [3, 12, 4]])
def test_an_index_outside_the_data_set_is_refused_and_changes_nothing(index: list[int]) -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    next(iter(pruner.batch_sampler(3)))
    before = state_of(pruner)
    with pytest.raises(IndexRangeError, match=r"indices must be in \[0, 10\), the length of the data set; got"):
        pruner.update(torch.tensor(index), torch.rand(len(index)))
    with pytest.raises(IndexError):
        pruner.observe(torch.tensor(index), torch.rand(len(index)))
    assert_same_state(before, state_of(pruner))


def test_an_impossible_index_on_a_device_is_raised_at_the_next_draw() -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    train_epoch(pruner, pruner.loader(range(10), batch_size=3))
    pruner._table._invalid[1] += 3  # what a step counts where it may not look
    with pytest.raises(IndexRangeError, match="3 of the last epoch were not, and their losses were ignored"):
        iter(pruner.sampler)
    iter(pruner.sampler)


@pytest.mark.parametrize(
    "index",
    [
        [3, 1],
        np.array([3, 1]),
        np.array([3, 1], dtype=np.int32),
        np.array([1, 3])[::-1],
        np.array([3, 1], dtype=">i8"),
        torch.tensor([3, 1]),
        torch.tensor([3, 1], dtype=torch.uint8),
    ],
)
def test_indices_may_come_in_any_shape_people_have_them_in(index) -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    pruner.update(index, torch.tensor([1.0, 2.0]))
    assert pruner.scores[[3, 1]].tolist() == [1.0, 2.0]


def test_one_sample_may_come_without_a_batch_dimension() -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    assert pruner.update(torch.tensor(3), torch.tensor(5.0)).item() == 5.0
    assert pruner.update(torch.tensor([4]), torch.tensor(6.0)).item() == 6.0
    assert pruner.scores[[3, 4]].tolist() == [5.0, 6.0]


def test_an_empty_batch_is_harmless() -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    assert pruner.update(torch.empty(0, dtype=torch.int64), torch.empty(0)).item() == 0.0
    assert pruner.update([], torch.empty(0)).item() == 0.0


def test_losses_without_gradient_twice_the_same_index_and_samples_not_selected_are_fine() -> None:
    pruner = Pruner(OrderDP(0.5), 10)
    selected = set(pruner.sampler)
    left_out = sorted(set(range(10)) - selected)
    result = pruner.update(torch.tensor([left_out[0], left_out[0]]), torch.tensor([1.0, 2.0]))
    assert result.item() == 1.5
    assert not result.requires_grad
    assert pruner.scores[left_out[0]] in (1.0, 2.0)


def test_the_losses_are_not_modified_and_the_result_differentiates_like_their_mean() -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    leaf = torch.tensor([1.0, float("nan"), 5.0], requires_grad=True)
    losses = leaf * 1
    kept = losses.detach().clone()
    version = losses._version
    result = pruner.update(torch.tensor([0, 1, 2]), losses)
    assert losses._version == version
    assert torch.equal(losses.detach(), kept) or losses.isnan().equal(kept.isnan())
    result.backward()
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad, torch.full((3,), 1 / 3))


@pytest.mark.parametrize("scores", [torch.rand(3), [1.0, 2.0], torch.rand(2, 1)])
def test_scores_must_fit_the_index(scores) -> None:
    pruner = Pruner(OrderDP(0.4), 10)
    with pytest.raises(FeedbackError, match="one number for each of the 2 indices"):
        pruner.update(torch.tensor([0, 1]), torch.rand(2), scores=scores)
    with pytest.raises(FeedbackError, match="one number for each of the 2 indices"):
        pruner.observe(torch.tensor([0, 1]), scores)


def test_a_batch_loss_must_be_a_single_number() -> None:
    with pytest.raises(FeedbackError, match="reduced=True losses must be a single number"):
        Pruner(OrderDP(0.4), 10).update(torch.tensor([0, 1]), torch.rand(2), reduced=True)


def test_what_a_policy_has_no_use_for_is_refused() -> None:
    with pytest.raises(FeedbackError, match="unexpected keyword 'correct': OrderDP"):
        Pruner(OrderDP(0.4), 10).update(torch.tensor([0, 1]), torch.rand(2), correct=torch.ones(2))


@pytest.mark.parametrize(
    ("policy", "told", "message"),
    [
        (ActiveBias(0.4), {"probability": torch.rand(3, 1)}, r"Pass probability of shape \(3,\), not \(3, 1\)"),
        (DynamicUncertainty(0.4), {"probability": torch.rand(3, 1)}, r"one value for each of the 3 samples"),
        (Kakurenbo(0.4), {"correct": torch.ones(3), "confidence": torch.rand(3, 1)}, r"Pass confidence of shape"),
        (ActiveBias(0.4), {"probability": [0.1, 0.2, 0.3]}, "probability must be a tensor .* got list"),
        (ActiveBias(0.4), {"probability": np.ones(3)}, "probability must be a tensor .* got ndarray"),
    ],
)
def test_what_a_policy_is_told_must_be_one_value_for_each_sample(policy: Any, told: dict, message: str) -> None:
    pruner = Pruner(policy, 10)
    before = state_of(pruner)
    with pytest.raises(FeedbackError, match=message):
        pruner.update(torch.tensor([0, 1, 2]), torch.tensor([1.0, 2.0, float("nan")]), **told)
    assert_same_state(state_of(pruner), before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_losses_that_are_not_finite_warn_once_an_epoch_with_their_number(value: float) -> None:
    dataset = toy_dataset(20)
    pruner = Pruner(OrderDP(0.5), dataset)
    loader = pruner.loader(dataset, batch_size=5)
    first, last = (index for index, _ in loader)
    losses = fake_losses(first)
    losses[:2] = value
    pruner.update(first, losses)
    with pytest.warns(NonFiniteLossWarning, match="4 losses of the last epoch were NaN or infinite") as caught:
        pruner.update(last, losses)
    iter(loader)
    assert len(caught) == 1
    assert torch.isfinite(pruner.scores[pruner.usage > 0]).all()
    assert pruner.report()["nonfinite"] == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_epoch(pruner, loader)
        iter(loader)


def test_losses_that_are_not_finite_raise_where_that_was_asked_for() -> None:
    dataset = toy_dataset(20)
    pruner = Pruner(OrderDP(0.5), dataset, on_nan="raise")
    loader = pruner.loader(dataset, batch_size=10)
    for index, _ in loader:
        with pytest.raises(NonFiniteLossError, match=r'10 losses .* on_nan="warn"'):
            pruner.update(index, torch.full((10,), float("nan")))
    assert pruner.epoch == 1


@pytest.mark.parametrize("says_so", [False, True])
def test_losses_of_an_epoch_that_was_left_early_are_spoken_of_when_that_is_known(says_so: bool) -> None:
    dataset = toy_dataset(20)
    pruner = Pruner(OrderDP(0.5), dataset, on_nan="raise")
    loader = pruner.loader(dataset, batch_size=5)
    index, _ = next(iter(loader))
    pruner.update(index, torch.full((5,), float("nan")))
    with pytest.raises(NonFiniteLossError, match="5 losses"):
        pruner.end_epoch() if says_so else iter(loader)


def test_an_impossible_index_is_named_by_policies_with_weights_too() -> None:
    pruner = Pruner(Weighted(), 20)
    next(iter(pruner.batch_sampler(5)))
    for act in (pruner.update, pruner.reduce):
        with pytest.raises(IndexRangeError, match=r"in \[0, 20\).* got 25"):
            act(torch.tensor([3, 25]), torch.rand(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be"),
        ({"seed": 1.5}, "seed must be"),
        ({"seed": True}, "seed must be"),
        ({"epochs": 0}, "epochs must be"),
        ({"epochs": 2.5}, "epochs must be"),
        ({"on_nan": "ignore"}, "on_nan must be"),
    ],
)
def test_a_pruner_refuses_nonsense(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pruner(OrderDP(0.4), 10, **options)


@pytest.mark.parametrize("labels", [[1, 2], [0.5] * 10, [[1]] * 10])
def test_labels_must_be_one_class_for_each_sample(labels) -> None:
    with pytest.raises(DatasetError, match="labels must be 10 whole numbers"):
        Pruner(OrderDP(0.4), 10, labels=labels)
    assert Pruner(OrderDP(0.4), 10, labels=list(range(10)))._manager.context(0).labels is not None


def test_a_policy_must_be_one() -> None:
    with pytest.raises(ConfigError, match=r"Write OrderDP\(...\)"):
        Pruner(OrderDP, 10)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"must be an orderdp\.Policy, got float.*must subclass orderdp\.Policy"):
        Pruner(0.4, 10)  # type: ignore[arg-type]

    class Halfway(KeepAll):
        every = "batch"

    with pytest.raises(ConfigError, match="must have the methods candidates and select_from"):
        Pruner(Halfway(), 10)


def test_a_ratio_that_keeps_nothing_is_refused_when_the_pruner_is_made() -> None:
    with pytest.raises(ConfigError, match="keeps 0 of 100 samples"):
        Pruner(OrderDP(0.999), 100)


def test_a_selection_must_be_int64_with_a_weight_for_each() -> None:
    with pytest.raises(ConfigError, match="flat int64 array"):
        Selection(np.array([1.0]))
    with pytest.raises(ConfigError, match="one weight for each of the 2 indices"):
        Selection(np.array([1, 2]), np.ones(3, dtype=np.float32))


# -- checkpoints --------------------------------------------------------------------------------------------------


def trained(policy=None, n: int = 20) -> Pruner:
    pruner = Pruner(policy or OrderDP(0.4), n)
    sampler = iter(pruner.batch_sampler(4))
    for _ in range(2):
        index = torch.tensor(next(sampler))
        pruner.update(index, fake_losses(index))
    return pruner


def damaged(**changes) -> dict:
    state = trained().state_dict()
    state.update(changes)
    return state


def without(*path: str) -> dict:
    state = trained().state_dict()
    place = state
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    return state


def with_cuts(*cuts: int) -> dict:
    state = trained().state_dict()
    state["timeline"]["epoch"]["cuts"] = torch.tensor(cuts)
    return state


def with_writes(writes: Any) -> dict:
    state = trained().state_dict()
    state["table"]["writes"] = writes
    return state


def with_clock(**changes: Any) -> dict:
    state = trained().state_dict()
    state["timeline"]["clock"].update(changes)
    return state


def with_order(order: torch.Tensor) -> dict:
    state = trained().state_dict()
    state["timeline"]["epoch"]["order"] = order
    return state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "must come from Pruner.state_dict"),
        ({"model": 1, "optimizer": 2}, r"got keys \['model', 'optimizer'\]"),
        ([1, 2], "got list"),
        (damaged(version=99), "must have version 1, got 99"),
        (trained(OrderDP(0.5)).state_dict(), r"written with OrderDP\(prune_ratio=0.5\), this pruner has"),
        (trained(n=21).state_dict(), "data set of 21 samples, this one has 20"),
        (without("table"), "damaged"),
        (without("timeline", "clock"), "damaged"),
        (without("timeline", "clock", "trained"), "damaged"),
        (without("table", "columns", "score"), "must have the columns"),
        (with_clock(trained=-3), "damaged"),  # served from there, an epoch would not end
        (with_clock(epoch=-1), "damaged"),
        (with_writes("many"), "damaged"),
        (with_writes(None), "damaged"),
        (with_clock(cut=(4,)), "damaged"),
        (damaged(table=None), "damaged"),
        (damaged(timeline={"clock": "noon"}), "damaged"),
        (with_order(torch.tensor([3, 25])), "int64 indices below 20"),
        (with_order(torch.tensor([3.0, 2.0])), "int64 indices below 20"),
        (with_order(None), "int64 indices below 20"),
        (with_cuts(4, 8), "the last must be 12"),
        (with_cuts(8, 4, 12), "batches must increase"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(state, message: str) -> None:
    pruner = trained()
    before = state_of(pruner)
    with pytest.raises(StateError, match=message):
        pruner.load_state_dict(state)
    assert_same_state(before, state_of(pruner))


def test_a_stepwise_epoch_does_not_go_on_with_other_batches() -> None:
    pruner = trained(OrderDP(0.4, every="batch"))
    resumed = Pruner(OrderDP(0.4, every="batch"), 20)
    resumed.load_state_dict(pruner.state_dict())
    with pytest.raises(StateError, match="Resume with batch_size=4"):
        iter(resumed.batch_sampler(5))


def test_a_policy_without_a_repr_of_its_own_can_be_resumed() -> None:
    class Plain(orderdp.Policy):
        def __init__(self, share: float) -> None:
            self.share = share

        def size(self, n, context):
            return n

        def select(self, table, context):
            return Selection(np.arange(table.n))

    pruner = trained(Plain(0.5))
    Pruner(Plain(0.5), 20).load_state_dict(pruner.state_dict())
    with pytest.raises(StateError, match=r"Plain\(share=0.5\), this pruner has .*Plain\(share=0.7\)"):
        Pruner(Plain(0.7), 20).load_state_dict(pruner.state_dict())


def test_a_checkpoint_file_comes_back_as_it_was(tmp_path) -> None:
    pruner, path = trained(), tmp_path / "run.pt"
    orderdp.save_checkpoint(path, {"pruner": pruner.state_dict(), "note": "first"})
    orderdp.save_checkpoint(path, {"pruner": pruner.state_dict(), "note": "second"})
    state = orderdp.load_checkpoint(path)
    assert state["note"] == "second"
    assert_same_state(state["pruner"], pruner.state_dict())
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_writing_a_checkpoint_that_fails_leaves_the_old_one(tmp_path, monkeypatch) -> None:
    path = tmp_path / "run.pt"
    orderdp.save_checkpoint(path, {"note": "old"})

    def full_disk(state, file):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(StateError, match=r"No space left.*previous checkpoint is unchanged"):
        orderdp.save_checkpoint(path, {"note": "new"})
    monkeypatch.undo()
    assert orderdp.load_checkpoint(path) == {"note": "old"}
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


class Evil:
    def __reduce__(self):
        return (print, ("code from a checkpoint was run",))


def test_files_that_are_no_checkpoints_are_refused(tmp_path, capsys) -> None:
    path = tmp_path / "run.pt"
    with pytest.raises(StateError, match="there is no checkpoint"):
        orderdp.load_checkpoint(path)
    orderdp.save_checkpoint(path, {"pruner": trained().state_dict()})
    whole = path.read_bytes()
    for broken in (
        whole[: len(whole) // 2],
        whole[:10],
        b"",
        b"not a checkpoint at all",
        b".",
        pickle.dumps(Evil(), protocol=2),
    ):
        path.write_bytes(broken)
        with pytest.raises(StateError, match=r"is not a readable checkpoint .* Use another one"):
            orderdp.load_checkpoint(path)
    torch.save([1, 2], path)
    with pytest.raises(StateError, match="must hold a dict, it holds list"):
        orderdp.load_checkpoint(path)
    assert "code from" not in capsys.readouterr().out


def test_the_tree_of_errors_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert name in errors.__doc__
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.OrderDPError | errors.OrderDPWarning)


def test_errors_survive_a_process_boundary() -> None:
    error = errors.UnknownSizeError("between 3 and 5", 3, 5)
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.lower, copied.upper) == ("between 3 and 5", 3, 5)


@pytest.mark.parametrize(
    "more", [np.random.default_rng(0).random(3), np.float64(1.0), Pruner(OrderDP(0.4), 5)], ids=type
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path, more: Any) -> None:
    path = tmp_path / "checkpoint.pt"
    orderdp.save_checkpoint(path, {"note": "old"})
    with pytest.raises(StateError, match=r"this one holds something of (numpy|orderdp)\S+ as well"):
        orderdp.save_checkpoint(path, {"tensor": torch.rand(3), "more": [more]})
    assert orderdp.load_checkpoint(path) == {"note": "old"}
    assert list(tmp_path.iterdir()) == [path]
    torch.save({"more": more}, path)
    with pytest.raises(StateError, match=r"not a readable checkpoint \(something of"):
        orderdp.load_checkpoint(path)
