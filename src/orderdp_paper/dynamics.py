"""The paper's tables on the course of training (kept sets, directions, stability), and its first figure."""

from __future__ import annotations

from orderdp_paper import printed as paper_numbers
from orderdp_paper.curve_tables import motivation_tables
from orderdp_paper.recipes import (
    CARD,
    CIFAR_MEMORY,
    CORES,
    CPU_MEMORY,
    EPSILON_GREEDY,
    FULL,
    INFOBATCH,
    ORDERDP,
    ORDERDP_AS_PRINTED,
    RANDOM,
    SMOKE_MEMORY,
    UCB,
    cifar,
    cpu,
    smoke,
)
from orderdp_paper.stage_tables import stability_tables, stage_tables
from orderdp_paper.suite import Method, Part, Scale, Suite

__all__ = ["SUITES"]


_DIFFERS_SMOKE = "Digits and a plain network, five epochs."


_DIFFERS_CPU = "Fashion-MNIST in place of CIFAR-100, a network of nine layers, 10 epochs."


def _scales(
    methods: tuple[Method, ...],
    ratios: tuple[float, ...],
    paper_model: str = "resnet18",
    paper_seeds: int = 5,
    paper_lr: float = 0.03,
    cpu_seeds: int = 5,
    smoke_seeds: int = 1,
    beside: str = "CIFAR-100, ResNet-18",
    paper_time: float = 3000.0,
    differs: str = "",
    looks: int = 0,
) -> dict[str, Scale]:
    as_printed = tuple(
        ORDERDP_AS_PRINTED if method is ORDERDP else method for method in methods if method is not RANDOM
    )
    base = cifar(paper_model, "cifar100", lr=paper_lr)
    return {
        "smoke": Scale(
            (Part(beside, smoke(epochs=5), methods, ratios, tuple(range(smoke_seeds)), 0.5),),
            CORES,
            SMOKE_MEMORY,
            _DIFFERS_SMOKE,
        ),
        "cpu": Scale(
            (Part(beside, cpu(), methods, ratios, tuple(range(cpu_seeds)), 150.0, looks),),
            CORES,
            CPU_MEMORY,
            _DIFFERS_CPU,
        ),
        "paper": Scale(
            (Part(beside, base, as_printed, ratios, tuple(range(paper_seeds)), paper_time, looks),),
            CARD,
            CIFAR_MEMORY,
            differs or "The dials of OrderDP at 40 % are not printed for CIFAR; those of ImageNet are used.",
        ),
    }


_TABLE_JACCARD = Suite(
    "table-jaccard",
    "how much of the kept set stays from epoch to epoch",
    paper_numbers.JACCARD,
    _scales((RANDOM, INFOBATCH, ORDERDP), (0.4, 0.7), smoke_seeds=2),
    stage_tables("jaccard"),
    "stages",
)


_TABLE_COSINE = Suite(
    "table-cosine",
    "whether the gradient of what is kept points where that of all data points",
    paper_numbers.COSINE,
    _scales((RANDOM, INFOBATCH, ORDERDP), (0.4, 0.7), looks=10),
    stage_tables("cosine"),
    "stages",
    diagnose=True,
)


_TABLE_STABILITY = Suite(
    "table-stability",
    "accuracy and gradient norm over repeated runs, stage by stage",
    paper_numbers.STABILITY,
    _scales(
        (FULL, RANDOM, EPSILON_GREEDY, UCB, INFOBATCH, ORDERDP),
        (0.61,),
        paper_model="resnet50",
        paper_seeds=10,
        smoke_seeds=2,
        beside="CIFAR-100, ResNet-50 (ResNet-18 by the text)",
        paper_time=7000.0,
        differs="ResNet-50, as the caption has it and as the accuracy of full data suggests; the text has ResNet-18.",
    ),
    stability_tables,
    "stability",
    diagnose="steps",
)


_FIG_MOTIVATION = Suite(
    "fig-motivation",
    "accuracy and gradient norm during training, at 70 %",
    paper_numbers.MOTIVATION,
    _scales((FULL, INFOBATCH, ORDERDP), (0.7,), paper_seeds=1, paper_lr=0.2, cpu_seeds=3, differs="One run of each."),
    motivation_tables,
    "motivation",
    diagnose="steps",
)


SUITES = (_TABLE_JACCARD, _TABLE_STABILITY, _TABLE_COSINE, _FIG_MOTIVATION)
