"""The paper's figures on cost: accuracy and time against the ratio, decompositions, usage, time to accuracy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orderdp_paper import printed as paper_numbers
from orderdp_paper.curve_tables import ablation_tables, ratio_tables, time_to_accuracy_tables, usage_tables
from orderdp_paper.recipes import (
    CARD,
    CIFAR_MEMORY,
    CORES,
    CPU_MEMORY,
    FULL,
    INFOBATCH,
    ORDERDP,
    ORDERDP_AS_PRINTED,
    RANDOM,
    REDUCED,
    SMOKE_MEMORY,
    cifar,
    cpu,
    smoke,
)
from orderdp_paper.suite import Method, Part, Scale, Suite

__all__ = ["SUITES"]


_C10, _C100 = "CIFAR-10, ResNet-18", "CIFAR-100, ResNet-18"


_CIFARS = ((_C10, "cifar10"), (_C100, "cifar100"))


_SMOKE = "Digits and a plain network, three epochs."


_CPU = "Fashion-MNIST in place of CIFAR, a network of nine layers, 10 epochs."


# -- accuracy and time against the ratio ----------------------------------------------------------------------------

_TIME_METHODS = (FULL, REDUCED, RANDOM, INFOBATCH, ORDERDP)


_TIME_RATIOS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)


_FIG_TIME = Suite(
    "fig-time",
    "accuracy and time against the ratio, up to ratios InfoBatch cannot reach",
    paper_numbers.TIME,
    {
        "smoke": Scale((Part(_C10, smoke(), _TIME_METHODS, (0.3, 0.7, 0.9), (0,), 0.2),), CORES, SMOKE_MEMORY, _SMOKE),
        "cpu": Scale((Part(_C10, cpu(), _TIME_METHODS, _TIME_RATIOS, (0, 1, 2), 110.0),), CORES, CPU_MEMORY, _CPU),
        "paper": Scale(
            tuple(
                Part(
                    group,
                    cifar("resnet18", data),
                    (FULL, INFOBATCH, ORDERDP),
                    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
                    (0, 1, 2),
                    2400.0,
                )
                for group, data in _CIFARS
            ),
            CARD,
            CIFAR_MEMORY,
            "The figure is printed without numbers; its ratios are guessed. "
            "The pool of OrderDP is our default at all of them.",
        ),
    },
    ratio_tables,
    "ratios",
)


# -- decompositions -------------------------------------------------------------------------------------------------


def _decomposed(ratio: float, *explorations: float) -> tuple[Method, ...]:
    """Return OrderDP at one ratio with pools of several sizes."""
    return tuple(
        Method(f"{e:g} x {(1 - ratio) / e:.2f}", "orderdp", {"exploration": e}, ratios=(ratio,)) for e in explorations
    )


_ABLATION = (
    FULL,
    *_decomposed(0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *_decomposed(0.7, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
    replace(ORDERDP, ratios=(0.1, 0.3, 0.5, 0.7, 0.9)),
)


_ABLATION_SMALL = (FULL, *_decomposed(0.7, 0.3, 0.5, 1.0), replace(ORDERDP, ratios=(0.3, 0.7, 0.9)))


_FIG_ABLATION = Suite(
    "fig-ablation",
    "pools of several sizes at one ratio, and several ratios",
    paper_numbers.ABLATION,
    {
        "smoke": Scale((Part(_C10, smoke(), _ABLATION_SMALL, (), (0,), 0.2),), CORES, SMOKE_MEMORY, _SMOKE),
        "cpu": Scale((Part(_C10, cpu(), _ABLATION, (), (0, 1, 2, 3, 4), 110.0),), CORES, CPU_MEMORY, _CPU),
        "paper": Scale(
            tuple(Part(group, cifar("resnet18", data), _ABLATION, (), (0, 1, 2), 2400.0) for group, data in _CIFARS),
            CARD,
            CIFAR_MEMORY,
            "The figure is printed without numbers; its decompositions are guessed.",
        ),
    },
    ablation_tables,
    "ablation",
)


# -- usage ----------------------------------------------------------------------------------------------------------


def _usage_parts(base: dict[str, Any], long: dict[str, Any], seeds: tuple[int, ...], full_run: float) -> Any:
    """Return the parts: 30 and 50 % for the usual number of epochs, 99 % for enough epochs to use every sample."""
    times = full_run * long["epochs"] / base["epochs"]
    return (
        Part(_C10, base, (RANDOM, ORDERDP), (0.3, 0.5), seeds, full_run),
        Part(_C10, long, (RANDOM, ORDERDP), (0.99,), seeds, times),
    )


_FIG_USAGE = Suite(
    "fig-usage",
    "how often each sample is used, at 30, 50 and 99 %",
    paper_numbers.USAGE,
    {
        "smoke": Scale(
            _usage_parts(smoke(), smoke(epochs=120, evaluate_every=120), (0,), 0.2), CORES, SMOKE_MEMORY, _SMOKE
        ),
        "cpu": Scale(
            _usage_parts(cpu(), cpu(epochs=200, evaluate_every=20), (0,), 110.0),
            CORES,
            CPU_MEMORY,
            f"{_CPU} At 99 %, 200 epochs.",
        ),
        "paper": Scale(
            _usage_parts(cifar("resnet18", "cifar10"), cifar("resnet18", "cifar10"), (0,), 2400.0),
            CARD,
            CIFAR_MEMORY,
            "The dials are ours; the paper prints none for these ratios.",
        ),
    },
    usage_tables,
    "usage",
)


# -- time to accuracy -----------------------------------------------------------------------------------------------

_RACE = (FULL, REDUCED, RANDOM, INFOBATCH, ORDERDP)


_FIG_TIME_TO_ACCURACY = Suite(
    "fig-time-to-accuracy",
    "accuracy over time, at 40 and 70 %",
    paper_numbers.TIME_TO_ACCURACY,
    {
        "smoke": Scale((Part(_C10, smoke(), _RACE, (0.4, 0.7), (0,), 0.2),), CORES, SMOKE_MEMORY, _SMOKE),
        "cpu": Scale((Part(_C10, cpu(), _RACE, (0.4, 0.7), (0, 1, 2), 110.0),), CORES, CPU_MEMORY, _CPU),
        "paper": Scale(
            (
                Part(
                    _C10,
                    cifar("resnet18", "cifar10"),
                    (FULL, RANDOM, INFOBATCH, ORDERDP_AS_PRINTED),
                    (0.4, 0.7),
                    (0, 1, 2),
                    2400.0,
                ),
            ),
            CARD,
            CIFAR_MEMORY,
            "The dials of OrderDP at 40 % are not printed for CIFAR; those of ImageNet are used.",
        ),
    },
    time_to_accuracy_tables,
    "time-to-accuracy",
)


SUITES = (_FIG_TIME, _FIG_ABLATION, _FIG_USAGE, _FIG_TIME_TO_ACCURACY)
