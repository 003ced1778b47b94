"""Policies by name, for the command line and config files."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

from orderdp.errors import ConfigError
from orderdp.naming import checked_name, suggestion
from orderdp.policies.adaptive import Adaptive
from orderdp.policies.dynamic_random import DynamicRandom
from orderdp.policies.epsilon_greedy import EpsilonGreedy
from orderdp.policies.full_data import FullData
from orderdp.policies.infobatch import InfoBatch, InfoBatchQuantile
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.rs2 import RS2
from orderdp.policies.ucb import UCB
from orderdp.policy import Policy

__all__ = ["NAMES", "build", "card", "config_of", "summary"]

NAMES: dict[str, type[Any]] = {
    "orderdp": OrderDP,
    "adaptive": Adaptive,
    "full": FullData,
    "random": DynamicRandom,
    "rs2": RS2,
    "epsilon-greedy": EpsilonGreedy,
    "ucb": UCB,
    "infobatch": InfoBatch,
    "infobatch-quantile": InfoBatchQuantile,
}


def card(name: str) -> str:
    """The card of the policy called `name`: its rule, parameters, cost, guarantees."""
    checked_name(name, NAMES, "policy")
    package = Path(__file__).parent
    # In an installed package the cards lie beside the policies; in a checkout, in its documentation.
    for folder in (package / "cards", package.parents[2] / "docs" / "policies"):
        if (folder / f"{name}.md").exists():
            return (folder / f"{name}.md").read_text(encoding="utf-8")
    raise ConfigError(f"the card of policy {name!r} is missing from this installation. Install orderdp again.")


def summary(name: str) -> str:
    """What the policy called `name` does, in one sentence."""
    return card(name).split("**In one sentence:**")[1].split("\n\n")[0].replace("\n", " ").strip()


def build(name: str, **parameters: Any) -> Policy:
    """The policy called `name` with these parameters.

    >>> build("orderdp", prune_ratio=0.4)
    OrderDP(prune_ratio=0.4)
    """
    checked_name(name, NAMES, "policy")
    kind = NAMES[name]
    known = list(inspect.signature(kind).parameters)
    for parameter in parameters:
        if parameter not in known:
            raise ConfigError(f"policy {name!r} has no parameter {parameter!r}.{suggestion(parameter, known)}")
    try:
        policy: Policy = kind(**parameters)
    except TypeError as error:
        raise ConfigError(f"policy {name!r} cannot be made: {error}.") from None
    return policy


def config_of(policy: Any) -> dict[str, Any]:
    """What `build` needs to make an equal policy: its name and its parameters.

    >>> config_of(build("rs2", prune_ratio=0.5))
    {'name': 'rs2', 'prune_ratio': 0.5}
    """
    for name, kind in NAMES.items():
        if type(policy) is kind:
            own = getattr(policy, "parameters", None)
            return {"name": name, **(dataclasses.asdict(policy) if own is None else own)}
    raise ConfigError(f"{type(policy).__name__} is no policy with a name; there are {', '.join(NAMES)}.")
