"""Rules that decide what an epoch trains on. One file a policy."""

from __future__ import annotations

from orderdp.policies.active_bias import ActiveBias
from orderdp.policies.adaptive import Adaptive
from orderdp.policies.balanced import Balanced
from orderdp.policies.budget import Budget
from orderdp.policies.calibrated import Calibrated
from orderdp.policies.dynamic_random import DynamicRandom
from orderdp.policies.dynamic_uncertainty import DynamicUncertainty
from orderdp.policies.epsilon_greedy import EpsilonGreedy
from orderdp.policies.full_data import FullData
from orderdp.policies.function_policy import Fixed, FunctionPolicy
from orderdp.policies.infobatch import InfoBatch, InfoBatchQuantile
from orderdp.policies.instance_early_stopping import InstanceEarlyStopping
from orderdp.policies.kakurenbo import Kakurenbo
from orderdp.policies.learned import LossBelow, LossShare, Probability, RelativeLoss, SkipLearned, Unlearned
from orderdp.policies.online_batch_selection import OnlineBatchSelection
from orderdp.policies.orderdp import OrderDP
from orderdp.policies.progressive_dropout import ProgressiveDropout
from orderdp.policies.rank_rules import Mixed, Moving, Trimmed
from orderdp.policies.registry import build, build_at, card, config_of
from orderdp.policies.repb import RePB
from orderdp.policies.replay import Replay
from orderdp.policies.rs2 import RS2
from orderdp.policies.schedules import Constant, Cosine, Exponential, Linear, RatioFunction, Scheduled, Tail, WarmUp
from orderdp.policies.selective_backprop import SelectiveBackprop
from orderdp.policies.selective_by_rank import SelectiveByRank
from orderdp.policies.seta import SeTa
from orderdp.policies.tails import UniformTail
from orderdp.policies.ucb import UCB

__all__ = [
    "RS2",
    "UCB",
    "ActiveBias",
    "Adaptive",
    "Balanced",
    "Budget",
    "Calibrated",
    "Constant",
    "Cosine",
    "DynamicRandom",
    "DynamicUncertainty",
    "EpsilonGreedy",
    "Exponential",
    "Fixed",
    "FullData",
    "FunctionPolicy",
    "InfoBatch",
    "InfoBatchQuantile",
    "InstanceEarlyStopping",
    "Kakurenbo",
    "Linear",
    "LossBelow",
    "LossShare",
    "Mixed",
    "Moving",
    "OnlineBatchSelection",
    "OrderDP",
    "Probability",
    "ProgressiveDropout",
    "RatioFunction",
    "RePB",
    "RelativeLoss",
    "Replay",
    "Scheduled",
    "SeTa",
    "SelectiveBackprop",
    "SelectiveByRank",
    "SkipLearned",
    "Tail",
    "Trimmed",
    "UniformTail",
    "Unlearned",
    "WarmUp",
    "build",
    "build_at",
    "card",
    "config_of",
]
