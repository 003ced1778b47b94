"""Coresets: methods that select once, before training, what all epochs train on. One file per family."""

from __future__ import annotations

from orderdp.coresets.base import Method, ScoreMethod
from orderdp.coresets.geometry import CCS, ContextualDiversity, Herding, KCenter, Moderate, Prototypes, StaticRandom
from orderdp.coresets.gradient_matching import Glister, GradMatch
from orderdp.coresets.influence import GeneralizationPruning, Influence
from orderdp.coresets.proxy import Proxy
from orderdp.coresets.registry import NAMES, CoresetResult, build, card, config_of, coreset_command, run, summary
from orderdp.coresets.sources import Arrays, FeatureSource, Labeled, Requirements
from orderdp.coresets.submodular import Craig, FacilityLocation, GraphCut
from orderdp.coresets.training_dynamics import EL2N, Forgetting, GraNd, MoSo, PrecomputedScores
from orderdp.coresets.uncertainty import Cal, DeepFool, Entropy, LeastConfidence, Margin

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
