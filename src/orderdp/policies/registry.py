"""Policies by name, for the command line and config files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from orderdp._validation import checked_name, suggestion
from orderdp.cards import one_sentence, read_card
from orderdp.errors import ConfigError
from orderdp.policies.bandits import UCB, EpsilonGreedy
from orderdp.policies.baselines import RS2, DynamicRandom, FullData
from orderdp.policies.infobatch import InfoBatch, InfoBatchQuantile, RePB, SeTa
from orderdp.policies.learned import (
    InstanceEarlyStopping,
    Kakurenbo,
    ProgressiveDropout,
    SkipLearned,
    Threshold,
    Unlearned,
    threshold_config,
)
from orderdp.policies.loss_based import Adaptive, Calibrated, OnlineBatchSelection, SelectiveBackprop, SelectiveByRank
from orderdp.policies.orderdp import OrderDP, PoolRule, rule_config
from orderdp.policies.schedules import Scheduled, build_schedule, schedule_config
from orderdp.policies.uncertainty import ActiveBias, DynamicUncertainty
from orderdp.policies.wrappers import Balanced, Budget, UniformTail
from orderdp.policy import Policy

__all__ = ["NAMES", "RECORDED", "build", "build_at", "card", "config_of", "summary"]


NAMES: dict[str, type[Policy]] = {
    "orderdp": OrderDP,
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
}


#: Policies that a run records before it trains, so that they cannot be built from parameters.
RECORDED = ("proxy-plan",)


#: Options of every policy, besides its own parameters.
_OPTIONS = ("balanced", "schedule", "tail")


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
    checked_name(name, NAMES, "policy")
    kind = NAMES[name]
    known = list(inspect.signature(kind).parameters)
    for parameter in parameters:
        if parameter not in known:
            raise ConfigError(
                f"policy {name!r} has no parameter {parameter!r}.{suggestion(parameter, [*known, *_OPTIONS])}"
            )
    if kind is Budget and isinstance(parameters.get("policy"), Mapping | str):
        inner = parameters["policy"]
        parameters = {**parameters, "policy": build(**({"name": inner} if isinstance(inner, str) else inner))}
    try:
        policy: Policy = kind(**parameters)
    except TypeError as error:
        raise ConfigError(f"policy {name!r} cannot be made: {error}.") from None
    if balanced:
        policy = Balanced(policy)
    if schedule is not None:
        if not isinstance(schedule, Mapping) or "name" not in schedule:
            raise ConfigError(
                'schedule must be the name of a schedule and its parameters, {"name": "tail", ...}, got '
                f"{schedule!r}."
            )
        policy = Scheduled(policy, build_schedule(**schedule))
    return policy if tail is None else UniformTail(policy, tail)


def build_at(name: str, prune_ratio: float | None, **parameters: Any) -> Policy:
    """Build the policy called `name` with this nominal prune ratio, whatever its parameter is called.

    >>> build_at("kakurenbo", 0.3)
    Kakurenbo(fraction=0.3, tau=0.7, drops=(), factors=(0.8, 0.6, 0.4))

    Args:
        name: One of `NAMES`.
        prune_ratio: Fraction left out; None if the parameters set it.
        **parameters: Further parameters of the policy.
    """
    checked_name(name, NAMES, "policy")
    kind = NAMES[name]
    given_otherwise = "target_ratio" in parameters or {"exploration", "exploitation"} <= set(parameters)
    if prune_ratio is None or given_otherwise:
        return build(name, **parameters)
    return build(name, **{**kind.parameters_at(prune_ratio), **parameters})


def config_of(policy: Policy) -> dict[str, Any]:
    """Return the plain values from which `build` makes an equal policy: its name and its parameters.

    >>> config_of(build("rs2", prune_ratio=0.5))
    {'name': 'rs2', 'prune_ratio': 0.5}
    """
    if isinstance(policy, UniformTail):
        return {**config_of(policy.policy), "tail": policy.tail}
    if isinstance(policy, Scheduled):
        return {**config_of(policy.policy), "schedule": schedule_config(policy.schedule)}
    if isinstance(policy, Balanced):
        return {**config_of(policy.policy), "balanced": True}
    for name, kind in NAMES.items():
        if type(policy) is kind:
            return {"name": name, **{key: _plain(value) for key, value in policy.parameters.items()}}
    raise ConfigError(f"{type(policy).__name__} is no policy with a name; there are {', '.join(NAMES)}.")


def _plain(value: Any) -> Any:
    if isinstance(value, PoolRule):
        return rule_config(value)
    if isinstance(value, Threshold):
        return threshold_config(value)
    if isinstance(value, Policy):
        return config_of(value)
    return list(value) if isinstance(value, tuple) else value
