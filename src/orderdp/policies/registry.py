"""Policies by name, for the command line and config files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderdp._validation import checked_name
from orderdp.errors import ConfigError
from orderdp.policies.baselines import RS2, DynamicRandom, FullData
from orderdp.policies.infobatch import InfoBatch, InfoBatchQuantile, RePB, SeTa
from orderdp.policies.learned import (
    InstanceEarlyStopping,
    Kakurenbo,
    ProgressiveDropout,
    SkipLearned,
    SpacedRepetition,
    Unlearned,
)
from orderdp.policies.loss_based import (
    UCB,
    ActiveBias,
    Adaptive,
    Calibrated,
    DynamicUncertainty,
    EpsilonGreedy,
    OnlineBatchSelection,
    SelectiveBackprop,
    SelectiveByRank,
)
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.schedules import SCHEDULES, Scheduled
from orderdp.policies.wrappers import Balanced, Budget, UniformTail
from orderdp.policy import Policy
from orderdp.registry import Registry, one_sentence, read_card

__all__ = ["NAMES", "RECORDED", "PolicyRegistry", "build", "build_at", "card", "config_of", "summary"]


class PolicyRegistry(Registry[Policy]):
    """The registry of policies. Wrappers that fit any policy are options: class balance, a schedule, a uniform tail."""

    def build(
        self,
        name: str,
        *,
        balanced: bool = False,
        schedule: Mapping[str, Any] | None = None,
        tail: float | None = None,
        **parameters: Any,
    ) -> Policy:
        """Build the policy called `name`; a policy among its parameters may be a config.

        Args:
            name: The name.
            balanced: Whether each class keeps its fraction of the data.
            schedule: The name of a schedule and its parameters.
            tail: Last fraction of training, which selects uniformly at the same ratio.
            **parameters: Parameters of the policy.
        """
        if isinstance(parameters.get("policy"), Mapping | str):
            parameters["policy"] = self.from_config(parameters["policy"])
        policy = super().build(name, **parameters)
        if balanced:
            policy = Balanced(policy)
        if schedule is not None:
            if not isinstance(schedule, Mapping) or "name" not in schedule:
                raise ConfigError(
                    'schedule must be the name of a schedule and its parameters, {"name": "tail", ...}, got '
                    f"{schedule!r}."
                )
            policy = Scheduled(policy, SCHEDULES.from_config(schedule))
        return policy if tail is None else UniformTail(policy, tail)

    def config(self, value: Policy) -> dict[str, Any]:
        """Return the name, parameters and options from which `build` makes an equal policy.

        Args:
            value: The policy.
        """
        if isinstance(value, UniformTail):
            return {**self.config(value.policy), "tail": value.tail}
        if isinstance(value, Scheduled):
            return {**self.config(value.policy), "schedule": SCHEDULES.config(value.schedule)}
        if isinstance(value, Balanced):
            return {**self.config(value.policy), "balanced": True}
        return super().config(value)

    def _parameters_of(self, value: Policy) -> Mapping[str, Any]:
        return value.parameters


#: Policies by name, for the command line and config files.
NAMES = PolicyRegistry(
    Policy,
    "policy",
    {
        "orderdp": OrderDP,
        "spaced-repetition": SpacedRepetition,
        "budget": Budget,
        "unlearned": Unlearned,
        "skip-learned": SkipLearned,
        "adaptive": Adaptive,
        "full": FullData,
        "random": DynamicRandom,
        "rs2": RS2,
        "epsilon-greedy": EpsilonGreedy,
        "ucb": UCB,
        "infobatch": InfoBatch,
        "infobatch-quantile": InfoBatchQuantile,
        "seta": SeTa,
        "repb": RePB,
        "kakurenbo": Kakurenbo,
        "selective-backprop": SelectiveBackprop,
        "selective-by-rank": SelectiveByRank,
        "online-batch-selection": OnlineBatchSelection,
        "instance-early-stopping": InstanceEarlyStopping,
        "progressive-dropout": ProgressiveDropout,
        "active-bias": ActiveBias,
        "dynamic-uncertainty": DynamicUncertainty,
        "calibrated": Calibrated,
    },
    options=("balanced", "schedule", "tail"),
)


#: Policies that a run records before it trains, so that they cannot be built from parameters.
RECORDED = ("proxy-plan",)


def card(name: str) -> str:
    """Return the card of the policy called `name`: its rule, parameters, cost, guarantees."""
    checked_name(name, (*NAMES, *RECORDED), "policy")
    return read_card("policies", name)


def summary(name: str) -> str:
    """Return what the policy called `name` does, in one sentence."""
    return one_sentence(card(name))


def build(
    name: str,
    *,
    balanced: bool = False,
    schedule: Mapping[str, Any] | None = None,
    tail: float | None = None,
    **parameters: Any,
) -> Policy:
    """Build the policy called `name` with these parameters.

    >>> build("orderdp", prune_ratio=0.4)
    OrderDP(prune_ratio=0.4)
    >>> build("orderdp", prune_ratio=0.4, balanced=True)
    Balanced(policy=OrderDP(prune_ratio=0.4))

    Args:
        name: One of `NAMES`.
        balanced: Whether each class keeps its fraction of the data.
        schedule: How the prune ratio changes over training: the name of a schedule and its parameters.
        tail: Last fraction of training, which selects uniformly at the same ratio.
        **parameters: Parameters of the policy.
    """
    return NAMES.build(name, balanced=balanced, schedule=schedule, tail=tail, **parameters)


def build_at(name: str, prune_ratio: float | None, **parameters: Any) -> Policy:
    """Build the policy called `name` with this nominal prune ratio, whatever its parameter is called.

    >>> build_at("kakurenbo", 0.3)
    Kakurenbo(fraction=0.3, tau=0.7, drops=(), factors=(0.8, 0.6, 0.4))

    Args:
        name: One of `NAMES`.
        prune_ratio: Fraction left out; None if the parameters set it.
        **parameters: Further parameters of the policy.
    """
    given_otherwise = "target_ratio" in parameters or {"exploration", "exploitation"} <= set(parameters)
    if prune_ratio is not None and not given_otherwise:
        parameters = {**NAMES.find(name).parameters_at(prune_ratio), **parameters}
    return NAMES.build(name, **parameters)


def config_of(policy: Policy) -> dict[str, Any]:
    """Return the plain values from which `build` makes an equal policy: its name and its parameters.

    >>> config_of(build("rs2", prune_ratio=0.5))
    {'name': 'rs2', 'prune_ratio': 0.5}

    Args:
        policy: The policy.
    """
    return NAMES.config(policy)
