"""Static methods by name, for the command line and config files."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from orderdp.cards import one_sentence, read_card
from orderdp.coresets.cal import Cal
from orderdp.coresets.ccs import CCS
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
from orderdp.coresets.method import Method
from orderdp.coresets.moderate import Moderate
from orderdp.coresets.moso import MoSo
from orderdp.coresets.own_scores import OwnScores
from orderdp.coresets.prototypes import Prototypes
from orderdp.coresets.static_random import StaticRandom
from orderdp.errors import ConfigError
from orderdp.naming import checked_name, suggestion

__all__ = ["NAMES", "build", "card", "config_of", "summary"]

NAMES: dict[str, type[Method]] = {
    "static-random": StaticRandom,
    "contextual-diversity": ContextualDiversity,
    "herding": Herding,
    "k-center": KCenter,
    "least-confidence": LeastConfidence,
    "entropy": Entropy,
    "margin": Margin,
    "forgetting": Forgetting,
    "grand": GraNd,
    "el2n": EL2N,
    "deepfool": DeepFool,
    "craig": Craig,
    "grad-match": GradMatch,
    "glister": Glister,
    "influence": Influence,
    "generalization-pruning": GeneralizationPruning,
    "prototypes": Prototypes,
    "facility-location": FacilityLocation,
    "graph-cut": GraphCut,
    "cal": Cal,
    "moso": MoSo,
    "ccs": CCS,
    "moderate": Moderate,
    "own-scores": OwnScores,
}


def card(name: str) -> str:
    """The card of the method called `name`: its rule, parameters, cost, guarantees."""
    checked_name(name, NAMES, "coreset method")
    return read_card("coresets", name)


def summary(name: str) -> str:
    """What the method called `name` does, in one sentence."""
    return one_sentence(card(name))


def build(name: str, **parameters: Any) -> Method:
    """The method called `name` with these parameters.

    >>> build("el2n", epoch=2)
    EL2N(balanced=True, epoch=2, repeats=None)
    """
    kind = NAMES[checked_name(name, NAMES, "coreset method")]
    known = list(inspect.signature(kind).parameters)
    for parameter in parameters:
        if parameter not in known:
            raise ConfigError(f"coreset method {name!r} has no parameter {parameter!r}.{suggestion(parameter, known)}")
    return kind(**parameters)


def config_of(method: Method) -> dict[str, Any]:
    """What `build` needs to make an equal method: its name and its parameters.

    >>> config_of(build("k-center"))
    {'name': 'k-center', 'balanced': True}
    """
    for name, kind in NAMES.items():
        if type(method) is kind:
            fields = (field.name for field in dataclasses.fields(method) if field.init)
            return {"name": name, **{field: getattr(method, field) for field in fields}}
    raise ConfigError(f"{type(method).__name__} is no coreset method with a name; there are {', '.join(NAMES)}.")
