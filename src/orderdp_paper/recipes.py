"""Recipes of the suites at each scale, and the methods that the suites compare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orderdp.experiments.config import preset_values
from orderdp_paper.printed import Printed
from orderdp_paper.suite import Method, Part

__all__ = [
    "CARD",
    "CIFAR_MEMORY",
    "CORES",
    "CPU_MEMORY",
    "EPSILON_GREEDY",
    "FULL",
    "IMAGENET_HOURS",
    "IMAGENET_MEMORY",
    "INFOBATCH",
    "ORDERDP",
    "ORDERDP_AS_PRINTED",
    "RANDOM",
    "REDUCED",
    "SMOKE_MEMORY",
    "UCB",
    "at",
    "cifar",
    "cpu",
    "imagenet",
    "printed_part",
    "smoke",
]


# -- methods --------------------------------------------------------------------------------------------------------

FULL = Method("Full data", "full")


REDUCED = Method("Fewer epochs", "reduced")


RANDOM = Method("Dynamic Random", "random")


EPSILON_GREEDY = Method("Epsilon-greedy", "epsilon-greedy")


UCB = Method("UCB", "ucb")


#: InfoBatch as in the paper: without annealing, at the measured ratio.
INFOBATCH = Method("InfoBatch", "infobatch", {"annealing": None}, matched=True)


ORDERDP = Method("OrderDP", "orderdp")


#: The text gives exploration and exploitation for 70 % (0.5 x 0.6), the authors' code those for ImageNet at 40 %
#: (0.75 x 0.8). For other ratios neither gives any, and the pool has the library's default size.
ORDERDP_AS_PRINTED = replace(ORDERDP, at_ratio={0.7: {"exploration": 0.5}, 0.4: {"exploration": 0.75}})


def at(method: Method, *ratios: float) -> Method:
    """Return the method with its own ratios."""
    return replace(method, ratios=ratios)


# -- recipes --------------------------------------------------------------------------------------------------------

SMOKE_MEMORY = "0.5 GB"


CPU_MEMORY = "1 GB a job"


CIFAR_MEMORY = "a card of 8 GB"


IMAGENET_MEMORY = "a card of 48 GB"


CORES = "two cores"


CARD = "one L40 card"


#: Hours of a run with all data on one GPU, as the command uses. The paper took 35.2 hours on two GPUs for ResNet-50;
#: the value for ResNet-18 is estimated from it.
IMAGENET_HOURS = {"resnet18": 28.0, "resnet50": 70.4}


def smoke(**changes: Any) -> dict[str, Any]:
    """Return a recipe for runs of seconds: handwritten digits, a plain network, three epochs."""
    base = {"data": "digits", "model": "mlp", "width": 32, "epochs": 3, "batch_size": 32, "lr": 0.1}
    return {**base, **changes}


def cpu(data: str = "fashion-mnist", **changes: Any) -> dict[str, Any]:
    """Return a recipe for two minutes per run: the compact network at width 8, ten epochs."""
    return {**preset_values("cpu"), "width": 8, "data": data, **changes}


def cifar(model: str, data: str, **changes: Any) -> dict[str, Any]:
    """Return the paper's CIFAR recipe for "resnet18" or "resnet50"."""
    return {**preset_values(f"paper-cifar-{model}"), "data": data, **changes}


def imagenet(model: str, **changes: Any) -> dict[str, Any]:
    """Return the paper's ImageNet recipe for "resnet18" or "resnet50"."""
    return {**preset_values(f"paper-imagenet-{model}"), "data": "imagenet", **changes}


def printed_part(
    printed: Printed, group: str, base: dict[str, Any], seeds: int, full_run: float, controls: bool = True
) -> Part:
    """Build a part: full data, each method at the ratio printed for it in a group, and controls at OrderDP's ratio."""
    methods = _at_printed_ratios(printed, group, controls)
    return Part(group, base, methods, (), tuple(range(seeds)), full_run)


def _at_printed_ratios(printed: Printed, group: str, controls: bool) -> tuple[Method, ...]:
    """Return full data, each method at the ratio printed for it, and controls at OrderDP's ratio."""
    ratios = {
        method.name: round(number.value / 100, 4)
        for method in (INFOBATCH, ORDERDP)
        if (number := printed.number(group, method.name, "saved")) is not None
    }
    methods = tuple(at(method, ratios[method.name]) for method in (INFOBATCH, ORDERDP) if method.name in ratios)
    more = (at(REDUCED, ratios["OrderDP"]), at(RANDOM, ratios["OrderDP"])) if controls else ()
    return (FULL, *more, *methods)
