"""The paper's main tables: static methods, dynamic methods, ImageNet."""

from __future__ import annotations

from typing import Any

from orderdp_paper import printed as paper_numbers
from orderdp_paper.recipes import (
    CARD,
    CIFAR_MEMORY,
    CORES,
    CPU_MEMORY,
    EPSILON_GREEDY,
    FULL,
    IMAGENET_HOURS,
    IMAGENET_MEMORY,
    INFOBATCH,
    ORDERDP,
    ORDERDP_AS_PRINTED,
    RANDOM,
    REDUCED,
    SMOKE_MEMORY,
    UCB,
    cifar,
    cpu,
    imagenet,
    smoke,
)
from orderdp_paper.suite import Method, Part, Scale, Suite
from orderdp_paper.tables import accuracy_tables, cost_tables, static_tables

__all__ = ["SUITES"]


_RATIOS = (0.3, 0.5, 0.7)


_C10_R18, _C10_R50 = "CIFAR-10, ResNet-18", "CIFAR-10, ResNet-50"


_C100_R18, _C100_R50 = "CIFAR-100, ResNet-18", "CIFAR-100, ResNet-50"


_IMAGENET = "ImageNet-1K, ResNet-50"


_DYNAMIC = (RANDOM, EPSILON_GREEDY, UCB, INFOBATCH)


_CONTROLLED = (FULL, REDUCED, *_DYNAMIC, ORDERDP)


_AS_PRINTED = (FULL, *_DYNAMIC, ORDERDP_AS_PRINTED)


def _asking_a_proxy(name: str, method: str, **parameters: Any) -> Method:
    # The number of epochs that EL2N-20 needs. Set for these runs only, because other suites share the other runs.
    return Method(name, method, parameters, settings={"proxy_epochs": 20})


_STATIC = (
    Method("Static Random", "static-random"),
    _asking_a_proxy("CD", "contextual-diversity"),
    _asking_a_proxy("Herding", "herding"),
    _asking_a_proxy("K-Center", "k-center"),
    _asking_a_proxy("Least Confidence", "least-confidence"),
    _asking_a_proxy("Margin", "margin"),
    _asking_a_proxy("Forgetting", "forgetting"),
    _asking_a_proxy("GraNd-4", "grand", epoch=4),
    _asking_a_proxy("DeepFool", "deepfool"),
    _asking_a_proxy("Craig", "craig"),
    _asking_a_proxy("Glister", "glister"),
    _asking_a_proxy("Influence", "influence"),
    _asking_a_proxy("EL2N-2", "el2n", epoch=2),
    _asking_a_proxy("EL2N-20", "el2n", epoch=20),
    _asking_a_proxy("DP", "generalization-pruning"),
)


_TABLE_STATIC = Suite(
    "table-static",
    "static coresets against OrderDP",
    paper_numbers.STATIC,
    {
        "smoke": Scale(
            (
                Part(
                    _C10_R18,
                    smoke(data="digits?train=700"),
                    (FULL, REDUCED, *_STATIC, ORDERDP),
                    (0.5,),
                    (0,),
                    0.2,
                ),
            ),
            CORES,
            SMOKE_MEMORY,
            "700 digits and a plain network, at 50 % only.",
        ),
        "cpu": Scale(
            (
                Part(
                    _C10_R18,
                    cpu(),
                    (FULL, REDUCED, RANDOM, *_STATIC, ORDERDP),
                    (0.5,),
                    (0, 1, 2),
                    150.0,  # all methods of a seed share the proxy
                ),
            ),
            CORES,
            CPU_MEMORY,
            "Fashion-MNIST in place of CIFAR, a network of nine layers, 10 epochs, at 50 % only.",
        ),
        "paper": Scale(
            tuple(
                Part(group, cifar("resnet18", data), methods, _RATIOS, (0, 1, 2), 2400.0)
                for group, data in ((_C10_R18, "cifar10"), (_C100_R18, "cifar100"))
                for methods in ((FULL, *_STATIC, ORDERDP_AS_PRINTED),)
            ),
            CARD,
            CIFAR_MEMORY,
            "The paper does not say which proxy its static methods ask; here 20 epochs of the same model. "
            "Their cost is counted.",
        ),
    },
    static_tables,
    "gaps",
)


_TABLE_DYNAMIC = Suite(
    "table-dynamic",
    "dynamic methods at 30, 50 and 70 %",
    paper_numbers.DYNAMIC,
    {
        "smoke": Scale(
            (Part(_C10_R18, smoke(), _CONTROLLED, _RATIOS, (0, 1), 0.2),),
            CORES,
            SMOKE_MEMORY,
            "Digits and a plain network, three epochs.",
        ),
        "cpu": Scale(
            (Part(_C10_R18, cpu(), _CONTROLLED, _RATIOS, (0, 1, 2, 3, 4), 110.0),),
            CORES,
            CPU_MEMORY,
            "Fashion-MNIST in place of CIFAR, a network of nine layers, 10 epochs.",
        ),
        "paper": Scale(
            (
                Part(_C10_R18, cifar("resnet18", "cifar10"), _AS_PRINTED, _RATIOS, (0, 1, 2), 2400.0),
                Part(_C10_R50, cifar("resnet50", "cifar10"), _AS_PRINTED, _RATIOS, (0, 1, 2), 6000.0),
                Part(_C100_R18, cifar("resnet18", "cifar100"), _AS_PRINTED, _RATIOS, (0, 1, 2), 2400.0),
                Part(_C100_R50, cifar("resnet50", "cifar100"), _AS_PRINTED, _RATIOS, (0, 1, 2), 6000.0),
            ),
            CARD,
            CIFAR_MEMORY,
            "The dials of OrderDP at 30 and 50 % are not printed; ours are used there.",
        ),
    },
    accuracy_tables,
    "gaps",
)


_STAND_IN = "CIFAR-10 stands in for ImageNet, a network of nine layers for ResNet-50, 10 epochs for 90."


_TABLE_IMAGENET = Suite(
    "table-imagenet",
    "accuracy and time at 40 % on ImageNet",
    paper_numbers.IMAGENET,
    {
        "smoke": Scale(
            (Part(_IMAGENET, smoke(), _CONTROLLED, (0.4,), (0,), 0.2),),
            CORES,
            SMOKE_MEMORY,
            "Digits stand in for ImageNet.",
        ),
        "cpu": Scale(
            (Part(_IMAGENET, cpu("cifar10"), _CONTROLLED, (0.4,), (0, 1, 2), 130.0),), CORES, CPU_MEMORY, _STAND_IN
        ),
        "paper": Scale(
            (Part(_IMAGENET, imagenet("resnet50"), _AS_PRINTED, (0.4,), (0, 1, 2), IMAGENET_HOURS["resnet50"] * 3600),),
            CARD,
            IMAGENET_MEMORY,
            "One card in place of two.",
        ),
    },
    cost_tables,
    "gaps",
)


_TABLE_IMAGENET_RATIOS = Suite(
    "table-imagenet-ratios",
    "30, 40 and 60 % on ImageNet",
    paper_numbers.IMAGENET_RATIOS,
    {
        "smoke": Scale(
            (Part(_IMAGENET, smoke(), (FULL, REDUCED, RANDOM, INFOBATCH, ORDERDP), (0.3, 0.4, 0.6), (0,), 0.2),),
            CORES,
            SMOKE_MEMORY,
            "Digits stand in for ImageNet.",
        ),
        "cpu": Scale(
            (
                Part(
                    _IMAGENET,
                    cpu("cifar10"),
                    (FULL, REDUCED, RANDOM, INFOBATCH, ORDERDP),
                    (0.3, 0.4, 0.6),
                    (0, 1, 2),
                    130.0,
                ),
            ),
            CORES,
            CPU_MEMORY,
            _STAND_IN,
        ),
        "paper": Scale(
            (
                Part(
                    _IMAGENET,
                    imagenet("resnet50"),
                    (FULL, INFOBATCH, ORDERDP_AS_PRINTED),
                    (0.3, 0.4, 0.6),
                    (0, 1, 2),
                    IMAGENET_HOURS["resnet50"] * 3600,
                ),
            ),
            CARD,
            IMAGENET_MEMORY,
            "One card in place of two. The dials of OrderDP at 30 and 60 % are not printed; ours are used there.",
        ),
    },
    accuracy_tables,
    "gaps",
)


SUITES = (_TABLE_STATIC, _TABLE_DYNAMIC, _TABLE_IMAGENET, _TABLE_IMAGENET_RATIOS)
