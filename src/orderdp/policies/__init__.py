"""Rules that decide what an epoch trains on. One file a policy."""

from __future__ import annotations

from orderdp.policies.adaptive import Adaptive
from orderdp.policies.dynamic_random import DynamicRandom
from orderdp.policies.epsilon_greedy import EpsilonGreedy
from orderdp.policies.full_data import FullData
from orderdp.policies.function_policy import Fixed, FunctionPolicy
from orderdp.policies.infobatch import InfoBatch, InfoBatchQuantile
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.rank_rules import Mixed, Moving, Trimmed
from orderdp.policies.registry import build, card, config_of
from orderdp.policies.rs2 import RS2
from orderdp.policies.schedules import Constant, Cosine, Linear, RatioFunction, Scheduled, Tail, WarmUp
from orderdp.policies.ucb import UCB

__all__ = [
    "RS2",
    "UCB",
    "Adaptive",
    "Constant",
    "Cosine",
    "DynamicRandom",
    "EpsilonGreedy",
    "Fixed",
    "FullData",
    "FunctionPolicy",
    "InfoBatch",
    "InfoBatchQuantile",
    "Linear",
    "Mixed",
    "Moving",
    "OrderDP",
    "RatioFunction",
    "Scheduled",
    "Tail",
    "Trimmed",
    "WarmUp",
    "build",
    "card",
    "config_of",
]
