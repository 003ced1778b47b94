"""Policies: they select what an epoch trains on. One file per family."""

from __future__ import annotations

from orderdp.policies.baselines import RS2, DynamicRandom, Fixed, FullData, FunctionPolicy, Replay
from orderdp.policies.infobatch import InfoBatch, InfoBatchQuantile, RePB, SeTa
from orderdp.policies.learned import (
    InstanceEarlyStopping,
    Kakurenbo,
    LossBelow,
    LossShare,
    Probability,
    ProgressiveDropout,
    RelativeLoss,
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
from orderdp.policies.orderdp import Mixed, Moving, OrderDP, Trimmed
from orderdp.policies.registry import build, build_at, card, config_of
from orderdp.policies.schedules import Constant, Cosine, Exponential, Linear, RatioFunction, Scheduled, Tail, WarmUp
from orderdp.policies.wrappers import Balanced, Budget, UniformTail

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
    "SpacedRepetition",
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
