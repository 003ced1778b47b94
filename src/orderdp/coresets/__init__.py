"""Coresets: methods that select once, before training, what all epochs train on. Files are by what methods need."""

from __future__ import annotations

from orderdp.coresets.base import Method, ScoreMethod
from orderdp.coresets.geometry import (
    CCS,
    ContextualDiversity,
    Craig,
    FacilityLocation,
    GraphCut,
    Herding,
    KCenter,
    Moderate,
    Prototypes,
    StaticRandom,
)
from orderdp.coresets.gradients import GeneralizationPruning, Glister, GradMatch, Influence
from orderdp.coresets.proxy import Proxy
from orderdp.coresets.registry import NAMES, CoresetResult, build, card, config_of, coreset_command, run, summary
from orderdp.coresets.scores import (
    EL2N,
    Cal,
    DeepFool,
    Entropy,
    Forgetting,
    GraNd,
    LeastConfidence,
    Margin,
    MoSo,
    PrecomputedScores,
)
from orderdp.coresets.sources import Arrays, FeatureSource, Labeled, Requirements

__all__ = [
    "CCS",
    "EL2N",
    "NAMES",
    "Arrays",
    "Cal",
    "ContextualDiversity",
    "CoresetResult",
    "Craig",
    "DeepFool",
    "Entropy",
    "FacilityLocation",
    "FeatureSource",
    "Forgetting",
    "GeneralizationPruning",
    "Glister",
    "GraNd",
    "GradMatch",
    "GraphCut",
    "Herding",
    "Influence",
    "KCenter",
    "Labeled",
    "LeastConfidence",
    "Margin",
    "Method",
    "MoSo",
    "Moderate",
    "PrecomputedScores",
    "Prototypes",
    "Proxy",
    "Requirements",
    "ScoreMethod",
    "StaticRandom",
    "build",
    "card",
    "config_of",
    "coreset_command",
    "run",
    "summary",
]
