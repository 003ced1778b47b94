"""The paper's table on optimizers."""

from __future__ import annotations

from typing import Any

from orderdp_paper import printed as paper_numbers
from orderdp_paper.recipes import CARD, CIFAR_MEMORY, CORES, CPU_MEMORY, SMOKE_MEMORY, cifar, cpu, printed_part, smoke
from orderdp_paper.suite import Part, Scale, Suite
from orderdp_paper.tables import lossless_tables

__all__ = ["SUITES"]


#: Learning rate and weight decay by scale; the paper prints only those of SGD.
_OPTIMIZERS: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {"smoke": {}, "cpu": {}, "paper": {}},
    "AdamW": {
        "smoke": {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.01},
        "cpu": {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.05},
        "paper": {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05},
    },
    "LARS": {
        "smoke": {"optimizer": "lars", "lr": 5.0},
        "cpu": {"optimizer": "lars", "lr": 5.0},
        "paper": {"optimizer": "lars", "lr": 5.0},
    },
    "LAMB": {
        "smoke": {"optimizer": "lamb", "lr": 2e-2, "weight_decay": 0.01},
        "cpu": {"optimizer": "lamb", "lr": 2e-2, "weight_decay": 0.02},
        "paper": {"optimizer": "lamb", "lr": 5e-3, "weight_decay": 0.02},
    },
}


def _optimizer_parts(scale: str, base: dict[str, Any], seeds: int, full_run: float, controls: bool) -> tuple[Part, ...]:
    return tuple(
        printed_part(paper_numbers.OPTIMIZERS, name, {**base, **by_scale[scale]}, seeds, full_run, controls)
        for name, by_scale in _OPTIMIZERS.items()
    )


_TABLE_OPTIMIZERS = Suite(
    "table-optimizers",
    "no loss with SGD, AdamW, LARS and LAMB",
    paper_numbers.OPTIMIZERS,
    {
        "smoke": Scale(
            _optimizer_parts("smoke", smoke(optimizer="sgd"), 1, 0.2, controls=True),
            CORES,
            SMOKE_MEMORY,
            "Digits and a plain network.",
        ),
        "cpu": Scale(
            _optimizer_parts("cpu", cpu(optimizer="sgd"), 3, 115.0, controls=True),
            CORES,
            CPU_MEMORY,
            "Fashion-MNIST, a network of nine layers, 10 epochs. Learning rates are ours.",
        ),
        "paper": Scale(
            _optimizer_parts("paper", cifar("resnet50", "cifar10"), 3, 6000.0, controls=False),
            CARD,
            CIFAR_MEMORY,
            "The paper prints the learning rate of SGD only; those of AdamW, LARS and LAMB are ours.",
        ),
    },
    lossless_tables,
    "gaps",
)


SUITES = (_TABLE_OPTIMIZERS,)
