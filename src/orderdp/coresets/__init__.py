"""Static rivals: methods that choose once, before training, what all epochs train on. One file a method."""

from __future__ import annotations

from orderdp.coresets.arrays import Arrays
from orderdp.coresets.base import Labelled, Method, Needs, ScoreMethod, Source
from orderdp.coresets.geometry import CCS, ContextualDiversity, Herding, KCenter, Moderate, Prototypes, StaticRandom
from orderdp.coresets.gradient_matching import Glister, GradMatch
from orderdp.coresets.influence import GeneralizationPruning, Influence
from orderdp.coresets.proxy import Proxy
from orderdp.coresets.registry import NAMES, Outcome, build, card, config_of, coreset_command, run, summary
from orderdp.coresets.submodular import Craig, FacilityLocation, GraphCut
from orderdp.coresets.training_dynamics import EL2N, Forgetting, GraNd, MoSo, OwnScores
from orderdp.coresets.uncertainty import Cal, DeepFool, Entropy, LeastConfidence, Margin

__all__ = [
    "CCS",
    "EL2N",
    "NAMES",
    "Arrays",
    "Cal",
    "ContextualDiversity",
    "Craig",
    "DeepFool",
    "Entropy",
    "FacilityLocation",
    "Forgetting",
    "GeneralizationPruning",
    "Glister",
    "GraNd",
    "GradMatch",
    "GraphCut",
    "Herding",
    "Influence",
    "KCenter",
    "Labelled",
    "LeastConfidence",
    "Margin",
    "Method",
    "MoSo",
    "Moderate",
    "Needs",
    "Outcome",
    "OwnScores",
    "Prototypes",
    "Proxy",
    "ScoreMethod",
    "Source",
    "StaticRandom",
    "build",
    "card",
    "config_of",
    "coreset_command",
    "run",
    "summary",
]
