"""The base class of policies: its defaults, and wrappers that forward every member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from orderdp import Pruner, policies
from orderdp.errors import ConfigError
from orderdp.policies import Balanced, Budget, Constant, LossBelow, OrderDP, Scheduled, UniformTail
from orderdp.policies.wrappers import PolicyWrapper
from orderdp.policy import Column, Context, Policy, Selection, StepwisePolicy, nominal_ratio, size_bounds
from orderdp.streaming import GrowingPruner, KeyFilter
from orderdp.streaming.growing import ActiveIndices, ActivePolicy
from orderdp.testing import check_policy
from tests.support import table_with

#: Every member that code outside of a policy may use.
MEMBERS = sorted(name for name in vars(Policy) if not name.startswith("_"))


@dataclass(frozen=True)
class Plain(Policy):
    """No more than a policy must have."""

    prune_ratio: float = 0.5

    def size(self, n: int, context: Context) -> int:
        return round((1 - self.prune_ratio) * n)

    def select(self, table: Any, context: Context) -> Selection:
        return Selection(np.arange(self.size(context.n, context)))


@dataclass(frozen=True)
class Loud(Policy):
    """Overrides every member, each with a value that no default has."""

    prune_ratio: float = 0.25

    every = "epoch"
    ratio_name = "prune_ratio"
    columns = (Column("loud", initial=7.0),)
    needs_feedback = False
    by_index = True
    learned = LossBelow(0.125)
    has_ratio = True
    parameters: ClassVar = {"prune_ratio": 0.25}

    def size(self, n: int, context: Context) -> None:
        return None

    def select(self, table: Any, context: Context) -> Selection:
        return Selection(np.array([5, 3]))

    def compute_columns(self, rows: Any, losses: Any, *, loud: Any) -> dict[str, Any]:
        return {"score": losses, "loud": loud}

    def size_bounds(self, n: int, context: Context) -> tuple[int, int]:
        return 2, 3

    def nominal_ratio(self, context: Context) -> float:
        return 0.25

    def total(self, n: int, epochs: int | None) -> int:
        return 77

    def epoch_sizes(self, n: int, epochs: int | None) -> list[int]:
        return [70, 7]

    def offered(self, n: int) -> int:
        return n - 1

    def with_ratio(self, prune_ratio: float) -> Loud:
        return Loud(prune_ratio)

    @classmethod
    def parameters_at(cls, prune_ratio: float) -> dict[str, Any]:
        return {"prune_ratio": prune_ratio / 2}

    def lr_scale(self, n: int, kept: int) -> float:
        return 1.5

    def on_epoch_start(self, epoch: int) -> None:
        EPOCHS_STARTED.append(epoch)


EPOCHS_STARTED: list[int] = []

CONTEXT = Context(n=8, epoch=0, epochs=4)

#: Each member of a policy as something to compare.
READ: dict[str, Any] = {
    "every": lambda policy: policy.every,
    "columns": lambda policy: policy.columns,
    "compute_columns": lambda policy: policy.compute_columns,
    "needs_feedback": lambda policy: policy.needs_feedback,
    "learned": lambda policy: policy.learned,
    "has_ratio": lambda policy: policy.has_ratio,
    "size": lambda policy: policy.size(8, CONTEXT),
    "select": lambda policy: policy.select(table_with(np.arange(8.0)), CONTEXT).indices.tolist(),
    "by_index": lambda policy: policy.by_index,
    "select_among": lambda policy: policy.select_among(
        table_with(np.arange(8.0)), np.array([3, 1, 3, 5]), CONTEXT
    ).indices.tolist(),
    "bounds_among": lambda policy: policy.bounds_among(6, CONTEXT),
    "size_bounds": lambda policy: policy.size_bounds(8, CONTEXT),
    "nominal_ratio": lambda policy: policy.nominal_ratio(CONTEXT),
    "total": lambda policy: policy.total(8, 4),
    "epoch_sizes": lambda policy: policy.epoch_sizes(8, 4),
    "offered": lambda policy: policy.offered(8),
    "lr_scale": lambda policy: policy.lr_scale(8, 4),
    "on_epoch_start": lambda policy: (policy.on_epoch_start(3), EPOCHS_STARTED.pop()),
    "with_ratio": lambda policy: policy.with_ratio(0.75).policy if hasattr(policy, "policy") else Loud(0.75),
}

#: What belongs to a class or to its constructor: of the wrapper, not of the policy inside.
OWN = {"ratio_name", "parameters", "parameters_at"}

#: Members that call other members, so that they follow those of the wrapper.
DERIVED = {"select_among", "bounds_among"}

#: Members with a meaning of their own in a wrapper, and why.
OVERRIDDEN: dict[type, dict[str, str]] = {
    Budget: {
        "size": "the rest of the budget limits it",
        "size_bounds": "the rest of the budget limits them",
        "nominal_ratio": "the fraction of full training",
        "total": "the budget",
        "epoch_sizes": "until the budget is spent",
        "has_ratio": "none per epoch",
        "with_ratio": "none per epoch",
    },
    Scheduled: {"has_ratio": "the schedule decides it", "with_ratio": "the schedule decides it"},
    UniformTail: {},
    Balanced: {"size": "must be known", "select": "class by class", "select_among": "class by class"},
    ActivePolicy: {
        "offered": "without the removed samples",
        "on_epoch_start": "stores the number of active samples",
    },
}

WRAPPERS: dict[type, Any] = {
    Budget: lambda policy: Budget(0.5, policy=policy),
    Scheduled: lambda policy: Scheduled(policy, Constant(0.25)),
    UniformTail: lambda policy: UniformTail(policy, 0.0),
    Balanced: Balanced,
    ActivePolicy: lambda policy: ActivePolicy(policy, ActiveIndices(8)),
}


def test_the_smallest_policy_has_every_member() -> None:
    policy = Plain()
    for name in MEMBERS:
        assert hasattr(policy, name)
    assert (policy.every, policy.columns, policy.compute_columns, policy.needs_feedback) == ("epoch", (), None, True)
    assert (policy.learned, policy.lr_scale(10, 5), policy.offered(10)) == (None, 1.0, 10)
    assert (policy.total(10, 3), policy.epoch_sizes(10, 3), policy.nominal_ratio(CONTEXT)) == (None, None, None)
    assert policy.size_bounds(10, CONTEXT) == (1, 10)
    assert (policy.has_ratio, policy.with_ratio(0.25)) == (True, Plain(0.25))
    assert (policy.parameters, Plain.parameters_at(0.3)) == ({"prune_ratio": 0.5}, {"prune_ratio": 0.3})
    assert (size_bounds(policy, 8, CONTEXT), nominal_ratio(policy, 8, CONTEXT)) == ((4, 4), 0.5)


def test_a_subclass_without_size_or_select_cannot_be_made() -> None:
    class Half(Policy):
        def size(self, n: int, context: Context) -> int:
            return n

    with pytest.raises(TypeError, match="select"):
        Half()  # type: ignore[abstract]


def test_an_object_that_only_looks_like_a_policy_is_refused() -> None:
    class Duck:
        def size(self, n: int, context: Context) -> int:
            return n

        def select(self, table: Any, context: Context) -> Selection:
            return Selection(np.arange(context.n))

    for make in (lambda policy: Pruner(policy, 10), KeyFilter, lambda policy: GrowingPruner(policy, 10)):
        with pytest.raises(ConfigError, match=r"must be an orderdp\.Policy, got Duck.*must subclass orderdp\.Policy"):
            make(Duck())
    with pytest.raises(AssertionError, match=r"a policy subclasses orderdp\.Policy"):
        check_policy(Duck())  # type: ignore[arg-type]


def test_every_policy_is_a_subclass() -> None:
    for kind in policies.registry.NAMES.values():
        assert issubclass(kind, Policy)
    assert issubclass(OrderDP, StepwisePolicy)


def test_the_base_of_wrappers_forwards_every_member() -> None:
    missing = set(MEMBERS) - set(vars(PolicyWrapper)) - OWN - DERIVED - {"every"}
    assert not missing, f"PolicyWrapper does not forward {missing}"
    assert set(READ) | OWN == set(MEMBERS), "every member of Policy must be compared below"


@pytest.mark.parametrize("kind", WRAPPERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", READ)
def test_a_wrapper_forwards_every_member_that_it_does_not_override_on_purpose(kind: type, name: str) -> None:
    inner = Loud()
    wrapper = WRAPPERS[kind](inner)
    if name in OVERRIDDEN[kind]:
        overriding = next(base for base in kind.__mro__ if name in vars(base))
        assert overriding is not PolicyWrapper
    else:
        assert READ[name](wrapper) == READ[name](inner)


def test_every_wrapper_is_compared() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    found = {kind for kind in below(PolicyWrapper) - {PolicyWrapper} if kind.__module__.startswith("orderdp.")}
    assert {kind for kind in found if not issubclass(kind, StepwisePolicy)} == set(WRAPPERS)


def test_what_has_no_ratio_says_so() -> None:
    for policy in (policies.FullData(), Budget(0.5), Scheduled(OrderDP(0.5), Constant(0.5))):
        assert not policy.has_ratio
        with pytest.raises(ConfigError, match="has no prune ratio that could be changed"):
            policy.with_ratio(0.5)
    with pytest.raises(ConfigError, match="needs a policy with a prune ratio"):
        Scheduled(UniformTail(policies.FullData()), Constant(0.5))
