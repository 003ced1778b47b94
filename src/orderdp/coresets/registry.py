"""Coreset methods by name, and running one."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orderdp._files import replacing
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
from orderdp.coresets.sources import Arrays, FeatureSource
from orderdp.errors import ConfigError
from orderdp.policy import Selection
from orderdp.registry import Registry, one_sentence, read_card

__all__ = ["NAMES", "CoresetResult", "build", "card", "config_of", "coreset_command", "run", "summary"]


NAMES: Registry[Method] = Registry(
    Method,
    "coreset method",
    {
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
        "own-scores": PrecomputedScores,
    },
)
"""Coreset methods by name, for the command line and config files."""


def card(name: str) -> str:
    """Return the card of a method: its rule, parameters, cost, guarantees.

    Args:
        name: Name of the method.
    """
    NAMES.find(name)
    return read_card("coresets", name)


def summary(name: str) -> str:
    """Return one sentence about a method.

    Args:
        name: Name of the method.
    """
    return one_sentence(card(name))


def build(name: str, **parameters: Any) -> Method:
    """Build a method by name.

    >>> build("el2n", epoch=2)
    EL2N(balanced=True, epoch=2, repeats=None)

    Args:
        name: Name of the method, one of `NAMES`.
        **parameters: Its parameters.
    """
    return NAMES.build(name, **parameters)


def config_of(method: Method) -> dict[str, Any]:
    """Return the name and parameters from which `build` makes an equal method.

    >>> config_of(build("k-center"))
    {'name': 'k-center', 'balanced': True}

    Args:
        method: The method.
    """
    return NAMES.config(method)


@dataclass(frozen=True, eq=False)
class CoresetResult:
    """Result of a coreset method: its selection and its cost.

    Attributes:
        selection: Indices, and weights if the method has them.
        scores: One number per sample of the data set, if the method has them; the largest are kept.
        method: The method in one line.
        prune_ratio: Fraction left out.
        proxy_seconds: Time that the proxy took for the requirements of this method, recorded before or not.
        selection_seconds: Time of the selection itself.
    """

    selection: Selection
    scores: np.ndarray | None
    method: str
    prune_ratio: float
    proxy_seconds: float
    selection_seconds: float

    @property
    def seconds(self) -> float:
        """Time to add to that of training: proxy and selection."""
        return self.proxy_seconds + self.selection_seconds

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an .npz file, under a temporary name that is then renamed.

        Args:
            path: A path that ends in .npz.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise ConfigError(f"the file of a selection must end in .npz, got {os.fspath(path)!r}.")
        arrays: dict[str, Any] = {"indices": self.selection.indices, "method": self.method}
        arrays |= {"prune_ratio": self.prune_ratio, "proxy_seconds": self.proxy_seconds}
        arrays |= {"selection_seconds": self.selection_seconds}
        arrays |= {} if self.selection.weights is None else {"weights": self.selection.weights}
        arrays |= {} if self.scores is None else {"scores": self.scores}
        with replacing(path, ".npz") as temporary:
            np.savez(temporary, **arrays)


def run(
    method: Method | str, proxy: FeatureSource, prune_ratio: float, *, seed: int, **parameters: Any
) -> CoresetResult:
    """Select, and measure the cost.

    Args:
        method: A method, or the name of one.
        proxy: A `Proxy`, or `Arrays`.
        prune_ratio: Fraction left out, in [0, 1).
        seed: Seed of all random draws.
        parameters: Parameters of the method, if it is given by name.
    """
    chosen = build(method, **parameters) if isinstance(method, str) else method
    if parameters and not isinstance(method, str):
        raise ConfigError(f"parameters must come with the name of a method, got them with {method!r}.")
    task = chosen.task(proxy, prune_ratio, seed)
    start = time.perf_counter()
    before = proxy.seconds_for(chosen.needs)
    scores = chosen.rate(proxy, seed) if isinstance(chosen, ScoreMethod) else None
    selection = chosen.choose(task) if scores is None else task.largest(scores)
    took, of_proxy = time.perf_counter() - start, proxy.seconds_for(chosen.needs)
    # Work that the proxy did just now is in both times.
    return CoresetResult(selection, scores, repr(chosen), prune_ratio, of_proxy, max(0.0, took - (of_proxy - before)))


def coreset_command(
    method: str,
    prune_ratio: float,
    out: str | os.PathLike[str],
    *,
    proxy: FeatureSource | None = None,
    from_features: str | os.PathLike[str] | None = None,
    seed: int = 0,
    **parameters: Any,
) -> CoresetResult:
    """Select, and write indices, weights, scores and cost to `out`.

    Args:
        method: Name of a method.
        prune_ratio: Fraction left out, in [0, 1).
        out: Path of an .npz file.
        proxy: Source of the arrays: a `Proxy` on a data set; or
        from_features: an .npz file with any of features, logits, labels, correct and scores (see `Arrays.load`).
            Without labels in it, classes do not matter.
        seed: Seed of all random draws.
        parameters: Parameters of the method.
    """
    if (proxy is None) == (from_features is None):
        raise ConfigError("give either a data set or --from-features FILE.")
    if Path(out).suffix != ".npz":
        raise ConfigError(f"--out must end in .npz, got {os.fspath(out)!r}.")
    Path(out).parent.mkdir(parents=True, exist_ok=True)  # before any work
    build(method, **parameters)  # report a wrong name or parameter before a large file is read
    source = Arrays.load(from_features) if proxy is None and from_features is not None else proxy
    assert source is not None
    if source.labels is None:
        parameters.setdefault("balanced", False)
    outcome = run(method, source, prune_ratio, seed=seed, **parameters)
    outcome.save(out)
    return outcome
