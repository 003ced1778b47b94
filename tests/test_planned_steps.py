"""Trainings that are planned in steps, and learning rates that follow the progress."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from orderdp import Budget, OrderDP, Pruner
from orderdp.errors import BeyondPlanWarning, ConfigError, StateError
from orderdp.policies import DynamicRandom, SkipLearned
from tests.ranks import MemoryRank, all_fine, in_threads

N = 40


def steps_of(pruner: Pruner, limit: int = 100, batch_size: int = 5) -> list[float]:
    """Trains until the pruner is done; returns the progress after each step."""
    seen: list[float] = []
    while not pruner.done and len(seen) < limit:
        for batch in pruner.batch_sampler(batch_size):
            pruner.update(torch.tensor(batch), torch.rand(len(batch)))
            seen.append(pruner.progress)
            if pruner.done or len(seen) == limit:
                break
    return seen


@pytest.mark.parametrize("policy", [OrderDP(0.4), DynamicRandom(0.3), SkipLearned()], ids=repr)
@pytest.mark.parametrize("steps", [1, 4, 5, 12])
def test_progress_follows_the_steps_and_training_ends_with_the_last(policy: Any, steps: int) -> None:
    pruner = Pruner(policy, N, steps=steps)
    assert pruner.progress == 0
    assert steps_of(pruner) == [step / steps for step in range(1, steps + 1)]
    assert pruner.done


def test_remaining_epochs_end_when_the_steps_do() -> None:
    pruner = Pruner(OrderDP(0.4), N, steps=12)
    trained, turns = 0, []
    for epoch in pruner.remaining_epochs():
        turns.append(epoch)
        for batch in pruner.batch_sampler(5):
            pruner.update(torch.tensor(batch), torch.rand(len(batch)))
            trained += 1
            if pruner.done:
                break
    assert trained == 12
    assert turns == [0, 1, 2]


@pytest.mark.parametrize("left_after", [3, 5, 7])
def test_a_resumed_training_makes_the_remaining_steps(left_after: int) -> None:
    pruner = Pruner(OrderDP(0.4), N, steps=12)
    first = steps_of(pruner, left_after)
    loaded = Pruner(OrderDP(0.4), N, steps=12)
    loaded.load_state_dict(pruner.state_dict())
    assert loaded.progress == pruner.progress == left_after / 12
    assert len(first) + len(steps_of(loaded)) == 12


def test_ranks_count_the_steps_that_all_make_together() -> None:
    def work(group: MemoryRank) -> list[float]:
        pruner = Pruner(OrderDP(0.4), N, steps=6, process_group=group)
        return steps_of(pruner, batch_size=4)

    assert all_fine(in_threads(2, work)) == [[step / 6 for step in range(1, 7)]] * 2


def test_a_step_beyond_the_plan_warns_once() -> None:
    pruner = Pruner(OrderDP(0.4), N, steps=2)
    batches = iter(pruner.batch_sampler(5))
    for _ in range(2):
        pruner.update(next(batches), torch.rand(5))
    with pytest.warns(BeyondPlanWarning, match=r"step 3 is trained, but Pruner\(..., steps=2\) planned 2"):
        pruner.update(next(batches), torch.rand(5))
    pruner.update(next(batches), torch.rand(5))
    assert pruner.progress == 1


def test_a_plan_in_epochs_and_in_steps_is_refused_and_so_is_no_number() -> None:
    with pytest.raises(ConfigError, match=r"got epochs=3 and steps=10\. Leave one of them out"):
        Pruner(OrderDP(0.4), N, epochs=3, steps=10)
    for wrong in (0, -1, 1.5, True, "10"):
        with pytest.raises(ConfigError, match="steps must be a whole number"):
            Pruner(OrderDP(0.4), N, steps=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="epochs"):
        Pruner(Budget(0.5), N, steps=10)


def test_a_checkpoint_that_did_not_count_steps_is_refused_by_a_plan_in_steps() -> None:
    pruner = Pruner(OrderDP(0.4), N)
    steps_of_epochs = iter(pruner.batch_sampler(5))
    pruner.update(next(steps_of_epochs), torch.rand(5))
    state = pruner.state_dict()
    del state["timeline"]["clock"]["updates"]
    Pruner(OrderDP(0.4), N).load_state_dict(state)
    with pytest.raises(StateError, match="did not count steps"):
        Pruner(OrderDP(0.4), N, steps=10).load_state_dict(state)


# -- learning rates ------------------------------------------------------------------------------------------------


def rates(pruner: Pruner, schedule: Any, **options: Any) -> list[float]:
    """The learning rate before every step of a training."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=2.0)
    scheduler = LambdaLR(optimizer, pruner.lr_lambda(schedule, **options))
    found = []
    for _ in pruner.remaining_epochs():
        for batch in pruner.batch_sampler(5):
            found.append(optimizer.param_groups[0]["lr"])
            losses = weight * torch.ones(len(batch))
            pruner.update(torch.tensor(batch), losses).backward()
            optimizer.step()
            scheduler.step()
            if pruner.done:
                break
    assert optimizer.param_groups[0]["lr"] == 2 * pruner.lr_lambda(schedule, **options)(0)
    return found


@pytest.mark.parametrize("plan", [{"epochs": 3}, {"steps": 12}])
@pytest.mark.parametrize(
    ("schedule", "slow"),
    [
        ("cosine", lambda progress: 0.5 + 0.5 * math.cos(math.pi * progress)),
        ("linear", lambda progress: 1 - progress),
        ("constant", lambda progress: 1.0),
        (lambda progress: (1 - progress) ** 2, lambda progress: (1 - progress) ** 2),
    ],
)
def test_the_learning_rate_follows_the_progress(plan: dict[str, int], schedule: Any, slow: Any) -> None:
    found = rates(Pruner(OrderDP(0.4), N, **plan), schedule)
    steps = plan.get("steps", 15)
    assert len(found) == steps
    # The last step of a pruned epoch is smaller, so epochs are not made of equal parts.
    if "steps" in plan:
        assert found == pytest.approx([2 * slow(step / steps) for step in range(steps)])
    assert found[0] == 2 * slow(0.0)
    assert found == sorted(found, reverse=True)


def test_the_learning_rate_rises_from_a_tenth_in_the_warmup() -> None:
    found = rates(Pruner(OrderDP(0.4), N, steps=20), "constant", warmup=0.25)
    assert found[:6] == pytest.approx([0.2, 0.56, 0.92, 1.28, 1.64, 2.0])
    assert found[5:] == [2.0] * 15


def test_a_scheduler_made_after_loading_continues() -> None:
    pruner = Pruner(OrderDP(0.4), N, steps=10)
    steps_of(pruner, 4)
    loaded = Pruner(OrderDP(0.4), N, steps=10)
    loaded.load_state_dict(pruner.state_dict())
    assert rates(loaded, "linear") == pytest.approx([2 * (1 - step / 10) for step in range(4, 10)])


def test_wrong_schedules_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="progress needs to know"):
        Pruner(OrderDP(0.4), N).lr_lambda()
    pruner = Pruner(OrderDP(0.4), N, epochs=2)
    with pytest.raises(ConfigError, match=r"there is no schedule 'cosin'\. Did you mean 'cosine'"):
        pruner.lr_lambda("cosin")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="warmup must be in"):
        pruner.lr_lambda(warmup=2)


def test_the_state_of_the_scheduler_holds_nothing_of_the_pruner() -> None:
    pruner = Pruner(OrderDP(0.4), N, epochs=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert LambdaLR(optimizer, pruner.lr_lambda()).state_dict()["lr_lambdas"] == [None]
