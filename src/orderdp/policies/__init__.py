"""Rules that decide what an epoch trains on. One file a policy."""

from __future__ import annotations

from orderdp.policies.dynamic_random import DynamicRandom
from orderdp.policies.epsilon_greedy import EpsilonGreedy
from orderdp.policies.full_data import FullData
from orderdp.policies.function_policy import Fixed, FunctionPolicy
from orderdp.policies.infobatch import InfoBatch, InfoBatchQuantile
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.registry import build, card, config_of
from orderdp.policies.rs2 import RS2
from orderdp.policies.ucb import UCB

__all__ = [
    "RS2",
    "UCB",
    "DynamicRandom",
    "EpsilonGreedy",
    "Fixed",
    "FullData",
    "FunctionPolicy",
    "InfoBatch",
    "InfoBatchQuantile",
    "OrderDP",
    "build",
    "card",
    "config_of",
]
