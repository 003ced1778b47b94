"""Static rivals: methods that choose once, before training, what all epochs train on. One file a method."""

from __future__ import annotations

from orderdp.coresets.arrays import Arrays
from orderdp.coresets.cal import Cal
from orderdp.coresets.ccs import CCS
from orderdp.coresets.command import coreset_command
from orderdp.coresets.contextual_diversity import ContextualDiversity
from orderdp.coresets.craig import Craig
from orderdp.coresets.deepfool import DeepFool
from orderdp.coresets.el2n import EL2N
from orderdp.coresets.entropy import Entropy
from orderdp.coresets.facility_location import FacilityLocation
from orderdp.coresets.forgetting import Forgetting
from orderdp.coresets.generalization_pruning import GeneralizationPruning
from orderdp.coresets.glister import Glister
from orderdp.coresets.grad_match import GradMatch
from orderdp.coresets.grand import GraNd
from orderdp.coresets.graph_cut import GraphCut
from orderdp.coresets.herding import Herding
from orderdp.coresets.influence import Influence
from orderdp.coresets.k_center import KCenter
from orderdp.coresets.least_confidence import LeastConfidence
from orderdp.coresets.margin import Margin
from orderdp.coresets.method import Method, ScoreMethod
from orderdp.coresets.moderate import Moderate
from orderdp.coresets.moso import MoSo
from orderdp.coresets.needs import Needs
from orderdp.coresets.outcome import Outcome, run
from orderdp.coresets.own_scores import OwnScores
from orderdp.coresets.prototypes import Prototypes
from orderdp.coresets.proxy import Proxy
from orderdp.coresets.registry import NAMES, build, card, config_of, summary
from orderdp.coresets.source import Labelled, Source
from orderdp.coresets.static_random import StaticRandom

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
